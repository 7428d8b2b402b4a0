//! Interactive mode (seed 000 §6.6.1).

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{load, seed};

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_6_1_people_work_in_the_launcher_of_an_interactive_job() {
    let test = "seed_000_6_6_1_people_work_in_the_launcher_of_an_interactive_job";
    let Some(served) = ClusterFixture::start(test, "seed-000-6-6-1").await else {
        return;
    };
    load(served.cluster).await;
    let sample = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/000-interactive.yaml"
    ));
    let mut short = sample.clone();
    short["metadata"]["name"] = "short".into();
    short["spec"]["interactive"]["ttl"] = 1.into();
    assert_eq!(
        served.apply(&sample).trim(),
        "ipujob.graphcore.ai/interactive-sample-job created"
    );
    served.apply(&short);
    served.is("interactive-sample-job", "Running").await;
    let session = |command: &[&str]| {
        let exec = ["exec", "-i", "interactive-sample-job-launcher", "--"];
        served.kubectl(&[&exec[..], command].concat())
    };
    assert_eq!(session(&["hostname"]).trim(), "interactive-sample-job-launcher");
    // "<run your mpi programs here>"
    let host = session(&["mpirun", "-np", "1", "hostname"]);
    assert_eq!(host.trim(), "interactive-sample-job-worker-0");
    // One who works alone finds the partition of two IPUs in the launcher too.
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

    // `ttl`: how long the session lasts. Nothing of it is kept, whatever the clean-up policy.
    let status = served.is("short", "Completed").await;
    assert_eq!(
        status["instances"][0]["state"].as_str(),
        Some("SessionOver"),
        "{status}"
    );
    let own = [
        "interactive-sample-job-launcher",
        "interactive-sample-job-worker-0",
    ];
    served.has_pods(&own).await;
    served
        .comes_to("short", "the IPUs of the session are given back", |status| {
            status["ipusHeld"] == 0
        })
        .await;
    assert_eq!(
        served.job("interactive-sample-job").await["status"]["phase"],
        "Running"
    );
    served.ends_without_a_trace().await;
}
