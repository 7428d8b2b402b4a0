//! Responses to admission reviews of IPUJobs.

mod random;

use ipu_core::{IpuCount, Limits};
use ipu_k8s::crd::{Document, read_manifests};
use ipu_k8s::webhook::{
    AdmissionRules, FINALIZER, MAX_REVIEW_BYTES, ReviewError, ReviewResponse, mutate, validate,
};
use serde_json::{Value, json};

const SEEDS: [&str; 8] = [
    include_str!("../data/seeds/000-training.yaml"),
    include_str!("../data/seeds/000-interactive.yaml"),
    include_str!("../data/seeds/000-inference.yaml"),
    include_str!("../data/seeds/000-nfs.yaml"),
    include_str!("../data/seeds/001-training.yaml"),
    include_str!("../data/seeds/001-interactive.yaml"),
    include_str!("../data/seeds/001-nfs.yaml"),
    include_str!("../data/seeds/002-mnist.yaml"),
];

/// Returns the IPUJobs of the seeds as the API server stores them.
pub(crate) fn seeds() -> Vec<Value> {
    let jobs = SEEDS.iter().flat_map(|text| read_manifests(text, &[]).unwrap());
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

fn check(operation: &str, new: &Value, old: &Value) -> ReviewResponse {
    validate(&review(operation, "", new, old), &AdmissionRules::default()).unwrap()
}

fn created(job: &Value) -> ReviewResponse {
    check("CREATE", job, &Value::Null)
}

fn mutated(operation: &str, new: &Value, old: &Value) -> ReviewResponse {
    mutate(&review(operation, "", new, old)).unwrap()
}

/// Applies the operations of `reply` to `object`; all of them are `add`.
pub(crate) fn patched(object: &Value, reply: &ReviewResponse) -> Value {
    let mut object = object.clone();
    for operation in reply.patch() {
        assert_eq!(operation["op"], "add");
        let (parent, name) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let value = operation["value"].clone();
        match object.pointer_mut(parent).unwrap() {
            Value::Array(items) if name == "-" => items.push(value),
            Value::Object(fields) => drop(fields.insert(name.to_owned(), value)),
            other => panic!("{operation} into {other}"),
        }
    }
    object
}

fn job() -> Value {
    json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
        "metadata": {"name": "job", "namespace": "default", "uid": "u"},
        "spec": {
            "jobInstances": 1, "ipusPerJobInstance": "4",
            "workers": {"template": {"spec": {"containers": [{"name": "main"}]}}},
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
fn every_ipujob_of_the_seeds_is_admitted_and_gets_the_documented_defaults_once() {
    for seed in seeds() {
        let reply = mutated("CREATE", &seed, &Value::Null);
        let stored = patched(&seed, &reply);
        let spec = &stored["spec"];
        assert!(spec["cleanPodPolicy"].is_string() && spec["restartPolicy"]["type"].is_string());
        assert!(
            spec["restartPolicy"]["backOffLimit"].is_number() && spec["workers"]["replicas"].is_number(),
            "{stored:#}"
        );
        assert_eq!(stored["metadata"]["finalizers"], json!([FINALIZER]));
        let judged = created(&stored);
        assert!(judged.allowed(), "{}", judged.message());
        assert_eq!(judged.warnings(), created(&seed).warnings());
        assert!(mutated("CREATE", &stored, &Value::Null).patch().is_empty());
    }
}

#[test]
fn the_defaults_are_those_of_the_documents() {
    let stored = patched(&job(), &mutated("CREATE", &job(), &Value::Null));
    assert_eq!(stored["spec"]["cleanPodPolicy"], "None");
    assert_eq!(
        stored["spec"]["restartPolicy"],
        json!({"type": "Never", "backOffLimit": 3})
    );
    assert_eq!(stored["spec"]["workers"]["replicas"], 1);
    let written = job_with(&json!({"cleanPodPolicy": "All", "restartPolicy": {"type": "Always"}}));
    let stored = patched(&written, &mutated("CREATE", &written, &Value::Null));
    assert_eq!(stored["spec"]["cleanPodPolicy"], "All");
    assert_eq!(
        stored["spec"]["restartPolicy"],
        json!({"type": "Always", "backOffLimit": 3})
    );
}

#[test]
fn a_foreign_finalizer_is_kept_and_a_job_of_another_manager_gets_no_finalizer() {
    let mut other = job();
    other["metadata"]["finalizers"] = json!(["kueue.x-k8s.io/managed"]);
    let stored = patched(&other, &mutated("CREATE", &other, &Value::Null));
    assert_eq!(
        stored["metadata"]["finalizers"],
        json!(["kueue.x-k8s.io/managed", FINALIZER])
    );
    let managed = job_with(&json!({"managedBy": "kueue.x-k8s.io/multikueue"}));
    let stored = patched(&managed, &mutated("CREATE", &managed, &Value::Null));
    assert!(stored["metadata"].get("finalizers").is_none());
    assert_eq!(stored["spec"]["cleanPodPolicy"], "None");
    for manager in ["graphcore.ai/ipu-operator", ""] {
        let ours = job_with(&json!({"managedBy": manager}));
        let stored = patched(&ours, &mutated("CREATE", &ours, &Value::Null));
        assert_eq!(stored["metadata"]["finalizers"], json!([FINALIZER]));
    }
}

#[test]
fn all_errors_are_in_one_response_with_their_fields() {
    let bad = job_with(&json!({
        "ipusPerJobInstance": "3", "cleanPodPolicy": "Some", "jobInstance": 2, "interactive": {"ttl": "soon"},
    }));
    let reply = created(&bad);
    assert!(!reply.allowed());
    for part in [
        "breaks 4 rules:\n- ",
        "spec.ipusPerJobInstance = \"3\": must be a power of two from 1 to 64; use 2 or 4",
        "spec.cleanPodPolicy = Some: ",
        "spec.jobInstance = 2: is not a field of an IPUJob; did you mean jobInstances?",
        "spec.interactive.ttl = \"soon\": ",
    ] {
        assert!(reply.message().contains(part), "{part}: {}", reply.message());
    }
    let review = reply.to_review();
    let status = &review["response"]["status"];
    assert_eq!(status["code"], 422);
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 4);
}

#[test]
fn translated_and_ignored_fields_cause_warnings() {
    let unusual = job_with(&json!({
        "workerPerJobInstance": "1",
        "workers": {"strategy": {"type": "Recreate"}, "template": {"spec": {"containers": [{"name": "main"}]}}},
    }));
    let reply = created(&unusual);
    assert!(reply.allowed(), "{}", reply.message());
    let all = reply.warnings().join("\n");
    assert!(
        all.contains("spec.workerPerJobInstance = \"1\": is read as workersPerJobInstance"),
        "{all}"
    );
    assert!(all.contains("spec.workers.strategy"), "{all}");
    // Unchanged fields cause no second warning.
    assert!(check("UPDATE", &unusual, &unusual).warnings().is_empty());
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
    assert!(reply.allowed(), "{}", reply.message());
    let warned_fields: Vec<&str> = reply
        .warnings()
        .iter()
        .filter_map(|warning| warning.split(": ").next())
        .collect();
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
    assert!(
        created(&usual).warnings().is_empty(),
        "{:?}",
        created(&usual).warnings()
    );
}

#[test]
fn a_generated_name_is_validated_with_its_suffix() {
    let mut generated = job();
    generated["metadata"] = json!({"generateName": "train-"});
    assert!(created(&generated).allowed());
    generated["metadata"] = json!({"generateName": "x".repeat(55)});
    let message = created(&generated).message().to_owned();
    assert!(message.contains("must fit in 63"), "{message}");
}

#[test]
fn deletions_and_updates_of_deleting_jobs_are_neither_rejected_nor_mutated() {
    let bad = job_with(&json!({"ipusPerJobInstance": "3"}));
    assert!(check("DELETE", &Value::Null, &bad).allowed());
    assert!(check("CONNECT", &Value::Null, &Value::Null).allowed());
    let mut deleting = bad.clone();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleting["metadata"]["finalizers"] = json!([FINALIZER]);
    let mut without_finalizer = deleting.clone();
    without_finalizer["metadata"]["finalizers"] = json!([]);
    without_finalizer["spec"]["jobInstances"] = json!("many");
    assert!(check("UPDATE", &without_finalizer, &deleting).allowed());
    assert!(
        mutated("UPDATE", &without_finalizer, &deleting)
            .patch()
            .is_empty()
    );
}

#[test]
fn a_removed_finalizer_is_not_added_again() {
    let mut with_finalizer = job_with(&json!({"ipusPerJobInstance": "3"}));
    with_finalizer["metadata"]["finalizers"] = json!([FINALIZER]);
    let mut without_finalizer = with_finalizer.clone();
    without_finalizer["metadata"]["finalizers"] = json!([]);
    assert!(check("UPDATE", &without_finalizer, &with_finalizer).allowed());
    assert!(
        mutated("UPDATE", &without_finalizer, &with_finalizer)
            .patch()
            .is_empty()
    );
}

#[test]
fn an_update_is_not_rejected_for_a_limit_that_the_stored_object_exceeds() {
    let large = job_with(&json!({"ipusPerJobInstance": "128"}));
    assert!(!created(&large).allowed());
    let mut scaled = large.clone();
    scaled["spec"]["jobInstances"] = json!(2);
    let reply = check("UPDATE", &scaled, &large);
    assert!(reply.allowed(), "{}", reply.message());
    assert!(
        reply.warnings()[0].contains("spec.ipusPerJobInstance = \"128\""),
        "{:?}",
        reply.warnings()
    );
    // A newly broken rule is still an error.
    scaled["spec"]["cleanPodPolicy"] = json!("Some");
    let message = check("UPDATE", &scaled, &large).message().to_owned();
    assert!(
        message.contains("breaks a rule:") && message.contains("cleanPodPolicy"),
        "{message}"
    );
    // So is the same limit, exceeded by more.
    let larger = job_with(&json!({"ipusPerJobInstance": "256"}));
    assert!(!check("UPDATE", &larger, &large).allowed());
}

#[test]
fn an_update_is_not_rejected_for_errors_of_the_stored_object() {
    let stored = job_with(&json!({"cleanPodPolicy": "Some", "unheard": 1}));
    let mut scaled = stored.clone();
    scaled["spec"]["jobInstances"] = json!(2);
    let reply = check("UPDATE", &scaled, &stored);
    assert!(reply.allowed(), "{}", reply.message());
    assert_eq!(reply.warnings().len(), 2, "{:?}", reply.warnings());
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(check("UPDATE", &labelled, &stored).allowed());
    assert!(mutated("UPDATE", &labelled, &stored).patch().is_empty());
}

#[test]
fn a_job_without_containers_is_rejected_with_field_value_rule_and_fix() {
    let field = "spec.workers.template.spec.containers";
    let rule = "its first item defines the process of the workers; add a container with a name, an image and a command";
    let nothing = [
        json!({}),
        json!({"template": {}}),
        json!({"template": {"spec": {}}}),
    ];
    let empty = json!({"template": {"spec": {"containers": []}}});
    for workers in nothing.iter().chain([&empty]) {
        let idle = job_with(&json!({"workers": workers}));
        let message = created(&idle).message().to_owned();
        let value = if *workers == empty { " = []" } else { "" };
        assert!(
            message.contains("breaks a rule:") && message.contains(&format!("{field}{value}")),
            "{message}"
        );
        assert!(message.contains(rule), "{message}");
        // Removing the containers is rejected too, and further errors are reported.
        assert!(!check("UPDATE", &idle, &job()).allowed());
        let worse = job_with(&json!({"workers": workers, "ipusPerJobInstance": "3"}));
        assert!(created(&worse).message().contains("breaks 2 rules:"));
    }
    let wrong = job_with(&json!({"workers": {"template": 7}}));
    let message = created(&wrong).message().to_owned();
    assert!(message.contains("breaks a rule:"), "{message}");
}

#[test]
fn a_template_with_the_account_of_a_launcher_is_rejected() {
    let with = |account: &Value| {
        let mut job = job();
        for (field, name) in account.as_object().unwrap() {
            job["spec"]["workers"]["template"]["spec"][field] = name.clone();
        }
        job
    };
    for field in ["serviceAccountName", "serviceAccount"] {
        let with_launcher_account = with(&json!({field: "db-launcher"}));
        let reply = created(&with_launcher_account);
        let expected = format!(
            "spec.workers.template.spec.{field} = db-launcher: names that end in -launcher are reserved"
        );
        assert!(reply.message().contains(&expected), "{}", reply.message());
        assert!(!check("UPDATE", &with_launcher_account, &job()).allowed());
        // Other fields of a stored job can be changed.
        let mut suspended = with_launcher_account.clone();
        suspended["spec"]["suspend"] = true.into();
        assert!(check("UPDATE", &suspended, &with_launcher_account).allowed());
    }
    for fine in ["trainer", "launcher", "db-launcher-1", ""] {
        let reply = created(&with(&json!({"serviceAccountName": fine})));
        assert!(reply.allowed(), "{}", reply.message());
    }
}

#[test]
fn a_stored_job_without_containers_can_still_be_changed() {
    let stored = job_with(&json!({"workers": {}}));
    for (workers, instances) in [
        (json!({}), 2),
        (json!({"template": {"spec": {"containers": []}}}), 1),
    ] {
        let changed = job_with(&json!({"workers": workers, "jobInstances": instances}));
        let reply = check("UPDATE", &changed, &stored);
        assert!(reply.allowed(), "{}", reply.message());
        assert!(
            reply.warnings()[0].contains("spec.workers.template.spec.containers"),
            "{:?}",
            reply.warnings()
        );
    }
    assert!(check("UPDATE", &job(), &stored).warnings().is_empty());
}

#[test]
fn scaling_is_validated_with_every_rule_that_its_review_permits() {
    let rules = AdmissionRules::default().with_max_instances(200);
    let scale_review = |name: &str, new: &Value, old: &Value| {
        let scale = |spec: &Value| {
            json!({
                "apiVersion": "autoscaling/v1", "kind": "Scale",
                "metadata": {"name": name, "namespace": "default"}, "spec": spec,
            })
        };
        let review = review("UPDATE", "scale", &scale(new), &scale(old));
        assert!(mutate(&review).unwrap().patch().is_empty());
        validate(&review, &rules).unwrap()
    };
    let replicas = |name: &str, new: i64, old: i64| {
        scale_review(name, &json!({"replicas": new}), &json!({"replicas": old}))
            .message()
            .to_owned()
    };
    for (new, old) in [(200, 1), (0, 1), (299, 300), (300, 300)] {
        assert_eq!(replicas("job", new, old), "");
    }
    for (new, old) in [(201, 1), (301, 300), (70_000, 1), (70_001, 70_000), (-1, 1)] {
        let message = replicas("job", new, old);
        assert!(message.contains(&format!("spec.replicas = {new}: ")), "{message}");
    }
    assert!(replicas("job", 201, 1).contains("at most 200 instances of a job are allowed here"));
    assert_eq!(
        scale_review("job", &json!({}), &json!({"replicas": 1})).message(),
        ""
    );
    for number in [json!(1.5), json!("2"), json!([])] {
        let message = scale_review("job", &json!({"replicas": number}), &json!({}))
            .message()
            .to_owned();
        assert!(
            message.contains(&format!("spec.replicas = {number}: must be a whole number")),
            "{message}"
        );
    }
    // The name of the last launcher has 63 characters with ten instances, and 64 with eleven.
    let long = "x".repeat(52);
    assert_eq!(replicas(&long, 10, 1), "");
    let message = replicas(&long, 11, 1);
    for part in [
        "the Scale breaks a rule:\n- spec.replicas = 11: of metadata.name xxx",
        "has 52 characters, and the name of its last process, <job>-launcher-10, must fit in 63; use fewer",
    ] {
        assert!(message.contains(part), "{message}");
    }
    // A name that was too long already may not get more instances, but fewer.
    assert_eq!(replicas(&long, 13, 13), "");
    assert_eq!(replicas(&long, 12, 13), "");
    assert!(replicas(&long, 14, 13).contains("must fit in 63"));
    // Other errors of a name do not depend on the number.
    assert_eq!(replicas("Not.a.label", 3, 1), "");
}

#[test]
fn the_instances_of_a_new_job_are_limited() {
    let rules = AdmissionRules::default().with_max_instances(8);
    let nine = job_with(&json!({"jobInstances": 9}));
    let reply = validate(&review("CREATE", "", &nine, &Value::Null), &rules).unwrap();
    assert!(reply.message().contains("spec.jobInstances = 9: at most 8"));
}

#[test]
fn an_exceeded_limit_may_not_be_exceeded_further_in_either_form() {
    let with = |spec: Value| {
        let mut job = job_with(&spec);
        if spec.get("modelReplicas").is_some() {
            job["spec"].as_object_mut().unwrap().remove("ipusPerJobInstance");
        }
        job
    };
    let error_of = |new: Value, old: Value| {
        let (new, old) = (with(new), with(old));
        check("UPDATE", &new, &old).message().to_owned()
    };
    let alpha_form =
        |replicas: u32, ipus: u32| json!({"modelReplicas": replicas, "ipusPerModelReplica": ipus});
    let current_form = |ipus: &str| json!({"ipusPerJobInstance": ipus});
    // The maximum is 64.
    for (new, old) in [
        (alpha_form(2, 64), alpha_form(4, 32)),
        (alpha_form(4, 32), alpha_form(8, 32)),
        (current_form("128"), alpha_form(4, 32)),
        (alpha_form(4, 32), current_form("128")),
        (alpha_form(4, 16), alpha_form(4, 32)),
    ] {
        assert_eq!(error_of(new.clone(), old.clone()), "", "{new} instead of {old}");
    }
    for (new, old) in [
        (alpha_form(4, 64), alpha_form(4, 32)),
        (alpha_form(4, 32), alpha_form(4, 16)),
        (current_form("256"), alpha_form(4, 32)),
        (alpha_form(8, 32), current_form("128")),
    ] {
        let message = error_of(new.clone(), old.clone());
        assert!(
            message.contains("use at most 64"),
            "{new} instead of {old}: {message}"
        );
    }
}

#[test]
fn an_old_error_of_a_field_does_not_excuse_another_one() {
    let error_of = |new: &Value, old: &Value| check("UPDATE", new, old).message().to_owned();
    let named = |name: &str, instances: i64| {
        let mut job = job_with(&json!({"jobInstances": instances}));
        job["metadata"]["name"] = json!(name);
        job
    };
    // An invalid label, and too long with more instances.
    let unusual = format!("a.{}", "x".repeat(50));
    assert_eq!(error_of(&named(&unusual, 9), &named(&unusual, 1)), "");
    assert!(error_of(&named(&unusual, 20), &named(&unusual, 1)).contains("must fit in 63"));
    let long = "x".repeat(60);
    assert_eq!(error_of(&named(&long, 2), &named(&long, 3)), "");
    assert!(error_of(&named(&long, 4), &named(&long, 3)).contains("must fit in 63"));
    // A value below the range does not excuse one above it, and a smaller deviation is permitted.
    assert!(error_of(&named("job", -1), &named("job", 70_000)).contains("jobInstances = -1"));
    assert!(error_of(&named("job", 70_000), &named("job", -1)).contains("jobInstances = 70000"));
    assert_eq!(error_of(&named("job", -1), &named("job", -5)), "");
    assert!(error_of(&named("job", -5), &named("job", -1)).contains("jobInstances = -5"));
    let codes = |codes: &str| job_with(&json!({"restartPolicy": {"type": "ExitCode", "exitCodes": codes}}));
    assert!(error_of(&codes("300"), &codes("400")).contains("exitCodes = 300"));
    assert!(error_of(&codes("x"), &codes("y")).contains("exitCodes = x"));
}

#[test]
fn the_maximum_of_ipus_of_the_installation_is_enforced() {
    let limits = Limits::default().with_max_ipus("16".parse::<IpuCount>().unwrap());
    let rules = AdmissionRules::new(limits);
    let large = review(
        "CREATE",
        "",
        &job_with(&json!({"ipusPerJobInstance": 32})),
        &Value::Null,
    );
    let reply = validate(&large, &rules).unwrap();
    assert!(reply.message().contains("use at most 16"), "{}", reply.message());
}

#[test]
fn the_status_and_other_resources_are_admitted() {
    let bad = json!({"spec": 1});
    let status = review("UPDATE", "status", &bad, &bad);
    assert!(validate(&status, &AdmissionRules::default()).unwrap().allowed());
    let other_resource = String::from_utf8(review("CREATE", "", &bad, &Value::Null)).unwrap();
    let other_resource = other_resource.replace("ipujobs", "pods");
    let reply = validate(other_resource.as_bytes(), &AdmissionRules::default()).unwrap();
    assert!(reply.allowed() && reply.warnings()[0].contains("pods.graphcore.ai"));
    assert!(mutate(other_resource.as_bytes()).unwrap().patch().is_empty());
}

#[test]
fn an_invalid_review_is_an_error_and_a_review_without_object_is_rejected() {
    let rules = AdmissionRules::default();
    for text in ["", "{}", "[]", "null", "{\"request\":"] {
        let error = validate(text.as_bytes(), &rules).unwrap_err();
        assert!(matches!(error, ReviewError::Malformed { .. }), "{text}: {error}");
        assert!(mutate(text.as_bytes()).is_err());
    }
    let old = String::from_utf8(review("CREATE", "", &job(), &Value::Null)).unwrap();
    let old = old.replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1");
    let error = validate(old.as_bytes(), &rules).unwrap_err();
    assert!(error.to_string().contains("admission.k8s.io/v1beta1"), "{error}");
    let without_uid = String::from_utf8(review("CREATE", "", &job(), &Value::Null)).unwrap();
    let without_uid = without_uid.replace("705ab4f5-6393-11e8-b7cc-42010a800002", "");
    let error = validate(without_uid.as_bytes(), &rules).unwrap_err();
    assert!(error.to_string().contains("a uid of 0 bytes"), "{error}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(validate(deep.as_bytes(), &rules).is_err());
    let mut many = job();
    many["spec"]["launcher"] = json!({"env": vec![json!({"name": ""}); 50_000]});
    let error = validate(&review("CREATE", "", &many, &Value::Null), &rules).unwrap_err();
    assert!(matches!(error, ReviewError::TooMuch { .. }), "{error}");
    let large = vec![b' '; MAX_REVIEW_BYTES + 1];
    assert!(matches!(
        validate(&large, &rules),
        Err(ReviewError::TooLarge { .. })
    ));
    let reply = validate(&review("CREATE", "", &Value::Null, &Value::Null), &rules).unwrap();
    assert_eq!(reply.to_review()["response"]["status"]["code"], 400);
}

#[test]
fn the_response_is_small_for_any_number_of_errors_and_warnings() {
    let mut bad = job();
    for number in 0..10_000 {
        bad["spec"][format!("field\n{number}")] = json!(1);
    }
    let reply = created(&bad);
    assert!(!reply.message().contains("field\n"));
    assert!(reply.message().len() < 64_000, "{}", reply.message().len());
    assert!(
        reply.message().contains("breaks 1000 rules") && reply.message().ends_with("- and 900 more"),
        "{}",
        reply.message()
    );
    let mut named = job();
    named["spec"]["x".repeat(1_000_000)] = json!(1);
    named["spec"]["restartPolicy"] = json!({"type": "ExitCode", "exitCodes": "y".repeat(1_000_000)});
    let reply = created(&named);
    assert!(!reply.allowed() && reply.to_review().to_string().len() < 6_000);
    let mut more = bad.clone();
    more["spec"]["jobInstances"] = json!(2);
    let reply = check("UPDATE", &more, &bad);
    assert!(reply.allowed() && reply.warnings().len() == 16);
    assert!(reply.warnings().iter().all(|text| text.len() <= 250));
}
