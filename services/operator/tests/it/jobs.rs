//! IPUJobs without launchers on a real cluster with a real node: what their users see.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, FOREVER, worker_job};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_workers_runs_on_its_partition_and_completes() {
    let test = "a_job_of_workers_runs_on_its_partition_and_completes";
    let Some(served) = ClusterFixture::start(test, "completes").await else {
        return;
    };
    let script = "echo $IPUOF_VIPU_API_PARTITION_ID gcd $IPUOF_VIPU_API_GCD_ID";
    served.apply(&worker_job("sample", script));
    let status = served.is("sample", "Completed").await;
    let log = served.kubectl(&["logs", "sample-worker-0"]);
    assert!(
        log.starts_with("p-sample-0-") && log.trim().ends_with("gcd 0"),
        "{log}"
    );
    let [_, row] = served.table("sample");
    assert_eq!(row, ["sample", "Completed", "0", "1", "All instances done"]);
    assert_eq!(status["exitCode"], 0, "{status}");
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_worker_is_named_with_its_code_and_its_last_words_and_tried_again() {
    let test = "a_failed_worker_is_named_with_its_code_and_its_last_words_and_tried_again";
    let Some(served) = ClusterFixture::start(test, "fails").await else {
        return;
    };
    let mut failing = worker_job("bad", "echo no data; exit 7");
    failing["spec"]["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 1, "backOffSeconds": 1});
    served.apply(&failing);
    let status = served.is("bad", "Failed").await;
    assert_eq!(status["restartCount"], 1, "{status}");
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["exitCode"], &failure["attempt"]),
        (&json!("bad-worker-0"), &json!(7), &json!(1))
    );
    assert_eq!(failure["log"], "no data\n");
    assert!(
        failure["node"].as_str().is_some_and(|node| !node.is_empty()),
        "{status}"
    );
    assert_eq!(status["attempts"].as_array().unwrap().len(), 2, "{status}");
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_does_not_fit_says_why_and_runs_once_it_does() {
    let test = "a_job_that_does_not_fit_says_why_and_runs_once_it_does";
    let Some(served) = ClusterFixture::start(test, "waits").await else {
        return;
    };
    let whole = |name: &str| {
        let mut job = worker_job(name, FOREVER);
        job["spec"]["ipusPerJobInstance"] = "32".into();
        job
    };
    served.apply(&whole("first"));
    served.is("first", "Running").await;
    served.apply(&whole("second"));
    served
        .comes_to("second", "the second says why it waits", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            message.starts_with("partition not ready yet!") && message.contains("free")
        })
        .await;
    served.delete("first");
    served.is("second", "Running").await;
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_deleted_by_hand_or_by_force_is_made_again_after_a_reset_and_its_job_goes_on() {
    let test = "a_worker_that_is_deleted_by_hand_or_by_force_is_made_again_after_a_reset_and_its_job_goes_on";
    let Some(served) = ClusterFixture::start(test, "deleted-by-hand").await else {
        return;
    };
    // It ends well when it is told to, which is not the end of its work.
    served.apply(&worker_job("serving", FOREVER));
    served.is("serving", "Running").await;
    let uid = async || served.pod("serving-worker-0").await["metadata"]["uid"].clone();
    let ways: [&[&str]; 2] = [
        &["--timeout=60s"],
        &["--grace-period=0", "--force", "--timeout=60s"],
    ];
    for (attempt, way) in (1..).zip(ways) {
        let before = uid().await;
        served.kubectl(&[&["delete", "pod", "serving-worker-0"], way].concat());
        until("there is another", async || {
            let now = uid().await;
            now.is_string() && now != before
        })
        .await;
        let status = served
            .comes_to("serving", "it runs again, for another attempt", |status| {
                status["phase"] == "Running" && status["instances"][0]["attempt"] == attempt
            })
            .await;
        assert_eq!(status["restartCount"], 0, "{status}");
        assert_eq!(status["firstFailure"], Value::Null, "{status}");
    }
    // Both times in one event, whose series counts.
    let gone = "--field-selector=reason=WorkerGone,regarding.name=serving";
    let series = "--output=jsonpath={.items[*].series.count}";
    let told = served.kubectl(&["get", "events.events.k8s.io", gone, series]);
    assert_eq!(told, "2", "{told}");
    served.ends_without_a_trace().await;
}
