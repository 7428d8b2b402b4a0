//! Limits of time that a job sets itself: how long it waits for its workers, runs, pauses, and keeps what it had.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;
use ipu_k8s::crd::Time;
use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, FOREVER, worker_job};
use crate::support::until;

/// How much later than the time at `from` of a status that at `to` is.
fn passed(status: &Value, from: &str, to: &str) -> Duration {
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
async fn what_waits_for_workers_that_no_node_takes_is_given_back_and_used_by_another_job_meanwhile() {
    let test = "what_waits_for_workers_that_no_node_takes_is_given_back_and_used_by_another_job_meanwhile";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| proxy.sim = Some("1x1".into());
    let Some(served) = ClusterFixture::start_with(test, "nowhere", change).await else {
        return;
    };
    // All IPUs that there are.
    let whole = |name: &str| {
        let mut job = worker_job(name, FOREVER);
        job["spec"]["ipusPerJobInstance"] = "4".into();
        job
    };
    let mut nowhere = whole("nowhere");
    nowhere["spec"]["startDeadlineSeconds"] = 4.into();
    nowhere["spec"]["restartPolicy"] = json!({"type": "Never", "backOffSeconds": 5});
    nowhere["spec"]["workers"]["template"]["spec"]["nodeSelector"] = json!({"walk-nowhere": "there"});
    served.apply(&nowhere);
    served
        .comes_to(
            "nowhere",
            "it holds all IPUs and says what is missing",
            |status| {
                let message = status["lastMessage"].as_str().unwrap_or_default();
                status["ipusHeld"] == 4 && message.contains("nowhere-worker-0: Unschedulable")
            },
        )
        .await;
    served.apply(&whole("another"));
    let status = served
        .comes_to("nowhere", "it has given them back", |status| {
            status["ipusHeld"] == 0 && status["instances"][0]["givenBack"] == 1
        })
        .await;
    assert_eq!(status["phase"], "Pending");
    let why = "only 0 of 1 workers of instance 0 started within 4 s (worker 0: Unschedulable: ";
    let message = status["lastMessage"].as_str().unwrap();
    assert!(
        message.starts_with(&format!("partition not ready yet! {why}")),
        "{message}"
    );
    assert!(
        message.ends_with("is given back; it waits before it asks for another"),
        "{message}"
    );
    let reason = status["instances"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("WorkersUnschedulable"), "{status}");
    served.is("another", "Running").await;
    served.has_pods(&["another-worker-0"]).await;
    // After its pause it stands in the line like everybody else.
    served
        .comes_to("nowhere", "it waits for IPUs", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            message.contains("cannot fit 4 IPUs: none is free")
        })
        .await;
    let told = served.kubectl(&["events", "--for=ipujob/nowhere", "--types=Warning"]);
    assert!(
        told.contains("WorkersUnschedulable") && told.contains(why),
        "{told}"
    );
    assert_eq!(served.job("another").await["status"]["phase"], "Running");

    served.kubectl(&["label", "nodes", "--all", "walk-nowhere=there"]);
    served.delete("another");
    let status = served.is("nowhere", "Running").await;
    assert_eq!(
        (&status["restartCount"], &status["firstFailure"]),
        (&json!(0), &Value::Null)
    );
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_pauses_before_a_restart_ends_at_its_deadline_and_keeps_what_it_had_until_its_time_is_over() {
    let test =
        "a_job_pauses_before_a_restart_ends_at_its_deadline_and_keeps_what_it_had_until_its_time_is_over";
    let Some(served) = ClusterFixture::start(test, "limits").await else {
        return;
    };
    let submit = |name: &str, script: &str, fields: Value| {
        let mut job = worker_job(name, script);
        let spec = job["spec"].as_object_mut().unwrap();
        spec.extend(fields.as_object().unwrap().clone());
        served.apply(&job);
    };
    let restarts =
        |pause: u32, limit: u32| json!({"type": "OnFailure", "backOffSeconds": pause, "backOffLimit": limit});
    submit(
        "limited",
        FOREVER,
        json!({"activeDeadlineSeconds": 3, "cleanPodPolicy": "All"}),
    );
    submit(
        "failing",
        "exit 1",
        json!({"activeDeadlineSeconds": 8, "restartPolicy": restarts(1, 100)}),
    );
    submit("patient", "exit 5", json!({"restartPolicy": restarts(3, 2)}));
    submit("kept", "true", json!({"ttlSecondsAfterFinished": 10}));

    // The pause is told, and its partition is kept for it.
    let status = served
        .comes_to("patient", "it pauses", |status| {
            status["phase"] == "Restarting" && status["instances"][0]["retryTime"].is_string()
        })
        .await;
    assert_eq!(
        (&status["ipusHeld"], &status["restartsAfterFailure"]),
        (&json!(1), &json!(1)),
        "{status}"
    );

    // Its worker can be asked what it did, and its IPUs are its own, until the time is over.
    let status = served.is("kept", "Completed").await;
    assert_eq!(status["ipusHeld"], 1, "{status}");
    assert!(served.pods().await.contains(&"kept-worker-0".to_owned()));
    until("the job itself is gone", async || {
        served.job("kept").await.is_null()
    })
    .await;
    let kept = now().since(time(&status, "/completionTime"));
    assert!(kept.as_secs() >= 10, "{kept:?} after {status}");
    assert!(!served.pods().await.contains(&"kept-worker-0".to_owned()));

    for (name, seconds) in [("limited", 3), ("failing", 8)] {
        let status = served.is(name, "Failed").await;
        assert_eq!(
            (&status["conclusion"]["code"], &status["exitCode"]),
            (&json!("DeadlineExceeded"), &json!(124)),
            "{status}"
        );
        let message =
            format!("IPUJob limits/{name} failed: the job ran for longer than its {seconds} seconds");
        assert_eq!(status["lastMessage"], message, "{status}");
        let ran = passed(&status, "/firstRunTime", "/completionTime");
        assert!(ran.as_secs() >= seconds, "{status}");
    }
    // Restarts and pauses counted.
    let failing = served.job("failing").await["status"].take();
    assert!(failing["restartCount"].as_u64() >= Some(2), "{failing}");

    let status = served.is("patient", "Failed").await;
    for (from, to, pause) in [
        ("/attempts/0/time", "/attempts/1/time", 3),
        ("/attempts/1/time", "/attempts/2/time", 6),
    ] {
        assert!(passed(&status, from, to).as_secs() >= pause, "{status}");
    }

    // What the others keep is theirs until somebody deletes them.
    until("only they hold anything", async || {
        let held = served.ask("/v1/partitions").await;
        let held = held["partitions"].as_array().unwrap().clone();
        let mut names: Vec<&str> = held
            .iter()
            .filter_map(|one| one["owner"]["name"].as_str())
            .collect();
        names.sort_unstable();
        names == ["failing", "patient"]
    })
    .await;
    served.has_pods(&["patient-worker-0"]).await;
    served.ends_without_a_trace().await;
}
