//! Samples of the ledger, the controller, IpuofDir and the processes of jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use super::processes::{Processes, Use};
use crate::cluster::Cluster;

/// The numbers of a sampler.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleCounts {
    /// Number of samples.
    pub(crate) samples: u32,
    /// Samples in which the ledger and the controller answered.
    pub(crate) complete: u32,
    /// Maximum number of jobs with processes in one sample.
    pub(crate) max_jobs: usize,
}

impl SampleCounts {
    /// Counts a sample with these uses.
    pub(crate) fn count(&mut self, uses: &[Use]) {
        let jobs: BTreeSet<&str> = uses.iter().map(|one| one.job.as_str()).collect();
        self.samples += 1;
        self.max_jobs = self.max_jobs.max(jobs.len());
    }
}

/// The partitions of a list, each with its IPUs.
type Ipus = BTreeMap<String, BTreeSet<String>>;

/// Checks that no IPU is held twice.
#[derive(Debug, Default)]
pub(crate) struct PartitionSampler {
    pub(crate) counts: SampleCounts,
}

impl PartitionSampler {
    /// Takes a sample, and fails if an IPU is held twice. The proxy, with the simulated controller in it, may
    /// be down.
    pub(crate) fn sample(&mut self, cluster: &Cluster) -> Option<Vec<Value>> {
        let before = Processes::scan(&cluster.bed);
        let ledger = cluster.try_get("/v1/partitions");
        let controller = cluster.try_simulator_state();
        check_files(cluster);
        let uses = before.that_lasted(&Processes::scan(&cluster.bed));
        self.counts.count(&uses);
        assert_one_job_each(&uses);
        let (ledger, controller) = (ledger?, controller?);
        self.counts.complete += 1;
        let ledger = ledger["partitions"].as_array().cloned().unwrap_or_default();
        let held = ipus_of(ledger.iter().filter(|entry| entry["state"] == "active"));
        let all_held = ipus_of(&ledger);
        let present = ipus_of(controller["partitions"].as_array().into_iter().flatten());
        for (name, list) in [("the ledger", &all_held), ("the controller", &present)] {
            assert_disjoint(name, list);
        }
        for one in &uses {
            assert!(
                held.contains_key(&one.partition),
                "a process of {one:?} runs, and its partition is not active in the ledger: {ledger:?}"
            );
            assert!(
                present.contains_key(&one.partition),
                "a process of {one:?} runs, and the controller has only {present:?}"
            );
        }
        Some(ledger)
    }
}

/// Checks that no partition has processes of two jobs.
pub(crate) fn assert_one_job_each(uses: &[Use]) {
    let mut jobs: BTreeMap<&str, &str> = BTreeMap::new();
    for one in uses {
        let other = jobs.insert(&one.partition, &one.job);
        assert!(
            other.is_none_or(|other| other == one.job),
            "partition {} has processes of the jobs {other:?} and {}",
            one.partition,
            one.job
        );
    }
}

/// Checks that no IPU is in two partitions.
fn assert_disjoint(name: &str, partitions: &Ipus) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (partition, ipus) in partitions {
        for ipu in ipus {
            let other = owners.insert(ipu, partition);
            assert!(
                other.is_none(),
                "{name}: IPU {ipu} is in {other:?} and in {partition}: {partitions:?}"
            );
        }
    }
}

fn ipus_of<'a>(list: impl IntoIterator<Item = &'a Value>) -> Ipus {
    let entries = list.into_iter().map(|entry| {
        let ipus = entry["ipus"].as_array().into_iter().flatten();
        let id = entry["id"].as_str().unwrap().to_owned();
        (id, ipus.map(Value::to_string).collect())
    });
    entries.collect()
}

/// Checks that no two jobs have files with one partition. Files may come and go meanwhile.
fn check_files(cluster: &Cluster) {
    let mut jobs: BTreeMap<String, String> = BTreeMap::new();
    for name in cluster.files() {
        let path = cluster.bed.directory().join("ipuof").join(&name);
        let Some(text) = name
            .ends_with(".env")
            .then(|| fs::read_to_string(path).ok())
            .flatten()
        else {
            continue;
        };
        let prefix = "IPUOF_VIPU_API_PARTITION_ID=";
        if let Some(partition) = text.lines().find_map(|line| line.strip_prefix(prefix)) {
            let other = jobs.insert(partition.to_owned(), name.clone());
            assert!(
                other.is_none(),
                "{name} and {other:?} have the partition {partition}"
            );
        }
    }
}
