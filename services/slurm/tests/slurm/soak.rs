//! Soak tests: many short jobs, some cancelled, while daemons are killed.
//!
//! A sampler compares the ledger, the simulated controller, IpuofDir and the processes of jobs all the time:
//! no IPU may be in the partitions of two jobs. Sizes, lives and moments come from a seed. The number of jobs
//! and the seed come from the environment; a failure prints them.

mod chaos;
mod drive;
mod mixed;
mod options;
mod processes;
mod queue;
mod report;
mod sample;
mod sharing;
mod static_pools;

use ipu_test_slurm::BedOptions;

use crate::cluster::Cluster;
use chaos::Chaos;
use drive::{JobKind, drive};
use mixed::PlayedOwner;
use options::SoakOptions;
use report::SoakReport;
use sample::PartitionSampler;
use static_pools::StaticPools;

/// Number of jobs of each way in the gate.
const JOBS: usize = 200;

#[test]
fn killed_daemons_and_cancelled_jobs_leave_no_partition_and_share_no_ipu() {
    let test = "killed_daemons_and_cancelled_jobs_leave_no_partition_and_share_no_ipu";
    let options = SoakOptions::from_environment(JOBS);
    let Some(mut cluster) = Cluster::start_with_plugin_and(test, keep_ended_jobs()) else {
        return;
    };
    let mut sampler = PartitionSampler::default();
    let mut chaos = Chaos::new(&mut cluster, options.random(0));
    let report = drive(&mut cluster, &options, JobKind::PerJob, &mut chaos, |cluster| {
        sampler.sample(cluster);
    });
    chaos.end(&mut cluster);
    assert_nothing_is_left(&cluster);
    assert_was_disturbed(&report, &chaos);
    // Otherwise the IPUs of the ledger and of the controller were never compared.
    let counts = &sampler.counts;
    assert!(counts.complete * 3 >= counts.samples, "{counts:?}");
    println!(
        "{}",
        report.render("IPUs per job", &cluster, &chaos, &sampler.counts)
    );
}

#[test]
fn killed_daemons_and_cancelled_jobs_leave_every_static_partition_free() {
    let test = "killed_daemons_and_cancelled_jobs_leave_every_static_partition_free";
    let options = SoakOptions::from_environment(JOBS);
    let Some((mut cluster, mut pools)) = StaticPools::start(test, keep_ended_jobs()) else {
        return;
    };
    let mut chaos = Chaos::new(&mut cluster, options.random(0));
    let report = drive(&mut cluster, &options, JobKind::Static, &mut chaos, |cluster| {
        pools.sample(cluster);
    });
    chaos.end(&mut cluster);
    pools.assert_all_free(&cluster);
    assert_was_disturbed(&report, &chaos);
    println!(
        "{}",
        report.render("static partitions", &cluster, &chaos, &pools.counts)
    );
}

#[test]
fn slurm_and_another_owner_share_no_ipu_and_jobs_pend() {
    let test = "slurm_and_another_owner_share_no_ipu_and_jobs_pend";
    let options = SoakOptions::from_environment(JOBS);
    let Some(mut cluster) = Cluster::start_with(test, 600, "", keep_ended_jobs()) else {
        return;
    };
    // Several agents are safe.
    for name in ["agent", "second-agent"] {
        cluster.start_agent_as(name);
    }
    queue::record(&mut cluster);
    assert_jobs_pend(&cluster);
    let mut sampler = PartitionSampler::default();
    let mut other = PlayedOwner::default();
    let report = mixed::drive(&cluster, &options, &mut other, &mut sampler);
    assert_nothing_is_left(&cluster);
    println!("{}", report.render(&sampler.counts));
}

/// Checks that daemons were killed and jobs cancelled, so that the soak has tested something.
fn assert_was_disturbed(report: &SoakReport, chaos: &Chaos) {
    let (agent, proxy) = chaos.kills();
    let is_disturbed = agent > 0 && proxy > 0 && report.cancelled > 0;
    assert!(
        is_disturbed || report.jobs < JOBS,
        "{agent} {proxy} {}",
        report.cancelled
    );
}

/// Checks that a job pends in the queue of Slurm while another owner has all IPUs.
fn assert_jobs_pend(cluster: &Cluster) {
    cluster.take("all", 64);
    cluster.bed.wait_until("all licenses are withheld", || {
        cluster.reserved() == "Licenses=pod64:64"
    });
    let job = cluster.submit(&["--licenses=pod64:4"], "true");
    cluster.bed.wait_until("the job pends for licenses", || {
        let state = cluster.job_value(&job, "JobState");
        assert!(!state.starts_with("CONFIGURING"), "{state}");
        state.starts_with("PENDING Reason=Licenses")
    });
    cluster.release("all");
    cluster.wait_for_end(&job);
}

/// Waits until the agent has released everything, and all nodes are idle. A hook that was killed while it
/// wrote its first file leaves an unfinished one, `.testbed-7.env.new`, to the next job with its id.
fn assert_nothing_is_left(cluster: &Cluster) {
    cluster
        .bed
        .wait_until("nothing is held", || cluster.ledger().is_empty());
    assert_eq!(cluster.hardware(), Vec::<String>::new());
    cluster.bed.wait_until("no file is left", || {
        cluster.files().iter().all(|name| name.starts_with('.'))
    });
    cluster.bed.wait_until("all nodes are idle", || {
        cluster.bed.node_states().iter().all(|state| state == "idle")
    });
}

/// Returns options of a bed whose slurmctld remembers all jobs until the end of the test.
fn keep_ended_jobs() -> BedOptions {
    BedOptions::new().line("MinJobAge=7200")
}
