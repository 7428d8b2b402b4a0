//! Static partitions: samples of the directories of the nodes and of the processes of jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};

use ipu_test_slurm::{BedOptions, NODES};

use super::processes::{Processes, Use};
use super::sample::{SampleCounts, assert_one_job_each};
use crate::cluster::Cluster;
use crate::matrix::way::{create_pools, node_hooks};

/// Partitions of each node: 16 IPUs in 8 partitions.
const GRES: &str = "vipu:1:4,vipu:2:2,vipu:4:2";
/// Number of partitions of a node.
const PARTITIONS: usize = 8;

/// The pools of all nodes.
pub(crate) struct StaticPools {
    pub(crate) counts: SampleCounts,
    /// Ids of the partitions.
    standing: BTreeSet<String>,
}

/// The directory of a node, read under its lock.
struct PoolDirectory {
    free: BTreeSet<String>,
    /// The job of each partition, by the files `p<job id>`.
    jobs: BTreeMap<String, String>,
}

impl StaticPools {
    /// Starts a cluster with pools; none if this machine has no Slurm.
    pub(crate) fn start(test: &str, options: BedOptions) -> Option<(Cluster, Self)> {
        let options = node_hooks(options).node_gres(GRES);
        let cluster = Cluster::start_with(test, 60, "", options)?;
        create_pools(&cluster);
        let standing: BTreeSet<String> = cluster.hardware().into_iter().collect();
        assert_eq!(standing.len(), PARTITIONS * NODES.len());
        let counts = SampleCounts::default();
        Some((cluster, Self { counts, standing }))
    }

    /// Takes a sample, and fails if a partition has two jobs, or is free while a process uses it.
    pub(crate) fn sample(&mut self, cluster: &Cluster) {
        let before = Processes::scan(&cluster.bed);
        let directories = NODES.map(|node| PoolDirectory::read(cluster, node));
        let uses = before.that_lasted(&Processes::scan(&cluster.bed));
        self.counts.count(&uses);
        assert_one_job_each(&uses);
        for Use { job, partition } in &uses {
            let owners: Vec<_> = directories
                .iter()
                .filter_map(|directory| directory.jobs.get(partition))
                .collect();
            assert_eq!(owners, [job], "a process of job {job} uses {partition}");
        }
        let ids = cluster.try_get("/v1/partitions").map(|ledger| ids_of(&ledger));
        if let Some(ids) = ids {
            self.counts.complete += 1;
            assert_eq!(ids, self.standing);
        }
    }

    /// Waits until all partitions are free, and checks the ledger and the controller.
    pub(crate) fn assert_all_free(&self, cluster: &Cluster) {
        cluster.bed.wait_until("all partitions are free", || {
            NODES
                .iter()
                .all(|node| PoolDirectory::read(cluster, node).free.len() == PARTITIONS)
        });
        assert_eq!(ids_of(&cluster.get("/v1/partitions")), self.standing);
        let hardware: BTreeSet<String> = cluster.hardware().into_iter().collect();
        assert_eq!(hardware, self.standing);
        cluster.bed.wait_until("all nodes are idle", || {
            cluster.bed.node_states().iter().all(|state| state == "idle")
        });
    }
}

impl PoolDirectory {
    /// Reads the directory of a node under its lock, and checks that each partition is in one place.
    fn read(cluster: &Cluster, node: &str) -> Self {
        let root = cluster.bed.directory().join(format!("pool-{node}"));
        let lock = File::open(root.join("allocation.lock")).ok();
        if let Some(lock) = &lock {
            lock.lock().unwrap();
        }
        let names = |directory: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(root.join(directory)).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        };
        let (free, allocated) = (names("free"), names("allocated"));
        let mut jobs = BTreeMap::new();
        for name in names("") {
            let Some(job) = name.strip_prefix('p').filter(|job| job.parse::<u32>().is_ok()) else {
                continue;
            };
            for partition in fs::read_to_string(root.join(&name)).unwrap().lines() {
                let other = jobs.insert(partition.to_owned(), job.to_owned());
                assert_eq!(other, None, "{node}: job {job} has {partition} too");
            }
        }
        drop(lock);
        assert!(free.is_disjoint(&allocated), "{node}: {free:?} {allocated:?}");
        assert_eq!(
            free.len() + allocated.len(),
            PARTITIONS,
            "{node}: {free:?} {allocated:?}"
        );
        let with_job: BTreeSet<String> = jobs.keys().cloned().collect();
        assert_eq!(with_job, allocated, "{node}: partitions with a job are allocated");
        Self { free, jobs }
    }
}

fn ids_of(ledger: &serde_json::Value) -> BTreeSet<String> {
    let list = ledger["partitions"].as_array().unwrap();
    list.iter()
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect()
}
