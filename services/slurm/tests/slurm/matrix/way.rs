//! The ways to have IPUs, each with a cluster that is set up for it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use ipu_test_slurm::{BED, BedOptions, CommandOutput, Hook, NODES};

use crate::cluster::Cluster;

/// A way to have IPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Option 1: the machines of the job's hosts.
    HostMap,
    /// Option 2: partitions of fixed sizes on each node.
    Static,
    /// Option 3: one reconfigurable partition for all jobs.
    Shared,
    /// Option 4: a partition for each job.
    PerJob,
}

/// Name of the partition of option 3.
const SHARED: &str = "big";
/// The machines of each host: a job of one host has 16 IPUs.
const HOST_MAP: &str = "ipu-host-1:a1,a2,a3,a4\nipu-host-2:a5,a6,a7,a8\n\
                        ipu-host-3:a9,a10,a11,a12\nipu-host-4:a13,a14,a15,a16\n";
/// Host of the simulated controller.
const HOST: &str = "IPUOF_VIPU_API_HOST=127.0.0.1";

impl Way {
    pub(crate) const ALL: [Self; 4] = [Self::HostMap, Self::Static, Self::Shared, Self::PerJob];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HostMap => "machines of hosts",
            Self::Static => "static partitions",
            Self::Shared => "a shared partition",
            Self::PerJob => "a partition per job",
        }
    }

    /// Returns the name in the head of a table.
    pub(crate) const fn column(self) -> &'static str {
        match self {
            Self::HostMap => "hosts",
            Self::Static => "static",
            Self::Shared => "shared",
            Self::PerJob => "per job",
        }
    }

    /// Returns the arguments of a job with IPUs.
    pub(crate) const fn request(self) -> &'static [&'static str] {
        match self {
            Self::Static => &["--gres=vipu:2:1"],
            Self::HostMap | Self::Shared => &[],
            Self::PerJob => &["--ipus=4"],
        }
    }

    /// Returns whether a job has a partition of its own, which exists as long as the job.
    pub(crate) const fn has_partition_per_job(self) -> bool {
        matches!(self, Self::HostMap | Self::PerJob)
    }
}

/// A cluster that is set up for a way.
pub(crate) struct WayCluster {
    pub(crate) cluster: Cluster,
    pub(crate) way: Way,
    /// Ids of the partitions that exist without a job.
    standing: BTreeSet<String>,
}

impl WayCluster {
    /// Starts a cluster; none if this machine has no Slurm.
    pub(crate) fn start(test: &str, way: Way) -> Option<Self> {
        let cluster = match way {
            Way::HostMap => {
                let options = BedOptions::new().text("etc/ipum.allocs", HOST_MAP);
                let lines = format!("HostMap={BED}/etc/ipum.allocs\n");
                Cluster::start_with(test, 60, &lines, options.exclusive_nodes())
            }
            Way::PerJob => Cluster::start_with_plugin(test),
            Way::Shared => Cluster::start(test, 60),
            Way::Static => Cluster::start_with(test, 60, "", node_hooks(BedOptions::new())),
        }?;
        let mut new = Self {
            cluster,
            way,
            standing: BTreeSet::new(),
        };
        match way {
            Way::HostMap | Way::PerJob => {}
            Way::Shared => new.create_shared(),
            Way::Static => create_pools(&new.cluster),
        }
        new.standing = new.cluster.hardware().into_iter().collect();
        Some(new)
    }

    /// Returns the variables that a task of the only running job must have.
    pub(crate) fn expected_variables(&self) -> BTreeSet<String> {
        let id = match self.way {
            Way::Shared => SHARED.to_owned(),
            Way::Static => {
                let held: Vec<String> = NODES
                    .iter()
                    .flat_map(|node| self.names(node, "allocated"))
                    .collect();
                assert_eq!(held.len(), 1, "a job has one partition: {held:?}");
                held[0].clone()
            }
            Way::HostMap | Way::PerJob => {
                let ledger = self.cluster.ledger();
                assert_eq!(ledger.len(), 1, "a job has one partition: {ledger:?}");
                assert_eq!(ledger[0]["state"], "active", "{ledger:?}");
                ledger[0]["id"].as_str().unwrap().to_owned()
            }
        };
        let mut variables = BTreeSet::from([HOST.to_owned(), format!("IPUOF_VIPU_API_PARTITION_ID={id}")]);
        if self.way != Way::Shared {
            let more = ["GCD_ID=0", "PORT=8090", "TIMEOUT=120"];
            variables.extend(more.map(|variable| format!("IPUOF_VIPU_API_{variable}")));
        }
        variables
    }

    /// Checks that no job holds anything. Returns whether the agent had to release a partition.
    pub(crate) fn assert_nothing_left(&self) -> bool {
        let bed = &self.cluster.bed;
        bed.wait_until("no job is left", || bed.job_ids().is_empty());
        let ids = || -> BTreeSet<String> {
            let ledger = self.cluster.ledger();
            ledger
                .iter()
                .map(|entry| entry["id"].as_str().unwrap().to_owned())
                .collect()
        };
        let by_agent = self.way.has_partition_per_job() && ids() != self.standing;
        // A hook that was killed after its release leaves the file to the agent.
        if by_agent || !self.cluster.files().is_empty() {
            bed.wait_until("the agent has released the partition", || {
                self.cluster.collect();
                ids() == self.standing && self.cluster.files().is_empty()
            });
        }
        assert_eq!(ids(), self.standing, "the ledger has what it had before");
        let hardware: BTreeSet<String> = self.cluster.hardware().into_iter().collect();
        assert_eq!(hardware, self.standing, "the hardware has what it had before");
        let files = self.cluster.files();
        assert!(files.is_empty(), "no file of a job is left: {files:?}");
        if self.way == Way::Static {
            // The Epilog of a node that was down runs when the node is back.
            bed.wait_until("all partitions are free", || {
                let mut directories = NODES.iter();
                directories.all(|node| {
                    self.names(node, "allocated").is_empty() && self.names(node, "free").len() == 2
                })
            });
        }
        bed.wait_until("all nodes are idle", || {
            let states = bed.node_states();
            assert!(
                !states.iter().any(|state| state.contains("drain")),
                "a node is drained: {states:?}"
            );
            states.iter().all(|state| state == "idle")
        });
        by_agent
    }

    fn create_shared(&self) {
        let script = pool(&self.cluster, &["create-shared", SHARED, "--size", "16"]).stdout;
        let path = self.cluster.bed.directory().join("hooks/task-prolog");
        fs::remove_file(&path).unwrap();
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns the names in a directory of a node's pool.
    fn names(&self, node: &str, directory: &str) -> Vec<String> {
        let path: PathBuf = self
            .cluster
            .bed
            .directory()
            .join(format!("pool-{node}/{directory}"));
        let entries = fs::read_dir(path).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

/// Runs `ipu-slurm pool`.
fn pool(cluster: &Cluster, arguments: &[&str]) -> CommandOutput {
    let program = format!("{BED}/hooks/ipu-slurm");
    let output = cluster.bed.run(&program, &[&["pool"], arguments].concat());
    assert!(output.success, "{output:?}");
    output
}

/// Runs Prolog on all nodes of a job, even when it starts again.
pub(crate) const PROLOG_FLAGS: &str = "PrologFlags=Alloc";

/// Creates the pools of all nodes.
pub(crate) fn create_pools(cluster: &Cluster) {
    let path = cluster.bed.directory().join("etc/vipu.conf");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, format!("{text}PoolDir={BED}/pool-%n\n")).unwrap();
    for node in NODES {
        pool(cluster, &["create", "--node", node]);
    }
}

/// Returns options with two partitions of 2 IPUs on each node.
pub(crate) fn node_hooks(mut options: BedOptions) -> BedOptions {
    for (kind, name) in [(Hook::Prolog, "prolog"), (Hook::Epilog, "epilog")] {
        let path = format!("hooks/{name}");
        options = options
            .text(&path, &format!("#!/bin/sh\nexec {BED}/hooks/ipu-slurm {name}\n"))
            .hook_program(kind, &format!("{BED}/{path}"));
    }
    options.line(PROLOG_FLAGS).node_gres("vipu:2:2")
}
