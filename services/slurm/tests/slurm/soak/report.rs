//! The figures of a soak test.

use std::time::Duration;

use ipu_test_slurm::slurm_version;

use super::chaos::Chaos;
use super::sample::SampleCounts;
use crate::cluster::Cluster;

/// The figures of the jobs.
pub(crate) struct SoakReport {
    pub(crate) jobs: usize,
    pub(crate) seed: u64,
    /// Number of `scancel`.
    pub(crate) cancels: usize,
    /// Number of jobs that ended by it.
    pub(crate) cancelled: usize,
    pub(crate) elapsed: Duration,
}

impl SoakReport {
    /// Returns a row of a table, with its head.
    pub(crate) fn render(
        &self,
        way: &str,
        cluster: &Cluster,
        chaos: &Chaos,
        counts: &SampleCounts,
    ) -> String {
        let version = slurm_version().unwrap_or_default();
        let (agent, proxy) = chaos.kills();
        let released = agent_releases(cluster);
        format!(
            "| Slurm | way | jobs | seed | s | scancel (ended by it) | kills of agent, proxy | releases by the agent \
             | samples (complete) | jobs at once |\n|---|---|---|---|---|---|---|---|---|---|\n\
             | {}.{:02} | {way} | {} | {} | {} | {} ({}) | {agent}, {proxy} | {released} | {} ({}) | {} |",
            version / 100,
            version % 100,
            self.jobs,
            self.seed,
            self.elapsed.as_secs(),
            self.cancels,
            self.cancelled,
            counts.samples,
            counts.complete,
            counts.max_jobs,
        )
    }
}

/// Returns how many partitions the agent has released, by its log.
pub(crate) fn agent_releases(cluster: &Cluster) -> usize {
    let path = cluster.bed.directory().join("log/agent.out");
    let log = std::fs::read_to_string(path).unwrap_or_default();
    log.matches(" has ended: released partition ").count()
}
