//! Tasks of jobs that Prolog left without partition.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use ipu_slurm::{POOL_ALLOCATED, POOL_FREE};

use super::*;
use crate::conf_files;

/// A job with partitions, in the output of Slurm 22.05.
const WITH_PARTITIONS: &str =
    include_str!("../../../../../ipu-slurm/tests/data/scontrol-22.05/detail-gres.txt");

/// A node whose slurmctld answers with a text, or not at all.
struct Node(tempfile::TempDir);

impl Node {
    fn new(record: Option<&str>) -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        let path = node.0.path();
        for name in ["bin", "etc", "pool"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        for name in [POOL_FREE, POOL_ALLOCATED] {
            fs::create_dir(path.join("pool").join(name)).unwrap();
        }
        let settings = format!("PoolDir={}/pool\n", path.display());
        fs::write(path.join("etc/vipu.conf"), settings).unwrap();
        fs::write(path.join("record"), record.unwrap_or_default()).unwrap();
        let script = match record {
            Some(_) => format!("#!/bin/sh\nexec cat {}/record\n", path.display()),
            None => "#!/bin/sh\nexit 1\n".to_owned(),
        };
        for command in ["scontrol", "squeue"] {
            let command = path.join("bin").join(command);
            fs::write(&command, &script).unwrap();
            fs::set_permissions(&command, Permissions::from_mode(0o755)).unwrap();
        }
        node
    }

    /// Returns the reason that a task of job 2 does not start; none if it starts without partition.
    fn refusal(&self, requested: &str) -> Option<String> {
        let pairs = [
            ("SLURM_SCRIPT_CONTEXT", "prolog_task"),
            ("SLURM_JOB_ID", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURMD_NODENAME", "n1"),
            ("VIPU_PARTITIONS", requested),
        ];
        let environment = HookEnvironment::new(pairs.map(|(name, value)| (name.into(), value.into())));
        let conf = conf_files::load(&self.0.path().join("etc"), &[]).unwrap();
        let slurm = || Slurm::in_directory(&self.0.path().join("bin"));
        match ipuof_variables(&environment, &conf, slurm) {
            Ok(found) => {
                assert_eq!(found, None);
                None
            }
            Err(failure) => Some(failure.0),
        }
    }
}

#[test]
fn a_job_starts_with_the_environment_of_a_job_with_partitions() {
    let without = WITH_PARTITIONS.replace("GRES=vipu:1(CNT:1),vipu:2(CNT:1)", "GRES=");
    assert_eq!(Node::new(Some(&without)).refusal("2:1"), None);
    for node in [Node::new(Some(WITH_PARTITIONS)), Node::new(None)] {
        let problem = node.refusal("2:1").unwrap();
        assert!(problem.contains("Prolog has allocated none"), "{problem}");
        assert_eq!(node.refusal(""), None);
    }
}

#[test]
fn a_prolog_that_did_not_reach_slurmctld_fails_only_a_job_with_partitions() {
    let without = WITH_PARTITIONS.replace("GRES=vipu:1(CNT:1),vipu:2(CNT:1)", "GRES=");
    for (record, fails) in [
        (Some(WITH_PARTITIONS), true),
        (Some(without.as_str()), false),
        (None, true),
    ] {
        let node = Node::new(record);
        let pool = PoolDirectory::open(node.0.path().join("pool"), "n1").unwrap();
        pool.set_reason(2, Some("scontrol failed")).unwrap();
        assert_eq!(node.refusal("").is_some(), fails, "{record:?}");
    }
}
