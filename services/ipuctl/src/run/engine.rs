//! The reconciliation loop of one run: observe, plan, check, apply, record, wait. All decisions are those of
//! `ipu_core::job::plan`.

use std::pin::pin;
use std::time::Duration;

use ipu_core::job::{Effect, InstanceFacts, JobStatus, Observation, PartitionFacts, Plan, check_plan, plan};
use ipu_core::{PartitionId, Timestamp};
use ipu_proxy_client::now;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::host_job::HostJob;
use super::partitions::{CHECK_INTERVAL, Partitions, Progress};
use super::processes::{ProcessId, ProcessUpdate, Processes, StartProcess};
use super::{RunContext, progress_display::ProgressDisplay};
use crate::exit_code::{Code, Failure};
use crate::process::Spawn;
use crate::signals::Signals;

/// Interval between two polls of a partition that the controller creates or removes. That takes milliseconds
/// at the simulated IPU-POD and seconds at a real one.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two polls of the queue, which bounds the delay after a release by another owner.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of a reconciliation in progress when a signal arrives.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of consecutive failures of the proxy or the controller before the run fails.
const MAX_FAILURES: u32 = 20;
/// Interval between two attempts after such a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// One run of one job.
pub(crate) struct Engine<'a> {
    job: &'a HostJob,
    context: &'a RunContext,
    partitions: Partitions<'a>,
    processes: Processes,
    updates: UnboundedReceiver<ProcessUpdate>,
    progress: ProgressDisplay,
    submitted: Timestamp,
    status: JobStatus,
    concluded: Option<JobStatus>,
    deleted: bool,
    /// Cause of the failure of the run, if any.
    failure: Option<Failure>,
    /// Number of consecutive failures of the proxy or the controller.
    failures: u32,
}

/// Result of a run.
pub(crate) struct RunResult {
    /// Last recorded status.
    pub(crate) status: JobStatus,
    /// Status at the end of the job; none if the run was interrupted.
    pub(crate) concluded: Option<JobStatus>,
    pub(crate) processes: Processes,
    pub(crate) failure: Option<Failure>,
    /// Number of the signal that ended the run, if any.
    pub(crate) signal: Option<u8>,
    /// Partitions that could not be released.
    pub(crate) unreleased: Vec<PartitionId>,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(job: &'a HostJob, context: &'a RunContext, partitions: Partitions<'a>) -> Self {
        let (sender, updates) = unbounded_channel();
        Self {
            job,
            context,
            partitions,
            processes: Processes::new(context.output.clone(), context.grace, sender),
            updates,
            progress: ProgressDisplay::new(context.output.clone()),
            submitted: now(),
            status: JobStatus::default(),
            concluded: None,
            deleted: false,
            failure: None,
            failures: 0,
        }
    }

    /// Runs the job to its end and releases all its partitions.
    pub(crate) async fn run(mut self, mut signals: Signals) -> RunResult {
        loop {
            let (plan, finished) = match self.reconcile_or_signal(&mut signals).await {
                None if signals.count() > 2 => break,
                None => continue,
                Some(Ok(reconciled)) => reconciled,
                Some(Err(failure)) => {
                    let pause = self.on_failure(failure);
                    if self.failures > MAX_FAILURES || signals.count() > 2 {
                        break;
                    }
                    self.wait(pause, &mut signals).await;
                    continue;
                }
            };
            self.failures = 0;
            if finished || signals.count() > 2 {
                break;
            }
            if self.status.phase.is_finished() && !self.deleted {
                // The end of the command counts as the deletion of the job, so that nothing is retained.
                self.concluded = Some(self.status.clone());
                self.deleted = true;
                continue;
            }
            self.wait(
                plan.requeue_after
                    .map_or(self.poll_interval(), |after| after.min(self.poll_interval())),
                &mut signals,
            )
            .await;
        }
        self.context.output.status(None);
        RunResult {
            status: self.status,
            concluded: self.concluded,
            processes: self.processes,
            failure: self.failure,
            signal: signals.first(),
            unreleased: self.partitions.unreleased(),
        }
    }

    /// Reconciles once. After a signal the reconciliation has [`SIGNAL_TIMEOUT`] to finish, so that a hanging
    /// controller does not delay the end of the workers. Cancelling it has the same effect as a failed call.
    async fn reconcile_or_signal(&mut self, signals: &mut Signals) -> Option<Result<(Plan, bool), Failure>> {
        let count_before = signals.count();
        let result = {
            let mut reconciliation = pin!(self.reconcile());
            tokio::select! {
                result = &mut reconciliation => Some(result),
                () = signals.next() => tokio::time::timeout(SIGNAL_TIMEOUT, reconciliation).await.ok(),
            }
        };
        if signals.count() == count_before {
            return result;
        }
        self.on_signal(signals.count());
        // A plan from before the signal is obsolete.
        result.filter(|result| !matches!(result, Ok((_, false))))
    }

    /// Plans and applies until the plan has no further effect. Returns the plan, and whether the job is
    /// finalized.
    async fn reconcile(&mut self) -> Result<(Plan, bool), Failure> {
        loop {
            while let Ok(update) = self.updates.try_recv() {
                self.processes.on_update(update);
            }
            let observation = self.observe().await?;
            let plan = plan(&self.job.spec, &observation);
            let violations = check_plan(&self.job.spec, &observation, &plan);
            if let Some(violation) = violations.first() {
                self.processes.kill_all();
                return Err(Failure::new(
                    Code::Bug,
                    format!("the plan violates a rule: {violation}"),
                ));
            }
            let mut has_changed = false;
            for effect in &plan.effects {
                if matches!(effect, Effect::Finalize) {
                    self.status = plan.status.clone();
                    return Ok((plan, true));
                }
                has_changed |= self.apply(effect).await?;
            }
            self.status = plan.status.clone();
            // After a change, the reasons of the plan are obsolete.
            if !has_changed {
                self.progress.show(&plan, self.partitions.waiting());
                return Ok((plan, false));
            }
        }
    }

    async fn observe(&mut self) -> Result<Observation, Failure> {
        let mut instances = self.processes.facts();
        for (index, partition) in self.partitions.observe().await? {
            instances
                .entry(index)
                .or_insert_with(|| InstanceFacts::empty(index))
                .partition = partition;
        }
        for (index, demand) in self.partitions.preempted() {
            if let Some(facts) = instances.get_mut(index) {
                facts.preempted = Some(demand.clone());
            }
        }
        let mut observation = Observation::for_new_job(now());
        observation.submitted = self.submitted;
        observation.deleted = self.deleted;
        observation.status = self.status.clone();
        observation.instances = instances.into_values().collect();
        Ok(observation)
    }

    /// Applies one effect. Returns whether the state changed, so that the job is reconciled again
    /// immediately.
    async fn apply(&mut self, effect: &Effect) -> Result<bool, Failure> {
        match effect {
            Effect::EnsurePartition {
                instance,
                attempt,
                spec,
                ..
            } => {
                let step = self
                    .partitions
                    .ensure(&self.job.spec, *instance, *attempt, spec)
                    .await?;
                Ok(matches!(step, Progress::Changed))
            }
            Effect::ResetPartition {
                instance,
                attempt,
                partition,
            } => self
                .partitions
                .reset(*instance, *attempt, partition)
                .await
                .map(|step| matches!(step, Progress::Changed)),
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                partition,
            } => {
                let address = self.partitions.address(*instance)?;
                let spawn = self.job.worker(address, partition, *worker);
                self.start(ProcessId::worker(*instance, *worker), *attempt, partition, spawn);
                Ok(true)
            }
            Effect::StartLauncher {
                instance,
                attempt,
                partition,
            } => {
                let address = self.partitions.address(*instance)?;
                let spawn = self.job.launcher(self.context, address, partition, *instance)?;
                self.start(ProcessId::launcher(*instance), *attempt, partition, spawn);
                Ok(true)
            }
            Effect::StopWorker {
                instance,
                worker,
                attempt,
            } => Ok(self
                .processes
                .stop(ProcessId::worker(*instance, *worker), *attempt)),
            Effect::StopLauncher { instance, attempt } => {
                Ok(self.processes.stop(ProcessId::launcher(*instance), *attempt))
            }
            Effect::ReleasePartition {
                instance,
                attempt,
                partition,
            } => {
                let step = self.partitions.release(*instance, *attempt, partition).await?;
                Ok(matches!(step, Progress::Changed))
            }
            other => Err(Failure::new(Code::Bug, format!("unknown effect: {other:?}"))),
        }
    }

    fn start(&mut self, id: ProcessId, attempt: u32, partition: &PartitionId, spawn: Option<Spawn>) {
        self.processes.start(StartProcess {
            id,
            attempt,
            partition: partition.clone(),
            label: self.job.label(id),
            spawn,
        });
    }

    /// Returns the maximum wait without an update: changes of partitions are polled.
    fn poll_interval(&self) -> Duration {
        let partitions = self.partitions.facts();
        let has_partition = |predicate: fn(&PartitionFacts) -> bool| partitions.values().any(predicate);
        if has_partition(|facts| matches!(facts, PartitionFacts::Pending { .. } | PartitionFacts::Releasing))
        {
            POLL_INTERVAL
        } else if has_partition(|facts| matches!(facts, PartitionFacts::Waiting { .. })) {
            QUEUE_POLL_INTERVAL
        } else {
            CHECK_INTERVAL
        }
    }

    /// Waits for an update of a process, a signal, or `timeout`.
    async fn wait(&mut self, timeout: Duration, signals: &mut Signals) {
        tokio::select! {
            Some(update) = self.updates.recv() => self.processes.on_update(update),
            () = signals.next() => self.on_signal(signals.count()),
            () = tokio::time::sleep(timeout) => {}
        }
    }

    /// Handles the signal number `count` of this run: the first ends the workers, later ones kill them.
    fn on_signal(&mut self, count: u32) {
        let kills = self.deleted && count > 1;
        let is_queued = || {
            let mut facts = self.partitions.facts().values();
            facts.any(|facts| matches!(facts, PartitionFacts::Waiting { .. }))
        };
        let text = match (self.processes.any_alive(), kills) {
            (true, true) => "killing the workers",
            (true, false) => "stopping the workers; repeat the signal to kill them",
            (false, _) if is_queued() => "withdrawing the request from the queue",
            (false, _) => "releasing the partitions",
        };
        self.context.output.warn(text);
        if kills {
            self.processes.kill_all();
        }
        self.deleted = true;
    }

    /// Handles a failed reconciliation: an unavailable controller is retried, other failures end the run.
    /// Returns the pause before the next attempt.
    fn on_failure(&mut self, failure: Failure) -> Duration {
        self.failures += 1;
        let is_transient = matches!(failure.code, Code::Unavailable);
        if is_transient && self.failures <= MAX_FAILURES {
            self.context
                .output
                .status(Some(&format!("Retrying: {}", failure.chain())));
            return RETRY_INTERVAL;
        }
        self.context.output.status(None);
        // The first failure ends the run immediately; one during the cleanup is retried after a pause.
        let pause = if self.deleted {
            RETRY_INTERVAL
        } else {
            Duration::ZERO
        };
        if self.failure.is_none() {
            self.context.output.error(&failure.chain());
            self.failure = Some(failure);
        }
        self.deleted = true;
        pause
    }
}
