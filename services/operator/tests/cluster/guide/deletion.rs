//! The finalizer (V-IPU guide §6.1): a deleted job releases its IPUs, and does not wait for V-IPU.

use serde_json::{Value, json};
use vipu_sim::{Fault, FaultKind};

use crate::cluster_fixture::{ClusterFixture, ControllersFile, RUN_UNTIL_SIGTERM, simulator, worker_job};
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_1_a_running_job_is_deleted_at_once_even_while_vipu_is_down() {
    let test = "vipu_guide_6_1_a_running_job_is_deleted_at_once_even_while_vipu_is_down";
    let simulator = simulator("1x8").await;
    let list = ControllersFile::new(&[(&simulator, "kubernetes.io/os=linux")]);
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| list.configure(proxy);
    let Some(fixture) = ClusterFixture::start_with(test, "guide-6-1", change).await else {
        return;
    };
    let partitions = || {
        let all = simulator.state().unwrap().partitions;
        all.into_iter().map(|partition| partition.id).collect::<Vec<_>>()
    };
    let all = ["well", "refused", "hanging"];
    for name in all {
        fixture.apply(&worker_job(name, RUN_UNTIL_SIGTERM));
    }
    for name in all {
        fixture.wait_for_phase(name, "Running").await;
        let finalizers = &fixture.job(name).await["metadata"]["finalizers"];
        assert_eq!(*finalizers, json!(["ipu.finalizers.graphcore.ai"]));
    }
    assert_eq!(partitions().len(), 3);
    fixture.delete("well");
    fixture
        .wait_for_pods(&["hanging-worker-0", "refused-worker-0"])
        .await;
    wait_until("its partition is released", async || partitions().len() == 2).await;

    simulator.faults().set(vec![Fault::new(FaultKind::Refuse)]);
    fixture.delete("refused");
    fixture.wait_for_pods(&["hanging-worker-0"]).await;
    simulator.faults().set(vec![Fault::new(FaultKind::Hang)]);
    fixture.delete("hanging");
    fixture.wait_for_pods(&[]).await;
    // The deletion of a job without a partition does not block either.
    fixture.apply(&worker_job("late", RUN_UNTIL_SIGTERM));
    fixture
        .wait_for_status("late", "the job waits", |status| status["phase"] == "Pending")
        .await;
    fixture.delete("late");
    // Only the releases that the ledger has taken over are left.
    let pending_releases = fixture.get_from_proxy("/v1/partitions").await;
    let pending_releases = pending_releases["partitions"].as_array().unwrap();
    let has_owner = |name: &str| {
        pending_releases
            .iter()
            .any(|one: &Value| one["owner"]["name"] == name)
    };
    assert!(
        has_owner("refused") && has_owner("hanging") && !has_owner("well"),
        "{pending_releases:?}"
    );
    assert!(
        pending_releases.iter().all(|one| one["state"] == "releasing"),
        "{pending_releases:?}"
    );
    assert_eq!(partitions().len(), 2);
    simulator.faults().clear();
    wait_until("V-IPU has no partition left", async || partitions().is_empty()).await;
    fixture.delete_all_and_shut_down().await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_1_workers_are_on_the_network_of_their_node_and_privileged() {
    let test = "vipu_guide_6_1_workers_are_on_the_network_of_their_node_and_privileged";
    let change =
        |_: &mut vipu_proxy::Settings, operator: &mut ipu_operator::Settings| operator.host_network = None;
    let Some(fixture) = ClusterFixture::start_with(test, "guide-6-1-network", change).await else {
        return;
    };
    fixture.apply(&worker_job("network", RUN_UNTIL_SIGTERM));
    fixture.wait_for_phase("network", "Running").await;
    let pod = fixture.pod("network-worker-0").await;
    let spec = &pod["spec"];
    assert_eq!(spec["hostNetwork"], true, "{spec}");
    assert_eq!(spec["dnsPolicy"], "ClusterFirstWithHostNet", "{spec}");
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"]["privileged"], true, "{container}");
    assert_eq!(pod["status"]["podIP"], pod["status"]["hostIP"]);
    fixture.delete_all_and_shut_down().await;
}
