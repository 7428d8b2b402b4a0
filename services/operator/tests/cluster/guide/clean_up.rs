//! Clean-up of finished jobs (V-IPU guide §6.7.3).

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load_image};
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_7_3_three_clean_up_policies_keep_all_pods_the_launcher_or_none() {
    let test = "vipu_guide_6_7_3_three_clean_up_policies_keep_all_pods_the_launcher_or_none";
    let Some(fixture) = ClusterFixture::start(test, "guide-6-7-3").await else {
        return;
    };
    load_image(fixture.cluster).await;
    let job = |name: &str, script: &str, policy: &str| {
        let mut job = job_with_launcher(name, script);
        job["spec"]["cleanPodPolicy"] = policy.into();
        job
    };
    fixture.apply(&job("none", "true", "None"));
    fixture.apply(&job("workers", "true", "Workers"));
    fixture.apply(&job("all", "true", "All"));
    // "It will take priority over any restartPolicy", which acts "as if it was set to Never".
    let mut priority = job("priority", "exit 3", "All");
    priority["spec"]["restartPolicy"] = json!({"type": "Always", "backOffSeconds": 0});
    fixture.apply(&priority);

    for name in ["none", "workers", "all"] {
        fixture.wait_for_phase(name, "Completed").await;
    }
    let status = fixture.wait_for_phase("priority", "Failed").await;
    assert_eq!(status["restartCount"], 0, "{status}");
    fixture
        .wait_for_pods(&["none-launcher", "none-worker-0", "workers-launcher"])
        .await;
    // Only `All` releases the IPUs before the job is deleted.
    let holders = |list: &Value| -> Vec<String> {
        let all = list["partitions"].as_array().into_iter().flatten();
        let mut names: Vec<String> = all
            .filter_map(|partition| partition["owner"]["name"].as_str().map(str::to_owned))
            .collect();
        names.sort();
        names
    };
    wait_until("the other jobs hold their partitions", async || {
        holders(&fixture.get_from_proxy("/v1/partitions").await) == ["none", "workers"]
    })
    .await;
    for (name, held) in [("none", 1), ("workers", 1), ("all", 0), ("priority", 0)] {
        fixture
            .wait_for_status(name, &format!("{name} holds {held} IPUs"), |status| {
                status["ipusHeld"] == held
            })
            .await;
    }
    fixture.delete_all_and_shut_down().await;
}
