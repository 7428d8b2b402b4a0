//! The clusters that other tests rest on.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod node;

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use ipu_test_cluster::{Cluster, ClusterProfile, private, private_with, shared, shared_with};

/// Says to this program that it is the one that is to be killed.
const VICTIM: &str = "IPU_TEST_CLUSTER_VICTIM";

#[test]
fn two_clusters_side_by_side_know_nothing_of_one_another() {
    let name = "two_clusters_side_by_side_know_nothing_of_one_another";
    let (Some(one), Some(other)) = (shared(name), private(name)) else {
        return;
    };
    assert_ne!(one.url(), other.url());
    one.kubectl(&["create", "configmap", "here"]).unwrap();
    assert!(configmaps(one).contains("here"));
    assert!(!configmaps(&other).contains("here"));
}

#[test]
fn what_is_written_survives_a_killed_api_server_and_goes_back_with_a_snapshot() {
    let Some(mut cluster) =
        private("what_is_written_survives_a_killed_api_server_and_goes_back_with_a_snapshot")
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
    let all = configmaps(&cluster);
    assert!(all.contains("before") && all.contains("after"), "{all}");
    cluster.restore(&snapshot).unwrap();
    let all = configmaps(&cluster);
    assert!(all.contains("before") && !all.contains("after"), "{all}");
}

#[test]
fn users_may_do_what_rbac_says() {
    let Some(cluster) = shared("users_may_do_what_rbac_says") else {
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
fn a_cluster_ends_with_the_process_that_started_it_even_by_sigkill() {
    let name = "a_cluster_ends_with_the_process_that_started_it_even_by_sigkill";
    ends_with_its_process(name, ClusterProfile::ApiServer, 2);
}

#[test]
fn a_node_ends_with_the_process_that_started_it_even_by_sigkill() {
    let name = "a_node_ends_with_the_process_that_started_it_even_by_sigkill";
    // The node's own besides those of the control plane, each by way of a command that waits for it.
    ends_with_its_process(name, ClusterProfile::Node, 8);
}

/// Kills a process that has a cluster with at least so many servers.
#[expect(
    clippy::print_stdout,
    reason = "so the process that is killed tells what it has"
)]
fn ends_with_its_process(test: &str, extent: ClusterProfile, servers: usize) {
    if env::var_os(VICTIM).is_some() {
        let cluster = private_with(test, extent).unwrap();
        println!("directory {}", cluster.directory().display());
        // Until it is killed.
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
    // The shells that hold them have still to notice.
    while servers_in(&directory) > 0 {
        std::thread::yield_now();
    }
}

/// How many processes were told of files in this directory and are neither shells nor dead.
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
