//! A state file loses no acknowledged change, and several processes serve one IPU-POD.

use std::path::Path;
use std::process::Stdio;

use ipu_core::hardware::Topology;
use ipu_vipu_client::wire::RemovePartitionRequest;
use ipu_vipu_client::wire::user_service_client::UserServiceClient;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use vipu_sim::{Simulator, StartError, StoreError};

use crate::support::{Client, channel, client, create, status};

/// Starts the binary on a free port, and connects a client.
async fn start_process(state: &Path) -> (Child, Client) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vipu-sim"))
        .args([
            "--topology",
            "pod64",
            "--listen",
            "127.0.0.1:0",
            "--delay-ms",
            "0",
            "--log",
            "warn",
            "--state",
        ])
        .arg(state)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .await
        .unwrap();
    let address = line.trim().rsplit(' ').next().unwrap();
    (child, UserServiceClient::new(channel(address).await))
}

#[tokio::test]
async fn a_killed_simulator_keeps_every_acknowledged_change() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("pod.json");
    let mut expected = Vec::<String>::new();
    for round in 0..6 {
        let (mut child, mut client) = start_process(&state).await;
        for partition in &expected {
            status(&mut client, partition).await.unwrap();
        }
        for call in 0..3 {
            let id = format!("p{round}-{call}");
            client.create_partition(create(&id, 1)).await.unwrap();
            expected.push(id);
        }
        let partition_id = expected.remove(round);
        client
            .remove_partition(RemovePartitionRequest {
                partition_id,
                force: false,
            })
            .await
            .unwrap();
        // One call is in flight, acknowledged or not, when the process is killed.
        let last = format!("p{round}-last");
        let in_flight = tokio::spawn(async move { (client.create_partition(create(&last, 1)).await, last) });
        child.start_kill().unwrap();
        child.wait().await.unwrap();
        if let (Ok(_), last) = in_flight.await.unwrap() {
            expected.push(last);
        }
    }
    let simulator = Simulator::builder(Topology::pod64())
        .state_file(&state)
        .start()
        .await
        .unwrap();
    let found = simulator.state().unwrap().partitions;
    let missing: Vec<_> = expected
        .iter()
        .filter(|id| !found.iter().any(|p| p.id == **id))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unexpected: Vec<_> = found
        .iter()
        .filter(|p| !expected.contains(&p.id) && !p.id.ends_with("last"))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}

#[tokio::test]
async fn sigterm_exits_with_success_and_keeps_the_state() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("pod.json");
    let (mut child, mut client) = start_process(&state).await;
    client.create_partition(create("p1", 4)).await.unwrap();
    drop(client);
    let pid = child.id().unwrap().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .await
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
    let (_child, mut client) = start_process(&state).await;
    status(&mut client, "p1").await.unwrap();
}

#[tokio::test]
async fn two_simulators_of_one_file_serve_one_ipu_pod() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("pod.json");
    let start = || Simulator::builder(Topology::pod16()).state_file(&state).start();
    let (left, right) = (start().await.unwrap(), start().await.unwrap());
    let mut clients = [client(&left).await, client(&right).await];
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..24 {
        let mut client = clients[n % 2].clone();
        calls.spawn(async move { client.create_partition(create(&format!("p{n}"), 1)).await.is_ok() });
    }
    let created = calls
        .join_all()
        .await
        .into_iter()
        .filter(|created| *created)
        .count();
    assert_eq!(
        created, 16,
        "one partition per IPU, regardless of the number of requests"
    );
    assert_eq!(left.state().unwrap(), right.state().unwrap());
    let id = left.state().unwrap().partitions[0].id.clone();
    let remove = RemovePartitionRequest {
        partition_id: id.clone(),
        force: false,
    };
    clients[0].remove_partition(remove).await.unwrap();
    assert_eq!(
        status(&mut clients[1], &id).await.unwrap_err().code(),
        tonic::Code::NotFound
    );
}

#[tokio::test]
async fn a_file_of_another_topology_or_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("pod.json");
    let start = |topology| Simulator::builder(topology).state_file(&state).start();
    start(Topology::pod16()).await.unwrap().shutdown().await;
    let error = start(Topology::pod64()).await.unwrap_err();
    assert!(
        matches!(error, StartError::State(StoreError::OtherTopology { .. })),
        "{error:?}"
    );
    let text = std::fs::read_to_string(&state)
        .unwrap()
        .replace("\"format\":1", "\"format\":2");
    std::fs::write(&state, text).unwrap();
    let error = start(Topology::pod16()).await.unwrap_err();
    assert!(
        matches!(error, StartError::State(StoreError::Format { found: 2, .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn the_state_is_not_written_through_a_symbolic_link() {
    let directory = tempfile::tempdir().unwrap();
    let (state, victim) = (directory.path().join("pod.json"), directory.path().join("victim"));
    std::fs::write(&victim, "as it was").unwrap();
    std::os::unix::fs::symlink(&victim, directory.path().join("pod.json.new")).unwrap();
    let (_child, mut client) = start_process(&state).await;
    client.create_partition(create("p", 1)).await.unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was");
    assert!(std::fs::read_to_string(&state).unwrap().contains("\"p\""));
}
