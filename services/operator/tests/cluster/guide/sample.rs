//! The sample job of the V-IPU guide: applied, running, described, completed.

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{guide_job, load_image};

/// Output of `kubectl describe` for the running sample, from the guide.
const DESCRIBED: &str = include_str!("../../data/guide-6.6-describe.txt");

/// Fields that today's API server or `kubectl` no longer prints, and empty fields that the original's types
/// wrote.
const OBSOLETE_FIELDS: [&str; 5] = ["Manager:", "Operation:", "Time:", "Self Link:", "Resources:"];

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_6_the_sample_runs_and_completes() {
    let test = "vipu_guide_6_6_the_sample_runs_and_completes";
    let Some(fixture) = ClusterFixture::start(test, "guide-6-6").await else {
        return;
    };
    load_image(fixture.cluster).await;
    let sample = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/vipu-training.yaml"
    ));
    assert_eq!(
        fixture.apply(&sample).trim(),
        "ipujob.graphcore.ai/ipujob-sample created"
    );
    fixture.wait_for_phase("ipujob-sample", "Running").await;
    let pods = fixture.kubectl(&["get", "pods", "--no-headers"]);
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
    let [header, row] = fixture.table("ipujob-sample");
    assert_eq!((&*header[0], &*header[1]), ("NAME", "STATUS"));
    assert_eq!(row[..2], ["ipujob-sample", "Running"]);

    check_launcher_objects(&fixture).await;
    // The launcher's command runs in the worker, whose variables contain the partition.
    let log = || fixture.kubectl(&["logs", "ipujob-sample-launcher"]);
    crate::support::wait_until("the training has started", async || !log().is_empty()).await;
    let log = log();
    let program = "/public_examples/applications/tensorflow/cnns/training/train.py on p-ipujob-sample-0-";
    assert!(
        log.starts_with(program) && log.trim().ends_with(" gcd 0"),
        "{log}"
    );
    let worker = ["exec", "ipujob-sample-worker-0", "--"];
    fixture.kubectl(&[&worker[..], &["sh", "-c", "echo 0 >/tmp/end"]].concat());
    let status = fixture.wait_for_phase("ipujob-sample", "Completed").await;
    assert_eq!(status["workersStatus"]["active"], 1, "{status}");
    // `Running` ended when the job completed.
    let since = |kind: &str| {
        let conditions = status["conditions"].as_array().unwrap().iter();
        let mut of_kind = conditions.filter(|condition| condition["type"] == kind);
        of_kind.next().unwrap()["lastTransitionTime"].clone()
    };
    assert_eq!(since("Running"), since("Completed"), "{status}");
    let [_, row] = fixture.table("ipujob-sample");
    assert_eq!(
        row,
        ["ipujob-sample", "Completed", "0", "1", "All instances done"]
    );
    fixture.delete_all_and_shut_down().await;
}

/// §6.8.1: objects besides Pods.
async fn check_launcher_objects(fixture: &ClusterFixture) {
    let rbac = "rbac.authorization.k8s.io";
    for (group, kind, name) in [
        ("", "ConfigMap", "ipujob-sample-config"),
        ("", "ServiceAccount", "ipujob-sample-launcher"),
        (rbac, "Role", "ipujob-sample-launcher"),
        (rbac, "RoleBinding", "ipujob-sample-launcher"),
    ] {
        let object = fixture.find(group, "v1", kind, name).await;
        let owner = &object.unwrap_or_default()["metadata"]["ownerReferences"][0];
        assert_eq!(owner["name"], "ipujob-sample", "{kind} {name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_6_kubectl_describes_the_sample_as_documented() {
    let test = "vipu_guide_6_6_kubectl_describes_the_sample_as_documented";
    let Some(fixture) = ClusterFixture::start_with_webhooks(test, "guide-6-6-describe").await else {
        return;
    };
    load_image(fixture.cluster).await;
    // The output in the V-IPU guide is of the sample of the alpha guide.
    let sample = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/alpha-training.yaml"
    ));
    fixture.apply(&sample);
    fixture.wait_for_phase("ipujob-sample", "Running").await;
    let described = fixture.kubectl(&["describe", "ipujobs.graphcore.ai", "ipujob-sample"]);
    let shown = normalized(&described.replace(fixture.namespace, "default"));
    let mut rest = shown.iter();
    for line in normalized(DESCRIBED) {
        let label = line.trim_start();
        if OBSOLETE_FIELDS.iter().any(|field| label.starts_with(field)) {
            continue;
        }
        assert!(
            rest.any(|shown| *shown == line),
            "{line:?} is missing or out of order compared with the guide:\n{described}"
        );
    }
    let events = described.split("\nEvents:").nth(1).unwrap_or_default();
    assert!(
        events.contains("Normal") && events.contains("IPUJobRunning"),
        "{described}"
    );
    fixture.delete_all_and_shut_down().await;
}

/// Normalises the lines of a description: keeps the indentation, and replaces image names, times and
/// numbers of the API server.
fn normalized(described: &str) -> Vec<String> {
    let normalize_line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        let arguments: Vec<&str> = line.split_whitespace().collect();
        // Newer versions of kubectl split `iPUPartitionCreated` into fewer words.
        let text = arguments.join(" ").replace("I PUPartition", "I PU Partition");
        let text = match text.split_once(": ") {
            Some((label, _)) if label.ends_with("Time") || label.ends_with("Timestamp") => {
                format!("{label}: any time")
            }
            Some((label @ ("Generation" | "Image" | "Resource Version" | "UID"), _)) => {
                format!("{label}: any")
            }
            _ => text,
        };
        format!("{}{text}", &line[..indent])
    };
    described.lines().map(normalize_line).collect()
}
