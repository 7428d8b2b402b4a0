//! Jobs that do not progress: suspended by their owner, or blocked by a quota.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};
use crate::support::{apply, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_holds_no_ipus_and_resumes_with_changed_tolerations() {
    let test = "a_suspended_job_holds_no_ipus_and_resumes_with_changed_tolerations";
    let Some(fixture) = ClusterFixture::start(test, "suspended").await else {
        return;
    };
    fixture.apply(&worker_job("pausing", RUN_UNTIL_SIGTERM));
    fixture.wait_for_phase("pausing", "Running").await;
    let patch = |patch: &Value| {
        let patch = patch.to_string();
        fixture.kubectl(&["patch", "ipujob", "pausing", "--type=merge", "-p", &patch])
    };
    patch(&json!({"spec": {"suspend": true}}));
    fixture
        .wait_for_status("pausing", "the job holds no IPUs", |status| {
            status["phase"] == "Suspended" && status["ipusHeld"] == 0
        })
        .await;
    fixture.wait_for_pods(&[]).await;
    wait_until("its partition is released", async || {
        fixture.get_from_proxy("/v1/partitions").await["partitions"] == json!([])
    })
    .await;
    let toleration = json!({"key": "maintenance", "operator": "Exists", "effect": "NoSchedule"});
    let others = json!({"nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": [toleration]});
    patch(&json!({"spec": {"workers": {"template": {"spec": others}}}}));
    patch(&json!({"spec": {"suspend": false}}));
    fixture.wait_for_phase("pausing", "Running").await;
    let spec = fixture.pod("pausing-worker-0").await["spec"].take();
    assert_eq!(spec["nodeSelector"]["kubernetes.io/os"], "linux");
    let tolerations = spec["tolerations"].as_array().unwrap();
    assert!(tolerations.contains(&toleration), "{tolerations:?}");
    assert_eq!(fixture.job("pausing").await["status"]["restartCount"], 0);
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_blocked_by_a_quota_reports_it_and_runs_once_the_quota_permits() {
    let test = "a_job_blocked_by_a_quota_reports_it_and_runs_once_the_quota_permits";
    let Some(fixture) = ClusterFixture::start(test, "refused").await else {
        return;
    };
    let quota = |pods: &str| {
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "refused"},
            "spec": {"hard": {"pods": pods}},
        });
        apply(fixture.cluster, &quota);
    };
    quota("1");
    wait_until("the quota is effective", async || {
        let few = fixture
            .find("", "v1", "ResourceQuota", "few")
            .await
            .unwrap_or_default();
        few["status"]["hard"]["pods"] == "1"
    })
    .await;
    fixture.apply(&worker_job("growing", RUN_UNTIL_SIGTERM));
    fixture.wait_for_phase("growing", "Running").await;
    fixture.kubectl(&["scale", "ipujob/growing", "--replicas=2"]);
    let status = fixture
        .wait_for_status("growing", "the job reports the quota", |status| {
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
    wait_until("an event reports the quota too", async || {
        let events = fixture.kubectl(&["get", "events", "--field-selector=reason=Forbidden"]);
        events.contains("ipujob/growing") && events.contains("Warning")
    })
    .await;
    quota("2");
    let status = fixture.wait_for_phase("growing", "Running").await;
    assert_eq!(status["lastMessage"], "Successfully reconciled IPUJob");
    fixture.delete_all_and_shut_down().await;
}
