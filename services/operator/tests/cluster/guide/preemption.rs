//! Preemption: a job of higher priority takes the IPUs of a preemptible one, which queues again.

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_names_its_preemptor_in_status_and_events_and_runs_again_afterwards() {
    let test = "a_preempted_job_names_its_preemptor_in_status_and_events_and_runs_again_afterwards";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| {
        proxy.sim = Some("1x1".into());
        proxy.preemption = Some(true);
    };
    let Some(fixture) = ClusterFixture::start_with(test, "preemption", change).await else {
        return;
    };
    // All IPUs of the cluster.
    let mut spare = worker_job("spare", RUN_UNTIL_SIGTERM);
    spare["spec"]["ipusPerJobInstance"] = "4".into();
    spare["spec"]["preemptible"] = true.into();
    // The restart policy does not apply to a preemption.
    spare["spec"]["restartPolicy"] = serde_json::json!({"type": "Never"});
    fixture.apply(&spare);
    fixture.wait_for_phase("spare", "Running").await;

    let mut urgent = worker_job("urgent", RUN_UNTIL_SIGTERM);
    urgent["spec"]["ipusPerJobInstance"] = "4".into();
    urgent["spec"]["priority"] = 5.into();
    fixture.apply(&urgent);
    fixture.wait_for_phase("urgent", "Running").await;
    fixture.wait_for_phase("spare", "Pending").await;

    let preemptor = "IPUJob preemption/urgent preempts it with priority 5";
    fixture
        .wait_for_status("spare", "the job is preempted", |status| {
            let reason = status["lastPreemption"]["reason"]["message"].as_str();
            status["preemptionCount"] == 1
                && status["restartCount"] == 0
                && reason.is_some_and(|reason| reason.contains(preemptor))
        })
        .await;
    let has_event = async || {
        let events = fixture.kubectl(&["get", "events", "-o", "json"]);
        let events: serde_json::Value = serde_json::from_str(&events).unwrap();
        let events = events["items"].as_array().unwrap();
        events.iter().any(|event| {
            event["reason"] == "Preempted"
                && event["involvedObject"]["name"] == "spare"
                && event["message"].as_str().unwrap().contains(preemptor)
        })
    };
    wait_until("an Event names the preemptor", has_event).await;
    // Queued again, it is blocked by the job that preempted it.
    let is_blocked = async || {
        let [_, row] = fixture.table("spare");
        row.iter()
            .any(|cell| cell.contains("blocked by preemption/urgent"))
    };
    wait_until("the queue reason names the holder", is_blocked).await;

    fixture.delete("urgent");
    fixture.wait_for_phase("spare", "Running").await;
    fixture
        .wait_for_status("spare", "the next attempt runs", |status| {
            status["instances"][0]["attempt"] == 1 && status["preemptionCount"] == 1
        })
        .await;
    fixture.delete_all_and_shut_down().await;
}
