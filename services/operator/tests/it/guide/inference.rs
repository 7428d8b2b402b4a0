//! Inference and scaling (seed 000 §6.7).

use crate::cluster_fixture::{ClusterFixture, FOREVER, worker_job};
use crate::guide::seed;
use crate::support::until;

/// The documented words are said once for each instance that lacks its partition; the reason follows.
const NOT_READY: &str = "partition not ready yet!";

const COLUMNS: [&str; 6] = ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"];

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_7_an_inference_job_is_scaled_to_2_to_4_and_to_1() {
    let test = "seed_000_6_7_an_inference_job_is_scaled_to_2_to_4_and_to_1";
    // Four IPUs, of which somebody has two.
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| proxy.sim = Some("1x1".into());
    let Some(served) = ClusterFixture::start_with(test, "seed-000-6-7", change).await else {
        return;
    };
    for other in ["one", "another"] {
        served.apply(&worker_job(other, FOREVER));
        served.is(other, "Running").await;
    }
    let mut inference = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/000-inference.yaml"
    ));
    let spec = &mut inference["spec"]["workers"]["template"]["spec"];
    spec["containers"][0]["image"] = "local/busybox:1".into();
    spec["containers"][0]["command"][0] = "/bin/sh".into();
    spec["terminationGracePeriodSeconds"] = 1.into();
    served.apply(&inference);

    let becomes = async |status: &'static str, current: usize, desired: u32, message: &str| {
        let row = [
            "job-inference-1".to_owned(),
            status.to_owned(),
            current.to_string(),
            desired.to_string(),
        ];
        until(&format!("the table shows {row:?}"), async || {
            let [header, now] = served.table("job-inference-1");
            assert_eq!(header, COLUMNS);
            let pods = served.pods().await;
            let pods = pods
                .iter()
                .filter(|pod| pod.starts_with("job-inference-1-worker-"));
            let told = now.len() == 5 && now[..4] == row && now[4].starts_with(message);
            told && now[4].matches(NOT_READY).count() == message.matches(NOT_READY).count()
                && pods.count() == current
        })
        .await;
    };
    let scale = |replicas: &str| {
        let words = [
            "scale",
            "ipujob.graphcore.ai/job-inference-1",
            "--replicas",
            replicas,
        ];
        let said = served.kubectl(&words);
        assert_eq!(said.trim(), "ipujob.graphcore.ai/job-inference-1 scaled");
    };
    let reconciled = "Successfully reconciled IPUJob";
    becomes("Running", 1, 1, reconciled).await;
    scale("2");
    becomes("Running", 2, 2, reconciled).await;
    scale("4");
    becomes("Pending", 2, 4, &NOT_READY.repeat(2)).await;
    served.delete("one");
    becomes("Pending", 3, 4, NOT_READY).await;
    served.delete("another");
    becomes("Running", 4, 4, reconciled).await;
    scale("1");
    becomes("Running", 1, 1, reconciled).await;
    served.has_pods(&["job-inference-1-worker-0"]).await;
    served.ends_without_a_trace().await;
}
