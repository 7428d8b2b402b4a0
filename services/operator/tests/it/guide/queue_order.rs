//! Whose turn it is, and whose a job is.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, FOREVER, worker_job};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn of_jobs_that_wait_the_one_with_the_highest_priority_is_next_also_if_it_got_it_while_waiting() {
    let test = "of_jobs_that_wait_the_one_with_the_highest_priority_is_next_also_if_it_got_it_while_waiting";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| proxy.sim = Some("1x1".into());
    let Some(served) = ClusterFixture::start_with(test, "order", change).await else {
        return;
    };
    let line = async || {
        let all = served.ask("/v1/waiting").await;
        let waiting = all["waiting"].as_array().unwrap();
        let name = |one: &Value| one["owner"]["name"].as_str().unwrap().to_owned();
        waiting.iter().map(name).collect::<Vec<_>>()
    };
    let all = [("holder", 0), ("first", 0), ("urgent", 5), ("raised", -1)];
    for (waiting, (name, priority)) in all.into_iter().enumerate() {
        let mut job = worker_job(name, FOREVER);
        // All IPUs that there are.
        job["spec"]["ipusPerJobInstance"] = "4".into();
        job["spec"]["priority"] = priority.into();
        served.apply(&job);
        if waiting == 0 {
            served.is(name, "Running").await;
        }
        until("it stands in the line", async || line().await.len() == waiting).await;
    }
    assert_eq!(line().await, ["urgent", "first", "raised"]);
    let higher = json!({"spec": {"priority": 9}}).to_string();
    served.kubectl(&["patch", "ipujob", "raised", "--type=merge", "-p", &higher]);
    let order = ["raised", "urgent", "first"];
    until("it has overtaken the others", async || line().await == order).await;
    let mut before = "holder";
    for (run, next) in order.into_iter().enumerate() {
        served.delete(before);
        served.is(next, "Running").await;
        assert_eq!(line().await, order[run + 1..]);
        served.has_pods(&[&*format!("{next}-worker-0")]).await;
        before = next;
    }
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_somebody_else_manages_is_left_alone_from_its_submission_to_its_deletion() {
    let test = "a_job_that_somebody_else_manages_is_left_alone_from_its_submission_to_its_deletion";
    let Some(served) = ClusterFixture::start_admitting(test, "managed").await else {
        return;
    };
    let managed = |name: &str, manager: &str| {
        let mut job = worker_job(name, FOREVER);
        job["spec"]["managedBy"] = manager.into();
        job
    };
    let other = "kueue.x-k8s.io/multikueue";
    served.apply(&managed("theirs", other));
    served.apply(&managed("ours", "graphcore.ai/ipu-operator"));
    let ours = ["ours-worker-0"];
    served.is("ours", "Running").await;
    let finalizers = served.job("ours").await["metadata"]["finalizers"].take();
    assert_eq!(finalizers, json!(["ipu.finalizers.graphcore.ai"]));

    let patch = |name: &str, patch: Value| {
        let patch = patch.to_string();
        let words = ["patch", "ipujob", name, "--type=merge", "-p", &patch];
        served
            .cluster
            .kubectl(&[&["-n", served.namespace], &words[..]].concat())
    };
    // What is changed later is left alone likewise: two instances, and a status that somebody else wrote.
    served.kubectl(&["scale", "ipujob/theirs", "--replicas=2"]);
    let status = json!({"phase": "Running", "launcherStatus": "Running", "lastMessage": "elsewhere"});
    let written = json!({ "status": status }).to_string();
    let to_status = ["--subresource=status", "--type=merge", "-p", &written];
    served.kubectl(&[&["patch", "ipujob", "theirs"], &to_status[..]].concat());
    // What the operator heard of after all that is done.
    patch("ours", json!({"spec": {"jobInstances": 2}})).unwrap();
    served
        .comes_to("ours", "it is scaled", |status| status["currentReplicas"] == 2)
        .await;
    let theirs = served.job("theirs").await;
    assert_eq!(
        (&theirs["metadata"]["finalizers"], &theirs["status"]),
        (&Value::Null, &status),
        "{theirs}"
    );
    served.has_pods(&[ours[0], "ours-worker-1"]).await;
    let held = served.ask("/v1/partitions").await;
    let held = held["partitions"].as_array().unwrap();
    assert!(
        held.len() == 2 && held.iter().all(|one| one["owner"]["name"] == "ours"),
        "{held:?}"
    );

    for (name, manager) in [("theirs", Value::Null), ("ours", other.into())] {
        let refused = patch(name, json!({"spec": {"managedBy": manager}}));
        let refused = refused.unwrap_err().to_string();
        let why = "spec.managedBy cannot change: two would look after the job; make a new job";
        assert!(refused.contains(why), "{refused}");
    }
    served.delete("theirs");
    served.ends_without_a_trace().await;
}
