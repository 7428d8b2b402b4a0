//! Inference and scaling (V-IPU guide §6.7).

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};
use crate::guide::guide_job;
use crate::support::wait_until;

/// The documented message appears once per instance without a partition; the reason follows.
const NOT_READY: &str = "partition not ready yet!";

const COLUMNS: [&str; 6] = ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"];

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_7_an_inference_job_is_scaled_to_2_to_4_and_to_1() {
    let test = "vipu_guide_6_7_an_inference_job_is_scaled_to_2_to_4_and_to_1";
    // Four IPUs, two of which other jobs hold.
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| proxy.sim = Some("1x1".into());
    let Some(fixture) = ClusterFixture::start_with(test, "guide-6-7", change).await else {
        return;
    };
    for other in ["one", "another"] {
        fixture.apply(&worker_job(other, RUN_UNTIL_SIGTERM));
        fixture.wait_for_phase(other, "Running").await;
    }
    let mut inference = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/vipu-inference.yaml"
    ));
    let spec = &mut inference["spec"]["workers"]["template"]["spec"];
    spec["containers"][0]["image"] = "local/busybox:1".into();
    spec["containers"][0]["command"][0] = "/bin/sh".into();
    spec["terminationGracePeriodSeconds"] = 1.into();
    fixture.apply(&inference);

    let wait_for_row = async |status: &'static str, current: usize, desired: u32, message: &str| {
        let row = [
            "job-inference-1".to_owned(),
            status.to_owned(),
            current.to_string(),
            desired.to_string(),
        ];
        wait_until(&format!("the table shows {row:?}"), async || {
            let [header, current_row] = fixture.table("job-inference-1");
            assert_eq!(header, COLUMNS);
            let pods = fixture.pods().await;
            let pods = pods
                .iter()
                .filter(|pod| pod.starts_with("job-inference-1-worker-"));
            let matches_row =
                current_row.len() == 5 && current_row[..4] == row && current_row[4].starts_with(message);
            matches_row
                && current_row[4].matches(NOT_READY).count() == message.matches(NOT_READY).count()
                && pods.count() == current
        })
        .await;
    };
    let scale = |replicas: &str| {
        let arguments = [
            "scale",
            "ipujob.graphcore.ai/job-inference-1",
            "--replicas",
            replicas,
        ];
        let output = fixture.kubectl(&arguments);
        assert_eq!(output.trim(), "ipujob.graphcore.ai/job-inference-1 scaled");
    };
    let reconciled = "Successfully reconciled IPUJob";
    wait_for_row("Running", 1, 1, reconciled).await;
    scale("2");
    wait_for_row("Running", 2, 2, reconciled).await;
    scale("4");
    wait_for_row("Pending", 2, 4, &NOT_READY.repeat(2)).await;
    fixture.delete("one");
    wait_for_row("Pending", 3, 4, NOT_READY).await;
    fixture.delete("another");
    wait_for_row("Running", 4, 4, reconciled).await;
    scale("1");
    wait_for_row("Running", 1, 1, reconciled).await;
    fixture.wait_for_pods(&["job-inference-1-worker-0"]).await;
    fixture.delete_all_and_shut_down().await;
}
