//! Debugging (V-IPU guide §6.8.2, operator guide §5.2): status and logs of a failed job.

use serde_json::json;

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load_image};

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_8_2_a_failure_is_shown_in_the_status_and_in_the_logs_of_the_launcher() {
    let test = "vipu_guide_6_8_2_a_failure_is_shown_in_the_status_and_in_the_logs_of_the_launcher";
    let Some(fixture) = ClusterFixture::start(test, "guide-6-8-2").await else {
        return;
    };
    load_image(fixture.cluster).await;
    fixture.apply(&job_with_launcher("bad", "echo no data; exit 17"));
    // The launcher fails because the worker does, so the worker is the first failure.
    let mut rank = job_with_launcher("rank", "sleep 3600");
    rank["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] =
        json!(["/bin/sh", "-c", "echo out of memory; sleep 2; exit 3"]);
    fixture.apply(&rank);

    let status = fixture.wait_for_phase("bad", "Failed").await;
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["kind"], &failure["exitCode"]),
        (&json!("bad-launcher"), &json!("Launcher"), &json!(17)),
        "{status}"
    );
    assert_eq!(failure["log"], "no data\n", "{status}");
    assert_eq!(status["exitCode"], 17, "{status}");
    let [_, row] = fixture.table("bad");
    assert_eq!(row[1], "Failed");
    assert!(row[4].contains("launcher of instance 0 failed"), "{row:?}");
    assert_eq!(fixture.kubectl(&["logs", "bad-launcher"]), "no data\n");
    let described = fixture.kubectl(&["describe", "ipujob", "bad"]);
    assert!(
        described.contains("IPUJobFailed") && described.contains("Warning"),
        "{described}"
    );

    let status = fixture.wait_for_phase("rank", "Failed").await;
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["kind"], &failure["exitCode"]),
        (&json!("rank-worker-0"), &json!("Worker"), &json!(3)),
        "{status}"
    );
    assert_eq!(failure["log"], "out of memory\n", "{status}");
    assert!(
        failure["node"].as_str().is_some_and(|node| !node.is_empty()),
        "{status}"
    );
    // A launcher that waits for its ranks would never exit, so it is deleted; the other Pods remain.
    fixture
        .wait_for_pods(&["bad-launcher", "bad-worker-0", "rank-worker-0"])
        .await;
    fixture.delete_all_and_shut_down().await;
}
