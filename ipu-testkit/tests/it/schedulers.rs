//! The suite of schedulers: a scheduler on `ipu-allocator` passes it, and each defect is detected.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use ipu_allocator::{Allocator, EnsureOutcome, MemoryStore, Options, ReleaseOutcome};
use ipu_core::allocator::{CallTimes, Phase, Release, Request};
use ipu_core::hardware::PartitionSpec;
use ipu_core::{JobKey, Owner, PartitionId};
use ipu_testkit::{RunningProcess, SchedulerUnderTest, SubmittedJob, scheduler_suite, try_scheduler_suite};
use ipu_vipu_client::{ConnectOptions, ControllerPool, GrpcController};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

#[derive(Clone, Copy, Default, PartialEq)]
enum Defect {
    #[default]
    None,
    StartsBeforeActive,
    SharesPartitions,
    ReleasesEarly,
    NeverReleases,
    ForgetsItsRecord,
    ForgetsItsQueue,
    StartsASecondProcess,
}

/// A process of a job, with the time at which it ends if it was stopped.
type HostProcess = (RunningProcess, Option<Instant>);

/// The processes of a host, which outlive the scheduler.
#[derive(Default)]
struct Host {
    processes: Vec<HostProcess>,
    started: u32,
}

impl Host {
    fn running(&mut self) -> Vec<RunningProcess> {
        let now = Instant::now();
        self.processes.retain(|(_, end)| end.is_none_or(|end| now < end));
        self.processes
            .iter()
            .map(|(process, _)| process.clone())
            .collect()
    }

    fn runs(&mut self, job: &str) -> bool {
        self.running().iter().any(|process| process.job == job)
    }

    fn start(&mut self, job: &SubmittedJob, partition: PartitionId) {
        self.started += 1;
        let process = RunningProcess::new(&job.name, self.started.to_string(), partition);
        self.processes.push((process, None));
    }

    fn stop(&mut self, job: &SubmittedJob) {
        for (process, end) in &mut self.processes {
            if process.job == job.name {
                end.get_or_insert(Instant::now() + job.linger);
            }
        }
    }
}

/// The jobs by name, each with whether its end is ordered.
type Jobs = BTreeMap<String, (SubmittedJob, bool)>;

/// The scheduler: one task for each recorded job. Jobs and partitions are its record.
#[derive(Clone, Default)]
struct Scheduler {
    defect: Defect,
    jobs: Arc<watch::Sender<Jobs>>,
    partitions: Arc<MemoryStore>,
    host: Arc<Mutex<Host>>,
}

impl Scheduler {
    fn of(defect: Defect) -> Self {
        Self {
            defect,
            ..Self::default()
        }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap()
    }

    fn record(&self, job: &SubmittedJob, is_ended: bool) {
        let recorded = (job.name.clone(), (job.clone(), is_ended));
        self.jobs.send_modify(|jobs| jobs.extend([recorded]));
    }

    async fn drive(self, allocator: Allocator, job: SubmittedJob) {
        let owner = Owner::new("Test", JobKey::new("test", job.name.as_str(), "1").unwrap());
        let request = Request::of_instance(owner, 0, PartitionSpec::of_size(job.ipus));
        let mut jobs = self.jobs.subscribe();
        let ended = async { drop(jobs.wait_for(|jobs| jobs[&job.name].1).await) };
        tokio::select! {
            () = ended => {}
            () = self.run(&allocator, &request, &job) => {}
        }
        self.host().stop(&job);
        while !self.has(Defect::ReleasesEarly) && self.host().runs(&job.name) {
            sleep(Duration::from_millis(2)).await;
        }
        while !self.has(Defect::NeverReleases) {
            let release = Release::of(&request);
            if let Ok(ReleaseOutcome::Gone) = allocator.release(release, late()).await {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.jobs.send_modify(|jobs| drop(jobs.remove(&job.name)));
    }

    /// Starts the process of `job` once it has a partition, unless it runs.
    async fn run(&self, allocator: &Allocator, request: &Request, job: &SubmittedJob) {
        let other = self.host().running().pop();
        let partition = match other.filter(|_| self.has(Defect::SharesPartitions)) {
            Some(other) => other.partition,
            None => self.partition(allocator, request).await,
        };
        if !self.host().runs(&job.name) || self.has(Defect::StartsASecondProcess) {
            self.host().start(job, partition);
        }
        pending().await
    }

    /// Returns the partition of `request` when it is active.
    async fn partition(&self, allocator: &Allocator, request: &Request) -> PartitionId {
        let is_hasty = self.has(Defect::StartsBeforeActive);
        let until = if is_hasty { Instant::now() } else { late() };
        loop {
            match allocator.ensure(request.clone(), until).await {
                Ok(EnsureOutcome::Entry(entry)) if is_hasty || entry.phase == Phase::Active => {
                    return entry.id.clone();
                }
                // The allocator starts, or the controller is unreachable.
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn options() -> Options {
    let mut options = Options::default();
    options.times = CallTimes::with_deadline(Duration::from_millis(500));
    // A call of a killed scheduler ends with its connection.
    options.times.settle = Duration::from_millis(500);
    options.times.max_retry_pause = Duration::from_millis(50);
    options.times.max_poll_pause = Duration::from_millis(20);
    options.listing_interval = Duration::from_millis(50);
    options
}

/// The scheduler in a runtime of its own, whose end is that of a process.
struct Bench {
    scheduler: Scheduler,
    controller: SocketAddr,
    running: Option<(Runtime, Allocator)>,
}

impl Bench {
    async fn start(defect: Defect, controller: SocketAddr) -> Self {
        let mut bench = Self {
            scheduler: Scheduler::of(defect),
            controller,
            running: None,
        };
        bench.restart().await;
        bench
    }

    fn drive(&self, job: SubmittedJob) {
        let (runtime, allocator) = self.running.as_ref().unwrap();
        runtime.spawn(self.scheduler.clone().drive(allocator.clone(), job));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some((runtime, _)) = self.running.take() {
            runtime.shutdown_background();
        }
    }
}

#[async_trait]
impl SchedulerUnderTest for Bench {
    async fn submit(&mut self, job: &SubmittedJob) {
        self.scheduler.record(job, false);
        self.drive(job.clone());
    }

    async fn end(&mut self, job: &SubmittedJob) {
        self.scheduler.record(job, true);
    }

    async fn crash(&mut self) {
        let (runtime, _) = self.running.take().unwrap();
        let end = move || runtime.shutdown_timeout(Duration::from_secs(10));
        tokio::task::spawn_blocking(end).await.unwrap();
    }

    async fn restart(&mut self) {
        if self.scheduler.has(Defect::ForgetsItsRecord) {
            // The processes of this scheduler end with it.
            self.scheduler = Scheduler::of(Defect::ForgetsItsRecord);
        }
        let scheduler = self.scheduler.clone();
        if scheduler.has(Defect::ForgetsItsQueue) {
            let mut host = scheduler.host();
            scheduler
                .jobs
                .send_modify(|jobs| jobs.retain(|job, _| host.runs(job)));
        }
        let runtime = Runtime::new().unwrap();
        let entered = runtime.enter();
        let endpoint = self.controller.try_into().unwrap();
        let controller = GrpcController::connect(&endpoint, &ConnectOptions::default()).unwrap();
        let pool = ControllerPool::single("pod16".parse().unwrap(), Arc::new(controller));
        let allocator = Allocator::start(options(), scheduler.partitions, pool);
        drop(entered);
        self.running = Some((runtime, allocator));
        let jobs = scheduler.jobs.borrow().clone();
        jobs.into_values().for_each(|(job, _)| self.drive(job));
    }

    async fn processes(&mut self) -> Vec<RunningProcess> {
        self.scheduler.host().running()
    }

    fn patience(&self) -> Duration {
        match self.scheduler.defect {
            // These are found only after this time, in most cases.
            Defect::NeverReleases | Defect::ForgetsItsRecord | Defect::ForgetsItsQueue => {
                Duration::from_secs(2)
            }
            _ => Duration::from_secs(60),
        }
    }
}

const ACTIVE: &str = "a running process has an active partition of the size of its job";
const OWN: &str = "no two running processes have the same partition";
const LEFT: &str = "ended jobs leave no process and no partition";
const STUCK: &str = "every job runs, unless it is ended before";

/// Each defect, with a case that detects it and the broken rule.
#[rustfmt::skip]
const DEFECTS: [(Defect, &str, &str); 7] = [
    (Defect::StartsBeforeActive, "a_job_runs_on_its_active_partition", ACTIVE),
    (Defect::SharesPartitions, "jobs_that_do_not_fit_run_later", OWN),
    (Defect::ReleasesEarly, "a_partition_is_kept_until_its_process_is_gone", ACTIVE),
    (Defect::NeverReleases, "a_job_runs_on_its_active_partition", LEFT),
    (Defect::ForgetsItsRecord, "running_jobs_outlive_a_crash_or_end_with_it", LEFT),
    (Defect::ForgetsItsQueue, "queued_jobs_outlive_a_crash", STUCK),
    (Defect::StartsASecondProcess, "running_jobs_outlive_a_crash_or_end_with_it", OWN),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_on_the_allocator_passes() {
    let report = scheduler_suite(|controller| Bench::start(Defect::None, controller)).await;
    assert_eq!((report.ran.len(), report.skipped.len()), (12, 0), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_defect_is_detected_by_its_case() {
    let checks = DEFECTS.map(|(defect, case, rule)| async move {
        let suite = try_scheduler_suite(move |controller| Bench::start(defect, controller));
        let failure = suite.await.unwrap_err();
        let broken = failure.broken.iter().find(|broken| broken.case == case);
        assert_eq!(broken.map(|broken| broken.rule.as_str()), Some(rule), "{failure}");
        let text = failure.to_string();
        assert!(text.contains("after:    Submit("), "{text}");
        let seed = "after:    IPU_SCHEDULER_SEED=1 IPU_SCHEDULER_STEPS=40";
        assert!(text.contains(seed) || defect != Defect::NeverReleases, "{text}");
    });
    join_all(checks).await;
}
