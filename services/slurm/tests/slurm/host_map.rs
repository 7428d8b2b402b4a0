//! Option 1: a job has the IPU-Machines of its hosts.

mod allocations;

use std::collections::BTreeSet;

use ipu_test_slurm::{BED, BedOptions, Daemon};
use serde_json::Value;

use crate::cluster::Cluster;

/// The machines of the hosts. The third host has no power of two, and the fourth has none.
const MAP: &str = "# host-IPU mapping\n\
                   ipu-host-1:a1,a2,a3,a4\n\
                   ipu-host-2:a5,a6,a7,a8\n\
                   ipu-host-3:a9,a10,a11\n";
/// A script that prints the variables of its partition, and runs until it is cancelled.
const PRINT_AND_STAY: &str = "env | grep ^IPUOF_; echo started; exec tail -f /dev/null";

/// Starts a cluster with exclusive nodes and a host map.
fn start(test: &str, wait: u32) -> Option<Cluster> {
    let options = BedOptions::new().text("etc/ipum.allocs", MAP).exclusive_nodes();
    let lines = format!("HostMap={BED}/etc/ipum.allocs\n");
    Cluster::start_with(test, wait, &lines, options)
}

/// Submits a batch job on a host.
fn submit_on(cluster: &Cluster, hosts: &str, script: &str) -> String {
    cluster.submit(&["-w", hosts], script)
}

/// Returns the entry of a job, with its IPUs.
fn entry_of(cluster: &Cluster, job: &str) -> Value {
    let name = format!("slurm-{job}");
    let entries = cluster.ledger();
    let entry = entries.iter().find(|entry| entry["owner"]["name"] == *name);
    let id = entry.and_then(|entry| entry["id"].as_str()).unwrap();
    cluster.get(&format!("/v1/partitions/{id}"))
}

/// Returns the numbers of the IPUs of a job.
fn ipus_of(cluster: &Cluster, job: &str) -> BTreeSet<u64> {
    let entry = entry_of(cluster, job);
    let places = entry["ipus"].as_array().unwrap();
    places
        .iter()
        .map(|place| place["ipu"].as_u64().unwrap())
        .collect()
}

/// Takes the IPUs of a machine for an IPUJob.
fn take_machine(cluster: &Cluster, name: &str, machine: &str) {
    let owner = format!(r#"{{"kind": "IPUJob", "namespace": "default", "name": "{name}", "uid": "1"}}"#);
    let body = format!(r#"{{"size": 4, "machines": ["{machine}"], "owner": {owner}}}"#);
    let taken = cluster.send("PUT", &format!("/v1/partitions/{name}?wait=30s"), &body);
    assert_eq!(taken["state"], "active", "{taken}");
}

#[test]
fn jobs_have_the_machines_of_their_hosts_at_once() {
    let Some(cluster) = start("jobs_have_the_machines_of_their_hosts_at_once", 60) else {
        return;
    };
    let first = submit_on(&cluster, "ipu-host-1", PRINT_AND_STAY);
    let second = submit_on(&cluster, "ipu-host-2", PRINT_AND_STAY);
    for (job, ipus) in [(&first, 0..16), (&second, 16..32)] {
        cluster.wait_for_line(job, "started");
        assert_eq!(ipus_of(&cluster, job), ipus.collect());
        let entry = entry_of(&cluster, job);
        let id = entry["id"].as_str().unwrap();
        let output = cluster.output(job);
        assert!(
            output.contains(&format!("IPUOF_VIPU_API_PARTITION_ID={id}\n")),
            "{output}"
        );
        assert!(output.contains("IPUOF_VIPU_API_HOST=127.0.0.1\n"), "{output}");
    }
    cluster.bed.succeed("scancel", &[&first, &second]);
    cluster.wait_for_end(&first);
    cluster.wait_for_end(&second);
    cluster.assert_nothing_left();
}

#[test]
fn srun_has_the_largest_partition_that_fits_on_its_hosts() {
    let Some(cluster) = start("srun_has_the_largest_partition_that_fits_on_its_hosts", 60) else {
        return;
    };
    for (hosts, nodes, size) in [
        ("ipu-host-[1-2]", "-N2", Some(32)),
        ("ipu-host-3", "-N1", Some(8)),
        // 28 IPUs of neighbours, the first of which is not a multiple of 16.
        ("ipu-host-[2-3]", "-N2", Some(16)),
        ("ipu-host-4", "-N1", None),
    ] {
        let script = "[ $SLURM_PROCID = 0 ] || exit 0; grep -c . $0/$IPUOF_VIPU_API_PARTITION_ID.conf > /dev/null && \
                      curl -s --unix-socket /run/vipu-proxy/socket http://proxy/v1/partitions/$IPUOF_VIPU_API_PARTITION_ID";
        let directory = format!("{BED}/ipuof");
        let output = cluster
            .bed
            .run("srun", &["-w", hosts, nodes, "sh", "-c", script, &directory]);
        match size {
            Some(size) => {
                let entry: Value = serde_json::from_str(&output.stdout).unwrap();
                assert_eq!(entry["size"], size, "{output:?}\n{}", cluster.bed.logs());
            }
            None => assert!(!output.success && output.stdout.is_empty(), "{output:?}"),
        }
        cluster
            .bed
            .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    }
    cluster.assert_nothing_left();
}

#[test]
fn a_job_waits_for_a_machine_that_another_owner_has_and_names_it() {
    let name = "a_job_waits_for_a_machine_that_another_owner_has_and_names_it";
    let Some(cluster) = start(name, 120) else {
        return;
    };
    take_machine(&cluster, "mnist", "a2");
    let job = submit_on(&cluster, "ipu-host-1", "env | grep PARTITION_ID");
    let other = submit_on(&cluster, "ipu-host-2", "env | grep PARTITION_ID");
    cluster.wait_for_end(&other);
    assert!(
        cluster
            .output(&other)
            .starts_with("IPUOF_VIPU_API_PARTITION_ID=p-slurm-")
    );
    cluster.bed.wait_until("AdminComment names the holder", || {
        let comment = cluster.job_value(&job, "AdminComment");
        comment.contains("mnist holds IPUs of a2") && comment.contains("held by IPUJob default/mnist (4)")
    });
    assert!(cluster.job_value(&job, "JobState").starts_with("CONFIGURING"));
    cluster.release("mnist");
    cluster.wait_for_end(&job);
    assert!(
        cluster
            .output(&job)
            .starts_with("IPUOF_VIPU_API_PARTITION_ID=p-slurm-")
    );
    cluster.assert_nothing_left();
}

#[test]
fn a_job_that_waits_and_starts_again_on_another_host_has_the_machines_of_that_one() {
    let name = "a_job_that_waits_and_starts_again_on_another_host_has_the_machines_of_that_one";
    let Some(mut cluster) = start(name, 120) else {
        return;
    };
    take_machine(&cluster, "mnist", "a2");
    let job = cluster.submit(&["--hold"], PRINT_AND_STAY);
    cluster.wait_for_saved_state(&job);
    cluster.bed.succeed("scontrol", &["release", &job]);
    // Not AdminComment: slurmctld would save the start with it.
    cluster.bed.wait_until("the job waits for its machines", || {
        cluster.ledger().iter().any(|entry| entry["state"] == "waiting")
    });
    cluster.bed.kill_daemon(&Daemon::Slurmctld);
    cluster.start_slurmctld();
    let is_pending = cluster.job_value(&job, "JobState").starts_with("PENDING");
    assert!(is_pending, "slurmctld has forgotten the start");
    let node = ["update", "NodeName=ipu-host-1"];
    cluster
        .bed
        .succeed("scontrol", &[&node[..], &["State=DRAIN", "Reason=test"]].concat());
    cluster.bed.succeed("scontrol", &["release", &job]);
    cluster.wait_for_line(&job, "started");
    assert_eq!(ipus_of(&cluster, &job), (16..32).collect());
    let others = cluster.ledger().len();
    assert_eq!(
        others, 2,
        "the request for the machines of the first host is withdrawn"
    );
    cluster.release("mnist");
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster
        .bed
        .succeed("scontrol", &[&node[..], &["State=RESUME"]].concat());
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_lost_epilog_leaves_the_machines_to_the_agent() {
    let Some(cluster) = start("a_lost_epilog_leaves_the_machines_to_the_agent", 60) else {
        return;
    };
    let job = submit_on(&cluster, "ipu-host-1", PRINT_AND_STAY);
    cluster.wait_for_line(&job, "started");
    replace_epilog(&cluster);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    assert_eq!(cluster.ledger().len(), 1);
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_map_with_a_mistake_stops_the_jobs_of_its_hosts_only() {
    let Some(cluster) = start("a_map_with_a_mistake_stops_the_jobs_of_its_hosts_only", 60) else {
        return;
    };
    let path = cluster.bed.directory().join("etc/ipum.allocs");
    std::fs::write(&path, "ipu-host-1: a1\nipu-host-2:a1\n").unwrap();
    let run = |host: &str| cluster.bed.run("srun", &["-w", host, "true"]);
    let output = run("ipu-host-1");
    let mistake = "/ipum.allocs:1:12: line = ipu-host-1: a1: has white space; remove it (and 1 more errors)";
    assert!(!output.success && output.stderr.contains(mistake), "{output:?}");
    assert!(run("ipu-host-3").success);
    // An error in the settings must not hide the map.
    std::fs::write(&path, "ipu-host-1:a1\n").unwrap();
    let settings = cluster.bed.directory().join("etc/vipu.conf");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("{text}Porxy=1\n")).unwrap();
    let output = run("ipu-host-1");
    assert!(!output.success && output.stderr.contains("Porxy"), "{output:?}");
    assert!(run("ipu-host-3").success);
    std::fs::write(&settings, text).unwrap();

    std::fs::write(&path, "ipu-host-1:a1,rack7\n").unwrap();
    let output = run("ipu-host-1");
    let mistake = "no controller has a machine rack7";
    assert!(!output.success && output.stderr.contains(mistake), "{output:?}");
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.assert_nothing_left();
}

/// Replaces EpilogSlurmctld by a program that does nothing.
fn replace_epilog(cluster: &Cluster) {
    let hook = cluster.bed.directory().join("hooks/epilog-slurmctld");
    std::fs::remove_file(&hook).unwrap();
    let link = format!("{BED}/hooks/epilog-slurmctld");
    cluster.bed.succeed("ln", &["-s", "/bin/true", &link]);
}
