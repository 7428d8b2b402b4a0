//! What is left of a finished job (seed 000 §6.7.3).

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_7_3_three_policies_leave_everything_the_launcher_or_nothing() {
    let test = "seed_000_6_7_3_three_policies_leave_everything_the_launcher_or_nothing";
    let Some(served) = ClusterFixture::start(test, "seed-000-6-7-3").await else {
        return;
    };
    load(served.cluster).await;
    let job = |name: &str, script: &str, policy: &str| {
        let mut job = job_with_launcher(name, script);
        job["spec"]["cleanPodPolicy"] = policy.into();
        job
    };
    served.apply(&job("none", "true", "None"));
    served.apply(&job("workers", "true", "Workers"));
    served.apply(&job("all", "true", "All"));
    // "It will take priority over any restartPolicy", which acts "as if it was set to Never".
    let mut priority = job("priority", "exit 3", "All");
    priority["spec"]["restartPolicy"] = json!({"type": "Always", "backOffSeconds": 0});
    served.apply(&priority);

    for name in ["none", "workers", "all"] {
        served.is(name, "Completed").await;
    }
    let status = served.is("priority", "Failed").await;
    assert_eq!(status["restartCount"], 0, "{status}");
    served
        .has_pods(&["none-launcher", "none-worker-0", "workers-launcher"])
        .await;
    // Only All gives the IPUs back before the job is deleted.
    let holders = |list: &Value| -> Vec<String> {
        let all = list["partitions"].as_array().into_iter().flatten();
        let mut names: Vec<String> = all
            .filter_map(|partition| partition["owner"]["name"].as_str().map(str::to_owned))
            .collect();
        names.sort();
        names
    };
    until("the other jobs hold their partitions", async || {
        holders(&served.ask("/v1/partitions").await) == ["none", "workers"]
    })
    .await;
    for (name, held) in [("none", 1), ("workers", 1), ("all", 0), ("priority", 0)] {
        served
            .comes_to(name, &format!("{name} holds {held} IPUs"), |status| {
                status["ipusHeld"] == held
            })
            .await;
    }
    served.ends_without_a_trace().await;
}
