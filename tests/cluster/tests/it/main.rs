//! Tests of the test clusters.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod node;

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use ipu_test_cluster::{Cluster, ClusterProfile, private, private_with, shared, shared_with};

/// Environment variable that marks the process to be killed.
const VICTIM: &str = "IPU_TEST_CLUSTER_VICTIM";

#[test]
fn two_concurrent_clusters_are_isolated() {
    let name = "two_concurrent_clusters_are_isolated";
    let (Some(shared_cluster), Some(private_cluster)) = (shared(name), private(name)) else {
        return;
    };
    assert_ne!(shared_cluster.url(), private_cluster.url());
    shared_cluster.kubectl(&["create", "configmap", "here"]).unwrap();
    assert!(configmaps(shared_cluster).contains("here"));
    assert!(!configmaps(&private_cluster).contains("here"));
}

#[test]
fn objects_survive_a_killed_api_server_and_a_snapshot_restores_them() {
    let Some(mut cluster) = private("objects_survive_a_killed_api_server_and_a_snapshot_restores_them")
    else {
        return;
    };
    cluster.kubectl(&["create", "configmap", "before"]).unwrap();
    let snapshot = cluster.directory().join("snapshot");
    cluster.snapshot(&snapshot).unwrap();
    cluster.kubectl(&["create", "configmap", "after"]).unwrap();
    cluster.kill_apiserver();
    assert!(cluster.kubectl(&["get", "configmaps"]).is_err());
    cluster.start_apiserver().unwrap();
    let names = configmaps(&cluster);
    assert!(names.contains("before") && names.contains("after"), "{names}");
    cluster.restore(&snapshot).unwrap();
    let names = configmaps(&cluster);
    assert!(names.contains("before") && !names.contains("after"), "{names}");
}

#[test]
fn rbac_limits_users() {
    let Some(cluster) = shared("rbac_limits_users") else {
        return;
    };
    let nobody = cluster.user("nobody", &[]).unwrap();
    let kubeconfig = nobody.display().to_string();
    let error = cluster
        .kubectl(&["--kubeconfig", &kubeconfig, "get", "configmaps"])
        .unwrap_err();
    assert!(error.to_string().contains("\"nobody\" cannot list"), "{error}");
}

#[test]
fn a_cluster_ends_with_its_process_even_after_sigkill() {
    let name = "a_cluster_ends_with_its_process_even_after_sigkill";
    ends_with_its_process(name, ClusterProfile::ApiServer, 2);
}

#[test]
fn a_node_ends_with_its_process_even_after_sigkill() {
    let name = "a_node_ends_with_its_process_even_after_sigkill";
    // The node's servers besides those of the control plane, each with a wrapper that waits for it.
    ends_with_its_process(name, ClusterProfile::Node, 8);
}

/// Kills a process whose cluster has at least `servers` servers, and asserts that they end.
#[expect(clippy::print_stdout, reason = "the parent process reads the directory")]
fn ends_with_its_process(test: &str, extent: ClusterProfile, servers: usize) {
    if env::var_os(VICTIM).is_some() {
        let cluster = private_with(test, extent).unwrap();
        println!("directory {}", cluster.directory().display());
        // Blocks until the process is killed.
        std::io::stdin().lock().read_line(&mut String::new()).unwrap();
        return;
    }
    if shared_with(test, extent).is_none() {
        return;
    }
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(VICTIM, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let directory = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("directory ").map(|(_, rest)| rest.to_owned()))
        .unwrap();
    assert!(servers_in(&directory) >= servers);
    victim.kill().unwrap();
    victim.wait().unwrap();
    // The tether shells need time to notice.
    while servers_in(&directory) > 0 {
        std::thread::yield_now();
    }
}

/// Counts the live processes with an argument in this directory, shells excluded.
fn servers_in(directory: &str) -> usize {
    let processes = Path::new("/proc").read_dir().unwrap().flatten();
    processes
        .filter(|process| {
            let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments);
            arguments.contains(directory) && !arguments.starts_with("sh\0")
        })
        .count()
}

fn configmaps(cluster: &Cluster) -> String {
    cluster.kubectl(&["get", "configmaps", "-o", "name"]).unwrap()
}
