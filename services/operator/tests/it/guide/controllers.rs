//! Several V-IPU controllers (seed 000 §6.3.2): tried in the order of the list, each with the nodes that have its label.

use serde_json::json;

use crate::cluster_fixture::{ClusterFixture, FOREVER, List, simulator, worker_job};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_3_2_workers_run_on_nodes_with_the_label_of_the_controller_that_has_their_partition() {
    let test =
        "seed_000_6_3_2_workers_run_on_nodes_with_the_label_of_the_controller_that_has_their_partition";
    // Four IPUs each.
    let (first, second) = (simulator("1x1").await, simulator("1x1").await);
    let list = List::of(&[(&first, "walk-one=pod001")]);
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| list.serve(proxy);
    let Some(served) = ClusterFixture::start_with(test, "seed-000-6-3-2", change).await else {
        return;
    };
    let label = |label: &str| served.kubectl(&["label", "nodes", "--all", label]);
    label("walk-one=pod001");
    let mut job = worker_job(
        "spread",
        &format!("echo $IPUOF_VIPU_API_HOST:$IPUOF_VIPU_API_PORT; {FOREVER}"),
    );
    job["spec"]["ipusPerJobInstance"] = "4".into();
    served.apply(&job);
    served.is("spread", "Running").await;
    served.kubectl(&["scale", "ipujob/spread", "--replicas", "2"]);
    served
        .comes_to("spread", "its second instance waits", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            status["phase"] == "Pending" && message.starts_with("partition not ready yet! ")
        })
        .await;

    // "Can be modified at any time", and a controller is added within a minute.
    list.say(&[(&first, "walk-one=pod001"), (&second, "walk-two=pod002")]);
    // "The same label must be added to the node": until then the status says what is missing.
    served
        .comes_to("spread", "it says that no node has the label", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            message.contains("spread-worker-1: Unschedulable") && message.contains("affinity/selector")
        })
        .await;
    label("walk-two=pod002");
    // One instance runs all the time: it says when nothing hinders the other any more.
    let status = served
        .comes_to("spread", "nothing hinders it", |status| {
            status["lastMessage"] == "Successfully reconciled IPUJob"
        })
        .await;

    for (instance, controller, (key, value)) in [
        (0, &first, ("walk-one", "pod001")),
        (1, &second, ("walk-two", "pod002")),
    ] {
        let name = format!("spread-worker-{instance}");
        let pod = served.pod(&name).await;
        assert_eq!(pod["spec"]["nodeSelector"], json!({key: value}), "{name}");
        let report = &status["instances"][instance];
        assert_eq!(report["nodeLabel"], format!("{key}={value}"), "{status}");
        assert_eq!(
            report["controller"],
            controller.addr().to_string().as_str(),
            "{status}"
        );
        let partitions = controller.state().unwrap().partitions;
        assert_eq!(partitions.len(), 1, "{partitions:?}");
        assert_eq!(report["partition"], partitions[0].id.as_str(), "{status}");
        until("the worker has said where its partition is", async || {
            let log = served.cluster.kubectl(&["-n", served.namespace, "logs", &name]);
            log.is_ok_and(|log| log.trim() == controller.addr().to_string())
        })
        .await;
    }
    served.ends_without_a_trace().await;
    first.shutdown().await;
    second.shutdown().await;
}
