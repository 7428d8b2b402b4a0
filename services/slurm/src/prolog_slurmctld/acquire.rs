//! The acquisition of a partition: request, wait in the queue of the proxy, and read its configuration.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use ipu_core::{AgentId, Owner, PartitionId, Topology};
use ipu_proxy_client::{
    ClientError, HoldState, IpuofConfigDocument, OnNoCapacity, OwnerDocument, PartitionDocument, ProxyClient,
    PutPartition,
};
use ipu_slurm::conf::{ConfFiles, ModelConf};
use ipu_slurm::text::proxy_failure;
use ipu_slurm::{OWNER_KIND, PrologRequest, RunKey, RunStart};
use tokio::time::Instant;

use super::acquire_error::AcquireError;
use super::admin_comment::AdminCommentWriter;
use super::current::JobFile;
use crate::failure::Failure;
use crate::partition::describe_wait;
use crate::proxy::{
    has_other_properties, is_about_machines, is_not_found, is_old_attempt, is_permanent, release_options,
};
use crate::run_file::{FileState, RunFile};

/// Wait of one request in the queue of the proxy, and so the interval of updates of AdminComment.
const REQUEST_WAIT: Duration = Duration::from_secs(5);
/// Pause after a request that failed, or was answered at once. It doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Maximum pause.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Wait for the answer to a request that leaves the queue. The agent removes what is left.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(5);

/// The request of a run, and the limit of its wait.
pub(super) struct Acquisition<'a> {
    pub(super) proxy: ProxyClient,
    pub(super) partition: PartitionId,
    pub(super) request: PutPartition,
    pub(super) model: &'a str,
    pub(super) deadline: Instant,
    pub(super) job_file: &'a JobFile<'a>,
    /// The id of this hook in the file of the job.
    pub(super) hook: String,
    /// The attempt that was requested last.
    pub(super) attempt: Cell<Option<u32>>,
}

/// An active partition that no process has used since its last reset.
pub(super) struct Acquired {
    pub(super) partition: PartitionDocument,
    pub(super) config: IpuofConfigDocument,
}

/// The next thing to ask the proxy for.
#[derive(Clone, Copy)]
enum RequestStep {
    /// Whether an earlier hook of the run has a partition.
    Look,
    /// The partition, for this attempt.
    Put { attempt: u32 },
}

/// The progress of one request.
enum StepProgress {
    Done(Box<Acquired>),
    Next(RequestStep),
    /// The sentence says what the request waits for.
    Wait(RequestStep, String),
}

/// The facts that choose the start of a hook.
pub(super) struct StartChoice<'a> {
    pub(super) cluster: &'a str,
    pub(super) key: &'a RunKey,
    pub(super) request: &'a PutPartition,
    /// The files of earlier hooks with the job id.
    pub(super) earlier: &'a [RunFile],
}

impl StartChoice<'_> {
    /// Returns the start that an earlier hook of the run did not hand to tasks.
    pub(super) fn unused(&self) -> Option<&RunStart> {
        let mut pending = self.starts_with(FileState::Pending);
        pending.find(|start| start.key == *self.key)
    }

    /// Chooses the start, and returns the state of its file: pending if no task can have used its partition.
    /// The ledger has the starts whose partitions may have been used. Waits for the proxy, and keeps
    /// AdminComment up to date.
    pub(super) async fn choose(
        &self,
        proxy: &ProxyClient,
        deadline: Instant,
        comment: &mut AdminCommentWriter<'_>,
    ) -> Result<(RunStart, FileState), AcquireError> {
        let mut pause = MIN_PAUSE;
        loop {
            let error = match proxy.partitions().await {
                Ok(partitions) => return Ok(self.choose_from(&partitions)),
                Err(error) => error,
            };
            let problem = Failure::from(error).0;
            let sentence = proxy_failure(proxy.url(), &problem);
            if deadline <= Instant::now() {
                return Err(AcquireError::TimedOut(sentence));
            }
            comment.write(&sentence).await;
            tokio::time::sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
        }
    }

    fn choose_from(&self, partitions: &[PartitionDocument]) -> (RunStart, FileState) {
        let start_of = |partition: &PartitionDocument| {
            let owner = partition.owner.as_ref()?;
            let is_ours = owner.kind == OWNER_KIND && owner.namespace == self.cluster;
            RunStart::from_uid(&owner.uid).ok().filter(|_| is_ours)
        };
        let in_ledger: Vec<(RunStart, &PartitionDocument)> = partitions
            .iter()
            .filter_map(|partition| Some((start_of(partition)?, partition)))
            .collect();
        // Another job with the key may have requested something else.
        let unused = self.unused().filter(|unused| {
            let mut entries = in_ledger.iter().filter(|(start, _)| start == *unused);
            entries.all(|(_, partition)| self.has_requested(partition))
        });
        // After the loss of the ledger, a partition has no owner.
        let is_quarantined = |start: &RunStart| {
            let id = start
                .owner(self.cluster)
                .ok()
                .map(|owner| owner.job.partition_id(0));
            let mut without_owner = partitions.iter().filter(|partition| partition.owner.is_none());
            without_owner.any(|partition| Some(&partition.id) == id.as_ref())
        };
        let used = self.highest_used().map(|number| RunStart {
            key: self.key.clone(),
            number,
        });
        let own_files = self.earlier.iter().filter(|file| file.start.key == *self.key);
        let quarantined = own_files.flat_map(RunFile::known_starts).filter(is_quarantined);
        let in_files: Vec<RunStart> = quarantined.chain(used).collect();
        let known: Vec<&RunStart> = in_ledger
            .iter()
            .map(|(start, _)| start)
            .chain(&in_files)
            .collect();
        let start = RunStart::choose(self.key, unused, known.iter().copied());
        let state = if unused == Some(&start) || !known.contains(&&start) {
            FileState::Pending
        } else {
            FileState::Undecided
        };
        (start, state)
    }

    /// Returns whether the request of this hook goes on with a partition.
    fn has_requested(&self, partition: &PartitionDocument) -> bool {
        let controller = partition.controller.as_ref();
        let other_controller = controller
            .is_some_and(|controller| self.request.controller.as_deref() != Some(controller.name.as_str()));
        partition.size == self.request.size
            && Some(partition.gcds) == self.request.gcds
            && partition.reconfigurable == self.request.reconfigurable
            && partition.account == self.request.account
            && !other_controller
    }

    /// Returns the highest start of the run whose partition a task may have used, according to the files.
    pub(super) fn highest_used(&self) -> Option<u32> {
        let own = self.earlier.iter().filter(|file| file.start.key == *self.key);
        own.filter_map(RunFile::highest_used).max()
    }

    /// Returns the starts of earlier runs of the job id, according to the files.
    pub(super) fn left(&self) -> Vec<RunStart> {
        let known = self.earlier.iter().flat_map(RunFile::known_starts);
        let left: BTreeSet<RunStart> = known.filter(|start| start.key != *self.key).collect();
        left.into_iter().collect()
    }

    fn starts_with(&self, state: FileState) -> impl Iterator<Item = &RunStart> {
        let files = self.earlier.iter().filter(move |file| file.state == state);
        files.map(|file| &file.start)
    }
}

/// Returns the request of a run.
pub(super) fn put_request(
    owner: &Owner,
    request: &PrologRequest,
    model: &ModelConf,
    machines: &[AgentId],
    time_limit: Option<u64>,
) -> PutPartition {
    let mut put = PutPartition::new(OwnerDocument::from(owner), request.ipus.ipus.get());
    put.gcds = Some(request.ipus.gcds);
    put.reconfigurable = request.ipus.reconfigurable || model.use_reconfig_partition();
    put.controller = Some(model.api_address());
    put.max_runtime_seconds = time_limit;
    put.account = request.account.as_ref().map(ToString::to_string);
    put.machines = (!machines.is_empty()).then(|| machines.iter().map(ToString::to_string).collect());
    put
}

/// Takes the request of a start from the queue, or releases its partition, unless a hook has taken it over
/// with a later attempt than `attempt`. The agent repeats a failed release.
pub(super) async fn withdraw(
    proxy: &ProxyClient,
    conf: &ConfFiles,
    cluster: &str,
    start: &RunStart,
    attempt: Option<u32>,
) {
    let Ok(owner) = start.owner(cluster) else {
        return;
    };
    let id = owner.job.partition_id(0);
    let delete = async {
        let found = proxy.partition(&id).await?;
        let mut options = release_options(conf, start, Some(&found));
        options.attempt = attempt.or(Some(found.attempt));
        proxy.delete(&id, &options).await
    };
    let _ = tokio::time::timeout(WITHDRAW_TIMEOUT, delete).await;
}

#[cfg(test)]
mod tests;

impl Acquisition<'_> {
    /// Waits until the largest partition that fits on the machines of the job is active.
    pub(super) async fn run_on_machines(
        &mut self,
        comment: &mut AdminCommentWriter<'_>,
    ) -> Result<Acquired, AcquireError> {
        loop {
            match self.run(comment).await {
                // The machines are no neighbours, or do not begin at a multiple of the size. An earlier hook
                // of the run may have found that, and requested less.
                Err(AcquireError::NoPlace(_) | AcquireError::OtherProperties(_))
                    if self.request.machines.is_some() && self.request.size > Topology::MACHINE_IPUS =>
                {
                    self.request.size /= 2;
                }
                result => return result,
            }
        }
    }

    /// Waits until the partition is active, and keeps AdminComment up to date.
    async fn run(&self, comment: &mut AdminCommentWriter<'_>) -> Result<Acquired, AcquireError> {
        let deadline = self.deadline;
        let (mut step, mut pause) = (RequestStep::Look, MIN_PAUSE);
        loop {
            // A later hook of the job writes its file before it has a partition, which a further request of
            // this hook would reset.
            self.job_file.ensure_own(&self.hook)?;
            let asked = Instant::now();
            let remaining = deadline.saturating_duration_since(asked);
            let sentence = match self.advance(step, remaining).await {
                Ok(StepProgress::Done(acquired)) => return Ok(*acquired),
                Ok(StepProgress::Next(next)) => {
                    step = next;
                    continue;
                }
                Ok(StepProgress::Wait(next, sentence)) => {
                    step = next;
                    sentence
                }
                Err(error) if is_old_attempt(&error) => {
                    return Err(AcquireError::Superseded(
                        "a later PrologSlurmctld of this run has the partition".into(),
                    ));
                }
                Err(error) if has_other_properties(&error) => {
                    return Err(AcquireError::OtherProperties(Failure::from(error).0));
                }
                Err(error) if is_about_machines(&error) => {
                    return Err(AcquireError::NoPlace(Failure::from(error).0));
                }
                Err(error) if is_permanent(&error) => {
                    return Err(AcquireError::Refused(Failure::from(error).0));
                }
                Err(error) => proxy_failure(self.proxy.url(), &Failure::from(error).0),
            };
            if deadline <= Instant::now() {
                return Err(AcquireError::TimedOut(sentence));
            }
            comment.write(&sentence).await;
            // A request that waited at the proxy needs no pause.
            let remaining = deadline.saturating_duration_since(Instant::now());
            tokio::time::sleep(pause.saturating_sub(asked.elapsed()).min(remaining)).await;
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
        }
    }

    async fn advance(&self, step: RequestStep, remaining: Duration) -> Result<StepProgress, ClientError> {
        match step {
            RequestStep::Look => self.look().await,
            RequestStep::Put { attempt } => self.put(attempt, remaining).await,
        }
    }

    /// Chooses the attempt: a partition that an earlier hook of this run got may have been used, if slurmctld
    /// has forgotten the start. The next attempt resets it.
    async fn look(&self) -> Result<StepProgress, ClientError> {
        let attempt = match self.proxy.partition(&self.partition).await {
            Ok(found) if found.state == HoldState::Waiting => found.attempt,
            Ok(found) if found.state == HoldState::Quarantined => 0,
            Ok(found) => found.attempt.saturating_add(1),
            Err(error) if is_not_found(&error) => 0,
            Err(error) => return Err(error),
        };
        Ok(StepProgress::Next(RequestStep::Put { attempt }))
    }

    async fn put(&self, attempt: u32, remaining: Duration) -> Result<StepProgress, ClientError> {
        let mut request = self.request.clone();
        request.attempt = attempt;
        self.attempt.set(Some(attempt));
        let wait = OnNoCapacity::Queue(REQUEST_WAIT.min(remaining));
        let again = RequestStep::Put { attempt };
        let partition = match self.proxy.put(&self.partition, &request, wait).await {
            Ok(partition) => partition,
            // An attempt that failed at the controller: the next one resets the partition.
            Err(ClientError::Refused { problem, .. }) if problem.code == "PartitionFailed" => {
                let sentence = format!("the partition failed: {}", problem.errors.join("; "));
                let attempt = attempt.saturating_add(1);
                return Ok(StepProgress::Wait(RequestStep::Put { attempt }, sentence));
            }
            // Released while the request waited.
            Err(error) if is_not_found(&error) => {
                return Ok(StepProgress::Wait(
                    RequestStep::Look,
                    "the partition was released".into(),
                ));
            }
            Err(error) => return Err(error),
        };
        match partition.state {
            HoldState::Active if partition.attempt == attempt => {
                let config = self.proxy.ipuof_config(&self.partition, None).await?;
                Ok(StepProgress::Done(Box::new(Acquired { partition, config })))
            }
            HoldState::Failed => {
                let sentence = format!("the partition failed: {}", partition.errors.join("; "));
                let attempt = attempt.saturating_add(1);
                Ok(StepProgress::Wait(RequestStep::Put { attempt }, sentence))
            }
            _ => Ok(StepProgress::Wait(again, describe_wait(self.model, &partition))),
        }
    }
}
