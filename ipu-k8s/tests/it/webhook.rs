//! Responses to admission reviews of IPUJobs.

mod random;

use ipu_core::IpuCount;
use ipu_core::job::Limits;
use ipu_k8s::crd::{Document, read_manifests};
use ipu_k8s::kube::core::admission::AdmissionResponse;
use ipu_k8s::webhook::{AdmissionRules, MAX_REVIEW_BYTES, ReviewError, mutate, validate};
use serde_json::{Value, json};

const FINALIZER: &str = "ipu.finalizers.graphcore.ai";

const GUIDE_EXAMPLES: [&str; 8] = [
    include_str!("../data/guides/vipu-training.yaml"),
    include_str!("../data/guides/vipu-interactive.yaml"),
    include_str!("../data/guides/vipu-inference.yaml"),
    include_str!("../data/guides/vipu-nfs.yaml"),
    include_str!("../data/guides/alpha-training.yaml"),
    include_str!("../data/guides/alpha-interactive.yaml"),
    include_str!("../data/guides/alpha-nfs.yaml"),
    include_str!("../data/guides/rdma-mnist.yaml"),
];

/// Returns the IPUJobs of the guides as the API server stores them.
pub(crate) fn guide_jobs() -> Vec<Value> {
    let jobs = GUIDE_EXAMPLES
        .iter()
        .flat_map(|text| read_manifests(text, &[]).unwrap());
    jobs.filter_map(|document| match document {
        Document::IpuJob(manifest) => Some(serde_json::to_value(manifest.job).unwrap()),
        _ => None,
    })
    .collect()
}

pub(crate) fn review(operation: &str, sub: &str, new: &Value, old: &Value) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "graphcore.ai", "version": "v1alpha1", "kind": "IPUJob"},
            "resource": {"group": "graphcore.ai", "version": "v1alpha1", "resource": "ipujobs"},
            "subResource": sub,
            "name": "job", "namespace": "default",
            "operation": operation, "object": new, "oldObject": old,
            "options": {}, "dryRun": false, "userInfo": {"username": "me"},
        },
    });
    serde_json::to_vec(&review).unwrap()
}

fn check(operation: &str, new: &Value, old: &Value) -> AdmissionResponse {
    validate(&review(operation, "", new, old), &AdmissionRules::default()).unwrap()
}

fn created(job: &Value) -> AdmissionResponse {
    check("CREATE", job, &Value::Null)
}

fn mutated(operation: &str, new: &Value, old: &Value) -> AdmissionResponse {
    mutate(&review(operation, "", new, old)).unwrap()
}

/// Returns the finalizers of `object` after the patch of `response`, which has no other change.
pub(crate) fn finalizers(object: &Value, response: &AdmissionResponse) -> Vec<Value> {
    let mut all = object["metadata"]["finalizers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let patch = response.patch.as_deref().unwrap_or(b"[]");
    let operations: Vec<Value> = serde_json::from_slice(patch).unwrap();
    for operation in operations {
        assert_eq!(operation["op"], "add");
        match operation["path"].as_str() {
            Some("/metadata/finalizers/-") => all.push(operation["value"].clone()),
            Some("/metadata/finalizers") => all.clone_from(operation["value"].as_array().unwrap()),
            other => panic!("{other:?}"),
        }
    }
    all
}

fn warnings(response: &AdmissionResponse) -> &[String] {
    response.warnings.as_deref().unwrap_or_default()
}

fn job() -> Value {
    json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
        "metadata": {"name": "job", "namespace": "default", "uid": "u"},
        "spec": {
            "jobInstances": 1, "ipusPerJobInstance": "4",
            "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
        },
    })
}

fn job_with(spec: &Value) -> Value {
    let mut job = job();
    for (name, value) in spec.as_object().unwrap() {
        job["spec"][name] = value.clone();
    }
    job
}

#[test]
fn every_ipujob_of_the_guides_is_admitted_and_gets_the_finalizer_once() {
    for mut job in guide_jobs() {
        let reply = mutated("CREATE", &job, &Value::Null);
        assert_eq!(finalizers(&job, &reply), [FINALIZER]);
        let judged = created(&job);
        assert!(judged.allowed, "{}", judged.result.message);
        job["metadata"]["finalizers"] = json!([FINALIZER]);
        assert_eq!(mutated("CREATE", &job, &Value::Null).patch, None);
    }
}

#[test]
fn a_foreign_finalizer_is_kept_and_a_job_of_another_manager_gets_no_finalizer() {
    let mut other = job();
    other["metadata"]["finalizers"] = json!(["kueue.x-k8s.io/managed"]);
    let reply = mutated("CREATE", &other, &Value::Null);
    assert_eq!(finalizers(&other, &reply), ["kueue.x-k8s.io/managed", FINALIZER]);
    for (manager, is_ours) in [
        ("kueue.x-k8s.io/multikueue", false),
        ("graphcore.ai/ipu-operator", true),
        ("", true),
    ] {
        let managed = job_with(&json!({"managedBy": manager}));
        assert_eq!(
            mutated("CREATE", &managed, &Value::Null).patch.is_some(),
            is_ours,
            "{manager}"
        );
    }
}

#[test]
fn all_errors_are_in_one_response_with_their_fields() {
    let bad = job_with(&json!({
        "ipusPerJobInstance": "3", "cleanPodPolicy": "Some", "jobInstance": 2, "interactive": {"ttl": "soon"},
    }));
    let reply = created(&bad);
    assert!(!reply.allowed);
    for part in [
        "breaks 4 rules:\n- ",
        "spec.ipusPerJobInstance = \"3\": must be a power of two from 1 to 64; use 2 or 4",
        "spec.cleanPodPolicy = Some: ",
        "spec.jobInstance = 2: is not a field of an IPUJob; did you mean jobInstances?",
        "spec.interactive.ttl = \"soon\": ",
    ] {
        assert!(
            reply.result.message.contains(part),
            "{part}: {}",
            reply.result.message
        );
    }
    assert_eq!(reply.result.code, 422);
    assert_eq!(reply.result.details.unwrap().causes.len(), 4);
}

#[test]
fn translated_and_ignored_fields_cause_warnings() {
    let unusual = job_with(&json!({
        "workerPerJobInstance": "1",
        "workers": {"strategy": {"type": "Recreate"}, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
    }));
    let reply = created(&unusual);
    assert!(reply.allowed, "{}", reply.result.message);
    let all = warnings(&reply).join("\n");
    assert!(
        all.contains("spec.workerPerJobInstance = \"1\": is read as workersPerJobInstance"),
        "{all}"
    );
    assert!(all.contains("spec.workers.strategy"), "{all}");
    // Unchanged fields cause no second warning.
    assert_eq!(check("UPDATE", &unusual, &unusual).warnings, None);
}

#[test]
fn ignored_fields_of_a_template_cause_warnings() {
    let ignored_variable = json!({"name": "IPUOF_VIPU_API_PARTITION_ID", "value": "mine"});
    let ignored = job_with(&json!({
        "launcher": {"command": ["mpirun"], "env": [ignored_variable]},
        "workers": {"hostNetwork": true, "template": {"spec": {
            "restartPolicy": "Always",
            "initContainers": [{"name": "first", "image": "i"}, {"name": "second", "image": "i", "env": [ignored_variable]}],
            "containers": [{"name": "main", "image": "i", "env": [{"name": "A", "value": "b"}]}],
        }}},
    }));
    let reply = created(&ignored);
    assert!(reply.allowed, "{}", reply.result.message);
    let warned = warnings(&reply).iter();
    let warned_fields: Vec<&str> = warned.filter_map(|warning| warning.split(": ").next()).collect();
    for field in [
        "spec.workers.hostNetwork = true",
        "spec.workers.template.spec.restartPolicy = Always",
        "spec.launcher.env = IPUOF_VIPU_API_PARTITION_ID",
        "spec.workers.template.spec.initContainers[1].env = IPUOF_VIPU_API_PARTITION_ID",
    ] {
        assert!(warned_fields.contains(&field), "{field}: {warned_fields:?}");
    }
    let usual = job_with(&json!({"workers": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "main", "image": "i", "env": [{"name": "A", "value": "b"}]}],
    }}}}));
    assert_eq!(created(&usual).warnings, None);
}

#[test]
fn pods_that_the_api_server_would_refuse_are_refused_with_the_job() {
    let template = |containers: Value| json!({"workers": {"template": {"spec": {"containers": containers}}}});
    for (spec, part) in [
        (
            template(json!([{"name": "main"}])),
            "containers[0].image is absent: Kubernetes runs a container",
        ),
        (
            template(json!([{"name": "main", "image": "i"}, {"name": "main", "image": "i"}])),
            "containers[1].name = \"main\": must be unique",
        ),
        (
            template(
                json!([{"name": "main", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/a"}]}]),
            ),
            "volumeMounts[0].name = data: no volume",
        ),
    ] {
        assert_refused(&created(&job_with(&spec)), part);
    }
}

#[test]
fn a_change_that_running_pods_do_not_follow_causes_a_warning() {
    let mut running = job();
    let mut changed = running.clone();
    changed["spec"]["workers"]["template"]["spec"]["containers"][0]["image"] = json!("new");
    assert_eq!(check("UPDATE", &changed, &running).warnings, None);
    for object in [&mut running, &mut changed] {
        object["status"] = json!({"instances": [{"index": 0, "workers": ["mnist-worker-0"]}]});
    }
    let reply = check("UPDATE", &changed, &running);
    let [warning] = warnings(&reply) else {
        panic!("{:?}", reply.warnings);
    };
    assert!(
        warning.starts_with("spec.workers = {…}: applies to Pods that are created"),
        "{warning}"
    );
    let mut scaled = running.clone();
    scaled["spec"]["jobInstances"] = json!(2);
    assert_eq!(check("UPDATE", &scaled, &running).warnings, None);
}

#[test]
fn a_generated_name_is_validated_with_its_suffix() {
    let mut generated = job();
    generated["metadata"] = json!({"generateName": "train-"});
    assert!(created(&generated).allowed);
    generated["metadata"] = json!({"generateName": "x".repeat(55)});
    assert_refused(&created(&generated), "must fit in 63");
}

#[track_caller]
fn assert_refused(response: &AdmissionResponse, part: &str) {
    let message = &response.result.message;
    assert!(!response.allowed && message.contains(part), "{part}: {message}");
}

#[track_caller]
fn assert_allowed(response: &AdmissionResponse) {
    assert!(response.allowed, "{}", response.result.message);
}

#[test]
fn deletions_and_updates_of_deleting_jobs_are_neither_rejected_nor_mutated() {
    let bad = job_with(&json!({"ipusPerJobInstance": "3"}));
    assert_allowed(&check("DELETE", &Value::Null, &bad));
    assert_allowed(&check("CONNECT", &Value::Null, &Value::Null));
    let mut deleting = bad.clone();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleting["metadata"]["finalizers"] = json!([FINALIZER]);
    let mut without_finalizer = deleting.clone();
    without_finalizer["metadata"]["finalizers"] = json!([]);
    without_finalizer["spec"]["jobInstances"] = json!("many");
    assert_allowed(&check("UPDATE", &without_finalizer, &deleting));
    assert_eq!(mutated("UPDATE", &without_finalizer, &deleting).patch, None);
}

#[test]
fn a_removed_finalizer_is_not_added_again() {
    let mut with_finalizer = job_with(&json!({"ipusPerJobInstance": "3"}));
    with_finalizer["metadata"]["finalizers"] = json!([FINALIZER]);
    let without_finalizer = job_with(&json!({"ipusPerJobInstance": "3"}));
    assert_allowed(&check("UPDATE", &without_finalizer, &with_finalizer));
    assert_eq!(mutated("UPDATE", &without_finalizer, &with_finalizer).patch, None);
}

#[test]
fn an_update_is_rejected_only_for_violations_that_the_stored_object_does_not_have() {
    // The first exceeds a limit of the installation, the second breaks rules of its fields.
    let exceeding = json!({"ipusPerJobInstance": "128"});
    let broken = json!({"cleanPodPolicy": "Some", "unheard": 1});
    for (spec, warned) in [(exceeding, 1), (broken, 2)] {
        let stored = job_with(&spec);
        assert!(!created(&stored).allowed);
        let mut changed = stored.clone();
        changed["spec"]["jobInstances"] = json!(2);
        let reply = check("UPDATE", &changed, &stored);
        assert_allowed(&reply);
        assert_eq!(warnings(&reply).len(), warned, "{:?}", reply.warnings);
        changed["spec"]["cleanPodPolicy"] = json!("Other");
        assert_refused(
            &check("UPDATE", &changed, &stored),
            "breaks a rule:\n- spec.cleanPodPolicy = Other",
        );
        let mut labelled = stored.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_allowed(&check("UPDATE", &labelled, &stored));
    }
    let (large, larger) = (
        job_with(&json!({"ipusPerJobInstance": 128})),
        job_with(&json!({"ipusPerJobInstance": 256})),
    );
    assert_refused(&check("UPDATE", &larger, &large), "use at most 64");
}

#[test]
fn a_job_without_containers_is_rejected_with_field_value_rule_and_fix() {
    let rule = "its first item defines the process of the workers; add a container with a name, an image and a command";
    let empty = json!({"template": {"spec": {"containers": []}}});
    for workers in [
        &json!({}),
        &json!({"template": {}}),
        &json!({"template": {"spec": {}}}),
        &empty,
    ] {
        let idle = job_with(&json!({"workers": workers}));
        let field = "spec.workers.template.spec.containers";
        let value = if *workers == empty { " = []" } else { " is absent" };
        assert_refused(
            &created(&idle),
            &format!("breaks a rule:\n- {field}{value}: {rule}"),
        );
        // Removing the containers is rejected too, and further errors are reported.
        assert!(!check("UPDATE", &idle, &job()).allowed);
        let worse = job_with(&json!({"workers": workers, "ipusPerJobInstance": "3"}));
        assert_refused(&created(&worse), "breaks 2 rules:");
        // A job that is stored so can be changed.
        let suspended = job_with(&json!({"workers": workers, "suspend": true}));
        assert_allowed(&check("UPDATE", &suspended, &idle));
    }
    assert_refused(
        &created(&job_with(&json!({"workers": {"template": 7}}))),
        "breaks a rule:",
    );
}

#[test]
fn a_template_with_the_account_of_a_launcher_is_rejected() {
    let with = |field: &str, name: &str| {
        let mut job = job();
        job["spec"]["workers"]["template"]["spec"][field] = json!(name);
        job
    };
    for field in ["serviceAccountName", "serviceAccount"] {
        let job = with(field, "db-launcher");
        let rule = "names that end in -launcher are reserved";
        assert_refused(
            &created(&job),
            &format!("spec.workers.template.spec.{field} = db-launcher: {rule}"),
        );
    }
    for fine in ["trainer", "launcher", "db-launcher-1", ""] {
        assert_allowed(&created(&with("serviceAccountName", fine)));
    }
}

#[test]
fn the_limits_of_the_installation_are_enforced_for_scaling_too() {
    let rules = AdmissionRules {
        limits: Limits::default().with_max_ipus("16".parse::<IpuCount>().unwrap()),
        max_instances: 8,
    };
    let create =
        |spec: &Value| validate(&review("CREATE", "", &job_with(spec), &Value::Null), &rules).unwrap();
    assert_refused(&create(&json!({"ipusPerJobInstance": 32})), "use at most 16");
    assert_refused(
        &create(&json!({"jobInstances": 9})),
        "spec.jobInstances = 9: at most 8",
    );
    let scale = |new: i64, old: i64| {
        let [new, old] = [new, old].map(|replicas| {
            let metadata = json!({"name": "job", "namespace": "default"});
            json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": replicas}})
        });
        let review = review("UPDATE", "scale", &new, &old);
        assert_eq!(mutate(&review).unwrap().patch, None);
        validate(&review, &rules).unwrap()
    };
    for (new, old) in [(8, 1), (0, 1), (9, 10), (9, 9)] {
        assert_allowed(&scale(new, old));
    }
    for (new, old) in [(9, 1), (10, 9)] {
        let message = format!(
            "the Scale breaks a rule:\n- spec.replicas = {new}: at most 8 instances of a job are allowed here"
        );
        assert_refused(&scale(new, old), &message);
    }
}

#[test]
fn the_status_and_other_resources_are_admitted() {
    let bad = json!({"spec": {}});
    let status = review("UPDATE", "status", &bad, &Value::Null);
    assert_allowed(&validate(&status, &AdmissionRules::default()).unwrap());
    let other_resource = String::from_utf8(review("CREATE", "", &bad, &Value::Null)).unwrap();
    let other_resource = other_resource.replace("ipujobs", "pods");
    assert_allowed(&validate(other_resource.as_bytes(), &AdmissionRules::default()).unwrap());
    assert_eq!(mutate(other_resource.as_bytes()).unwrap().patch, None);
}

#[test]
fn an_invalid_review_is_an_error() {
    let rules = AdmissionRules::default();
    let valid = String::from_utf8(review("CREATE", "", &job(), &Value::Null)).unwrap();
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    for text in [
        "",
        "{}",
        "[]",
        "null",
        "{\"request\":",
        &deep,
        &valid.replace("io/v1", "io/v1beta1"),
    ] {
        let error = validate(text.as_bytes(), &rules).unwrap_err();
        assert!(matches!(error, ReviewError::Malformed { .. }), "{text}: {error}");
        assert!(mutate(text.as_bytes()).is_err());
    }
    let mut many = job();
    many["spec"]["launcher"] = json!({"env": vec![json!({"name": ""}); 50_001]});
    let error = validate(&review("CREATE", "", &many, &Value::Null), &rules).unwrap_err();
    assert!(matches!(error, ReviewError::TooMuch { .. }), "{error}");
    let error = validate(&vec![b' '; MAX_REVIEW_BYTES + 1], &rules).unwrap_err();
    assert!(matches!(error, ReviewError::TooLarge { .. }), "{error}");
}

#[test]
fn the_response_is_small_for_any_number_of_errors_and_warnings() {
    let mut bad = job();
    for number in 0..10_000 {
        bad["spec"][format!("field\n{number}")] = json!(1);
    }
    let reply = created(&bad);
    assert_refused(&reply, "breaks 100 rules");
    assert!(!reply.result.message.contains("field\n") && reply.result.message.len() < 64_000);
    let mut named = job();
    named["spec"]["x".repeat(1_000_000)] = json!(1);
    named["spec"]["restartPolicy"] = json!({"type": "ExitCode", "exitCodes": "y".repeat(1_000_000)});
    let reply = created(&named);
    assert!(!reply.allowed && serde_json::to_string(&reply).unwrap().len() < 6_000);
    let mut more = bad.clone();
    more["spec"]["jobInstances"] = json!(2);
    let reply = check("UPDATE", &more, &bad);
    assert_allowed(&reply);
    assert_eq!(warnings(&reply).len(), 16);
}
