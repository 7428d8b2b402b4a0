//! Jobs with an allocation of the machines of their hosts.

use ipu_test_slurm::{BED, BedOptions};
use serde_json::Value;

use super::{MAP, PRINT_AND_STAY, entry_of, ipus_of, replace_epilog, submit_on};
use crate::cluster::Cluster;

/// The address of the simulated controller.
const CONTROLLER: &str = "http://127.0.0.1:8090";

/// A command that creates an allocation at the simulated controller.
const CREATE: &str = r#"#!/bin/sh
agents=$(echo "$2" | sed 's/,/","/g')
exec curl -sS --fail-with-body -X POST http://127.0.0.1:8090/sim/allocations \
  -d "{\"id\": \"$1\", \"cluster\": \"cl1\", \"agents\": [\"$agents\"]}"
"#;
/// A command that removes an allocation of the simulated controller.
const REMOVE: &str = "#!/bin/sh\n\
                      exec curl -sS --fail-with-body -X DELETE http://127.0.0.1:8090/sim/allocations/$1\n";

/// Starts a cluster that also makes an allocation for each job.
fn start_with_allocations(test: &str, wait: u32) -> Option<Cluster> {
    let options = BedOptions::new()
        .text("etc/ipum.allocs", MAP)
        .text("hooks/create", CREATE)
        .text("hooks/remove", REMOVE)
        .exclusive_nodes();
    let lines = format!(
        "HostMap={BED}/etc/ipum.allocs\n\
         AllocationCreate={BED}/hooks/create {{allocation}} {{agents}}\n\
         AllocationRemove={BED}/hooks/remove {{allocation}}\n"
    );
    let cluster = Cluster::start_with(test, wait, &lines, options)?;
    for name in ["create", "remove"] {
        cluster
            .bed
            .succeed("chmod", &["755", &format!("{BED}/hooks/{name}")]);
    }
    Some(cluster)
}

/// Returns the allocations of jobs with their machines.
fn allocations(cluster: &Cluster) -> Vec<String> {
    let text = cluster
        .bed
        .succeed("curl", &["-sf", &format!("{CONTROLLER}/sim/allocations")]);
    let list: Vec<Value> = serde_json::from_str(&text).unwrap();
    let of_jobs = list.iter().filter(|one| one["id"] != "cl1");
    let mut found: Vec<String> = of_jobs
        .map(|one| {
            let agents = one["agents"].as_array().unwrap().iter();
            let agents: Vec<&str> = agents.map(|agent| agent.as_str().unwrap()).collect();
            format!("{}:{}", one["id"].as_str().unwrap(), agents.join(","))
        })
        .collect();
    found.sort();
    found
}

/// Creates a partition in the allocation of a job, as its user does with the tools of V-IPU.
fn create_user_partition(cluster: &Cluster, job: &str, size: u32) {
    let body = format!(r#"{{"requirements": {{"id": "p{job}", "size": {size}, "allocationId": "c{job}"}}}}"#);
    let url = format!("{CONTROLLER}/v1/partitions");
    cluster.bed.succeed(
        "curl",
        &["-sS", "--fail-with-body", "-X", "POST", "-d", &body, &url],
    );
}

#[test]
fn a_job_has_an_allocation_of_its_machines_with_its_partition() {
    let name = "a_job_has_an_allocation_of_its_machines_with_its_partition";
    let Some(cluster) = start_with_allocations(name, 60) else {
        return;
    };
    let first = submit_on(&cluster, "ipu-host-1", PRINT_AND_STAY);
    let second = submit_on(&cluster, "ipu-host-3", PRINT_AND_STAY);
    for (job, ipus) in [(&first, 0..16), (&second, 32..40)] {
        cluster.wait_for_line(job, "started");
        assert_eq!(ipus_of(&cluster, job), ipus.collect());
        assert_eq!(entry_of(&cluster, job)["allocation"], format!("c{job}"));
    }
    let expected = [format!("c{first}:a1,a2,a3,a4"), format!("c{second}:a10,a11,a9")];
    assert_eq!(allocations(&cluster), expected);
    cluster.bed.succeed("scancel", &[&first, &second]);
    cluster.wait_for_end(&first);
    cluster.wait_for_end(&second);
    assert_eq!(
        allocations(&cluster),
        Vec::<String>::new(),
        "{}",
        cluster.bed.logs()
    );
    cluster.assert_nothing_left();
}

#[test]
fn a_partition_of_the_user_stays_and_is_named_until_the_user_removes_it() {
    let name = "a_partition_of_the_user_stays_and_is_named_until_the_user_removes_it";
    let Some(cluster) = start_with_allocations(name, 60) else {
        return;
    };
    let job = submit_on(&cluster, "ipu-host-3", PRINT_AND_STAY);
    cluster.wait_for_line(&job, "started");
    create_user_partition(&cluster, &job, 4);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    let user = format!("p{job}");
    assert_eq!(cluster.hardware(), std::slice::from_ref(&user));
    assert_eq!(allocations(&cluster), [format!("c{job}:a10,a11,a9")]);
    let sentence = format!(
        "the allocation c{job} stays, because it has partitions of the user: {user} (4); remove them, or set \
         ForceDeletePartition=1"
    );
    cluster.bed.wait_until("the agent names the partition", || {
        let program = format!("{BED}/hooks/ipu-slurm");
        let output = cluster.bed.command_as("slurm", &program).arg("gc").output();
        String::from_utf8_lossy(&output.unwrap().stderr).contains(&sentence)
    });

    // The next job of the host waits, and names the job.
    let next = submit_on(&cluster, "ipu-host-3", "env | grep PARTITION_ID");
    cluster.bed.wait_until("AdminComment names the allocation", || {
        let comment = cluster.job_value(&next, "AdminComment");
        comment == format!("vipu: waits for a9, a10, a11: the allocation c{job} of job {job} still has them")
    });
    let url = format!("{CONTROLLER}/v1/partitions/{user}");
    cluster.bed.succeed("curl", &["-sf", "-X", "DELETE", &url]);
    cluster
        .bed
        .wait_until("the agent has removed the allocation", || {
            cluster.collect();
            !allocations(&cluster).contains(&format!("c{job}:a10,a11,a9"))
        });
    cluster.wait_for_end(&next);
    assert!(
        cluster
            .output(&next)
            .starts_with("IPUOF_VIPU_API_PARTITION_ID=p-slurm-")
    );
    assert_eq!(allocations(&cluster), Vec::<String>::new());
    cluster.assert_nothing_left();
}

#[test]
fn a_partition_of_the_user_is_removed_if_the_controller_may_be_forced() {
    let name = "a_partition_of_the_user_is_removed_if_the_controller_may_be_forced";
    let Some(cluster) = start_with_allocations(name, 60) else {
        return;
    };
    let path = cluster.bed.directory().join("etc/pod64.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text + "ForceDeletePartition=1\n").unwrap();
    let job = submit_on(&cluster, "ipu-host-3", PRINT_AND_STAY);
    cluster.wait_for_line(&job, "started");
    create_user_partition(&cluster, &job, 4);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    assert_eq!(
        allocations(&cluster),
        Vec::<String>::new(),
        "{}",
        cluster.bed.logs()
    );
    cluster.assert_nothing_left();
}

#[test]
fn a_lost_epilog_leaves_the_allocation_to_the_agent() {
    let Some(cluster) = start_with_allocations("a_lost_epilog_leaves_the_allocation_to_the_agent", 60) else {
        return;
    };
    let job = submit_on(&cluster, "ipu-host-1", PRINT_AND_STAY);
    cluster.wait_for_line(&job, "started");
    replace_epilog(&cluster);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    assert_eq!(allocations(&cluster), [format!("c{job}:a1,a2,a3,a4")]);
    cluster
        .bed
        .wait_until("the agent has removed the allocation", || {
            cluster.collect();
            cluster.ledger().is_empty() && allocations(&cluster).is_empty() && cluster.files().is_empty()
        });
    cluster.assert_nothing_left();
}

#[test]
fn a_lost_reply_of_the_controller_leaks_no_allocation() {
    let Some(cluster) = start_with_allocations("a_lost_reply_of_the_controller_leaks_no_allocation", 60)
    else {
        return;
    };
    let path = cluster.bed.directory().join("hooks/create");
    std::fs::write(&path, CREATE.replace("exec curl", "curl") + "exit 28\n").unwrap();
    let job = submit_on(&cluster, "ipu-host-1", PRINT_AND_STAY);
    cluster.wait_for_line(&job, "started");
    assert_eq!(allocations(&cluster), [format!("c{job}:a1,a2,a3,a4")]);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    assert_eq!(allocations(&cluster), Vec::<String>::new());
    cluster.assert_nothing_left();
}

#[test]
fn a_command_that_fails_is_named_and_repeated() {
    let Some(cluster) = start_with_allocations("a_command_that_fails_is_named_and_repeated", 120) else {
        return;
    };
    let path = cluster.bed.directory().join("hooks/create");
    std::fs::write(&path, "#!/bin/sh\necho no agent ipum1 >&2\nexit 3\n").unwrap();
    let job = submit_on(&cluster, "ipu-host-1", "env | grep PARTITION_ID");
    let sentence = format!(
        "vipu: AllocationCreate did not create c{job}: {BED}/hooks/create failed (exit status: 3): no agent ipum1"
    );
    cluster.bed.wait_until("AdminComment has the output", || {
        cluster.job_value(&job, "AdminComment") == sentence
    });
    // An empty file would be a command that succeeds.
    let new = path.with_extension("new");
    std::fs::write(&new, CREATE).unwrap();
    std::fs::set_permissions(&new, std::fs::metadata(&path).unwrap().permissions()).unwrap();
    std::fs::rename(&new, &path).unwrap();
    cluster.wait_for_end(&job);
    assert!(
        cluster
            .output(&job)
            .starts_with("IPUOF_VIPU_API_PARTITION_ID=p-slurm-")
    );
    assert_eq!(allocations(&cluster), Vec::<String>::new());
    cluster.assert_nothing_left();
}
