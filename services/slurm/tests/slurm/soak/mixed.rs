//! Jobs of Slurm and of another owner, at the IPUs of one IPU-POD through one ledger.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ipu_test_slurm::slurm_version;
use ipu_testkit::Random;
use serde_json::Value;

use super::drive::{assert_no_node_is_drained, assert_ran_with_partition, final_states, limit, script};
use super::options::SoakOptions;
use super::queue;
use super::sample::{PartitionSampler, SampleCounts};
use crate::cluster::Cluster;

/// Sizes of requests. Small ones are more frequent.
const SIZES: [u32; 10] = [1, 1, 2, 2, 4, 4, 8, 8, 16, 32];
/// Maximum time of a job, in milliseconds.
const MAX_LIFE: u32 = 2000;
/// Maximum number of jobs in the queue of Slurm.
const MAX_SLURM_JOBS: usize = 12;
/// Maximum number of requests between two samples.
const SUBMISSIONS: usize = 4;
/// Maximum number of IPUJobs at once.
const MAX_IPU_JOBS: usize = 8;

/// A request that has not been made yet.
pub(crate) struct Request {
    is_slurm: bool,
    /// Number of IPUs.
    pub(crate) size: u32,
    pub(crate) life: Duration,
}

/// The other owner of IPUs.
pub(crate) trait OtherOwner {
    /// Submits job `number`.
    fn submit(&mut self, cluster: &Cluster, number: usize, request: &Request);

    /// Forgets the jobs that have ended. `ledger` was read before.
    fn step(&mut self, cluster: &Cluster, ledger: &[Value]);

    /// Returns the number of jobs that have not ended.
    fn jobs(&self) -> usize;
}

impl Request {
    fn draw(random: &mut Random) -> Self {
        Self {
            is_slurm: random.chance(50),
            size: *random.pick(&SIZES),
            life: Duration::from_millis(random.below(MAX_LIFE).into()),
        }
    }
}

/// Plays IPUJobs over the API of the proxy: requests a partition, keeps it for a while once it is active, and
/// releases it.
#[derive(Default)]
pub(crate) struct PlayedOwner(Vec<IpuJob>);

/// A played IPUJob.
struct IpuJob {
    id: String,
    life: Duration,
    /// When it ends; none until its partition is active.
    ends: Option<Instant>,
}

/// The figures of a run.
pub(crate) struct MixedReport {
    requests: usize,
    seed: u64,
    elapsed: Duration,
    slurm_jobs: usize,
    /// Waits in the queue of the proxy, in milliseconds: of jobs that found no room.
    waits: Vec<u64>,
    /// Jobs that were seen pending for licenses.
    pended: usize,
}

/// Makes all requests, and waits until all jobs have ended.
pub(crate) fn drive(
    cluster: &Cluster,
    options: &SoakOptions,
    other: &mut impl OtherOwner,
    sampler: &mut PartitionSampler,
) -> MixedReport {
    let started = Instant::now();
    let mut random = options.random(2);
    let mut requests = 0;
    let mut next = None;
    let mut slurm_jobs = Vec::new();
    let mut pended = BTreeSet::new();
    loop {
        let listed = cluster.bed.succeed("squeue", &["-h", "-o", "%i %r"]);
        let pending = listed.lines().filter_map(|line| line.strip_suffix(" Licenses"));
        pended.extend(pending.map(str::to_owned));
        let mut in_queue = listed.lines().count();
        if requests == options.jobs && in_queue == 0 && other.jobs() == 0 {
            break;
        }
        for _ in 0..SUBMISSIONS.min(options.jobs - requests) {
            let request = next.take().unwrap_or_else(|| Request::draw(&mut random));
            if request.is_slurm && in_queue < MAX_SLURM_JOBS {
                let licenses = format!("--licenses=pod64:{}", request.size);
                slurm_jobs.push(cluster.submit(&[&licenses], &script(request.life.as_secs_f64())));
                in_queue += 1;
            } else if !request.is_slurm && other.jobs() < MAX_IPU_JOBS {
                other.submit(cluster, requests, &request);
            } else {
                next = Some(request);
                break;
            }
            requests += 1;
        }
        let Some(ledger) = sampler.sample(cluster) else {
            // The proxy runs, but a busy machine may answer late.
            assert!(started.elapsed() < limit(options.jobs), "{}", cluster.bed.logs());
            continue;
        };
        other.step(cluster, &ledger);
        assert_no_node_is_drained(cluster);
        let seconds = started.elapsed();
        assert!(
            seconds < limit(options.jobs),
            "{listed}\n{ledger:?}\n{}",
            cluster.bed.logs()
        );
    }
    let states = final_states(cluster);
    for job in &slurm_jobs {
        assert_ran_with_partition(cluster, job, &states[job]);
        assert!(
            cluster.bed.show_job(job).contains(" Restarts=0 "),
            "job {job} was requeued"
        );
    }
    MixedReport {
        requests,
        seed: options.seed,
        elapsed: started.elapsed(),
        slurm_jobs: slurm_jobs.len(),
        waits: queue::waits(cluster),
        pended: pended.len(),
    }
}

impl OtherOwner for PlayedOwner {
    fn submit(&mut self, cluster: &Cluster, number: usize, request: &Request) {
        let id = format!("mnist-{number}");
        let owner =
            format!(r#"{{"kind": "IPUJob", "namespace": "default", "name": "{id}", "uid": "{number}"}}"#);
        let body = format!(r#"{{"size": {}, "owner": {owner}}}"#, request.size);
        cluster.send("PUT", &format!("/v1/partitions/{id}"), &body);
        self.0.push(IpuJob {
            id,
            life: request.life,
            ends: None,
        });
    }

    fn step(&mut self, cluster: &Cluster, ledger: &[Value]) {
        self.0.retain_mut(|job| !job.step(cluster, ledger));
    }

    fn jobs(&self) -> usize {
        self.0.len()
    }
}

impl IpuJob {
    /// Releases the partition at the end of the job, and returns whether that was done. The ledger was read
    /// before.
    fn step(&mut self, cluster: &Cluster, ledger: &[Value]) -> bool {
        let entry = ledger.iter().find(|entry| entry["id"] == self.id.as_str());
        let is_active = entry.is_some_and(|entry| entry["state"] == "active");
        match self.ends {
            None if is_active => self.ends = Some(Instant::now() + self.life),
            None => {}
            Some(_) => assert!(is_active, "a running IPUJob has lost its partition: {entry:?}"),
        }
        let is_over = self.ends.is_some_and(|ends| ends <= Instant::now());
        if is_over {
            cluster.send("DELETE", &format!("/v1/partitions/{}", self.id), "");
        }
        is_over
    }
}

impl MixedReport {
    /// Returns a row of a table, with its head.
    pub(crate) fn render(&self, counts: &SampleCounts) -> String {
        let version = slurm_version().unwrap_or_default();
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let median = waits.get(waits.len() / 2).copied().unwrap_or(0);
        let longest = waits.last().copied().unwrap_or(0);
        let share = 100.0 * self.waits.len() as f64 / self.slurm_jobs as f64;
        format!(
            "| Slurm | requests | seed | s | Slurm jobs | pended for licenses | found no room in \
             PrologSlurmctld | their wait: median, longest | samples |\n|---|---|---|---|---|---|---|---|---|\n\
             | {}.{:02} | {} | {} | {} | {} | {} | {} ({share:.0} %) | {median} ms, {longest} ms | {} |",
            version / 100,
            version % 100,
            self.requests,
            self.seed,
            self.elapsed.as_secs(),
            self.slurm_jobs,
            self.pended,
            self.waits.len(),
            counts.samples,
        )
    }
}
