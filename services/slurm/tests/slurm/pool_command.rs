//! The command `ipu-slurm pool`, with a proxy and a simulated IPU-POD.

use std::fs;

use ipu_test_slurm::{BED, CommandOutput};
use serde_json::Value;

use crate::cluster::Cluster;

/// Runs `ipu-slurm pool` with the configuration in `work/conf`.
fn pool(cluster: &Cluster, arguments: &[&str]) -> CommandOutput {
    let slurm_conf = format!("SLURM_CONF={BED}/work/conf/slurm.conf");
    let program = format!("{BED}/hooks/ipu-slurm");
    let mut words = vec![slurm_conf.as_str(), program.as_str(), "pool"];
    words.extend(arguments);
    cluster.bed.run("env", &words)
}

fn write_conf(cluster: &Cluster) {
    let directory = cluster.bed.directory().join("work/conf");
    fs::create_dir(&directory).unwrap();
    let etc = cluster.bed.directory().join("etc");
    let vipu_conf = fs::read_to_string(etc.join("vipu.conf")).unwrap();
    let pool_dir = format!("PoolDir={BED}/private/pool-%n\n");
    fs::write(directory.join("vipu.conf"), vipu_conf + &pool_dir).unwrap();
    fs::copy(etc.join("pod64.conf"), directory.join("pod64.conf")).unwrap();
    let slurm_conf = "ClusterName=old\nClusterName=TestBed\nInclude nodes.conf\n";
    fs::write(directory.join("slurm.conf"), slurm_conf).unwrap();
    let nodes = "NodeName=DEFAULT Gres=vipu:1:2,vipu:4:1\nNodeName=host-1\nNodeName=host-2 Gres=vipu:3:1\n";
    fs::write(directory.join("nodes.conf"), nodes).unwrap();
}

#[test]
fn the_partitions_of_a_gres_line_are_created_checked_and_destroyed() {
    let test = "the_partitions_of_a_gres_line_are_created_checked_and_destroyed";
    let Some(cluster) = Cluster::start(test, 60) else {
        return;
    };
    write_conf(&cluster);
    let node = ["--node", "host-1"];
    for _ in 0..2 {
        let created = pool(&cluster, &["create", node[0], node[1]]);
        assert!(created.success, "{created:?}");
        assert_eq!(created.stdout.matches(" free ").count(), 3, "{created:?}");
    }
    assert_eq!(cluster.hardware().len(), 3);
    for partition in cluster.ledger() {
        assert_eq!(partition["owner"]["kind"], "SlurmPool");
        assert_eq!(partition["owner"]["name"], "host-1");
        // Slurm uses the last name, in lower case.
        assert_eq!(partition["owner"]["namespace"], "testbed");
    }
    let checked = pool(&cluster, &["check", node[0], node[1]]);
    assert!(checked.success, "{checked:?}");

    // A job has one of them.
    let root = cluster.bed.directory().join("private/pool-host-1");
    let name = cluster.hardware()[0].clone();
    fs::rename(root.join("free").join(&name), root.join("allocated").join(&name)).unwrap();
    fs::write(root.join("p7"), format!("{name}\n")).unwrap();
    let file = fs::read_to_string(root.join("allocated").join(&name)).unwrap();
    assert!(
        file.contains(&format!("IPUOF_VIPU_API_PARTITION_ID={name}\n")),
        "{file}"
    );
    let listed = pool(&cluster, &["list", node[0], node[1]]);
    assert!(listed.stdout.contains(" allocated  7\n"), "{listed:?}");
    let refused = pool(&cluster, &["destroy", node[0], node[1]]);
    assert!(
        refused.stderr.contains(&format!("job 7 has partition {name}")),
        "{refused:?}"
    );

    fs::remove_file(root.join("p7")).unwrap();
    let destroyed = pool(&cluster, &["destroy", node[0], node[1]]);
    assert!(destroyed.success, "{destroyed:?}");
    cluster.assert_nothing_left();

    let checked = pool(&cluster, &["check", node[0], node[1]]);
    assert_eq!(checked.code, Some(1));
    assert!(
        checked
            .stdout
            .contains("Gres has 2 partitions of size 1, and the directory 0"),
        "{checked:?}"
    );
    fs::remove_dir_all(&root).unwrap();
    let absent = format!("cannot read {BED}/private/pool-host-1: No such file or directory");
    for command in ["list", "check"] {
        let output = pool(&cluster, &[command, node[0], node[1]]);
        assert!(
            output.stderr.contains(&absent) && output.stderr.contains("; run pool create"),
            "{output:?}"
        );
    }
}

#[test]
fn a_node_with_two_sizes_and_a_partition_for_every_job_gets_no_partitions() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
    write(
        "slurm.conf",
        "ClusterName=a\nNodeName=host-1 Gres=vipu:1:2,vipu:4:1\n",
    );
    let pool_dir = root.join("pool");
    write(
        "vipu.conf",
        &format!("PoolDir={}\nEveryJobHasOne=1\n", pool_dir.display()),
    );
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ipu-slurm"))
        .args(["pool", "create", "--node", "host-1"])
        .env("SLURM_CONF", root.join("slurm.conf"))
        .output()
        .unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("Gres of node host-1 has several sizes"), "{line}");
    assert!(!output.status.success() && !pool_dir.exists());
}

#[test]
fn the_controller_is_not_forced_to_remove_a_static_partition() {
    let test = "the_controller_is_not_forced_to_remove_a_static_partition";
    let Some(cluster) = Cluster::start(test, 60) else {
        return;
    };
    write_conf(&cluster);
    let node = ["--node", "host-1"];
    assert!(pool(&cluster, &["create", node[0], node[1]]).success);
    for ipu in 0..4 {
        cluster.break_ipu("a1", ipu);
    }
    let held = cluster.hardware().len();
    let refused = pool(&cluster, &["destroy", node[0], node[1]]);
    assert!(
        !refused.success && !cluster.hardware().is_empty(),
        "{held} {refused:?}"
    );
    let conf = cluster.bed.directory().join("work/conf/pod64.conf");
    let text = fs::read_to_string(&conf).unwrap() + "ForceDeletePartition=1\n";
    fs::write(&conf, text).unwrap();
    let destroyed = pool(&cluster, &["destroy", node[0], node[1]]);
    assert!(destroyed.success, "{destroyed:?}");
    cluster.assert_nothing_left();
}

#[test]
fn a_lost_ledger_does_not_reset_the_static_partition_of_a_job() {
    let test = "a_lost_ledger_does_not_reset_the_static_partition_of_a_job";
    let Some(mut cluster) = Cluster::start(test, 60) else {
        return;
    };
    write_conf(&cluster);
    let run = |cluster: &Cluster, command| pool(cluster, &[command, "--node", "host-1"]);
    assert!(run(&cluster, "create").success);
    let root = cluster.bed.directory().join("private/pool-host-1");
    let name = cluster.hardware()[0].clone();
    let (free, allocated) = (root.join("free").join(&name), root.join("allocated").join(&name));
    fs::rename(&free, &allocated).unwrap();
    fs::write(root.join("p7"), format!("{name}\n")).unwrap();

    cluster.lose_ledger();
    let is_quarantined = |partition: &Value| partition["state"] == "quarantined";
    cluster.bed.wait_until("three partitions are quarantined", || {
        cluster
            .ledger()
            .iter()
            .filter(|partition| is_quarantined(partition))
            .count()
            == 3
    });
    let checked = run(&cluster, "check");
    let finding = format!("partition {name} is quarantined at the proxy; drain the node");
    assert!(checked.stdout.contains(&finding), "{checked:?}");
    let refused = run(&cluster, "create");
    let reason = format!("job 7 has partition {name}, which is quarantined");
    assert!(refused.stderr.contains(&reason), "{refused:?}");
    let entry = cluster.get(&format!("/v1/partitions/{name}"));
    assert_eq!(entry["state"], "quarantined");
    assert!(allocated.exists());

    fs::remove_file(root.join("p7")).unwrap();
    fs::rename(&allocated, &free).unwrap();
    assert!(run(&cluster, "create").success);
    assert!(run(&cluster, "check").success);
    assert!(run(&cluster, "destroy").success);
    cluster.assert_nothing_left();
}

#[test]
fn a_shared_partition_is_reconfigurable_and_has_at_most_64_ipus() {
    let Some(cluster) = Cluster::start("a_shared_partition_is_reconfigurable_and_has_at_most_64_ipus", 60)
    else {
        return;
    };
    write_conf(&cluster);
    let created = pool(&cluster, &["create-shared", "big", "--size", "16"]);
    assert!(created.success, "{created:?}");
    assert_eq!(
        created.stdout,
        "#!/bin/sh\n# TaskProlog of Slurm: every job uses partition big.\n\
         echo unset IPUOF_VIPU_API_HOST\necho unset IPUOF_VIPU_API_PORT\n\
         echo unset IPUOF_VIPU_API_PARTITION_ID\necho unset IPUOF_VIPU_API_GCD_ID\n\
         echo unset IPUOF_VIPU_API_TIMEOUT\necho unset IPUOF_CONFIG_PATH\n\
         echo export IPUOF_VIPU_API_HOST=127.0.0.1\necho export IPUOF_VIPU_API_PARTITION_ID=big\n"
    );
    assert_eq!(cluster.ledger()[0]["reconfigurable"], true);
    assert_eq!(cluster.hardware(), ["big"]);
    let refused = pool(&cluster, &["create-shared", "huge", "--size", "128"]);
    assert!(refused.stderr.contains("at most 64 IPUs; use 64"), "{refused:?}");
}
