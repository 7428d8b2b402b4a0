//! Time limits of a job: start deadline, run time, back-off, and retention.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;
use ipu_k8s::crd::Time;
use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};
use crate::support::wait_until;

/// Returns the time from `from` to `to` of a status.
fn elapsed(status: &Value, from: &str, to: &str) -> Duration {
    time(status, to).since(time(status, from))
}

fn time(status: &Value, path: &str) -> Timestamp {
    let text = status.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let time: Time = text.parse().unwrap_or_else(|_| panic!("{path} of {status}"));
    time.0
}

fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_millis(u64::try_from(since_epoch.as_millis()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_partition_of_unschedulable_workers_is_released_and_used_by_another_job() {
    let test = "the_partition_of_unschedulable_workers_is_released_and_used_by_another_job";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| proxy.sim = Some("1x1".into());
    let Some(fixture) = ClusterFixture::start_with(test, "nowhere", change).await else {
        return;
    };
    // All IPUs of the cluster.
    let whole = |name: &str| {
        let mut job = worker_job(name, RUN_UNTIL_SIGTERM);
        job["spec"]["ipusPerJobInstance"] = "4".into();
        job
    };
    let mut unschedulable = whole("nowhere");
    unschedulable["spec"]["startDeadlineSeconds"] = 4.into();
    unschedulable["spec"]["restartPolicy"] = json!({"type": "Never", "backOffSeconds": 5});
    unschedulable["spec"]["workers"]["template"]["spec"]["nodeSelector"] = json!({"walk-nowhere": "there"});
    fixture.apply(&unschedulable);
    fixture
        .wait_for_status(
            "nowhere",
            "the job holds all IPUs and reports the blocking condition",
            |status| {
                let message = status["lastMessage"].as_str().unwrap_or_default();
                status["ipusHeld"] == 4 && message.contains("nowhere-worker-0: Unschedulable")
            },
        )
        .await;
    fixture.apply(&whole("another"));
    let status = fixture
        .wait_for_status("nowhere", "the job has released them", |status| {
            status["ipusHeld"] == 0 && status["instances"][0]["givenBack"] == 1
        })
        .await;
    assert_eq!(status["phase"], "Pending");
    let reason_text = "only 0 of 1 workers of instance 0 started within 4 s (worker 0: Unschedulable: ";
    let message = status["lastMessage"].as_str().unwrap();
    assert!(
        message.starts_with(&format!("partition not ready yet! {reason_text}")),
        "{message}"
    );
    assert!(
        message.ends_with("is released; the next request waits for the back-off"),
        "{message}"
    );
    let reason = status["instances"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("WorkersUnschedulable"), "{status}");
    fixture.wait_for_phase("another", "Running").await;
    fixture.wait_for_pods(&["another-worker-0"]).await;
    // After its back-off the job is queued like any other.
    fixture
        .wait_for_status("nowhere", "the job waits for IPUs", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            message.contains("cannot fit 4 IPUs: none is free")
        })
        .await;
    let printed = fixture.kubectl(&["events", "--for=ipujob/nowhere", "--types=Warning"]);
    assert!(
        printed.contains("WorkersUnschedulable") && printed.contains(reason_text),
        "{printed}"
    );
    assert_eq!(fixture.job("another").await["status"]["phase"], "Running");

    fixture.kubectl(&["label", "nodes", "--all", "walk-nowhere=there"]);
    fixture.delete("another");
    let status = fixture.wait_for_phase("nowhere", "Running").await;
    assert_eq!(
        (&status["restartCount"], &status["firstFailure"]),
        (&json!(0), &Value::Null)
    );
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_backs_off_before_a_restart_ends_at_its_deadline_and_is_kept_until_its_ttl_expires() {
    let test = "a_job_backs_off_before_a_restart_ends_at_its_deadline_and_is_kept_until_its_ttl_expires";
    let Some(fixture) = ClusterFixture::start(test, "limits").await else {
        return;
    };
    let submit = |name: &str, script: &str, fields: Value| {
        let mut job = worker_job(name, script);
        let spec = job["spec"].as_object_mut().unwrap();
        spec.extend(fields.as_object().unwrap().clone());
        fixture.apply(&job);
    };
    let restarts = |back_off: u32, limit: u32| json!({"type": "OnFailure", "backOffSeconds": back_off, "backOffLimit": limit});
    submit(
        "limited",
        RUN_UNTIL_SIGTERM,
        json!({"activeDeadlineSeconds": 3, "cleanPodPolicy": "All"}),
    );
    submit(
        "failing",
        "exit 1",
        json!({"activeDeadlineSeconds": 25, "restartPolicy": restarts(1, 100), "cleanPodPolicy": "Workers"}),
    );
    submit("patient", "exit 5", json!({"restartPolicy": restarts(3, 2)}));
    submit("kept", "true", json!({"ttlSecondsAfterFinished": 10}));

    // The status shows the back-off, and the partition is kept.
    let status = fixture
        .wait_for_status("patient", "the job is in back-off", |status| {
            status["phase"] == "Restarting" && status["instances"][0]["retryTime"].is_string()
        })
        .await;
    assert_eq!(
        (&status["ipusHeld"], &status["restartsAfterFailure"]),
        (&json!(1), &json!(1)),
        "{status}"
    );

    // Worker and IPUs of the finished job are kept until its TTL expires.
    let status = fixture.wait_for_phase("kept", "Completed").await;
    assert_eq!(status["ipusHeld"], 1, "{status}");
    assert!(fixture.pods().await.contains(&"kept-worker-0".to_owned()));
    wait_until("the job is deleted", async || fixture.job("kept").await.is_null()).await;
    let kept = now().since(time(&status, "/completionTime"));
    assert!(kept.as_secs() >= 10, "{kept:?} after {status}");
    assert!(!fixture.pods().await.contains(&"kept-worker-0".to_owned()));

    for (name, seconds) in [("limited", 3), ("failing", 25)] {
        let status = fixture.wait_for_phase(name, "Failed").await;
        assert_eq!(
            (&status["conclusion"]["code"], &status["exitCode"]),
            (&json!("DeadlineExceeded"), &json!(124)),
            "{status}"
        );
        let message =
            format!("IPUJob limits/{name} failed: the job ran for longer than its {seconds} seconds");
        assert_eq!(status["lastMessage"], message, "{status}");
        let ran = elapsed(&status, "/firstRunTime", "/completionTime");
        assert!(ran.as_secs() >= seconds, "{status}");
    }
    // The limit includes restarts and back-off: on a busy machine, an attempt takes several seconds.
    let failing = fixture.job("failing").await["status"].take();
    assert!(failing["restartCount"].as_u64() >= Some(2), "{failing}");

    let status = fixture.wait_for_phase("patient", "Failed").await;
    for (from, to, back_off) in [
        ("/attempts/0/time", "/attempts/1/time", 3),
        ("/attempts/1/time", "/attempts/2/time", 6),
    ] {
        assert!(elapsed(&status, from, to).as_secs() >= back_off, "{status}");
    }

    // The other jobs keep their partitions until they are deleted.
    wait_until("only these jobs hold partitions", async || {
        let held = fixture.get_from_proxy("/v1/partitions").await;
        let held = held["partitions"].as_array().unwrap().clone();
        let mut names: Vec<&str> = held
            .iter()
            .filter_map(|one| one["owner"]["name"].as_str())
            .collect();
        names.sort_unstable();
        names == ["failing", "patient"]
    })
    .await;
    fixture.wait_for_pods(&["patient-worker-0"]).await;
    fixture.delete_all_and_shut_down().await;
}
