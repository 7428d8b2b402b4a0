//! The seeds' sample: it is applied, runs, is looked at, and completes.

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{load, seed};

/// What the seed's readers see of the running sample.
const DESCRIBED: &str = include_str!("../../data/seed-000-6.6-describe.txt");

/// What the API server or `kubectl` of today no longer prints, and what the original's types wrote where nothing was given.
const OF_THEIR_TIME: [&str; 5] = ["Manager:", "Operation:", "Time:", "Self Link:", "Resources:"];

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_6_the_sample_runs_and_completes() {
    let test = "seed_000_6_6_the_sample_runs_and_completes";
    let Some(served) = ClusterFixture::start(test, "seed-000-6-6").await else {
        return;
    };
    load(served.cluster).await;
    let sample = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/000-training.yaml"
    ));
    assert_eq!(
        served.apply(&sample).trim(),
        "ipujob.graphcore.ai/ipujob-sample created"
    );
    served.is("ipujob-sample", "Running").await;
    let pods = served.kubectl(&["get", "pods", "--no-headers"]);
    let pods: Vec<Vec<&str>> = pods
        .lines()
        .map(|line| line.split_whitespace().take(4).collect())
        .collect();
    assert_eq!(
        pods,
        [
            ["ipujob-sample-launcher", "1/1", "Running", "0"],
            ["ipujob-sample-worker-0", "1/1", "Running", "0"]
        ]
    );
    let [header, row] = served.table("ipujob-sample");
    assert_eq!((&*header[0], &*header[1]), ("NAME", "STATUS"));
    assert_eq!(row[..2], ["ipujob-sample", "Running"]);

    has_what_a_launcher_needs(&served).await;
    // The launcher's command was started in the worker, whose variables lead to the partition.
    let said = || served.kubectl(&["logs", "ipujob-sample-launcher"]);
    crate::support::until("the training has begun", async || !said().is_empty()).await;
    let said = said();
    let program = "/public_examples/applications/tensorflow/cnns/training/train.py on p-ipujob-sample-0-";
    assert!(
        said.starts_with(program) && said.trim().ends_with(" gcd 0"),
        "{said}"
    );
    let worker = ["exec", "ipujob-sample-worker-0", "--"];
    served.kubectl(&[&worker[..], &["sh", "-c", "echo 0 >/tmp/end"]].concat());
    let status = served.is("ipujob-sample", "Completed").await;
    assert_eq!(status["workersStatus"]["active"], 1, "{status}");
    // It was running until it had completed.
    let since = |kind: &str| {
        let conditions = status["conditions"].as_array().unwrap().iter();
        let mut of_kind = conditions.filter(|condition| condition["type"] == kind);
        of_kind.next().unwrap()["lastTransitionTime"].clone()
    };
    assert_eq!(since("Running"), since("Completed"), "{status}");
    let [_, row] = served.table("ipujob-sample");
    assert_eq!(
        row,
        ["ipujob-sample", "Completed", "0", "1", "All instances done"]
    );
    served.ends_without_a_trace().await;
}

/// §6.8.1: what there is besides Kubernetes Pods.
async fn has_what_a_launcher_needs(served: &ClusterFixture) {
    let rbac = "rbac.authorization.k8s.io";
    for (group, kind, name) in [
        ("", "ConfigMap", "ipujob-sample-config"),
        ("", "ServiceAccount", "ipujob-sample-launcher"),
        (rbac, "Role", "ipujob-sample-launcher"),
        (rbac, "RoleBinding", "ipujob-sample-launcher"),
    ] {
        let object = served.find(group, "v1", kind, name).await;
        let owner = &object.unwrap_or_default()["metadata"]["ownerReferences"][0];
        assert_eq!(owner["name"], "ipujob-sample", "{kind} {name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_6_kubectl_describes_the_sample_as_documented() {
    let test = "seed_000_6_6_kubectl_describes_the_sample_as_documented";
    let Some(served) = ClusterFixture::start_admitting(test, "seed-000-6-6-describe").await else {
        return;
    };
    load(served.cluster).await;
    // What seed 000 shows was printed of the sample of seed 001.
    let sample = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/001-training.yaml"
    ));
    served.apply(&sample);
    served.is("ipujob-sample", "Running").await;
    let described = served.kubectl(&["describe", "ipujobs.graphcore.ai", "ipujob-sample"]);
    let shown = normal(&described.replace(served.namespace, "default"));
    let mut rest = shown.iter();
    for line in normal(DESCRIBED) {
        let label = line.trim_start();
        if OF_THEIR_TIME.iter().any(|gone| label.starts_with(gone)) {
            continue;
        }
        assert!(
            rest.any(|shown| *shown == line),
            "{line:?} is not where the seed shows it:\n{described}"
        );
    }
    let events = described.split("\nEvents:").nth(1).unwrap_or_default();
    assert!(
        events.contains("Normal") && events.contains("IPUJobRunning"),
        "{described}"
    );
    served.ends_without_a_trace().await;
}

/// The lines of a description with their indentation, and without what is another one each time: names of images, times, numbers
/// of the API server.
fn normal(described: &str) -> Vec<String> {
    let known = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<&str> = line.split_whitespace().collect();
        // Newer versions of kubectl find fewer words in `iPUPartitionCreated`.
        let text = words.join(" ").replace("I PUPartition", "I PU Partition");
        let text = match text.split_once(": ") {
            Some((label, _)) if label.ends_with("Time") || label.ends_with("Timestamp") => {
                format!("{label}: a moment")
            }
            Some((label @ ("Generation" | "Image" | "Resource Version" | "UID"), _)) => {
                format!("{label}: any")
            }
            _ => text,
        };
        format!("{}{text}", &line[..indent])
    };
    described.lines().map(known).collect()
}
