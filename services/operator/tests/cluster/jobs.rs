//! Tests of IPUJobs without launchers on a real cluster with a real node.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};
use crate::support::wait_until;

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
