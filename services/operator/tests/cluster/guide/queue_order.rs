//! Queue order, and jobs that another controller manages.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn the_queued_job_with_the_highest_priority_starts_next_even_if_raised_while_queued() {
    let test = "the_queued_job_with_the_highest_priority_starts_next_even_if_raised_while_queued";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| proxy.sim = Some("1x1".into());
    let Some(fixture) = ClusterFixture::start_with(test, "order", change).await else {
        return;
    };
    let queue = async || {
        let all = fixture.get_from_proxy("/v1/waiting").await;
        let waiting = all["waiting"].as_array().unwrap();
        let name = |one: &Value| one["owner"]["name"].as_str().unwrap().to_owned();
        waiting.iter().map(name).collect::<Vec<_>>()
    };
    let all = [("holder", 0), ("first", 0), ("urgent", 5), ("raised", -1)];
    for (waiting, (name, priority)) in all.into_iter().enumerate() {
        let mut job = worker_job(name, RUN_UNTIL_SIGTERM);
        // All IPUs of the cluster.
        job["spec"]["ipusPerJobInstance"] = "4".into();
        job["spec"]["priority"] = priority.into();
        fixture.apply(&job);
        if waiting == 0 {
            fixture.wait_for_phase(name, "Running").await;
        }
        wait_until("the job is queued", async || queue().await.len() == waiting).await;
    }
    assert_eq!(queue().await, ["urgent", "first", "raised"]);
    let higher = json!({"spec": {"priority": 9}}).to_string();
    fixture.kubectl(&["patch", "ipujob", "raised", "--type=merge", "-p", &higher]);
    let order = ["raised", "urgent", "first"];
    wait_until("the job is first in the queue", async || queue().await == order).await;
    let mut before = "holder";
    for (run, next) in order.into_iter().enumerate() {
        fixture.delete(before);
        fixture.wait_for_phase(next, "Running").await;
        assert_eq!(queue().await, order[run + 1..]);
        fixture.wait_for_pods(&[&*format!("{next}-worker-0")]).await;
        before = next;
    }
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_job_names_a_finished_job_that_holds_its_ipus_and_how_to_release_them() {
    let test = "a_queued_job_names_a_finished_job_that_holds_its_ipus_and_how_to_release_them";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| proxy.sim = Some("pod16".into());
    let Some(fixture) = ClusterFixture::start_with(test, "finished", change).await else {
        return;
    };
    let mut done = worker_job("done", "exit 0");
    done["spec"]["ipusPerJobInstance"] = "4".into();
    fixture.apply(&done);
    fixture.wait_for_phase("done", "Completed").await;
    let mut job = worker_job("big", RUN_UNTIL_SIGTERM);
    job["spec"]["ipusPerJobInstance"] = "16".into();
    fixture.apply(&job);
    let blocked =
        "blocked by finished/done (4 IPUs, finished); a finished job holds its IPUs until it is deleted";
    let names_blocker = async || {
        let [_, row] = fixture.table("big");
        row.iter()
            .any(|cell| cell.contains(blocked) && cell.ends_with("or ttlSecondsAfterFinished"))
    };
    wait_until("kubectl get names the finished job", names_blocker).await;
    fixture.delete("done");
    fixture.wait_for_phase("big", "Running").await;
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_another_manager_is_ignored_from_its_submission_to_its_deletion() {
    let test = "a_job_of_another_manager_is_ignored_from_its_submission_to_its_deletion";
    let Some(fixture) = ClusterFixture::start_with_webhooks(test, "managed").await else {
        return;
    };
    let managed = |name: &str, manager: &str| {
        let mut job = worker_job(name, RUN_UNTIL_SIGTERM);
        job["spec"]["managedBy"] = manager.into();
        job
    };
    let other = "kueue.x-k8s.io/multikueue";
    fixture.apply(&managed("theirs", other));
    fixture.apply(&managed("ours", "graphcore.ai/ipu-operator"));
    let ours = ["ours-worker-0"];
    fixture.wait_for_phase("ours", "Running").await;
    let finalizers = fixture.job("ours").await["metadata"]["finalizers"].take();
    assert_eq!(finalizers, json!(["ipu.finalizers.graphcore.ai"]));

    let patch = |name: &str, patch: Value| {
        let patch = patch.to_string();
        let arguments = ["patch", "ipujob", name, "--type=merge", "-p", &patch];
        fixture
            .cluster
            .kubectl(&[&["-n", fixture.namespace], &arguments[..]].concat())
    };
    // Later changes are ignored as well: a second instance, and a status from another client.
    fixture.kubectl(&["scale", "ipujob/theirs", "--replicas=2"]);
    let status = json!({"phase": "Running", "launcherStatus": "Running", "lastMessage": "elsewhere"});
    let written = json!({ "status": status }).to_string();
    let to_status = ["--subresource=status", "--type=merge", "-p", &written];
    fixture.kubectl(&[&["patch", "ipujob", "theirs"], &to_status[..]].concat());
    // The operator observes this change after all the others.
    patch("ours", json!({"spec": {"jobInstances": 2}})).unwrap();
    fixture
        .wait_for_status("ours", "the job is scaled", |status| {
            status["currentReplicas"] == 2
        })
        .await;
    let theirs = fixture.job("theirs").await;
    assert_eq!(
        (&theirs["metadata"]["finalizers"], &theirs["status"]),
        (&Value::Null, &status),
        "{theirs}"
    );
    fixture.wait_for_pods(&[ours[0], "ours-worker-1"]).await;
    let held = fixture.get_from_proxy("/v1/partitions").await;
    let held = held["partitions"].as_array().unwrap();
    assert!(
        held.len() == 2 && held.iter().all(|one| one["owner"]["name"] == "ours"),
        "{held:?}"
    );

    for (name, manager) in [("theirs", Value::Null), ("ours", other.into())] {
        let refused = patch(name, json!({"spec": {"managedBy": manager}}));
        let refused = refused.unwrap_err().to_string();
        let message = "spec.managedBy cannot change: two controllers would manage the job; create a new job";
        assert!(refused.contains(message), "{refused}");
    }
    fixture.delete("theirs");
    fixture.delete_all_and_shut_down().await;
}
