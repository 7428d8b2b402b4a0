//! Jobs that stand still: because their owner says so, or because the cluster refuses them something.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, FOREVER, worker_job};
use crate::support::{apply, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_holds_nothing_and_goes_on_with_other_tolerations() {
    let test = "a_suspended_job_holds_nothing_and_goes_on_with_other_tolerations";
    let Some(served) = ClusterFixture::start(test, "suspended").await else {
        return;
    };
    served.apply(&worker_job("pausing", FOREVER));
    served.is("pausing", "Running").await;
    let patch = |patch: &Value| {
        let patch = patch.to_string();
        served.kubectl(&["patch", "ipujob", "pausing", "--type=merge", "-p", &patch])
    };
    patch(&json!({"spec": {"suspend": true}}));
    served
        .comes_to("pausing", "it holds nothing", |status| {
            status["phase"] == "Suspended" && status["ipusHeld"] == 0
        })
        .await;
    served.has_pods(&[]).await;
    until("its partition is given back", async || {
        served.ask("/v1/partitions").await["partitions"] == json!([])
    })
    .await;
    let toleration = json!({"key": "maintenance", "operator": "Exists", "effect": "NoSchedule"});
    let others = json!({"nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": [toleration]});
    patch(&json!({"spec": {"workers": {"template": {"spec": others}}}}));
    patch(&json!({"spec": {"suspend": false}}));
    served.is("pausing", "Running").await;
    let spec = served.pod("pausing-worker-0").await["spec"].take();
    assert_eq!(spec["nodeSelector"]["kubernetes.io/os"], "linux");
    let tolerations = spec["tolerations"].as_array().unwrap();
    assert!(tolerations.contains(&toleration), "{tolerations:?}");
    assert_eq!(served.job("pausing").await["status"]["restartCount"], 0);
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_workers_a_quota_refuses_says_so_and_runs_when_there_is_room() {
    let test = "a_job_whose_workers_a_quota_refuses_says_so_and_runs_when_there_is_room";
    let Some(served) = ClusterFixture::start(test, "refused").await else {
        return;
    };
    let quota = |pods: &str| {
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "refused"},
            "spec": {"hard": {"pods": pods}},
        });
        apply(served.cluster, &quota);
    };
    quota("1");
    until("the quota counts", async || {
        let few = served
            .find("", "v1", "ResourceQuota", "few")
            .await
            .unwrap_or_default();
        few["status"]["hard"]["pods"] == "1"
    })
    .await;
    served.apply(&worker_job("growing", FOREVER));
    served.is("growing", "Running").await;
    served.kubectl(&["scale", "ipujob/growing", "--replicas=2"]);
    let status = served
        .comes_to("growing", "it says what refuses it", |status| {
            status["lastMessage"]
                .as_str()
                .unwrap_or_default()
                .contains("exceeded quota: few")
        })
        .await;
    assert_eq!(
        (
            &status["phase"],
            &status["currentReplicas"],
            &status["desiredReplicas"],
            &status["ipusHeld"]
        ),
        (&json!("Pending"), &json!(1), &json!(2), &json!(2)),
        "{status}"
    );
    until("an event says so too", async || {
        let events = served.kubectl(&["get", "events", "--field-selector=reason=Forbidden"]);
        events.contains("ipujob/growing") && events.contains("Warning")
    })
    .await;
    quota("2");
    let status = served.is("growing", "Running").await;
    assert_eq!(status["lastMessage"], "Successfully reconciled IPUJob");
    served.ends_without_a_trace().await;
}
