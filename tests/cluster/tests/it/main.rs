//! Tests of the test clusters.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod node;

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use ipu_test_cluster::{ClusterProfile, private_with, shared_with};

/// Environment variable that marks the process to be killed.
const VICTIM: &str = "IPU_TEST_CLUSTER_VICTIM";

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
