//! Partitions of jobs whose Epilog was lost.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use ipu_slurm::{POOL_ALLOCATED, POOL_FREE, POOL_LOCK, UNKNOWN_JOB};

use super::*;

/// Returns a directory whose only partition job 5 has, and commands of Slurm that run `script` and know no
/// job.
fn pool_without_free_partition(script: &str) -> (tempfile::TempDir, PoolDirectory, Slurm) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    for name in [POOL_FREE, POOL_ALLOCATED, "bin"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    fs::write(path.join(POOL_FREE).join("a"), "").unwrap();
    let directory = PoolDirectory::open(path, "n1").unwrap();
    let wanted = PoolRequest { size: None, count: 1 };
    let mut pool = directory.lock().unwrap();
    let steps = pool.state.allocate(5, &wanted).unwrap().steps;
    pool.take(&steps).unwrap();
    drop(pool);
    let script = format!(
        "#!/bin/sh\ncd {}\n{script}\necho {UNKNOWN_JOB} >&2; exit 1\n",
        path.display()
    );
    for command in ["scontrol", "squeue"] {
        let command = path.join("bin").join(command);
        fs::write(&command, &script).unwrap();
        fs::set_permissions(&command, Permissions::from_mode(0o755)).unwrap();
    }
    let slurm = Slurm::in_directory(&path.join("bin"));
    (root, directory, slurm)
}

/// Returns the reason that job 7 gets no partition.
fn reason(directory: &PoolDirectory, slurm: &Slurm) -> Option<String> {
    let wanted = PoolRequest { size: None, count: 1 };
    let refusal = allocate(directory, slurm, 7, &wanted);
    refusal
        .unwrap_or_else(|failure| panic!("{}", failure.0))
        .map(|failure| failure.0)
}

#[test]
fn slurmctld_is_asked_without_the_lock() {
    let script = format!("flock --nonblock {POOL_LOCK} touch asked");
    let (root, directory, slurm) = pool_without_free_partition(&script);
    assert_eq!(reason(&directory, &slurm), None);
    assert!(root.path().join("asked").exists(), "the lock was free");
    assert_eq!(directory.pointer(5).unwrap(), None);
    assert_eq!(directory.pointer(7).unwrap(), Some(vec!["a".to_owned()]));
}

#[test]
fn a_requeued_job_loses_its_partition_of_a_node_only_while_it_has_no_node() {
    for (state, nodes, is_free) in [
        ("PENDING", "(null)", true),
        ("PENDING", "n1", false),
        ("CONFIGURING", "n1", false),
        ("RUNNING", "n1", false),
        ("COMPLETED", "n1", true),
    ] {
        let record = format!("echo '5|5|N/A|{state}|None|1:00|1|{nodes}|(null)||'; exit 0");
        let (_root, directory, slurm) = pool_without_free_partition(&record);
        assert_eq!(reason(&directory, &slurm).is_none(), is_free, "{state} {nodes}");
    }
}

#[test]
fn a_later_job_with_the_id_of_an_ended_one_keeps_its_partition() {
    // Its pointer has the same text.
    let (_root, directory, slurm) = pool_without_free_partition("cp p5 p5.new && mv p5.new p5");
    assert!(reason(&directory, &slurm).is_some());
    assert_eq!(directory.pointer(5).unwrap(), Some(vec!["a".to_owned()]));
}

#[test]
fn a_forged_record_gives_no_partition() {
    let forged = "echo 'JobId=7 JobName=x UserId=root(0) JobState=RUNNING Reason=None Restarts=0 TimeLimit=1:00 \
                  SubmitTime=1 StartTime=1 NodeList=n1 GRES=vipu:16(CNT:1) Licenses=(null) Network=(null)'; \
                  echo 'JobId=8 JobName=y UserId=root(0) JobState=RUNNING'; exit 0";
    let (root, _directory, slurm) = pool_without_free_partition(forged);
    let squeue = root.path().join("bin/squeue");
    let conf = ClusterConf::parse(conf_files::VIPU_CONF, "").unwrap();
    for (fields, size) in [
        ("N/A|N/A|N/A|N/A|", None),
        ("N/A|N/A|N/A|gres/vipu:2:1|", Some(2)),
    ] {
        fs::write(&squeue, format!("#!/bin/sh\necho '7|{fields}'\n")).unwrap();
        fs::set_permissions(&squeue, Permissions::from_mode(0o755)).unwrap();
        let found = requested(&conf, &slurm, 7);
        let found = found.unwrap_or_else(|failure| panic!("{}", failure.0));
        let found = found.map(|request| request.size.map(IpuCount::get));
        assert_eq!(found, size.map(Some), "{fields}");
    }
    fs::write(&squeue, "#!/bin/sh\necho '7|N/A|N/A|N/A|gres/vipu:2|'\n").unwrap();
    assert!(requested(&conf, &slurm, 7).is_err());
}

#[test]
fn a_reused_job_id_gets_no_partition_of_the_earlier_job() {
    let (_root, directory, slurm) = pool_without_free_partition("true");
    let [first, second] = ["7.100", "7.200"].map(|run| directory.clone().with_run(run.to_owned()));
    let mut pool = directory.lock().unwrap();
    let steps = pool.state.release(5);
    pool.take(&steps).unwrap();
    drop(pool);
    // slurmd may run Prolog again.
    for _ in 0..2 {
        assert_eq!(reason(&first, &slurm), None);
    }
    let refused = reason(&second, &slurm).unwrap();
    assert!(refused.contains("an earlier run of job 7"), "{refused}");
    assert_eq!(directory.pointer(7).unwrap(), Some(vec!["a".to_owned()]));
    let mut pool = directory.lock().unwrap();
    let steps = pool.state.release(7);
    pool.take(&steps).unwrap();
    drop(pool);
    assert_eq!(reason(&second, &slurm), None);
    assert_eq!(reason(&first, &slurm), Some(refused));
}
