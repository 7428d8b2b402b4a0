//! Submits jobs, and cancels some of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ipu_testkit::Random;

use super::chaos::Chaos;
use super::options::SoakOptions;
use super::report::SoakReport;
use crate::cluster::Cluster;

/// Maximum number of jobs in the queue of Slurm.
const MAX_JOBS: usize = 20;
/// Maximum number of submissions between two samples.
const SUBMISSIONS: usize = 4;
/// Share of cancelled jobs in percent.
const CANCELLED: u32 = 20;
/// Maximum time of a job, in milliseconds.
const MAX_LIFE: u32 = 4000;
/// Maximum time from the submission of a job to its cancellation, in milliseconds.
const MAX_CANCEL_DELAY: u32 = 4000;
/// Number of samples between two checks of the nodes.
const NODE_CHECKS: u32 = 10;

/// The request of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// A partition of its own, of 1 to 8 IPUs.
    PerJob,
    /// A static partition of 1, 2 or 4 IPUs.
    Static,
}

impl JobKind {
    fn request(self, random: &mut Random) -> String {
        match self {
            Self::PerJob => format!("--ipus={}", random.pick(&[1, 2, 4, 8])),
            Self::Static => format!("--gres=vipu:{}:1", random.pick(&[1, 2, 4])),
        }
    }
}

/// A submitted job.
struct SoakJob {
    id: String,
    /// When it is cancelled.
    cancel_at: Option<Instant>,
    is_cancelled: bool,
}

/// Runs all jobs to their end: at most [`MAX_JOBS`] at once, a fifth of them cancelled. Calls `sample` all
/// the time. Fails if a node is drained, or if a job that was not cancelled did not succeed with a partition.
pub(crate) fn drive(
    cluster: &mut Cluster,
    options: &SoakOptions,
    kind: JobKind,
    chaos: &mut Chaos,
    mut sample: impl FnMut(&Cluster),
) -> SoakReport {
    let started = Instant::now();
    let mut random = options.random(1);
    let mut jobs: Vec<SoakJob> = Vec::new();
    let mut in_queue = 0;
    let mut steps = 0;
    while jobs.len() < options.jobs || in_queue > 0 {
        chaos.step(cluster);
        let free = MAX_JOBS.saturating_sub(in_queue).min(options.jobs - jobs.len());
        for _ in 0..free.min(SUBMISSIONS) {
            jobs.push(submit(cluster, kind, &mut random));
            cancel_due(cluster, &mut jobs);
        }
        cancel_due(cluster, &mut jobs);
        sample(cluster);
        steps += 1;
        in_queue = cluster.bed.job_ids().len();
        if steps % NODE_CHECKS == 0 {
            assert_no_node_is_drained(cluster);
        }
        assert!(
            started.elapsed() < limit(options.jobs),
            "{in_queue} jobs have not ended"
        );
    }
    assert_no_node_is_drained(cluster);
    let states = final_states(cluster);
    for job in &jobs {
        let state = &states[&job.id];
        if !job.is_cancelled || state != "CANCELLED" {
            assert_ran_with_partition(cluster, &job.id, state);
        }
    }
    let cancels: Vec<&SoakJob> = jobs.iter().filter(|job| job.is_cancelled).collect();
    let is_cancelled = |job: &&&SoakJob| states[&job.id] == "CANCELLED";
    SoakReport {
        jobs: jobs.len(),
        seed: options.seed,
        cancels: cancels.len(),
        cancelled: cancels.iter().filter(is_cancelled).count(),
        elapsed: started.elapsed(),
    }
}

fn submit(cluster: &Cluster, kind: JobKind, random: &mut Random) -> SoakJob {
    let request = kind.request(random);
    let life = f64::from(random.below(MAX_LIFE)) / 1000.0;
    let delay = random.below(MAX_CANCEL_DELAY);
    let is_cancelled = random.chance(CANCELLED);
    let id = cluster.submit(&[&request], &script(life));
    SoakJob {
        id,
        cancel_at: is_cancelled.then(|| Instant::now() + Duration::from_millis(delay.into())),
        is_cancelled,
    }
}

/// Cancels the jobs whose moment has come. Slurm accepts that for a job that has ended.
fn cancel_due(cluster: &Cluster, jobs: &mut [SoakJob]) {
    for job in jobs {
        if job.cancel_at.take_if(|at| *at <= Instant::now()).is_some() {
            let output = cluster.bed.run("scancel", &[&job.id]);
            assert!(output.success, "{output:?}");
        }
    }
}

/// Returns the state of each job.
pub(crate) fn final_states(cluster: &Cluster) -> BTreeMap<String, String> {
    let text = cluster.bed.succeed("scontrol", &["-o", "show", "jobs"]);
    let value = |line: &str, key: &str| {
        let word = line.split(' ').find_map(|word| word.strip_prefix(key)).unwrap();
        word.to_owned()
    };
    text.lines()
        .map(|line| (value(line, "JobId="), value(line, "JobState=")))
        .collect()
}

/// Returns the script of a job that runs for so many seconds. It starts no process: the beds have
/// `proctrack/linuxproc`, and Slurm loses a process that starts while it cancels the job.
pub(crate) fn script(seconds: f64) -> String {
    let wait = format!(r#"select(undef, undef, undef, {seconds}); print "end\n""#);
    format!("echo partition $IPUOF_VIPU_API_PARTITION_ID; exec perl -e '{wait}'")
}

/// Checks that a job has succeeded at its first start, with a partition.
pub(crate) fn assert_ran_with_partition(cluster: &Cluster, job: &str, state: &str) {
    let output = cluster.output(job);
    let has_run = output
        .strip_prefix("partition ")
        .is_some_and(|rest| !rest.starts_with('\n') && rest.ends_with("\nend\n"));
    assert!(
        state == "COMPLETED" && has_run,
        "job {job} is {state}, AdminComment {:?}, output {output:?}\n{}",
        cluster.job_value(job, "AdminComment"),
        cluster.bed.logs()
    );
}

/// Checks that no node is drained.
pub(crate) fn assert_no_node_is_drained(cluster: &Cluster) {
    let states = cluster.bed.node_states();
    let is_drained = |state: &String| state.contains("drain") || state.contains("drng");
    assert!(!states.iter().any(is_drained), "a node is drained: {states:?}");
}

/// Returns the maximum time of a soak: many times the need of a quiet machine.
pub(crate) fn limit(jobs: usize) -> Duration {
    Duration::from_secs(120 + 2 * jobs as u64)
}
