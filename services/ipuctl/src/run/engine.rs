//! One run: observe, plan, check, apply, record, wake. Every decision is `ipu_core::plan`'s; here is only what it is
//! asked with and what is done with its answer.

use std::pin::pin;
use std::time::Duration;

use ipu_core::{
    Effect, InstanceFacts, JobStatus, Observation, PartitionFacts, PartitionId, Plan, Timestamp, check_plan,
    plan,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::host_job::HostJob;
use super::partitions::{CHECK, Changed, Partitions};
use super::processes::{ProcessId, ProcessRole, ProcessUpdate, Processes, StartProcess};
use super::signals::Signals;
use super::{RunContext, progress::Progress};
use crate::clock::now;
use crate::exit_code::{Code, Failure};

/// The pause between two looks at a partition that the controller is working on. It takes milliseconds at the simulated
/// Pod and seconds at a real one.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The pause between two looks at the line. Somebody else's release is seen this much later at the worst.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a call to the controller that is under way may take when a signal comes.
const SIGNAL_GRACE: Duration = Duration::from_secs(1);
/// How often the ledger or the controller may fail in a row before the run gives up, one pause apart.
const FAILURES: u32 = 20;
/// The pause after such a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// One run of one job.
pub(crate) struct Engine<'a> {
    job: &'a HostJob,
    setting: &'a RunContext,
    partitions: Partitions,
    processes: Processes,
    news: UnboundedReceiver<ProcessUpdate>,
    progress: Progress,
    submitted: Timestamp,
    status: JobStatus,
    concluded: Option<JobStatus>,
    deleted: bool,
    /// Why the run is given up, if it is.
    failure: Option<Failure>,
    /// Ledger or controller failures in a row.
    failures: u32,
}

/// How a run ended.
pub(crate) struct RunResult {
    /// What was recorded last.
    pub(crate) status: JobStatus,
    /// What was recorded when the job finished by itself, if it did.
    pub(crate) concluded: Option<JobStatus>,
    pub(crate) processes: Processes,
    pub(crate) failure: Option<Failure>,
    /// The signal that ended it, if one did.
    pub(crate) signal: Option<u8>,
    /// Partitions that could not be given back.
    pub(crate) left: Vec<PartitionId>,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(job: &'a HostJob, setting: &'a RunContext, partitions: Partitions) -> Self {
        let (sender, news) = unbounded_channel();
        Self {
            job,
            setting,
            partitions,
            processes: Processes::new(setting.output.clone(), setting.grace, sender),
            news,
            progress: Progress::new(setting.output.clone()),
            submitted: now(),
            status: JobStatus::default(),
            concluded: None,
            deleted: false,
            failure: None,
            failures: 0,
        }
    }

    /// Runs the job to its end, and gives back everything that it held.
    pub(crate) async fn run(mut self, mut signals: Signals) -> RunResult {
        loop {
            let (plan, finished) = match self.pass_or_signal(&mut signals).await {
                None if signals.count() > 2 => break,
                None => continue,
                Some(Ok(done)) => done,
                Some(Err(failure)) => {
                    let pause = self.fail(failure);
                    if self.failures > FAILURES || signals.count() > 2 {
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
                // The end of the process counts as the deletion of the job: nothing is kept for later.
                self.concluded = Some(self.status.clone());
                self.deleted = true;
                continue;
            }
            self.wait(
                plan.requeue_after
                    .map_or(self.patience(), |wake| wake.min(self.patience())),
                &mut signals,
            )
            .await;
        }
        self.setting.output.status(None);
        RunResult {
            status: self.status,
            concluded: self.concluded,
            processes: self.processes,
            failure: self.failure,
            signal: signals.first(),
            left: self.partitions.left(),
        }
    }

    /// One pass, unless a signal comes meanwhile: then it may end what it is about for a moment only, so that a controller
    /// that hangs does not keep the workers from being ended. Dropping it half-way is what a failed call is, too.
    async fn pass_or_signal(&mut self, signals: &mut Signals) -> Option<Result<(Plan, bool), Failure>> {
        let before = signals.count();
        let done = {
            let mut pass = pin!(self.pass());
            tokio::select! {
                done = &mut pass => Some(done),
                () = signals.next() => tokio::time::timeout(SIGNAL_GRACE, pass).await.ok(),
            }
        };
        if signals.count() == before {
            return done;
        }
        self.on_signal(signals.count());
        // A plan from before the signal is not waited with.
        done.filter(|done| !matches!(done, Ok((_, false))))
    }

    /// One pass; the plan, and whether nothing of the job is left.
    async fn pass(&mut self) -> Result<(Plan, bool), Failure> {
        loop {
            while let Ok(news) = self.news.try_recv() {
                self.processes.on_update(news);
            }
            let observation = self.observe().await?;
            let plan = plan(&self.job.spec, &observation);
            let broken = check_plan(&self.job.spec, &observation, &plan);
            if let Some(first) = broken.first() {
                self.processes.kill_all();
                return Err(Failure::new(
                    Code::Bug,
                    format!("the plan breaks a rule of its own: {first}"),
                ));
            }
            let mut moved = false;
            for effect in &plan.effects {
                if matches!(effect, Effect::Finalize) {
                    self.status = plan.status.clone();
                    return Ok((plan, true));
                }
                moved |= self.apply(effect).await?;
            }
            self.status = plan.status.clone();
            // A plan that moved something tells of what was before.
            if !moved {
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
        let mut observation = Observation::for_new_job(now());
        observation.submitted = self.submitted;
        observation.deleted = self.deleted;
        observation.status = self.status.clone();
        observation.instances = instances.into_values().collect();
        Ok(observation)
    }

    /// Applies one effect; whether something is different now, so that it is worth looking again at once.
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
                Ok(matches!(step, Changed::Moved))
            }
            Effect::ResetPartition {
                instance,
                attempt,
                partition,
            } => self
                .partitions
                .reset(*instance, *attempt, partition)
                .await
                .map(|step| matches!(step, Changed::Moved)),
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                partition,
            } => {
                let which = ProcessId {
                    instance: *instance,
                    role: ProcessRole::Worker(*worker),
                };
                let what = self.job.worker(self.partitions.address(), partition, *worker);
                let label = self.job.label(which);
                self.processes.start(StartProcess {
                    which,
                    attempt: *attempt,
                    partition: partition.clone(),
                    label,
                    what,
                });
                Ok(true)
            }
            Effect::StartLauncher {
                instance,
                attempt,
                partition,
            } => {
                let which = ProcessId {
                    instance: *instance,
                    role: ProcessRole::Launcher,
                };
                let address = self.partitions.address();
                let what = self.job.launcher(self.setting, address, partition, *instance)?;
                let label = self.job.label(which);
                self.processes.start(StartProcess {
                    which,
                    attempt: *attempt,
                    partition: partition.clone(),
                    label,
                    what,
                });
                Ok(true)
            }
            Effect::StopWorker {
                instance,
                worker,
                attempt,
            } => {
                let which = ProcessId {
                    instance: *instance,
                    role: ProcessRole::Worker(*worker),
                };
                Ok(self.processes.stop(which, *attempt))
            }
            Effect::StopLauncher { instance, attempt } => Ok(self.processes.stop(
                ProcessId {
                    instance: *instance,
                    role: ProcessRole::Launcher,
                },
                *attempt,
            )),
            Effect::ReleasePartition {
                instance,
                attempt,
                partition,
            } => {
                let step = self.partitions.release(*instance, *attempt, partition).await?;
                Ok(matches!(step, Changed::Moved))
            }
            other => Err(Failure::new(
                Code::Bug,
                format!("an effect that this program does not know: {other:?}"),
            )),
        }
    }

    /// How long to wait at most although nothing is heard: what happens in the ledger is only seen by looking.
    fn patience(&self) -> Duration {
        let partitions = self.partitions.facts();
        let any = |wanted: fn(&PartitionFacts) -> bool| partitions.values().any(wanted);
        if any(|facts| matches!(facts, PartitionFacts::Pending { .. } | PartitionFacts::Releasing)) {
            POLL_INTERVAL
        } else if any(|facts| matches!(facts, PartitionFacts::Waiting { .. })) {
            QUEUE_POLL_INTERVAL
        } else {
            CHECK
        }
    }

    /// Waits for news, a signal or the end of `patience`.
    async fn wait(&mut self, patience: Duration, signals: &mut Signals) {
        tokio::select! {
            Some(news) = self.news.recv() => self.processes.on_update(news),
            () = signals.next() => self.on_signal(signals.count()),
            () = tokio::time::sleep(patience) => {}
        }
    }

    /// Does what the `count`th signal asks for.
    fn on_signal(&mut self, count: u32) {
        if self.deleted && count > 1 {
            self.setting.output.warn("killing the workers");
            self.processes.kill_all();
        } else {
            self.setting
                .output
                .warn("ending the workers; once more to kill them");
            self.deleted = true;
        }
    }

    /// Takes in that a pass failed: what can be repeated is, and the rest ends the run. Answers how long to wait.
    fn fail(&mut self, failure: Failure) -> Duration {
        self.failures += 1;
        let passing = matches!(failure.code, Code::Unavailable);
        if passing && self.failures <= FAILURES {
            self.setting
                .output
                .status(Some(&format!("trying again: {}", failure.chain())));
            return FAILURE_PAUSE;
        }
        self.setting.output.status(None);
        // The first failure ends the run at once; one on the way out is worth a pause.
        let pause = if self.deleted {
            FAILURE_PAUSE
        } else {
            Duration::ZERO
        };
        if self.failure.is_none() {
            self.setting.output.error(&failure.chain());
            self.failure = Some(failure);
        }
        self.deleted = true;
        pause
    }
}
