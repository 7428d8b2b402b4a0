//! The finalizer (seed 000 §6.1): a deleted job gives its IPUs back, and does not wait for V-IPU.

use serde_json::{Value, json};
use vipu_sim::{Fault, FaultKind};

use crate::cluster_fixture::{ClusterFixture, FOREVER, List, simulator, worker_job};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_1_a_running_job_is_deleted_at_once_also_while_vipu_is_down() {
    let test = "seed_000_6_1_a_running_job_is_deleted_at_once_also_while_vipu_is_down";
    let simulator = simulator("1x8").await;
    let list = List::of(&[(&simulator, "kubernetes.io/os=linux")]);
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| list.serve(proxy);
    let Some(served) = ClusterFixture::start_with(test, "seed-000-6-1", change).await else {
        return;
    };
    let made = || {
        let all = simulator.state().unwrap().partitions;
        all.into_iter().map(|partition| partition.id).collect::<Vec<_>>()
    };
    let all = ["well", "refused", "hanging"];
    for name in all {
        served.apply(&worker_job(name, FOREVER));
    }
    for name in all {
        served.is(name, "Running").await;
        let finalizers = &served.job(name).await["metadata"]["finalizers"];
        assert_eq!(*finalizers, json!(["ipu.finalizers.graphcore.ai"]));
    }
    assert_eq!(made().len(), 3);
    served.delete("well");
    served.has_pods(&["hanging-worker-0", "refused-worker-0"]).await;
    until("its partition is given back", async || made().len() == 2).await;

    simulator.faults().set(vec![Fault::new(FaultKind::Refuse)]);
    served.delete("refused");
    served.has_pods(&["hanging-worker-0"]).await;
    simulator.faults().set(vec![Fault::new(FaultKind::Hang)]);
    served.delete("hanging");
    served.has_pods(&[]).await;
    // One that never had a partition holds nobody up either.
    served.apply(&worker_job("late", FOREVER));
    served
        .comes_to("late", "it waits", |status| status["phase"] == "Pending")
        .await;
    served.delete("late");
    // Nothing of the jobs is left but what the ledger has taken over.
    let owed = served.ask("/v1/partitions").await;
    let owed = owed["partitions"].as_array().unwrap();
    let names = |name: &str| owed.iter().any(|one: &Value| one["owner"]["name"] == name);
    assert!(names("refused") && names("hanging") && !names("well"), "{owed:?}");
    assert!(owed.iter().all(|one| one["state"] == "releasing"), "{owed:?}");
    assert_eq!(made().len(), 2);
    simulator.faults().clear();
    until("V-IPU has everything back", async || made().is_empty()).await;
    served.ends_without_a_trace().await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_1_workers_are_on_the_network_of_their_node_and_privileged() {
    let test = "seed_000_6_1_workers_are_on_the_network_of_their_node_and_privileged";
    let change =
        |_: &mut vipu_proxy::Settings, operator: &mut ipu_operator::Settings| operator.host_network = None;
    let Some(served) = ClusterFixture::start_with(test, "seed-000-6-1-network", change).await else {
        return;
    };
    served.apply(&worker_job("network", FOREVER));
    served.is("network", "Running").await;
    let pod = served.pod("network-worker-0").await;
    let spec = &pod["spec"];
    assert_eq!(spec["hostNetwork"], true, "{spec}");
    assert_eq!(spec["dnsPolicy"], "ClusterFirstWithHostNet", "{spec}");
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"]["privileged"], true, "{container}");
    assert_eq!(pod["status"]["podIP"], pod["status"]["hostIP"]);
    served.ends_without_a_trace().await;
}
