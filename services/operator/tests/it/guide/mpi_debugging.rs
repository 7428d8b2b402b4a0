//! Debugging (seed 000 §6.8.2, seed 003 §5.2): what the status and the logs tell of a job that failed.

use serde_json::json;

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load};

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_8_2_a_failure_is_told_by_the_status_and_by_the_logs_of_the_launcher() {
    let test = "seed_000_6_8_2_a_failure_is_told_by_the_status_and_by_the_logs_of_the_launcher";
    let Some(served) = ClusterFixture::start(test, "seed-000-6-8-2").await else {
        return;
    };
    load(served.cluster).await;
    served.apply(&job_with_launcher("bad", "echo no data; exit 17"));
    // The launcher fails because the worker does, and the worker is to blame.
    let mut rank = job_with_launcher("rank", "sleep 3600");
    rank["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] =
        json!(["/bin/sh", "-c", "echo out of memory; sleep 2; exit 3"]);
    served.apply(&rank);

    let status = served.is("bad", "Failed").await;
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["kind"], &failure["exitCode"]),
        (&json!("bad-launcher"), &json!("Launcher"), &json!(17)),
        "{status}"
    );
    assert_eq!(failure["log"], "no data\n", "{status}");
    assert_eq!(status["exitCode"], 17, "{status}");
    let [_, row] = served.table("bad");
    assert_eq!(row[1], "Failed");
    assert!(row[4].contains("launcher of instance 0 failed"), "{row:?}");
    assert_eq!(served.kubectl(&["logs", "bad-launcher"]), "no data\n");
    let described = served.kubectl(&["describe", "ipujob", "bad"]);
    assert!(
        described.contains("IPUJobFailed") && described.contains("Warning"),
        "{described}"
    );

    let status = served.is("rank", "Failed").await;
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["kind"], &failure["exitCode"]),
        (&json!("rank-worker-0"), &json!("Worker"), &json!(3)),
        "{status}"
    );
    assert_eq!(failure["log"], "out of memory\n", "{status}");
    // A launcher that waits for its ranks would do so for ever: it is ended, and nothing else is.
    served
        .has_pods(&["bad-launcher", "bad-worker-0", "rank-worker-0"])
        .await;
    served.ends_without_a_trace().await;
}
