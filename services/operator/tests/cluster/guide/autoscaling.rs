//! The scale subresource of a job: its selector, and a HorizontalPodAutoscaler that uses it.

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load_image};
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_scales_a_job_and_selects_exactly_its_workers() {
    let test = "an_autoscaler_scales_a_job_and_selects_exactly_its_workers";
    let Some(fixture) = ClusterFixture::start_with_webhooks(test, "autoscaled").await else {
        return;
    };
    load_image(fixture.cluster).await;
    // The selector must exclude launchers and other jobs.
    for name in ["serving", "serving-too"] {
        fixture.apply(&job_with_launcher(
            name,
            "until [ -s /tmp/end ]; do sleep 1; done",
        ));
    }
    for name in ["serving", "serving-too"] {
        fixture.wait_for_phase(name, "Running").await;
    }
    let scale = || -> Value {
        let path = "/apis/graphcore.ai/v1alpha1/namespaces/autoscaled/ipujobs/serving/scale";
        serde_json::from_str(&fixture.cluster.kubectl(&["get", "--raw", path]).unwrap()).unwrap()
    };
    let selected = |scale: &Value| {
        let selector = scale["status"]["selector"].as_str().unwrap();
        let names = fixture.kubectl(&["get", "pods", "--output=name", "--selector", selector]);
        names.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let now = scale();
    assert_eq!(
        (&now["spec"]["replicas"], &now["status"]["replicas"]),
        (&json!(1), &json!(1)),
        "{now}"
    );
    assert_eq!(selected(&now), ["pod/serving-worker-0"], "{now}");

    let autoscale = ["autoscale", "ipujob/serving", "--min=2", "--max=3", "--cpu=80%"];
    fixture.kubectl(&autoscale);
    let status = fixture
        .wait_for_status("serving", "the job is scaled up", |status| {
            status["currentReplicas"] == 2 && status["phase"] == "Running"
        })
        .await;
    assert_eq!(status["ipusHeld"], 2, "{status}");
    assert_eq!(
        selected(&scale()),
        ["pod/serving-worker-0", "pod/serving-worker-1"]
    );
    // The cluster has no metrics server; the autoscaler lacks nothing else.
    let condition = |autoscaler: &Value, kind: &str| {
        let all = autoscaler["status"]["conditions"].as_array();
        let found = all.and_then(|all| all.iter().find(|one| one["type"] == kind));
        found.map(|one| (one["status"].clone(), one["reason"].clone()))
    };
    wait_until("the autoscaler requests metrics of the workers", async || {
        let autoscaler = fixture
            .find("autoscaling", "v2", "HorizontalPodAutoscaler", "serving")
            .await
            .unwrap_or_default();
        let able = condition(&autoscaler, "AbleToScale");
        let active = condition(&autoscaler, "ScalingActive");
        able.is_some_and(|(status, _)| status == "True")
            && active == Some(("False".into(), "FailedGetResourceMetric".into()))
            && autoscaler["status"]["currentReplicas"] == 2
    })
    .await;
    let fewer = json!({"spec": {"minReplicas": 1, "maxReplicas": 1}}).to_string();
    fixture.kubectl(&["patch", "hpa", "serving", "--type=merge", "-p", &fewer]);
    fixture
        .wait_for_status("serving", "the job is scaled down", |status| {
            status["currentReplicas"] == 1 && status["ipusHeld"] == 1
        })
        .await;
    wait_until("one worker is left", async || {
        selected(&scale()) == ["pod/serving-worker-0"]
    })
    .await;
    fixture.kubectl(&["delete", "hpa", "serving"]);
    fixture.delete_all_and_shut_down().await;
}
