//! The scale of a job as others see it: its selector, and a HorizontalPodAutoscaler that works on it.

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_scales_a_job_and_finds_its_workers_and_nobody_else() {
    let test = "an_autoscaler_scales_a_job_and_finds_its_workers_and_nobody_else";
    let Some(served) = ClusterFixture::start_admitting(test, "autoscaled").await else {
        return;
    };
    load(served.cluster).await;
    // Launchers are not what is scaled, and neither is another job.
    for name in ["serving", "serving-too"] {
        served.apply(&job_with_launcher(
            name,
            "until [ -s /tmp/end ]; do sleep 1; done",
        ));
    }
    for name in ["serving", "serving-too"] {
        served.is(name, "Running").await;
    }
    let scale = || -> Value {
        let path = "/apis/graphcore.ai/v1alpha1/namespaces/autoscaled/ipujobs/serving/scale";
        serde_json::from_str(&served.cluster.kubectl(&["get", "--raw", path]).unwrap()).unwrap()
    };
    let selected = |scale: &Value| {
        let selector = scale["status"]["selector"].as_str().unwrap();
        let names = served.kubectl(&["get", "pods", "--output=name", "--selector", selector]);
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
    served.kubectl(&autoscale);
    let status = served
        .comes_to("serving", "it is scaled", |status| {
            status["currentReplicas"] == 2 && status["phase"] == "Running"
        })
        .await;
    assert_eq!(status["ipusHeld"], 2, "{status}");
    assert_eq!(
        selected(&scale()),
        ["pod/serving-worker-0", "pod/serving-worker-1"]
    );
    // Nobody measures anything here: that is all that it lacks.
    let condition = |autoscaler: &Value, kind: &str| {
        let all = autoscaler["status"]["conditions"].as_array();
        let found = all.and_then(|all| all.iter().find(|one| one["type"] == kind));
        found.map(|one| (one["status"].clone(), one["reason"].clone()))
    };
    until("the autoscaler asks for metrics of the workers", async || {
        let autoscaler = served
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
    served.kubectl(&["patch", "hpa", "serving", "--type=merge", "-p", &fewer]);
    served
        .comes_to("serving", "it is scaled back", |status| {
            status["currentReplicas"] == 1 && status["ipusHeld"] == 1
        })
        .await;
    until("its worker is the only one", async || {
        selected(&scale()) == ["pod/serving-worker-0"]
    })
    .await;
    served.kubectl(&["delete", "hpa", "serving"]);
    served.ends_without_a_trace().await;
}
