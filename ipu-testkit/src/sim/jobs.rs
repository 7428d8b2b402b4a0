//! Jobs of a simulation: spec and recorded status.

use ipu_core::{
    IntOrString, JobSpec, JobStatus, Limits, OnNoCapacity, Owner, RawInteractive, RawJob, RawLauncher,
    RawRestartPolicy, Timestamp,
};

use crate::random::Random;

/// Maximum number of queued instances of a job: fewer than some jobs have.
const MAX_QUEUED_INSTANCES: u32 = 2;

/// Submitted job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) raw: RawJob,
    pub(super) spec: JobSpec,
    pub(super) owner: Owner,
    pub(super) on_no_capacity: OnNoCapacity,
    /// Whether its first instance names its IPUs explicitly: the first ones of a link domain.
    pub(super) pins_ipus: bool,
    pub(super) submitted: Timestamp,
    pub(super) deleted: bool,
    pub(super) status: JobStatus,
    /// Whether it was finalized or deleted by force.
    pub(super) removed: bool,
    /// Codes of the reasons in the last plan.
    pub(super) reasons: Vec<String>,
    /// Driver that reconciles it.
    pub(super) driver: Option<usize>,
}

impl Job {
    pub(super) fn new(raw: RawJob, on_no_capacity: OnNoCapacity, submitted: Timestamp) -> Self {
        let spec = parse(&raw);
        Self {
            owner: Owner {
                kind: "Sim".into(),
                job: spec.key().clone(),
            },
            raw,
            spec,
            on_no_capacity,
            pins_ipus: false,
            submitted,
            deleted: false,
            status: JobStatus::default(),
            removed: false,
            reasons: Vec::new(),
            driver: None,
        }
    }

    /// Edits the job.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut RawJob)) {
        change(&mut self.raw);
        self.spec = parse(&self.raw);
    }
}

fn parse(raw: &RawJob) -> JobSpec {
    match raw.parse(&Limits::default().with_max_requested(MAX_QUEUED_INSTANCES)) {
        Ok(parsed) => parsed.spec,
        Err(violations) => panic!("the simulator creates valid jobs: {violations:?}"),
    }
}

/// Returns a random job with the index `number`; most have at most `largest` IPUs per instance.
pub(super) fn random_job(number: usize, largest: u32, random: &mut Random) -> RawJob {
    let mut raw = RawJob::default();
    raw.metadata.namespace = Some(format!("ns{}", random.below(2)));
    // Names are reused with another uid.
    raw.metadata.name = Some(format!("job{}", number % 6));
    raw.metadata.uid = Some(format!("uid{number}"));
    let spec = &mut raw.spec;
    let order = random.below(largest.ilog2() + 1);
    let ipus = if random.chance(3) { 64 } else { 1 << order };
    spec.ipus_per_job_instance = Some(int(ipus));
    spec.job_instances = Some(int(*random.pick(&[1, 1, 1, 2, 3])));
    if ipus > 1 && random.chance(40) {
        spec.workers_per_job_instance = Some(int(2));
    }
    match random.below(10) {
        0..=4 => {}
        5..=8 => {
            spec.launcher = Some(RawLauncher {
                command: Some(vec!["train".into()]),
                ..RawLauncher::default()
            });
        }
        _ => {
            spec.interactive = Some(RawInteractive {
                ttl: Some(int(5 + random.below(60))),
            });
        }
    }
    spec.clean_pod_policy = Some((*random.pick(&["None", "Workers", "Workers", "All"])).into());
    if random.chance(80) {
        let kind = *random.pick(&[
            "Always",
            "OnFailure",
            "OnFailure",
            "Never",
            "ExitCode",
            "ExitCode",
        ]);
        // The second back-off of some jobs would exceed the maximum.
        let (least, step) = if number % 4 == 3 { (180, 20) } else { (0, 1) };
        spec.restart_policy = Some(RawRestartPolicy {
            kind: Some(kind.into()),
            back_off_limit: Some(int(random.below(6))),
            exit_codes: (kind == "ExitCode").then(|| "128-255,42".into()),
            back_off_seconds: Some(int(least + random.below(8) * step)),
        });
    }
    if random.chance(20) {
        spec.ttl_seconds_after_finished = Some(int(random.below(40)));
    }
    if random.chance(20) {
        spec.active_deadline_seconds = Some(int(10 + random.below(120)));
    }
    spec.start_deadline_seconds = Some(int(10 + random.below(80)));
    if random.chance(40) {
        spec.priority = Some(int(random.below(3)));
    }
    if random.chance(50) {
        spec.account = Some((*random.pick(&["red", "blue"])).into());
    }
    if random.chance(5) {
        spec.suspend = Some(true);
    }
    // Independent of the random numbers, which earlier seeds rely on.
    spec.preemptible = Some(number.is_multiple_of(2));
    raw
}

pub(super) fn int(number: u32) -> IntOrString {
    IntOrString::Int(i64::from(number))
}
