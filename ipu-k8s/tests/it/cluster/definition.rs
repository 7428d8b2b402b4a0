//! The CRD of the IPUJob on a real API server: accepted and rejected objects, error messages, and output of
//! kubectl.

mod names;
mod stored;
mod template;

use std::fs;
use std::path::Path;

use ipu_test_cluster::{Cluster, shared};
use serde_json::{Value, json};

use super::install;

/// Maximum size of kubectl's last-applied annotation, in bytes.
const MAX_ANNOTATION_BYTES: usize = 262_144;

/// A status with every field.
const STATUS: &str = include_str!("../../data/status.json");

/// Namespace of one test on a cluster with the CRD.
struct CrdFixture {
    cluster: &'static Cluster,
    namespace: &'static str,
}

impl CrdFixture {
    fn new(test: &str, namespace: &'static str) -> Option<Self> {
        let cluster = shared(test)?;
        install(cluster);
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        Some(Self { cluster, namespace })
    }

    fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let arguments = [&["--namespace", self.namespace], arguments].concat();
        self.cluster
            .kubectl(&arguments)
            .map_err(|error| error.to_string())
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap()
    }

    /// Applies `text` with strict validation.
    fn try_apply(&self, text: &str) -> Result<String, String> {
        let file = self.cluster.directory().join(format!("{}.yaml", self.namespace));
        fs::write(&file, text).map_err(|error| error.to_string())?;
        self.try_kubectl(&["apply", "--validate=strict", "-f", file.to_str().unwrap()])
    }

    /// Applies a job called `job` with these fields in its `spec`, and a worker template.
    fn try_job(&self, spec: &Value) -> Result<String, String> {
        let mut spec = spec.clone();
        let containers = json!([{"name": "main", "image": "x", "command": ["./train.sh"]}]);
        if spec["workers"].is_null() {
            spec["workers"] = json!({});
        }
        spec["workers"]["template"] = json!({"spec": {"containers": containers}});
        let job = json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "job"}, "spec": spec,
        });
        self.try_apply(&job.to_string())
    }

    /// Returns the job called `job`.
    fn job(&self) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "ipujob", "job", "-o", "json"])).unwrap()
    }

    fn patch(&self, subresource: &str, patch: &Value) -> Result<String, String> {
        let patch = patch.to_string();
        let mut arguments = vec!["patch", "ipujob", "job", "--type=merge", "-p", &patch];
        if !subresource.is_empty() {
            arguments.extend(["--subresource", subresource]);
        }
        self.try_kubectl(&arguments)
    }
}

/// Checks that a request was rejected with `message`.
#[track_caller]
fn assert_rejected(result: Result<String, String>, message: &str) {
    let error = result.expect_err(message);
    assert!(error.contains(message), "expected {message:?}, got {error}");
}

#[test]
fn kubectl_applies_the_definition_and_every_ipujob_of_the_guides_strictly_and_unchanged() {
    let name = "kubectl_applies_the_definition_and_every_ipujob_of_the_guides_strictly_and_unchanged";
    let Some(fixture) = CrdFixture::new(name, "guides") else {
        return;
    };
    let definition = fixture.kubectl(&["get", "crd", "ipujobs.graphcore.ai", "-o", "json"]);
    let definition: Value = serde_json::from_str(&definition).unwrap();
    let annotations = &definition["metadata"]["annotations"];
    let applied = annotations["kubectl.kubernetes.io/last-applied-configuration"].as_str();
    // Half of the space is reserved for future Pod fields of Kubernetes.
    assert!(applied.unwrap().len() < MAX_ANNOTATION_BYTES / 2);

    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/guides");
    let mut applied = 0;
    for file in fs::read_dir(guides).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for document in text.split("\n---") {
            if !document.contains("kind: IPUJob") {
                continue;
            }
            let text = document.replace("namespace: default", "namespace: guides");
            fixture.try_apply(&text).unwrap();
            // All written fields are kept.
            let kept = fixture.kubectl(&["get", "ipujob", "-o", "json"]);
            let kept: Value = serde_json::from_str(&kept).unwrap();
            let job = &kept["items"][0];
            let annotations = &job["metadata"]["annotations"];
            let last_applied = annotations["kubectl.kubernetes.io/last-applied-configuration"].as_str();
            let last_applied: Value = serde_json::from_str(last_applied.unwrap()).unwrap();
            assert!(
                contains(&job["spec"], &last_applied["spec"]),
                "{job:#} lacks something of {last_applied:#}"
            );
            fixture.kubectl(&["delete", "ipujob", "--all"]);
            applied += 1;
        }
    }
    assert_eq!(applied, 8);
}

/// Returns whether `whole` contains everything in `part`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| whole.get(name).is_some_and(|whole| contains(whole, part))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

#[test]
fn kubectl_prints_the_documented_columns_explains_fields_and_lists_jobs_with_all() {
    let name = "kubectl_prints_the_documented_columns_explains_fields_and_lists_jobs_with_all";
    let Some(fixture) = CrdFixture::new(name, "columns") else {
        return;
    };
    fixture.try_job(&json!({"ipusPerJobInstance": 4})).unwrap();
    let status = json!({"status": {"currentReplicas": 0, "desiredReplicas": 1, "lastMessage": "partition not ready yet!"}});
    fixture.patch("status", &status).unwrap();
    let table = fixture.kubectl(&["get", "ipujobs"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split("  ").collect()).collect();
    let cells = |line: usize| -> Vec<&str> {
        let cells = lines[line].iter().map(|cell| cell.trim());
        cells.filter(|cell| !cell.is_empty()).collect()
    };
    assert_eq!(
        cells(0),
        ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"]
    );
    // A status without a phase is shown as Pending.
    assert_eq!(
        cells(1)[..5],
        ["job", "Pending", "0", "1", "partition not ready yet!"]
    );
    for arguments in [["get", "all"], ["get", "ipuj"]] {
        assert!(
            fixture.kubectl(&arguments).contains("partition not ready yet!"),
            "{arguments:?}"
        );
    }
    let explained = fixture.kubectl(&["explain", "ipujob.spec.restartPolicy.exitCodes"]);
    assert!(explained.contains("the job is restarted"), "{explained}");
}

#[test]
fn omitted_fields_have_the_documented_defaults_and_numbers_may_be_quoted() {
    let name = "omitted_fields_have_the_documented_defaults_and_numbers_may_be_quoted";
    let Some(fixture) = CrdFixture::new(name, "defaults") else {
        return;
    };
    fixture
        .try_job(&json!({"ipusPerJobInstance": "4", "restartPolicy": {"type": "OnFailure"}, "workersPerJobInstance": 2}))
        .unwrap();
    let spec = &fixture.job()["spec"];
    assert_eq!(spec["jobInstances"], 1);
    assert_eq!(spec["ipusPerJobInstance"], "4");
    assert_eq!(spec["workersPerJobInstance"], 2);
    assert_eq!(spec["workers"]["replicas"], 1);
    assert_eq!(spec["restartPolicy"]["backOffLimit"], 3);
    assert_eq!(spec["cleanPodPolicy"], "None");
    // Quoted and bare numbers are equal.
    let patch = json!({"spec": {"ipusPerJobInstance": 4, "workersPerJobInstance": "2"}});
    fixture.patch("", &patch).unwrap();
    // The default protocol of a port is TCP, as in a Pod.
    let patch = r#"[{"op": "add", "path": "/spec/workers/template/spec/containers/0/ports", "value": [{"containerPort": 80}]}]"#;
    fixture.kubectl(&["patch", "ipujob", "job", "--type=json", "-p", patch]);
    let template = &fixture.job()["spec"]["workers"]["template"];
    assert_eq!(template["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
}

#[test]
fn an_invalid_job_is_rejected_by_the_api_server_with_field_value_rule_and_fix() {
    let name = "an_invalid_job_is_rejected_by_the_api_server_with_field_value_rule_and_fix";
    let Some(fixture) = CrdFixture::new(name, "refused") else {
        return;
    };
    let cases = [
        (
            json!({"ipusPerJobInstance": 3}),
            "spec.ipusPerJobInstance = 3: must be a power of two from 1 to 65536; use 1, 2, 4, 8 and so on",
        ),
        (
            json!({"ipusPerJobInstance": "many"}),
            "spec.ipusPerJobInstance = many: must be a power of two",
        ),
        (
            json!({"ipusPerJobInstance": 131_072}),
            "spec.ipusPerJobInstance = 131072: must be a power of two",
        ),
        (
            json!({"ipusPerJobInstance": 4, "workersPerJobInstance": "0"}),
            "spec.workersPerJobInstance = 0: must be a whole number from 1 to 65536; write digits only",
        ),
        (
            json!({"ipusPerJobInstance": 4, "modelReplicasPerWorker": "-1"}),
            "spec.modelReplicasPerWorker = -1: must be a whole number from 1 to 65536; write digits only",
        ),
        (
            json!({"ipusPerJobInstance": 4, "jobInstances": -1}),
            "spec.jobInstances in body should be greater than or equal to 0",
        ),
        (
            json!({"ipusPerJobInstance": 4, "workers": {"replicas": 0}}),
            "spec.workers.replicas in body should be greater than or equal to 1",
        ),
        (
            json!({"ipusPerJobInstance": 4, "activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds in body should be greater than or equal to 1",
        ),
        (
            json!({}),
            "spec.ipusPerJobInstance is absent: every job says how many",
        ),
        (
            json!({"modelReplicas": 4}),
            "spec.ipusPerJobInstance is absent: every job says how many",
        ),
        (
            json!({"modelReplicas": 3, "ipusPerModelReplica": 1}),
            "spec.modelReplicas × spec.ipusPerModelReplica is read as the IPUs of one instance: must be a power of two",
        ),
        (
            json!({"ipusPerJobInstance": 4, "workersPerJobInstance": 8}),
            "the GCDs must divide the IPUs of the instance; use a power of two up to these IPUs",
        ),
        (
            json!({"ipusPerJobInstance": 4, "workers": {"replicas": 3}}),
            "the GCDs must divide the IPUs of the instance",
        ),
        (
            json!({"ipusPerJobInstance": 128, "reconfigurable": true}),
            "spec.reconfigurable = true: a partition of more than 64 IPUs uses GW-links",
        ),
        (
            json!({"ipusPerJobInstance": 4, "launcher": {"command": []}}),
            "spec.launcher.command is absent or empty: a launcher starts the work with a command; add the program",
        ),
        (
            json!({"ipusPerJobInstance": 4, "cleanPodPolicy": "all"}),
            "spec.cleanPodPolicy: Unsupported value: \"all\": supported values: \"None\", \"Workers\", \"All\"",
        ),
        (
            json!({"ipusPerJobInstance": 4, "restartPolicy": {"type": "ExitCode", "exitCodes": "1-"}}),
            "spec.restartPolicy.exitCodes in body should match",
        ),
        (
            json!({"ipusPerJobInstance": 4, "account": "team \"a\""}),
            "spec.account in body should match",
        ),
        (
            json!({"ipusPerJobInstance": 4, "allocation": "x".repeat(64)}),
            "spec.allocation: Too long: may not be more than 63",
        ),
        (
            json!({"ipusPerJobInstance": 4, "interactive": {}}),
            "spec.interactive.ttl: Required value",
        ),
        (
            json!({"ipusPerJobInstance": 4, "colour": "red"}),
            "unknown field \"spec.colour\"",
        ),
    ];
    for (spec, message) in cases {
        assert_rejected(fixture.try_job(&spec), message);
    }
    // All errors are reported at once.
    let spec = json!({"ipusPerJobInstance": 128, "workersPerJobInstance": 3, "reconfigurable": true, "launcher": {"command": []}});
    for message in [
        "use a power of two up to these IPUs",
        "spec.reconfigurable = true: a partition of more",
        "spec.launcher.command is absent or empty",
    ] {
        assert_rejected(fixture.try_job(&spec), message);
    }
    fixture
        .try_job(&json!({"ipusPerJobInstance": 8, "workerPerJobInstance": "8", "workers": {"replicas": 1}}))
        .unwrap();
}

#[test]
fn scaling_uses_the_scale_subresource_reports_replicas_and_is_validated() {
    let name = "scaling_uses_the_scale_subresource_reports_replicas_and_is_validated";
    let Some(fixture) = CrdFixture::new(name, "scaling") else {
        return;
    };
    fixture
        .try_job(&json!({"ipusPerJobInstance": 4, "workersPerJobInstance": 4}))
        .unwrap();
    let status =
        json!({"status": {"currentReplicas": 1, "desiredReplicas": 2, "selector": "graphcore.ai/job=job"}});
    fixture.patch("status", &status).unwrap();
    fixture.kubectl(&["scale", "ipujob", "job", "--replicas=2"]);
    let scale = "/apis/graphcore.ai/v1alpha1/namespaces/scaling/ipujobs/job/scale";
    let scale: Value = serde_json::from_str(&fixture.kubectl(&["get", "--raw", scale])).unwrap();
    assert_eq!(scale["spec"]["replicas"], 2);
    assert_eq!(scale["status"]["replicas"], 1);
    assert_eq!(scale["status"]["selector"], "graphcore.ai/job=job");

    let scaled = |replicas: &str| fixture.try_kubectl(&["scale", "ipujob", "job", replicas]);
    assert_rejected(scaled("--replicas=65537"), "less than or equal to 65536");
    assert_rejected(
        scaled("--replicas=16385"),
        "spec.jobInstances × workers of an instance exceed the limit of 65536 workers; use fewer instances",
    );
    scaled("--replicas=0").unwrap();
    assert_eq!(fixture.job()["spec"]["jobInstances"], 0);

    // A name of 52 characters with four workers per instance: the name of the last launcher has 63
    // characters with ten instances, and 64 with eleven.
    let long = "x".repeat(52);
    fixture.try_apply(&named(&long, 10).to_string()).unwrap();
    let scaled =
        |replicas: u32| fixture.try_kubectl(&["scale", "ipujob", &long, &format!("--replicas={replicas}")]);
    assert_rejected(scaled(11), NAME_TOO_LONG);
    scaled(3).unwrap();
    scaled(10).unwrap();
}

/// Returns a job of that name with four workers per instance.
fn named(name: &str, instances: u32) -> Value {
    json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": name}, "spec": {
            "jobInstances": instances, "ipusPerJobInstance": 4, "workersPerJobInstance": 4,
            "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}},
        },
    })
}

const NAME_TOO_LONG: &str = "metadata.name: the name of the last process, <job>-worker-<n> or <job>-launcher-<n>, must fit in 63 characters";

#[test]
fn partition_fields_are_immutable_until_the_partitions_are_released() {
    let name = "partition_fields_are_immutable_until_the_partitions_are_released";
    let Some(fixture) = CrdFixture::new(name, "fixed") else {
        return;
    };
    fixture
        .try_job(&json!({"ipusPerJobInstance": "4", "workerPerJobInstance": "2", "managedBy": "us.example.com/one"}))
        .unwrap();
    let changes = [
        ("ipusPerJobInstance", json!({"ipusPerJobInstance": 8})),
        ("workersPerJobInstance", json!({"workersPerJobInstance": 4})),
        ("modelReplicasPerWorker", json!({"modelReplicasPerWorker": 2})),
        ("reconfigurable", json!({"reconfigurable": true})),
        ("allocation", json!({"allocation": "cl1"})),
        ("launcher", json!({"launcher": {"command": ["mpirun"]}})),
        ("interactive", json!({"interactive": {"ttl": 60}})),
    ];
    let status = |phase: &str, held: u32| {
        let status = json!({"status": {"phase": phase, "ipusHeld": held}});
        fixture.patch("status", &status).unwrap();
    };
    for (phase, held) in [("Pending", 0), ("Running", 4), ("Suspended", 4)] {
        status(phase, held);
        for (field, change) in &changes {
            assert_rejected(
                fixture.patch("", &json!({"spec": change})),
                &format!(
                    "spec.{field} cannot change while the job holds IPUs, which were chosen for it; suspend the job"
                ),
            );
        }
    }
    let two = json!({"spec": {"launcher": {"command": ["mpirun"]}, "managedBy": "us.example.com/two"}});
    for message in [
        "spec.launcher cannot change while",
        "spec.managedBy cannot change",
    ] {
        assert_rejected(fixture.patch("", &two), message);
    }
    let both = json!({"spec": {"reconfigurable": true, "allocation": "cl1"}});
    assert_rejected(
        fixture.patch("", &both),
        "spec.reconfigurable spec.allocation cannot change while",
    );
    // An equivalent notation is not a change.
    let equivalent =
        json!({"spec": {"workersPerJobInstance": 2, "workerPerJobInstance": null, "reconfigurable": false}});
    fixture.patch("", &equivalent).unwrap();
    // The status of a resumed job is briefly outdated while the job may hold a partition already.
    status("Suspended", 0);
    for (field, change) in &changes {
        assert_rejected(
            fixture.patch("", &json!({"spec": change})),
            &format!("spec.{field} cannot change while the job holds IPUs"),
        );
    }
    fixture
        .patch("", &json!({"spec": {"suspend": true, "priority": 3}}))
        .unwrap();
    fixture
        .patch("", &json!({"spec": {"suspend": false, "ipusPerJobInstance": 2}}))
        .unwrap();
    assert_rejected(
        fixture.patch("", &json!({"spec": {"ipusPerJobInstance": 4}})),
        "spec.ipusPerJobInstance cannot change",
    );
    fixture.patch("", &json!({"spec": {"suspend": true}})).unwrap();
    for (_, change) in &changes {
        fixture.patch("", &json!({"spec": change})).unwrap();
    }
    assert_rejected(
        fixture.patch("", &json!({"spec": {"managedBy": "us.example.com/two"}})),
        "spec.managedBy cannot change: two controllers would manage the job; create a new job",
    );
}

/// In the alpha form partitions depend on `modelReplicas` itself, not only on their size.
#[test]
fn partition_fields_are_immutable_in_the_alpha_form_too() {
    let name = "partition_fields_are_immutable_in_the_alpha_form_too";
    let Some(fixture) = CrdFixture::new(name, "fixed-alpha") else {
        return;
    };
    fixture
        .try_job(&json!({"modelReplicas": 4, "ipusPerModelReplica": "1"}))
        .unwrap();
    let running = json!({"status": {"phase": "Running", "ipusHeld": 4}});
    fixture.patch("status", &running).unwrap();
    for (change, fields) in [
        (
            json!({"modelReplicas": 2, "ipusPerModelReplica": 2}),
            "spec.modelReplicas",
        ),
        (
            json!({"modelReplicas": 4, "ipusPerModelReplica": 2}),
            "spec.ipusPerJobInstance",
        ),
        (
            json!({"modelReplicas": 8}),
            "spec.ipusPerJobInstance spec.modelReplicas",
        ),
    ] {
        let message = format!("{fields} cannot change while the job holds IPUs");
        assert_rejected(fixture.patch("", &json!({"spec": change})), &message);
    }
    // An equivalent notation is not a change.
    for same in [json!({"modelReplicas": "4"}), json!({"ipusPerJobInstance": "4"})] {
        fixture.patch("", &json!({"spec": same})).unwrap();
    }
    let finished = json!({"status": {"phase": "Completed", "ipusHeld": 0}});
    fixture.patch("status", &finished).unwrap();
    fixture
        .patch(
            "",
            &json!({"spec": {"modelReplicas": 2, "ipusPerJobInstance": 8}}),
        )
        .unwrap();
}

#[test]
fn no_status_field_is_lost_and_a_partial_status_can_be_written() {
    let name = "no_status_field_is_lost_and_a_partial_status_can_be_written";
    let Some(fixture) = CrdFixture::new(name, "status") else {
        return;
    };
    fixture.try_job(&json!({"ipusPerJobInstance": 4})).unwrap();
    let full: Value = serde_json::from_str(STATUS).unwrap();
    fixture.patch("status", &json!({"status": full})).unwrap();
    assert_eq!(fixture.job()["status"], full);
    fixture
        .patch("status", &json!({"status": {"lastMessage": "x"}}))
        .unwrap();
    let emptied = json!({"status": null});
    fixture.patch("status", &emptied).unwrap();
    let parts = json!({"status": {"conditions": [{"type": "Pending", "status": "True"}], "instances": [{"index": 0}]}});
    fixture.patch("status", &parts).unwrap();
}
