//! The acquisition of a partition: the start of the run, the request, and the wait in the queue of the proxy.
//!
//! The id of a partition follows from the Slurm cluster, the job id, the run and the number of its start. So
//! the hook asks the proxy for its own partitions only, from the first start that no task can have used.

use std::time::Duration;

use ipu_core::hardware::Topology;
use ipu_core::{AgentId, PartitionId};
use ipu_proxy_client::{
    ClientError, DeletePartition, HoldState, IpuofConfigDocument, OnNoCapacity, OwnerDocument,
    PartitionDocument, ProxyClient, PutPartition,
};
use ipu_slurm::conf::{ConfFiles, ModelConf};
use ipu_slurm::text::{describe_timeout, proxy_failure};
use ipu_slurm::{PrologRequest, RunKey, RunStart};
use tokio::time::Instant;

use super::admin_comment::AdminCommentWriter;
use super::hook::{Hook, JobFile, Refusal};
use crate::failure::Failure;
use crate::host_map::Allocations;
use crate::partition::describe_wait;
use crate::proxy::{
    has_other_properties, is_about_machines, is_not_found, is_old_attempt, is_permanent, is_released,
};
use crate::run_file::{Grant, RunFile};

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
    proxy: ProxyClient,
    cluster: &'a str,
    model_name: &'a str,
    model: &'a ModelConf,
    /// The allocation of the job's machines, if it has one.
    allocations: Option<Allocations<'a>>,
    machines: &'a [AgentId],
    /// The file of an earlier hook with the job id.
    earlier: Option<RunFile>,
    wait: Duration,
    deadline: Instant,
    /// The start that the hook requests a partition for.
    start: RunStart,
    partition: PartitionId,
    /// Whether no task can have used the partition that the proxy has for the start.
    is_unused: bool,
    /// The attempt that was requested for the start; none before the first request, and once tasks have it.
    requested: Option<u32>,
    /// Whether the proxy has accepted that attempt.
    is_accepted: bool,
    request: PutPartition,
    /// The number of IPUs that the job requests.
    size: u32,
}

/// An active partition that no process has used since its last reset.
struct AcquiredPartition {
    partition: PartitionDocument,
    config: IpuofConfigDocument,
}

/// The next thing to do.
#[derive(Clone, Copy)]
enum Step {
    /// Ask the proxy whether an earlier hook of the run has a partition for this start.
    Read,
    /// Create the allocation of the machines, and request the partition for this attempt.
    Put { attempt: u32 },
}

/// The progress of a step.
enum Progress {
    Done(Box<AcquiredPartition>),
    Next(Step),
    /// The sentence says what the request waits for.
    Wait(Step, String),
}

impl<'a> Acquisition<'a> {
    /// Returns the request of a run. `machines` are those of its hosts, if they decide.
    pub(super) fn new(
        proxy: ProxyClient,
        conf: &'a ConfFiles,
        request: &'a PrologRequest,
        model: &'a ModelConf,
        machines: &'a [AgentId],
        key: RunKey,
        earlier: Option<RunFile>,
    ) -> Result<Self, Failure> {
        let cluster = request.identity.cluster.as_str();
        let used = earlier.as_ref().and_then(|earlier| earlier.used(&key));
        let start = RunStart::choose(&key, used);
        let owner = start.owner(cluster)?;
        let size = request.ipus.ipus.get();
        let mut put = PutPartition::new(OwnerDocument::from(&owner), size);
        put.gcds = Some(request.ipus.gcds);
        put.reconfigurable = request.ipus.reconfigurable || model.use_reconfig_partition();
        put.controller = Some(model.api_address());
        put.account = request.account.as_ref().map(ToString::to_string);
        put.machines = (!machines.is_empty()).then(|| machines.iter().map(ToString::to_string).collect());
        let wait = conf.cluster().wait_in_prolog();
        Ok(Self {
            proxy,
            cluster,
            model_name: &request.ipus.model,
            model,
            allocations: match machines {
                [] => None,
                _ => Allocations::of(conf)?,
            },
            machines,
            earlier,
            wait,
            deadline: Instant::now() + wait,
            partition: owner.job.partition_id(0),
            start,
            is_unused: false,
            requested: None,
            is_accepted: false,
            request: put,
            size,
        })
    }

    /// Limits the hold to the time limit of the job in seconds.
    pub(super) fn set_time_limit(&mut self, seconds: Option<u64>) {
        self.request.max_runtime_seconds = seconds.filter(|seconds| *seconds > 0);
    }

    /// Waits until the partition is active, and writes the files of the job if slurmctld still waits for the
    /// hook. Keeps AdminComment up to date.
    pub(super) async fn run(
        &mut self,
        hook: &Hook,
        job_file: &mut JobFile<'_>,
        comment: &mut AdminCommentWriter<'_>,
    ) -> Result<PartitionDocument, Refusal> {
        let AcquiredPartition { partition, config } = self.wait(hook, job_file, comment).await?;
        hook.ensure_current(self.start.key.job_id).await?;
        let grant = Grant {
            start: self.start.clone(),
            partition: self.partition.clone(),
            ipus: self.size,
            gcds: self.request.gcds.unwrap_or(1),
            variables: partition.env.clone(),
        };
        job_file.write(grant, &config)?;
        // Tasks may use it from now on.
        self.requested = None;
        Ok(partition)
    }

    async fn wait(
        &mut self,
        hook: &Hook,
        job_file: &mut JobFile<'_>,
        comment: &mut AdminCommentWriter<'_>,
    ) -> Result<AcquiredPartition, Refusal> {
        let (mut step, mut pause) = (Step::Read, MIN_PAUSE);
        loop {
            // A later hook of the job takes over its file before it has a partition, which a further request
            // of this hook would reset.
            job_file.ensure_own()?;
            let asked = Instant::now();
            let progress = match step {
                Step::Read => match self.read_partition().await {
                    Ok(Some(put)) => Ok(Progress::Next(put)),
                    Ok(None) => {
                        // The next hook must not take the marker for a proof that this start is unused.
                        job_file.remember(self.start.clone(), self.partition.clone())?;
                        self.set_start(self.start.next());
                        Ok(Progress::Next(Step::Read))
                    }
                    Err(error) => Err(error),
                },
                Step::Put { attempt } => self.put(attempt).await,
            };
            let progress = match progress {
                Ok(progress) => progress,
                Err(error) => {
                    if is_released(&error) {
                        // By EpilogSlurmctld, if the run has ended: what ended it is in AdminComment.
                        hook.ensure_current(self.start.key.job_id).await?;
                    }
                    self.go_on_after(step, error).await?
                }
            };
            let sentence = match progress {
                Progress::Done(acquired) => return Ok(*acquired),
                Progress::Next(next) => {
                    step = next;
                    continue;
                }
                Progress::Wait(next, sentence) => {
                    step = next;
                    sentence
                }
            };
            let remaining = self.deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(Refusal::Requeue(Failure(describe_timeout(self.wait, &sentence))));
            }
            comment.write(&sentence).await;
            // A request that waited at the proxy needs no pause.
            tokio::time::sleep(pause.saturating_sub(asked.elapsed()).min(remaining)).await;
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
        }
    }

    /// Chooses the start and the attempt. The partition of an earlier hook of this run may have been used, if
    /// slurmctld has forgotten the start: then the run has another one, or, with a SLUID, a reset of it.
    /// Returns none for another start.
    async fn read_partition(&mut self) -> Result<Option<Step>, ClientError> {
        let found = match self.proxy.partition(&self.partition).await {
            Ok(found) => found,
            Err(error) if is_not_found(&error) => {
                self.is_unused = false;
                return Ok(Some(Step::Put { attempt: 0 }));
            }
            Err(error) => return Err(error),
        };
        let is_proven = |earlier: &RunFile| earlier.proves_unused(&self.start);
        self.is_unused = found.state == HoldState::Waiting || self.earlier.as_ref().is_some_and(is_proven);
        let next = match found.state {
            HoldState::Waiting => Step::Put {
                attempt: found.attempt,
            },
            _ if !self.is_unused && !self.start.key.run.is_sluid() => return Ok(None),
            HoldState::Quarantined => Step::Put { attempt: 0 },
            _ => Step::Put {
                attempt: found.attempt.saturating_add(1),
            },
        };
        Ok(Some(next))
    }

    async fn put(&mut self, attempt: u32) -> Result<Progress, ClientError> {
        if self.requested.replace(attempt) != Some(attempt) {
            self.is_accepted = false;
        }
        self.request.attempt = attempt;
        let again = Step::Put { attempt };
        if let Some(allocations) = self
            .allocations
            .as_ref()
            .filter(|_| self.request.allocation.is_none())
        {
            let created = allocations.create(&self.proxy, self.cluster, &self.start, self.machines);
            match created.await {
                Ok(allocation) => self.request.allocation = Some(allocation.to_string()),
                Err(obstacle) => return Ok(Progress::Wait(again, obstacle.0)),
            }
        }
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let wait = OnNoCapacity::Queue(REQUEST_WAIT.min(remaining));
        let next_attempt = Step::Put {
            attempt: attempt.saturating_add(1),
        };
        let failed = |errors: &[String]| {
            // The next attempt resets the partition.
            Progress::Wait(
                next_attempt,
                format!("the partition failed: {}", errors.join("; ")),
            )
        };
        let partition = match self.proxy.put(&self.partition, &self.request, wait).await {
            Ok(partition) => partition,
            Err(ClientError::Refused { problem, .. }) if problem.code == "PartitionFailed" => {
                return Ok(failed(&problem.errors));
            }
            Err(error) => return Err(error),
        };
        self.is_accepted |= partition.attempt == attempt;
        match partition.state {
            HoldState::Active if partition.attempt == attempt => {
                let config = self.proxy.ipuof_config(&self.partition, None).await?;
                Ok(Progress::Done(Box::new(AcquiredPartition { partition, config })))
            }
            HoldState::Failed => Ok(failed(&partition.errors)),
            _ => Ok(Progress::Wait(again, describe_wait(self.model_name, &partition))),
        }
    }

    /// Returns the next step after an error of the proxy.
    async fn go_on_after(&mut self, step: Step, error: ClientError) -> Result<Progress, Refusal> {
        if is_old_attempt(&error) {
            let sentence = "a later PrologSlurmctld of this run has the partition";
            return Err(Refusal::Superseded(Failure(sentence.into())));
        }
        if is_not_found(&error) {
            let sentence = "the partition was released".to_owned();
            return Ok(Progress::Wait(Step::Read, sentence));
        }
        let has_other_properties = has_other_properties(&error);
        // The machines are not neighbours, or do not begin at a multiple of the size. An earlier hook of the
        // run may have found that, and requested less.
        if (has_other_properties || is_about_machines(&error))
            && self.request.machines.is_some()
            && self.request.size > Topology::MACHINE_IPUS
        {
            self.request.size /= 2;
            return Ok(Progress::Next(step));
        }
        // The job has other hosts or other licenses since the start that slurmctld forgot.
        if has_other_properties && Instant::now() < self.deadline {
            if self.is_unused {
                self.give_up().await;
            }
            self.set_start(self.start.next());
            return Ok(Progress::Next(Step::Read));
        }
        let is_final = is_about_machines(&error) || is_permanent(&error);
        let problem = Failure::from(error);
        if is_final {
            return Err(Refusal::Hold(problem));
        }
        Ok(Progress::Wait(step, proxy_failure(self.proxy.url(), &problem.0)))
    }

    fn set_start(&mut self, start: RunStart) {
        // Cannot fail: the cluster was a valid namespace for the previous start.
        if let Ok(owner) = start.owner(self.cluster) {
            self.partition = owner.job.partition_id(0);
            self.request.owner = OwnerDocument::from(&owner);
        }
        self.start = start;
        self.requested = None;
        self.request.allocation = None;
        self.request.size = self.size;
    }

    /// Takes the request from the queue, or releases the partition, unless a hook has taken it over with a
    /// later attempt; with the allocation. A partition that the hook has not requested is not its own, and
    /// a used partition is unused once the proxy has accepted to reset it. The agent repeats what
    /// fails.
    pub(super) async fn give_up(&self) {
        let Some(attempt) = self.requested else {
            return;
        };
        if attempt > 0 && !self.is_unused && !self.is_accepted {
            return;
        }
        let mut options = DeletePartition::default();
        options.uid = Some(self.start.to_string());
        options.attempt = Some(attempt);
        options.without_force = !self.model.force_delete_partition();
        let deleted = self.proxy.delete(&self.partition, &options);
        let _ = tokio::time::timeout(WITHDRAW_TIMEOUT, deleted).await;
        if let Some(allocations) = &self.allocations {
            let _ = allocations.remove(&self.proxy, self.cluster, &self.start).await;
        }
    }
}
