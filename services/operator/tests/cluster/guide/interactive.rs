//! Interactive mode (V-IPU guide §6.6.1).

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{guide_job, load_image};

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_6_1_a_user_runs_commands_in_the_launcher_of_an_interactive_job() {
    let test = "vipu_guide_6_6_1_a_user_runs_commands_in_the_launcher_of_an_interactive_job";
    let Some(fixture) = ClusterFixture::start(test, "guide-6-6-1").await else {
        return;
    };
    load_image(fixture.cluster).await;
    let sample = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/vipu-interactive.yaml"
    ));
    let mut short = sample.clone();
    short["metadata"]["name"] = "short".into();
    short["spec"]["interactive"]["ttl"] = 1.into();
    assert_eq!(
        fixture.apply(&sample).trim(),
        "ipujob.graphcore.ai/interactive-sample-job created"
    );
    fixture.apply(&short);
    fixture.wait_for_phase("interactive-sample-job", "Running").await;
    let session = |command: &[&str]| {
        let exec = ["exec", "-i", "interactive-sample-job-launcher", "--"];
        fixture.kubectl(&[&exec[..], command].concat())
    };
    assert_eq!(session(&["hostname"]).trim(), "interactive-sample-job-launcher");
    // "<run your mpi programs here>"
    let host = session(&["mpirun", "-np", "1", "hostname"]);
    assert_eq!(host.trim(), "interactive-sample-job-worker-0");
    // The launcher of a single-worker session has the partition of two IPUs in its environment too.
    let partition = session(&[
        "sh",
        "-c",
        "echo $IPUOF_VIPU_API_PARTITION_ID $IPUOF_VIPU_API_GCD_ID",
    ]);
    assert!(
        partition.starts_with("p-interactive-sample-job-0-"),
        "{partition}"
    );
    assert!(partition.trim().ends_with(" 0"), "{partition}");

    // `ttl` is the lifetime of the session. Its Pods are deleted whatever the clean-up policy.
    let status = fixture.wait_for_phase("short", "Completed").await;
    assert_eq!(
        status["instances"][0]["state"].as_str(),
        Some("SessionOver"),
        "{status}"
    );
    let own = [
        "interactive-sample-job-launcher",
        "interactive-sample-job-worker-0",
    ];
    fixture.wait_for_pods(&own).await;
    fixture
        .wait_for_status("short", "the IPUs of the session are released", |status| {
            status["ipusHeld"] == 0
        })
        .await;
    assert_eq!(
        fixture.job("interactive-sample-job").await["status"]["phase"],
        "Running"
    );
    fixture.delete_all_and_shut_down().await;
}
