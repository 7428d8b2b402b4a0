//! Several V-IPU controllers (V-IPU guide §6.3.2): tried in the order of the list, each with the nodes that
//! have its label.

use serde_json::json;

use crate::cluster_fixture::{ClusterFixture, ControllersFile, RUN_UNTIL_SIGTERM, simulator, worker_job};
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_3_2_workers_run_on_nodes_with_the_label_of_the_controller_that_has_their_partition() {
    let test =
        "vipu_guide_6_3_2_workers_run_on_nodes_with_the_label_of_the_controller_that_has_their_partition";
    // Four IPUs each.
    let (first, second) = (simulator("1x1").await, simulator("1x1").await);
    let list = ControllersFile::new(&[(&first, "walk-one=pod001")]);
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| list.configure(proxy);
    let Some(fixture) = ClusterFixture::start_with(test, "guide-6-3-2", change).await else {
        return;
    };
    let label = |label: &str| fixture.kubectl(&["label", "nodes", "--all", label]);
    label("walk-one=pod001");
    let mut job = worker_job(
        "spread",
        &format!("echo $IPUOF_VIPU_API_HOST:$IPUOF_VIPU_API_PORT; {RUN_UNTIL_SIGTERM}"),
    );
    job["spec"]["ipusPerJobInstance"] = "4".into();
    fixture.apply(&job);
    fixture.wait_for_phase("spread", "Running").await;
    fixture.kubectl(&["scale", "ipujob/spread", "--replicas", "2"]);
    fixture
        .wait_for_status("spread", "the second instance waits", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            status["phase"] == "Pending" && message.starts_with("partition not ready yet! ")
        })
        .await;

    // "Can be modified at any time", and a controller is added within a minute.
    list.write(&[(&first, "walk-one=pod001"), (&second, "walk-two=pod002")]);
    // "The same label must be added to the node": until then the status says what is missing.
    fixture
        .wait_for_status("spread", "the job reports that no node has the label", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            message.contains("spread-worker-1: Unschedulable") && message.contains("affinity/selector")
        })
        .await;
    label("walk-two=pod002");
    // One instance runs all the time; the message changes once the other instance is no longer blocked.
    let status = fixture
        .wait_for_status("spread", "no blocking condition is left", |status| {
            status["lastMessage"] == "Successfully reconciled IPUJob"
        })
        .await;

    for (instance, controller, (key, value)) in [
        (0, &first, ("walk-one", "pod001")),
        (1, &second, ("walk-two", "pod002")),
    ] {
        let name = format!("spread-worker-{instance}");
        let pod = fixture.pod(&name).await;
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
        wait_until(
            "the worker has printed the address of its controller",
            async || {
                let log = fixture.cluster.kubectl(&["-n", fixture.namespace, "logs", &name]);
                log.is_ok_and(|log| log.trim() == controller.addr().to_string())
            },
        )
        .await;
    }
    fixture.delete_all_and_shut_down().await;
    first.shutdown().await;
    second.shutdown().await;
}
