//! The definition of the IPUJob on a real API server: what it takes, what it refuses with which words, what it shows.

mod names;
mod stored;
mod template;

use std::fs;
use std::path::Path;

use ipu_test_cluster::{Cluster, shared};
use serde_json::{Value, json};

use super::install;

/// What kubectl keeps of an applied object, at most.
const LARGEST_ANNOTATION: usize = 262_144;

/// Every field of a status.
const STATUS: &str = include_str!("../../data/status.json");

/// A namespace of the test's own on a cluster that knows IPUJobs.
struct Place {
    cluster: &'static Cluster,
    namespace: &'static str,
}

impl Place {
    fn new(test: &str, namespace: &'static str) -> Option<Self> {
        let cluster = shared(test)?;
        install(cluster);
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        Some(Self { cluster, namespace })
    }

    fn try_kubectl(&self, words: &[&str]) -> Result<String, String> {
        let words = [&["--namespace", self.namespace], words].concat();
        self.cluster.kubectl(&words).map_err(|error| error.to_string())
    }

    fn kubectl(&self, words: &[&str]) -> String {
        self.try_kubectl(words).unwrap()
    }

    /// Applies `text` as strictly as kubectl can.
    fn try_apply(&self, text: &str) -> Result<String, String> {
        let file = self.cluster.directory().join(format!("{}.yaml", self.namespace));
        fs::write(&file, text).map_err(|error| error.to_string())?;
        self.try_kubectl(&["apply", "--validate=strict", "-f", file.to_str().unwrap()])
    }

    /// A job called `job` with this in its `spec`, beside workers.
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

    /// The job called `job`.
    fn job(&self) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "ipujob", "job", "-o", "json"])).unwrap()
    }

    fn patch(&self, subresource: &str, patch: &Value) -> Result<String, String> {
        let patch = patch.to_string();
        let mut words = vec!["patch", "ipujob", "job", "--type=merge", "-p", &patch];
        if !subresource.is_empty() {
            words.extend(["--subresource", subresource]);
        }
        self.try_kubectl(&words)
    }
}

/// That `done` was refused, with these words.
#[track_caller]
fn refused(done: Result<String, String>, words: &str) {
    let error = done.expect_err(words);
    assert!(error.contains(words), "not {words:?} but {error}");
}

#[test]
fn kubectl_applies_the_definition_and_every_ipujob_of_the_seeds_strictly_and_unchanged() {
    let name = "kubectl_applies_the_definition_and_every_ipujob_of_the_seeds_strictly_and_unchanged";
    let Some(place) = Place::new(name, "seeds") else {
        return;
    };
    let definition = place.kubectl(&["get", "crd", "ipujobs.graphcore.ai", "-o", "json"]);
    let definition: Value = serde_json::from_str(&definition).unwrap();
    let annotations = &definition["metadata"]["annotations"];
    let applied = annotations["kubectl.kubernetes.io/last-applied-configuration"].as_str();
    // Half of it is left for what Kubernetes will add to its Pods.
    assert!(applied.unwrap().len() < LARGEST_ANNOTATION / 2);

    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/seeds");
    let mut applied = 0;
    for file in fs::read_dir(seeds).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for document in text.split("\n---") {
            if !document.contains("kind: IPUJob") {
                continue;
            }
            let text = document.replace("namespace: default", "namespace: seeds");
            place.try_apply(&text).unwrap();
            // Everything that was written is still there.
            let kept = place.kubectl(&["get", "ipujob", "-o", "json"]);
            let kept: Value = serde_json::from_str(&kept).unwrap();
            let job = &kept["items"][0];
            let annotations = &job["metadata"]["annotations"];
            let given = annotations["kubectl.kubernetes.io/last-applied-configuration"].as_str();
            let given: Value = serde_json::from_str(given.unwrap()).unwrap();
            assert!(
                contains(&job["spec"], &given["spec"]),
                "{job:#} lacks something of {given:#}"
            );
            place.kubectl(&["delete", "ipujob", "--all"]);
            applied += 1;
        }
    }
    assert_eq!(applied, 8);
}

/// Whether `whole` has everything that `part` has.
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
fn kubectl_shows_the_documented_columns_explains_the_fields_and_lists_jobs_with_all() {
    let name = "kubectl_shows_the_documented_columns_explains_the_fields_and_lists_jobs_with_all";
    let Some(place) = Place::new(name, "columns") else {
        return;
    };
    place.try_job(&json!({"ipusPerJobInstance": 4})).unwrap();
    let status = json!({"status": {"currentReplicas": 0, "desiredReplicas": 1, "lastMessage": "partition not ready yet!"}});
    place.patch("status", &status).unwrap();
    let table = place.kubectl(&["get", "ipujobs"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split("  ").collect()).collect();
    let cells = |line: usize| -> Vec<&str> {
        let cells = lines[line].iter().map(|cell| cell.trim());
        cells.filter(|cell| !cell.is_empty()).collect()
    };
    assert_eq!(
        cells(0),
        ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"]
    );
    // A status that says nothing of it is that of a job that waits.
    assert_eq!(
        cells(1)[..5],
        ["job", "Pending", "0", "1", "partition not ready yet!"]
    );
    for words in [["get", "all"], ["get", "ipuj"]] {
        assert!(
            place.kubectl(&words).contains("partition not ready yet!"),
            "{words:?}"
        );
    }
    let explained = place.kubectl(&["explain", "ipujob.spec.restartPolicy.exitCodes"]);
    assert!(explained.contains("worth another try"), "{explained}");
}

#[test]
fn what_a_job_leaves_out_has_the_documented_defaults_and_numbers_may_stand_in_quotes() {
    let name = "what_a_job_leaves_out_has_the_documented_defaults_and_numbers_may_stand_in_quotes";
    let Some(place) = Place::new(name, "defaults") else {
        return;
    };
    place
        .try_job(&json!({"ipusPerJobInstance": "4", "restartPolicy": {"type": "OnFailure"}, "workersPerJobInstance": 2}))
        .unwrap();
    let spec = &place.job()["spec"];
    assert_eq!(spec["jobInstances"], 1);
    assert_eq!(spec["ipusPerJobInstance"], "4");
    assert_eq!(spec["workersPerJobInstance"], 2);
    assert_eq!(spec["workers"]["replicas"], 1);
    assert_eq!(spec["restartPolicy"]["backOffLimit"], 3);
    // In quotes or bare is the same number.
    let patch = json!({"spec": {"ipusPerJobInstance": 4, "workersPerJobInstance": "2"}});
    place.patch("", &patch).unwrap();
    // A port without a protocol is one of TCP, as in a Kubernetes Pod.
    let patch = r#"[{"op": "add", "path": "/spec/workers/template/spec/containers/0/ports", "value": [{"containerPort": 80}]}]"#;
    place.kubectl(&["patch", "ipujob", "job", "--type=json", "-p", patch]);
    let template = &place.job()["spec"]["workers"]["template"];
    assert_eq!(template["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
}

#[test]
fn what_cannot_run_is_refused_by_the_api_server_with_field_value_rule_and_fix() {
    let name = "what_cannot_run_is_refused_by_the_api_server_with_field_value_rule_and_fix";
    let Some(place) = Place::new(name, "refused") else {
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
    for (spec, words) in cases {
        refused(place.try_job(&spec), words);
    }
    // Everything that is wrong at once.
    let spec = json!({"ipusPerJobInstance": 128, "workersPerJobInstance": 3, "reconfigurable": true, "launcher": {"command": []}});
    for words in [
        "use a power of two up to these IPUs. spec.reconfigurable = true: a partition of more",
        "or ask for fewer IPUs. spec.launcher.command is absent or empty",
    ] {
        refused(place.try_job(&spec), words);
    }
    place
        .try_job(&json!({"ipusPerJobInstance": 8, "workerPerJobInstance": "8", "workers": {"replicas": 1}}))
        .unwrap();
}

#[test]
fn scaling_goes_by_the_scale_subresource_tells_what_runs_and_evades_no_rule() {
    let name = "scaling_goes_by_the_scale_subresource_tells_what_runs_and_evades_no_rule";
    let Some(place) = Place::new(name, "scaling") else {
        return;
    };
    place
        .try_job(&json!({"ipusPerJobInstance": 4, "workersPerJobInstance": 4}))
        .unwrap();
    let status =
        json!({"status": {"currentReplicas": 1, "desiredReplicas": 2, "selector": "graphcore.ai/job=job"}});
    place.patch("status", &status).unwrap();
    place.kubectl(&["scale", "ipujob", "job", "--replicas=2"]);
    let scale = "/apis/graphcore.ai/v1alpha1/namespaces/scaling/ipujobs/job/scale";
    let scale: Value = serde_json::from_str(&place.kubectl(&["get", "--raw", scale])).unwrap();
    assert_eq!(scale["spec"]["replicas"], 2);
    assert_eq!(scale["status"]["replicas"], 1);
    assert_eq!(scale["status"]["selector"], "graphcore.ai/job=job");

    let scaled = |replicas: &str| place.try_kubectl(&["scale", "ipujob", "job", replicas]);
    refused(scaled("--replicas=65537"), "less than or equal to 65536");
    refused(
        scaled("--replicas=16385"),
        "spec.jobInstances × workers of an instance are more than 65536 workers, which no system has IPUs for; use fewer instances",
    );
    scaled("--replicas=0").unwrap();
    assert_eq!(place.job()["spec"]["jobInstances"], 0);

    // Of 52 characters and four workers in each: the name of the last launcher has 63 with ten instances, and 64 with eleven.
    let long = "x".repeat(52);
    place.try_apply(&named(&long, 10).to_string()).unwrap();
    let scaled =
        |replicas: u32| place.try_kubectl(&["scale", "ipujob", &long, &format!("--replicas={replicas}")]);
    refused(scaled(11), NAME_TOO_LONG);
    scaled(3).unwrap();
    scaled(10).unwrap();
}

/// A job of that name with four workers in each instance.
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
fn what_partitions_were_made_for_stays_until_they_are_given_back() {
    let name = "what_partitions_were_made_for_stays_until_they_are_given_back";
    let Some(place) = Place::new(name, "fixed") else {
        return;
    };
    place
        .try_job(&json!({"ipusPerJobInstance": "4", "workerPerJobInstance": "2", "managedBy": "us.example.com/one"}))
        .unwrap();
    let changes = [
        ("ipusPerJobInstance", json!({"ipusPerJobInstance": 8})),
        ("workersPerJobInstance", json!({"workersPerJobInstance": 4})),
        (
            "modelReplicasPerWorker (in the alpha form modelReplicas)",
            json!({"modelReplicasPerWorker": 2}),
        ),
        ("reconfigurable", json!({"reconfigurable": true})),
        ("allocation", json!({"allocation": "cl1"})),
        ("launcher", json!({"launcher": {"command": ["mpirun"]}})),
        ("interactive", json!({"interactive": {"ttl": 60}})),
    ];
    let status = |phase: &str, held: u32| {
        let status = json!({"status": {"phase": phase, "ipusHeld": held}});
        place.patch("status", &status).unwrap();
    };
    for (phase, held) in [("Pending", 0), ("Running", 4), ("Suspended", 4)] {
        status(phase, held);
        for (field, change) in &changes {
            refused(
                place.patch("", &json!({"spec": change})),
                &format!(
                    "spec.{field} cannot change while the job holds IPUs, which were chosen for it; suspend the job"
                ),
            );
        }
    }
    let two = json!({"spec": {"launcher": {"command": ["mpirun"]}, "managedBy": "us.example.com/two"}});
    refused(
        place.patch("", &two),
        "or make a new job. spec.managedBy cannot change",
    );
    // The same said in another way is no change.
    let right =
        json!({"spec": {"workersPerJobInstance": 2, "workerPerJobInstance": null, "reconfigurable": false}});
    place.patch("", &right).unwrap();
    // Of a job that goes on the status says for a moment what it was before, while it may hold a partition already.
    status("Suspended", 0);
    for (field, change) in &changes {
        refused(
            place.patch("", &json!({"spec": change})),
            &format!("spec.{field} cannot change while the job holds IPUs"),
        );
    }
    place
        .patch("", &json!({"spec": {"suspend": true, "priority": 3}}))
        .unwrap();
    place
        .patch("", &json!({"spec": {"suspend": false, "ipusPerJobInstance": 2}}))
        .unwrap();
    refused(
        place.patch("", &json!({"spec": {"ipusPerJobInstance": 4}})),
        "spec.ipusPerJobInstance cannot change",
    );
    place.patch("", &json!({"spec": {"suspend": true}})).unwrap();
    for (_, change) in &changes {
        place.patch("", &json!({"spec": change})).unwrap();
    }
    refused(
        place.patch("", &json!({"spec": {"managedBy": "us.example.com/two"}})),
        "spec.managedBy cannot change: two would look after the job; make a new job",
    );
}

/// Of the alpha form `modelReplicas` is what partitions are made for as well, not only their size.
#[test]
fn what_partitions_were_made_for_stays_in_the_alpha_form_too() {
    let name = "what_partitions_were_made_for_stays_in_the_alpha_form_too";
    let Some(place) = Place::new(name, "fixed-alpha") else {
        return;
    };
    let alpha = |replicas: Value, each: Value, rest: Value| {
        let mut spec = json!({"modelReplicas": replicas, "ipusPerModelReplica": each, "ipusPerJobInstance": null,
            "modelReplicasPerWorker": null, "workersPerJobInstance": null});
        for (name, value) in rest.as_object().unwrap() {
            spec[name] = value.clone();
        }
        json!({"spec": spec})
    };
    let running = json!({"status": {"phase": "Running", "ipusHeld": 4}});
    let stays = [
        alpha(json!(2), json!(2), json!({})),
        alpha(json!(1), json!("4"), json!({})),
        alpha(json!(4), json!(1), json!({"ipusPerJobInstance": "4"})),
        alpha(json!(4), json!(1), json!({"modelReplicasPerWorker": 1})),
        alpha(
            Value::Null,
            Value::Null,
            json!({"ipusPerJobInstance": "4", "modelReplicasPerWorker": 2}),
        ),
    ];
    place
        .try_job(&json!({"modelReplicas": 4, "ipusPerModelReplica": "1"}))
        .unwrap();
    place.patch("status", &running).unwrap();
    for change in &stays {
        refused(
            place.patch("", change),
            "spec.modelReplicasPerWorker (in the alpha form modelReplicas) cannot change while the job holds IPUs, which",
        );
    }
    refused(
        place.patch("", &alpha(json!(4), json!(2), json!({}))),
        "spec.ipusPerJobInstance cannot change while the job holds IPUs",
    );
    // The same said in another way is no change: in quotes, by worker, in today's form, and back.
    for same in [
        alpha(json!("4"), json!(1), json!({"priority": 1})),
        alpha(json!(4), json!(1), json!({"modelReplicasPerWorker": 4})),
        alpha(
            Value::Null,
            Value::Null,
            json!({"ipusPerJobInstance": "4", "modelReplicasPerWorker": 4}),
        ),
        alpha(json!(4), json!(1), json!({})),
    ] {
        place.patch("", &same).unwrap();
    }
    place
        .patch(
            "status",
            &json!({"status": {"phase": "Completed", "ipusHeld": 0}}),
        )
        .unwrap();
    place.patch("", &stays[0]).unwrap();
    // What two workers cannot share out evenly is made for two: the number that is not counted may change.
    let two = json!({"workersPerJobInstance": 2});
    place.patch("", &alpha(json!(1), json!(4), two.clone())).unwrap();
    place.patch("status", &running).unwrap();
    place.patch("", &alpha(json!(2), json!(2), two.clone())).unwrap();
    refused(
        place.patch("", &alpha(json!(4), json!(1), two)),
        "(in the alpha form modelReplicas) cannot change",
    );
}

#[test]
fn no_field_of_a_status_is_lost_and_parts_of_it_can_be_written() {
    let name = "no_field_of_a_status_is_lost_and_parts_of_it_can_be_written";
    let Some(place) = Place::new(name, "status") else {
        return;
    };
    place.try_job(&json!({"ipusPerJobInstance": 4})).unwrap();
    let full: Value = serde_json::from_str(STATUS).unwrap();
    place.patch("status", &json!({"status": full})).unwrap();
    assert_eq!(place.job()["status"], full);
    place
        .patch("status", &json!({"status": {"lastMessage": "x"}}))
        .unwrap();
    let emptied = json!({"status": null});
    place.patch("status", &emptied).unwrap();
    let parts = json!({"status": {"conditions": [{"type": "Pending", "status": "True"}], "instances": [{"index": 0}]}});
    place.patch("status", &parts).unwrap();
}
