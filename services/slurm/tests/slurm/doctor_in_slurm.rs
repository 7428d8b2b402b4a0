//! `ipu-slurm doctor` on the host of a running slurmctld.

use std::fs;
use std::process::Command;

use ipu_test_slurm::{BED, BedOptions};

use crate::cluster::Cluster;
use crate::matrix::way::{Way, WayCluster};

/// A SPANK plugin of Slurm 20.02.
const OLD_PLUGIN: &str = r#"
const char plugin_name[] = "vipu";
const char plugin_type[] = "spank";
const unsigned int plugin_version = 20 << 16 | 2 << 8;
const unsigned int spank_plugin_version = 1;
"#;

/// Starts a cluster whose nodes have IPUs.
fn start(test: &str) -> Option<Cluster> {
    let options = BedOptions::new().node_gres("vipu:pod64:no_consume:64");
    Cluster::start_with(test, 60, "", options)
}

/// Returns the lines of the doctor that contain a text.
fn findings(cluster: &Cluster, text: &str) -> Vec<String> {
    let output = cluster.bed.run(&format!("{BED}/hooks/ipu-slurm"), &["doctor"]);
    // It exits with 1 and an empty standard error if it has findings.
    assert!(output.stderr.is_empty(), "{output:?}");
    let lines = output.stdout.lines().filter(|line| line.contains(text));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_plugin_of_another_version_is_found() {
    let Some(cluster) = start("a_plugin_of_another_version_is_found") else {
        return;
    };
    let directory = cluster.bed.directory().join("files");
    fs::write(directory.join("old.c"), OLD_PLUGIN).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-nostdlib", "-o", "old.so", "old.c"]);
    assert!(compiler.current_dir(&directory).status().unwrap().success());
    for kind in ["optional", "required"] {
        let line = format!("{kind} {BED}/files/old.so\n");
        fs::write(cluster.bed.directory().join("etc/plugstack.conf"), line).unwrap();
        let found = findings(&cluster, "srun --help has no --ipus");
        assert_eq!(found.len(), 1, "{found:?}");
        let line = format!("Incompatible Slurm plugin {BED}/files/old.so version (20.02.0)");
        assert!(found[0].contains(&line), "{found:?}");
        assert!(found[0].contains("is of another version"), "{found:?}");
    }
}

#[test]
fn a_process_tracking_that_loses_processes_is_found() {
    let Some(cluster) = start("a_process_tracking_that_loses_processes_is_found") else {
        return;
    };
    let found = findings(&cluster, "ProctrackType");
    let begin = "warning: ProctrackType = proctrack/linuxproc: Slurm can lose processes";
    assert!(found.len() == 1 && found[0].starts_with(begin), "{found:?}");
    let path = cluster.bed.directory().join("etc/slurm.conf");
    let text = fs::read_to_string(&path).unwrap();
    for setting in ["", "ProctrackType=proctrack/cgroup\n"] {
        let changed = text.replace("ProctrackType=proctrack/linuxproc\n", setting);
        assert_ne!(changed, text);
        fs::write(&path, changed).unwrap();
        let none: [&str; 0] = [];
        assert_eq!(findings(&cluster, "ProctrackType"), none, "{setting}");
    }
}

#[test]
fn a_proxy_that_does_not_answer_is_found() {
    let Some(mut cluster) = start("a_proxy_that_does_not_answer_is_found") else {
        return;
    };
    let none: [&str; 0] = [];
    assert_eq!(findings(&cluster, "Proxy = "), none);
    cluster.kill_proxy();
    let found = findings(&cluster, "Proxy = unix:/run/vipu-proxy/socket: ");
    assert!(
        found.len() == 1 && found[0].contains("correct Proxy and ProxyTokenFile"),
        "{found:?}"
    );
}

#[test]
fn a_healthy_cluster_of_each_way_has_no_finding() {
    for way in Way::ALL {
        let Some(cluster) = WayCluster::start("a_healthy_cluster_of_each_way_has_no_finding", way) else {
            return;
        };
        let cluster = cluster.cluster;
        // The guide has these settings; a bed has no cgroups.
        let path = cluster.bed.directory().join("etc/slurm.conf");
        let text = fs::read_to_string(&path)
            .unwrap()
            .replace("ProctrackType=proctrack/linuxproc\n", "");
        let settings = "PropagateResourceLimitsExcept=MEMLOCK\nLaunchParameters=use_interactive_step\n";
        fs::write(&path, text + settings).unwrap();
        assert_eq!(findings(&cluster, ""), Vec::<String>::new(), "{}", way.name());
    }
}

#[test]
fn a_second_cluster_with_the_name_of_this_one_is_found() {
    let name = "a_second_cluster_with_the_name_of_this_one_is_found";
    let Some(cluster) = start(name) else {
        return;
    };
    let own = cluster.submit(&["--licenses=pod64:4"], "echo started; exec tail -f /dev/null");
    cluster.wait_for_line(&own, "started");
    let none: [&str; 0] = [];
    assert_eq!(findings(&cluster, "ClusterName"), none);
    for (kind, name, uid, reason) in [
        (
            "SlurmJob",
            "slurm-900",
            "900.1764000000",
            "the next job here has the id 2",
        ),
        (
            "SlurmPool",
            "other-host",
            "a",
            "slurm.conf has no node other-host",
        ),
    ] {
        let owner =
            format!(r#"{{"kind": "{kind}", "namespace": "testbed", "name": "{name}", "uid": "{uid}"}}"#);
        let body = format!(r#"{{"size": 4, "owner": {owner}}}"#);
        let path = "/v1/partitions/theirs?wait=30s";
        assert_eq!(cluster.send("PUT", path, &body)["state"], "active");
        let found = findings(&cluster, "ClusterName");
        let text = format!(
            "ClusterName = testbed: the proxy has partition theirs of {kind} testbed/{name}, but {reason};"
        );
        assert!(found.len() == 1 && found[0].contains(&text), "{found:?}");
        assert_eq!(cluster.send("DELETE", path, "")["state"], "gone");
    }
    // The owners of another cluster are none of its business.
    let owner = r#"{"kind": "SlurmJob", "namespace": "elsewhere", "name": "slurm-900", "uid": "900.1"}"#;
    let body = format!(r#"{{"size": 4, "owner": {owner}}}"#);
    cluster.send("PUT", "/v1/partitions/theirs?wait=30s", &body);
    assert_eq!(findings(&cluster, "ClusterName"), none);
    cluster.send("DELETE", "/v1/partitions/theirs?wait=30s", "");
    cluster.bed.succeed("scancel", &[&own]);
    cluster.wait_for_end(&own);
    cluster.assert_nothing_left();
}

#[test]
fn a_partition_that_the_script_of_an_ended_job_made_is_found() {
    let Some(cluster) = start("a_partition_that_the_script_of_an_ended_job_made_is_found") else {
        return;
    };
    let running = cluster.submit(&[], "sleep 600");
    for name in [
        "slurm_4711",
        "p4712",
        &format!("slurm_{running}"),
        "training",
        "pod7",
    ] {
        cluster.make_partition(name);
    }
    cluster.bed.wait_until("the proxy lists them", || {
        let list = cluster.get("/v1/controllers");
        let foreign = list["controllers"][0]["foreign"].as_array();
        foreign.is_some_and(|foreign| foreign.len() == 5)
    });
    let found = findings(&cluster, "whose script may have made it");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("job 4712"), "{found:?}");
    assert!(
        found[1].contains("partition slurm_4711 at 127.0.0.1:8090 holds 4 IPUs"),
        "{found:?}"
    );
}
