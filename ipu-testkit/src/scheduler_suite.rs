//! Conformance suite for a whole scheduler. It submits and ends jobs, breaks calls to the controller, and
//! kills the scheduler. It judges by the state of a simulated controller, never by the scheduler's answers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use ipu_core::hardware::Topology;
use ipu_core::{IpuCount, PartitionId};
use tokio::time::{Instant, sleep};
use vipu_sim::FaultKind::{self, DropReply, Refuse, Twice};
use vipu_sim::Method::{self, CreatePartition, GetPartitionStatus, ListPartitions, RemovePartition};
use vipu_sim::{Fault, PartitionView, Simulator};

use crate::conformance::{CASE_TIMEOUT, CaseError, CaseOutcome, Runner, SuiteFailure, SuiteReport, broken};
use crate::random::{Random, number};
use ScenarioAction::{AwaitRun, Crash, End, Heal, Inject, Outage, Pause, Restart, Submit};

/// Duration of create, reset and remove: several checks see each of them.
const OPERATION: Duration = Duration::from_millis(20);

/// Time for which the process of every second job continues after it is stopped: longer than a removal.
const LINGER: Duration = Duration::from_millis(150);

/// Pause between two checks.
const CHECK_PAUSE: Duration = Duration::from_millis(2);

/// Default number of random actions.
const DEFAULT_STEPS: u64 = 120;

/// Number of random actions after which all jobs must end: a message can name them all.
const STEPS_PER_ROUND: u64 = 40;

/// Rule that no job is stuck.
const EVERY_JOB_RUNS: &str = "every job runs, unless it is ended before";

/// A job of the suite. It has one process, which runs until the job is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubmittedJob {
    /// Name, unique within a case, such as `job-3`.
    pub name: String,
    /// Size of its partition, from 1 to 16.
    pub ipus: IpuCount,
    /// Time for which its process continues after the scheduler stops it, as if it wrote a checkpoint: 0 or
    /// 50 ms. In a shell: `trap 'sleep 0.05; exit' TERM`.
    pub linger: Duration,
}

/// A process of a job that runs now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningProcess {
    /// Name of the job.
    pub job: String,
    /// Identity of the process, such as its pid: another one after each start.
    pub process: String,
    /// Partition that the process uses.
    pub partition: PartitionId,
}

impl RunningProcess {
    /// Creates the record of a running process.
    #[must_use]
    pub fn new(job: impl Into<String>, process: impl Into<String>, partition: PartitionId) -> Self {
        Self {
            job: job.into(),
            process: process.into(),
            partition,
        }
    }
}

/// A started scheduler, with the processes of its jobs. It ends when it is dropped.
#[async_trait]
pub trait SchedulerUnderTest: Send + 'static {
    /// Submits `job`. Returns when the job is durably accepted, even while no IPU is free or the controller
    /// is unreachable.
    async fn submit(&mut self, job: &SubmittedJob);

    /// Orders the end of `job`, whether it is queued, runs or has ended: the scheduler stops its process and
    /// releases its partition. Returns when the order is durably accepted.
    async fn end(&mut self, job: &SubmittedJob);

    /// Ends the scheduler as `kill -9` does, and waits until it is gone. Its record remains. The processes of
    /// its jobs remain or end, as they do on your hosts; [`processes`](Self::processes) lists those that
    /// remain.
    async fn crash(&mut self);

    /// Starts the scheduler again on its record, even while the controller is unreachable. If your record
    /// does not contain the queue, submit the queued jobs again here.
    async fn restart(&mut self);

    /// Returns the running processes of all jobs, even while the scheduler is down. Read them from the
    /// operating system or from your agents, not from the record of the scheduler.
    async fn processes(&mut self) -> Vec<RunningProcess>;

    /// Returns the time within which the scheduler starts a job that fits, or releases the partition of an
    /// ended job, even after a crash or an outage. The default, 60 s, is twice the settle time of an
    /// allocator with default options, and twice the longest pause of a `ControllerPool`.
    ///
    /// Use short [`CallTimes`](ipu_core::allocator::CallTimes): a case with several crashes must end within
    /// two minutes.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// Runs all cases in sequence against a scheduler whose controller is a simulated IPU-POD16.
///
/// `start` is called once for each case and each round of random actions. It starts a scheduler with an empty
/// record. Its argument is the address of the controller, which serves gRPC and REST.
///
/// After each action, and many times during each wait, the suite compares the running processes with the
/// partitions of the controller:
///
/// - Each process has a partition of its own, of the size of its job, and that partition is active.
/// - At the end, every job has run unless it was ended before, and no process and no partition is left.
///
/// The actions are submissions of more jobs than fit, ends of jobs, crashes at any moment, lost and late
/// replies, repeated and failed calls, and outages of the controller. `IPU_SCHEDULER_STEPS` sets the number
/// of random actions (default 120), `IPU_SCHEDULER_SEED` their seed (default 1).
///
/// ```no_run
/// use std::net::SocketAddr;
/// use std::process::{Child, Command};
///
/// use async_trait::async_trait;
/// use ipu_testkit::{RunningProcess, SchedulerUnderTest, SubmittedJob, scheduler_suite};
/// use tempfile::TempDir;
///
/// /// A daemon and its client. The jobs are processes of another daemon, so they outlive a crash.
/// struct Mine {
///     controller: SocketAddr,
///     record: TempDir,
///     daemon: Child,
/// }
///
/// fn spawn(controller: SocketAddr, record: &TempDir) -> Child {
///     let mut daemon = Command::new("my-scheduler");
///     daemon.arg(controller.to_string()).arg(record.path()).spawn().expect("it starts")
/// }
///
/// async fn start(controller: SocketAddr) -> Mine {
///     let record = tempfile::tempdir().expect("a directory");
///     Mine { controller, daemon: spawn(controller, &record), record }
/// }
///
/// impl Mine {
///     fn client(&self, arguments: &str) -> String {
///         let mut client = Command::new("my-client");
///         let output = client.arg(self.record.path()).args(arguments.split(' ')).output();
///         String::from_utf8(output.expect("it runs").stdout).expect("text")
///     }
/// }
///
/// #[async_trait]
/// impl SchedulerUnderTest for Mine {
///     async fn submit(&mut self, job: &SubmittedJob) {
///         let linger = job.linger.as_millis();
///         self.client(&format!("submit {} {} my-job.sh {linger}", job.name, job.ipus));
///     }
///
///     async fn end(&mut self, job: &SubmittedJob) {
///         self.client(&format!("cancel {}", job.name));
///     }
///
///     async fn crash(&mut self) {
///         self.daemon.kill().expect("it runs");
///         self.daemon.wait().expect("it ends");
///     }
///
///     async fn restart(&mut self) {
///         self.daemon = spawn(self.controller, &self.record);
///     }
///
///     async fn processes(&mut self) -> Vec<RunningProcess> {
///         // One row per process: the job, the pid, and IPUOF_VIPU_API_PARTITION_ID of its environment.
///         let rows = self.client("processes");
///         let process = |row: &str| match row.split(' ').collect::<Vec<_>>()[..] {
///             [job, pid, partition] => RunningProcess::new(job, pid, partition.parse().expect("an id")),
///             _ => panic!("not a process: {row}"),
///         };
///         rows.lines().map(process).collect()
///     }
/// }
///
/// # async fn test() {
/// // In your test, under `#[tokio::test(flavor = "multi_thread")]`:
/// println!("{}", scheduler_suite(start).await);
/// # }
/// ```
///
/// # Panics
///
/// If a rule is broken: after the last case, with all broken rules, each with the actions that led to it.
/// Or if one of the variables is set and not a number.
pub async fn scheduler_suite<S, F>(start: impl Fn(SocketAddr) -> F + Send + Sync + 'static) -> SuiteReport
where
    S: SchedulerUnderTest,
    F: Future<Output = S> + Send + 'static,
{
    match try_scheduler_suite(start).await {
        Ok(report) => report,
        Err(failure) => panic!("the scheduler does not conform\n{failure}"),
    }
}

/// Like [`scheduler_suite`], but returns the broken rules as an error.
///
/// # Errors
///
/// [`SuiteFailure`] with every case that found a broken rule.
pub async fn try_scheduler_suite<S, F>(
    start: impl Fn(SocketAddr) -> F + Send + Sync + 'static,
) -> Result<SuiteReport, SuiteFailure>
where
    S: SchedulerUnderTest,
    F: Future<Output = S> + Send + 'static,
{
    let start: StartScheduler = Arc::new(move |address| {
        let started = start(address);
        Box::pin(async move { Box::new(started.await) as Box<dyn SchedulerUnderTest> })
    });
    let mut runner = Runner::new("scheduler_suite");
    for (case, actions) in CASES {
        let mut actions = actions.iter().copied();
        let scenario = SchedulerScenario::start(Arc::clone(&start));
        let work = async move { scenario.await.run(|_| actions.next()).await };
        runner.run(case, work).await;
    }
    let steps = number("IPU_SCHEDULER_STEPS").unwrap_or(DEFAULT_STEPS);
    let seed = number("IPU_SCHEDULER_SEED").unwrap_or(1);
    let rounds = steps.div_ceil(STEPS_PER_ROUND);
    let limit = CASE_TIMEOUT.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
    let random = async move {
        for round in 0..rounds {
            let steps = STEPS_PER_ROUND.min(steps - round * STEPS_PER_ROUND);
            run_random(&start, seed.wrapping_add(round), steps).await?;
        }
        Ok(())
    };
    let case = "random_actions_keep_the_promise";
    runner.run_within(limit, case, random).await;
    runner.finish(&[])
}

/// Starts a scheduler.
type StartScheduler =
    Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, Box<dyn SchedulerUnderTest>> + Send + Sync>;

/// Runs `steps` random actions, with pauses between them.
async fn run_random(start: &StartScheduler, seed: u64, steps: u64) -> CaseOutcome {
    let mut random = Random::new(seed);
    let mut turns = 0..2 * steps;
    let next = |scenario: &SchedulerScenario| match turns.next()? % 2 {
        0 => Some(scenario.choose(&mut random)),
        _ => Some(Pause(random.below(30))),
    };
    let scenario = SchedulerScenario::start(Arc::clone(start)).await;
    let outcome = scenario.run(next).await;
    let repeat = format!("IPU_SCHEDULER_SEED={seed} IPU_SCHEDULER_STEPS={steps}");
    outcome.map_err(|error| error.after(&repeat))
}

/// An action on the scheduler or its controller. Jobs are numbered from 0 in the order of submission.
#[derive(Clone, Copy, Debug)]
enum ScenarioAction {
    /// Submits a job of this many IPUs.
    Submit(u32),
    /// Waits until the job has run.
    AwaitRun(usize),
    /// Ends the job.
    End(usize),
    Crash,
    Restart,
    /// Breaks the next call of this method.
    Inject(FaultKind, Method),
    /// Breaks all connections to the controller until `Heal`.
    Outage,
    /// Removes all faults.
    Heal,
    /// Checks for this many milliseconds.
    Pause(u32),
}

const FAILURE: FaultKind = FaultKind::Error { rate: 1.0, seed: 0 };
const LATE: FaultKind = FaultKind::Latency { millis: 50 };
const FAULTS: [FaultKind; 5] = [DropReply, Refuse, Twice, FAILURE, LATE];
const METHODS: [Method; 4] = [
    CreatePartition,
    RemovePartition,
    GetPartitionStatus,
    ListPartitions,
];

/// The named cases. At the end of each, all faults are removed, the scheduler is up, and every job runs and
/// ends.
#[rustfmt::skip]
const CASES: &[(&str, &[ScenarioAction])] = &[
    ("a_job_runs_on_its_active_partition", &[Submit(4), AwaitRun(0), End(0)]),
    ("jobs_that_do_not_fit_run_later", &[
        Submit(8), AwaitRun(0), Submit(8), Submit(16), Submit(1), Submit(8), Pause(50), End(0),
    ]),
    ("a_queued_job_can_be_ended", &[
        Submit(16), AwaitRun(0), Submit(16), Submit(8), Pause(20), End(1), End(0),
    ]),
    ("a_partition_is_kept_until_its_process_is_gone", &[
        Submit(16), AwaitRun(0), Submit(16), End(0), Pause(100),
    ]),
    ("running_jobs_outlive_a_crash_or_end_with_it", &[
        Submit(4), AwaitRun(0), Submit(8), AwaitRun(1), Crash, Pause(30), Restart, Submit(4), AwaitRun(2),
        End(0),
    ]),
    ("queued_jobs_outlive_a_crash", &[Submit(16), AwaitRun(0), Submit(16), Submit(2), Crash]),
    ("a_crash_while_a_job_starts_leaks_nothing", &[
        Submit(4), Crash, Restart, Submit(4), Pause(5), Crash, Restart, Submit(4), Pause(15), Crash,
    ]),
    ("a_crash_while_a_job_ends_leaks_nothing", &[
        Submit(4), AwaitRun(0), Submit(8), AwaitRun(1), End(0), Crash, Restart, End(1), Pause(10), Crash,
    ]),
    ("lost_replies_and_repeated_calls_leak_nothing", &[
        Inject(DropReply, CreatePartition), Submit(4), AwaitRun(0), Inject(Twice, CreatePartition), Submit(8),
        AwaitRun(1), Inject(DropReply, RemovePartition), End(0), Inject(Twice, RemovePartition), End(1),
    ]),
    ("late_and_failed_calls_leak_nothing", &[
        Inject(LATE, CreatePartition), Submit(4), Pause(10), End(0), Inject(FAILURE, CreatePartition),
        Submit(8), AwaitRun(1), Inject(FAILURE, RemovePartition), End(1), Inject(LATE, CreatePartition),
        Submit(16), Pause(10), Crash,
    ]),
    ("an_outage_of_the_controller_is_survived", &[
        Submit(4), AwaitRun(0), Outage, Submit(8), End(0), Pause(100), Crash, Restart, Pause(50), Heal,
    ]),
];

/// Progress of a job, as far as the suite knows.
#[derive(Clone, Copy, PartialEq)]
enum JobProgress {
    Submitted,
    HasRun,
    /// The suite has ordered its end.
    Ended,
}

const UNENDED: [JobProgress; 2] = [JobProgress::Submitted, JobProgress::HasRun];

/// A scheduler under test with its simulated controller. The scheduler ends first.
struct SchedulerScenario {
    scheduler: Box<dyn SchedulerUnderTest>,
    simulator: Simulator,
    jobs: Vec<(SubmittedJob, JobProgress)>,
    is_down: bool,
    actions: Vec<String>,
    /// Processes and partitions of the last check.
    running: Vec<RunningProcess>,
    partitions: Vec<PartitionView>,
}

impl SchedulerScenario {
    async fn start(start: StartScheduler) -> Self {
        let simulator = Simulator::builder(Topology::pod16()).delay(OPERATION);
        let simulator = simulator.start().await.expect("a free port");
        Self {
            scheduler: start(simulator.addr()).await,
            simulator,
            jobs: Vec::new(),
            is_down: false,
            actions: Vec::new(),
            running: Vec::new(),
            partitions: Vec::new(),
        }
    }

    /// Applies all actions of `next`, and ends all jobs.
    async fn run(mut self, mut next: impl FnMut(&Self) -> Option<ScenarioAction> + Send) -> CaseOutcome {
        let mut outcome = Ok(());
        while let (Ok(()), Some(action)) = (&outcome, next(&self)) {
            outcome = self.apply(action).await;
        }
        if outcome.is_ok() {
            outcome = self.end_all().await;
        }
        outcome.map_err(|error| error.after(&self.actions.join(", ")))
    }

    /// Returns the numbers of the jobs whose progress is one of these.
    fn numbers(&self, progress: &[JobProgress]) -> Vec<usize> {
        let is_wanted = |number: &usize| progress.contains(&self.jobs[*number].1);
        (0..self.jobs.len()).filter(is_wanted).collect()
    }

    /// Returns a random action that is possible now.
    fn choose(&self, random: &mut Random) -> ScenarioAction {
        let alive = self.numbers(&UNENDED);
        match random.below(100) {
            0..12 => Inject(*random.pick(&FAULTS), *random.pick(&METHODS)),
            12..16 => Outage,
            16..22 => Heal,
            22..60 if self.is_down => Restart,
            // Time passes while it is down.
            _ if self.is_down => Pause(random.below(50)),
            22..30 => Crash,
            30..55 if !alive.is_empty() => End(*random.pick(&alive)),
            _ => Submit(*random.pick(&[1, 2, 4, 4, 8, 16])),
        }
    }

    /// Applies `action`, and checks at least once.
    async fn apply(&mut self, action: ScenarioAction) -> CaseOutcome {
        self.actions.push(format!("{action:?}"));
        let faults = self.simulator.faults();
        match action {
            Submit(ipus) => {
                let number = self.jobs.len();
                let job = SubmittedJob {
                    name: format!("job-{number}"),
                    ipus: ipus.try_into().expect("a power of two"),
                    linger: if number.is_multiple_of(2) {
                        LINGER
                    } else {
                        Duration::ZERO
                    },
                };
                self.scheduler.submit(&job).await;
                self.jobs.push((job, JobProgress::Submitted));
            }
            AwaitRun(number) => {
                let has_run = |all: &Self| all.jobs[number].1 != JobProgress::Submitted;
                self.wait(EVERY_JOB_RUNS, has_run).await?;
            }
            End(number) => {
                self.jobs[number].1 = JobProgress::Ended;
                self.scheduler.end(&self.jobs[number].0).await;
            }
            Crash => self.scheduler.crash().await,
            Restart => self.scheduler.restart().await,
            Inject(kind, method) => faults.add(Fault::new(kind).for_method(method).times(1)),
            Outage => faults.add(Fault::new(Refuse)),
            Heal => faults.clear(),
            Pause(millis) => {
                let time = Duration::from_millis(millis.into());
                self.check_until(time, |_| false).await?;
            }
        }
        self.is_down = matches!(action, Crash) || self.is_down && !matches!(action, Restart);
        self.check().await
    }

    /// Removes all faults, ends each job once it has run, and waits until nothing is left.
    async fn end_all(&mut self) -> CaseOutcome {
        self.apply(Heal).await?;
        if self.is_down {
            self.apply(Restart).await?;
        }
        while !self.numbers(&UNENDED).is_empty() {
            let one_has_run = |all: &Self| !all.numbers(&[JobProgress::HasRun]).is_empty();
            self.wait(EVERY_JOB_RUNS, one_has_run).await?;
            for number in self.numbers(&[JobProgress::HasRun]) {
                self.apply(End(number)).await?;
            }
        }
        let rule = "ended jobs leave no process and no partition";
        let is_empty = |all: &Self| all.running.is_empty() && all.partitions.is_empty();
        self.wait(rule, is_empty).await?;
        // A late call could create a partition now.
        self.apply(Pause(50)).await?;
        self.wait(rule, is_empty).await
    }

    /// Checks until `is_reached`.
    async fn wait(&mut self, rule: &str, is_reached: impl Fn(&Self) -> bool + Send) -> CaseOutcome {
        let patience = self.scheduler.patience();
        if self.check_until(patience, is_reached).await? {
            return Ok(());
        }
        Err(broken(rule, format_args!("within {patience:?}"), self.describe()))
    }

    /// Checks until `is_reached`, at most for `time`. Returns whether it was reached.
    async fn check_until(
        &mut self,
        time: Duration,
        is_reached: impl Fn(&Self) -> bool + Send,
    ) -> Result<bool, CaseError> {
        let end = Instant::now() + time;
        loop {
            self.check().await?;
            if is_reached(self) || Instant::now() >= end {
                return Ok(is_reached(self));
            }
            sleep(CHECK_PAUSE).await;
        }
    }

    /// Compares the processes with the partitions of the controller. A process counts if it ran before and
    /// after the state of the controller was read, and so at that time.
    async fn check(&mut self) -> CaseOutcome {
        let before = self.scheduler.processes().await;
        self.partitions = self.simulator.state().expect("it is in memory").partitions;
        self.running = self.scheduler.processes().await;
        let known = self.running.iter().filter(|one| before.contains(one));
        let known: Vec<_> = known.collect();
        let mut partitions = BTreeSet::new();
        if !known.iter().all(|process| partitions.insert(&process.partition)) {
            let rule = "no two running processes have the same partition";
            return Err(broken(rule, "a partition for each process", self.describe()));
        }
        for process in known {
            let mut jobs = self.jobs.iter_mut();
            let Some((job, progress)) = jobs.find(|(job, _)| job.name == process.job) else {
                let rule = "a running process belongs to a submitted job";
                return Err(broken(rule, "a job of the suite", format_args!("{process:?}")));
            };
            if *progress == JobProgress::Submitted {
                *progress = JobProgress::HasRun;
            }
            let (id, size) = (process.partition.as_str(), job.ipus.get() as usize);
            let is_fit = |one: &PartitionView| one.id == id && one.size == size && one.state == "ACTIVE";
            if !self.partitions.iter().any(is_fit) {
                let rule = "a running process has an active partition of the size of its job";
                let expected = format!("{} has {id} of {size} IPUs", job.name);
                return Err(broken(rule, expected, self.describe()));
            }
        }
        Ok(())
    }

    /// Describes the last check.
    fn describe(&self) -> String {
        let process = |one: &RunningProcess| format!("{} as {} on {}", one.job, one.process, one.partition);
        let partition = |one: &PartitionView| format!("{} of {} {}", one.id, one.size, one.state);
        let running: Vec<_> = self.running.iter().map(process).collect();
        let partitions: Vec<_> = self.partitions.iter().map(partition).collect();
        let waiting = self.numbers(&[JobProgress::Submitted]);
        format!(
            "processes {running:?}; partitions {partitions:?}; numbers of jobs that have not run {waiting:?}"
        )
    }
}
