//! Tests of IPUJobs without launchers on a real cluster with a real node.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_workers_runs_on_its_partition_and_completes() {
    let test = "a_job_of_workers_runs_on_its_partition_and_completes";
    let Some(fixture) = ClusterFixture::start(test, "completes").await else {
        return;
    };
    let script = "echo $IPUOF_VIPU_API_PARTITION_ID gcd $IPUOF_VIPU_API_GCD_ID";
    fixture.apply(&worker_job("sample", script));
    let status = fixture.wait_for_phase("sample", "Completed").await;
    let log = fixture.kubectl(&["logs", "sample-worker-0"]);
    assert!(
        log.starts_with("p-sample-0-") && log.trim().ends_with("gcd 0"),
        "{log}"
    );
    let [_, row] = fixture.table("sample");
    assert_eq!(row, ["sample", "Completed", "0", "1", "All instances done"]);
    assert_eq!(status["exitCode"], 0, "{status}");
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_worker_is_reported_with_exit_code_and_log_and_restarted() {
    let test = "a_failed_worker_is_reported_with_exit_code_and_log_and_restarted";
    let Some(fixture) = ClusterFixture::start(test, "fails").await else {
        return;
    };
    let mut failing = worker_job("bad", "echo no data; exit 7");
    failing["spec"]["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 1, "backOffSeconds": 1});
    fixture.apply(&failing);
    let status = fixture.wait_for_phase("bad", "Failed").await;
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
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_job_reports_its_reason_and_starts_once_capacity_is_released() {
    let test = "a_queued_job_reports_its_reason_and_starts_once_capacity_is_released";
    let Some(fixture) = ClusterFixture::start(test, "waits").await else {
        return;
    };
    let whole = |name: &str| {
        let mut job = worker_job(name, RUN_UNTIL_SIGTERM);
        job["spec"]["ipusPerJobInstance"] = "32".into();
        job
    };
    fixture.apply(&whole("first"));
    fixture.wait_for_phase("first", "Running").await;
    fixture.apply(&whole("second"));
    fixture
        .wait_for_status(
            "second",
            "the second job reports its blocking condition",
            |status| {
                let message = status["lastMessage"].as_str().unwrap_or_default();
                message.starts_with("partition not ready yet!") && message.contains("free")
            },
        )
        .await;
    fixture.delete("first");
    fixture.wait_for_phase("second", "Running").await;
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_deleted_by_hand_or_by_force_is_recreated_after_a_reset_and_its_job_continues() {
    let test = "a_worker_deleted_by_hand_or_by_force_is_recreated_after_a_reset_and_its_job_continues";
    let Some(fixture) = ClusterFixture::start(test, "deleted-by-hand").await else {
        return;
    };
    // The worker exits with code 0 on SIGTERM, which does not complete the job.
    fixture.apply(&worker_job("serving", RUN_UNTIL_SIGTERM));
    fixture.wait_for_phase("serving", "Running").await;
    let uid = async || fixture.pod("serving-worker-0").await["metadata"]["uid"].clone();
    let delete_options: [&[&str]; 2] = [
        &["--timeout=60s"],
        &["--grace-period=0", "--force", "--timeout=60s"],
    ];
    for (attempt, options) in (1..).zip(delete_options) {
        let before = uid().await;
        fixture.kubectl(&[&["delete", "pod", "serving-worker-0"], options].concat());
        wait_until("the worker is recreated", async || {
            let now = uid().await;
            now.is_string() && now != before
        })
        .await;
        let status = fixture
            .wait_for_status("serving", "the job runs a new attempt", |status| {
                status["phase"] == "Running" && status["instances"][0]["attempt"] == attempt
            })
            .await;
        assert_eq!(status["restartCount"], 0, "{status}");
        assert_eq!(status["firstFailure"], Value::Null, "{status}");
    }
    // Both deletions are in one event with a series count.
    let reason_selector = "--field-selector=reason=WorkerGone,regarding.name=serving";
    let series = "--output=jsonpath={.items[*].series.count}";
    let printed = fixture.kubectl(&["get", "events.events.k8s.io", reason_selector, series]);
    assert_eq!(printed, "2", "{printed}");
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_of_workers_is_counted_and_a_headless_service_resolves_to_the_ready_ones() {
    let test = "readiness_of_workers_is_counted_and_a_headless_service_resolves_to_the_ready_ones";
    let Some(fixture) = ClusterFixture::start(test, "ready").await else {
        return;
    };
    let mut job = worker_job("serving", RUN_UNTIL_SIGTERM);
    job["spec"]["headlessService"] = true.into();
    let container = &mut job["spec"]["workers"]["template"]["spec"]["containers"][0];
    let probe =
        json!({"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    container["readinessProbe"] = probe;
    fixture.apply(&job);
    let endpoints = || {
        let of_service = "--selector=kubernetes.io/service-name=serving";
        let ready = "--output=jsonpath={.items[*].endpoints[?(@.conditions.ready==true)].targetRef.name}";
        fixture.kubectl(&["get", "endpointslices", of_service, ready])
    };
    for (change, ready) in [("touch", 1), ("rm", 0), ("touch", 1)] {
        let run = ["exec", "serving-worker-0", "--", change, "/tmp/ready"];
        fixture.wait_for_pods(&["serving-worker-0"]).await;
        wait_until("the container runs", async || {
            fixture
                .cluster
                .kubectl(&[&["-n", "ready"], &run[..]].concat())
                .is_ok()
        })
        .await;
        let status = fixture
            .wait_for_status("serving", "the ready instances are counted", |status| {
                status["readyReplicas"] == ready && (ready == 0 || status["phase"] == "Running")
            })
            .await;
        assert_eq!(status["currentReplicas"], 1, "{status}");
        let expected = ["", "serving-worker-0"][ready];
        wait_until("the Service resolves to the ready workers", async || {
            endpoints() == expected
        })
        .await;
    }
    fixture.delete_all_and_shut_down().await;
}
