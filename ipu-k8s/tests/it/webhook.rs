//! What the API server is answered when it asks whether an IPUJob is admitted.

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

/// The IPUJobs of the seeds, as the API server has them.
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

fn judge(operation: &str, new: &Value, old: &Value) -> ReviewResponse {
    validate(&review(operation, "", new, old), &AdmissionRules::default()).unwrap()
}

fn created(job: &Value) -> ReviewResponse {
    judge("CREATE", job, &Value::Null)
}

fn mutated(operation: &str, new: &Value, old: &Value) -> ReviewResponse {
    mutate(&review(operation, "", new, old)).unwrap()
}

/// `object` with the operations of `answer` applied, all of which are `add`.
pub(crate) fn patched(object: &Value, answer: &ReviewResponse) -> Value {
    let mut object = object.clone();
    for operation in answer.patch() {
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
        let answer = mutated("CREATE", &seed, &Value::Null);
        let stored = patched(&seed, &answer);
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
fn a_finalizer_of_somebody_else_stays_and_a_job_of_another_manager_gets_none_of_ours() {
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
    for us in ["graphcore.ai/ipu-operator", ""] {
        let ours = job_with(&json!({"managedBy": us}));
        let stored = patched(&ours, &mutated("CREATE", &ours, &Value::Null));
        assert_eq!(stored["metadata"]["finalizers"], json!([FINALIZER]));
    }
}

#[test]
fn everything_that_is_wrong_is_told_in_one_answer_with_its_fields() {
    let bad = job_with(&json!({
        "ipusPerJobInstance": "3", "cleanPodPolicy": "Some", "jobInstance": 2, "interactive": {"ttl": "soon"},
    }));
    let answer = created(&bad);
    assert!(!answer.allowed());
    for part in [
        "breaks 4 rules:\n- ",
        "spec.ipusPerJobInstance = \"3\": must be a power of two from 1 to 64; use 2 or 4",
        "spec.cleanPodPolicy = Some: ",
        "spec.jobInstance = 2: is no field of an IPUJob; did you mean jobInstances?",
        "spec.interactive.ttl = \"soon\": ",
    ] {
        assert!(answer.message().contains(part), "{part}: {}", answer.message());
    }
    let review = answer.to_review();
    let status = &review["response"]["status"];
    assert_eq!(status["code"], 422);
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 4);
}

#[test]
fn what_is_translated_or_ignored_is_warned_about() {
    let odd = job_with(&json!({
        "workerPerJobInstance": "1",
        "workers": {"strategy": {"type": "Recreate"}, "template": {"spec": {"containers": [{"name": "main"}]}}},
    }));
    let answer = created(&odd);
    assert!(answer.allowed(), "{}", answer.message());
    let all = answer.warnings().join("\n");
    assert!(
        all.contains("spec.workerPerJobInstance = \"1\": is read as workersPerJobInstance"),
        "{all}"
    );
    assert!(all.contains("spec.workers.strategy"), "{all}");
    // What was odd before and is not changed was told before.
    assert!(judge("UPDATE", &odd, &odd).warnings().is_empty());
}

#[test]
fn what_a_template_says_in_vain_is_warned_about() {
    let vain = json!({"name": "IPUOF_VIPU_API_PARTITION_ID", "value": "mine"});
    let said = job_with(&json!({
        "launcher": {"command": ["mpirun"], "env": [vain]},
        "workers": {"hostNetwork": true, "template": {"spec": {
            "restartPolicy": "Always",
            "initContainers": [{"name": "first", "image": "i"}, {"name": "second", "image": "i", "env": [vain]}],
            "containers": [{"name": "main", "image": "i", "env": [{"name": "A", "value": "b"}]}],
        }}},
    }));
    let answer = created(&said);
    assert!(answer.allowed(), "{}", answer.message());
    let about: Vec<&str> = answer
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
        assert!(about.contains(&field), "{field}: {about:?}");
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
fn a_name_that_the_api_server_completes_is_judged_with_its_last_characters() {
    let mut generated = job();
    generated["metadata"] = json!({"generateName": "train-"});
    assert!(created(&generated).allowed());
    generated["metadata"] = json!({"generateName": "x".repeat(55)});
    let message = created(&generated).message().to_owned();
    assert!(message.contains("must fit in 63"), "{message}");
}

#[test]
fn neither_a_deletion_nor_a_change_of_what_is_being_deleted_is_refused_or_changed() {
    let bad = job_with(&json!({"ipusPerJobInstance": "3"}));
    assert!(judge("DELETE", &Value::Null, &bad).allowed());
    assert!(judge("CONNECT", &Value::Null, &Value::Null).allowed());
    let mut dying = bad.clone();
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    dying["metadata"]["finalizers"] = json!([FINALIZER]);
    let mut freed = dying.clone();
    freed["metadata"]["finalizers"] = json!([]);
    freed["spec"]["jobInstances"] = json!("many");
    assert!(judge("UPDATE", &freed, &dying).allowed());
    assert!(mutated("UPDATE", &freed, &dying).patch().is_empty());
}

#[test]
fn a_finalizer_that_is_taken_away_stays_away() {
    let mut held = job_with(&json!({"ipusPerJobInstance": "3"}));
    held["metadata"]["finalizers"] = json!([FINALIZER]);
    let mut freed = held.clone();
    freed["metadata"]["finalizers"] = json!([]);
    assert!(judge("UPDATE", &freed, &held).allowed());
    assert!(mutated("UPDATE", &freed, &held).patch().is_empty());
}

#[test]
fn an_update_is_not_refused_for_a_limit_that_the_stored_object_exceeds() {
    let large = job_with(&json!({"ipusPerJobInstance": "128"}));
    assert!(!created(&large).allowed());
    let mut scaled = large.clone();
    scaled["spec"]["jobInstances"] = json!(2);
    let answer = judge("UPDATE", &scaled, &large);
    assert!(answer.allowed(), "{}", answer.message());
    assert!(
        answer.warnings()[0].contains("spec.ipusPerJobInstance = \"128\""),
        "{:?}",
        answer.warnings()
    );
    // Another rule that it breaks only now is still one.
    scaled["spec"]["cleanPodPolicy"] = json!("Some");
    let message = judge("UPDATE", &scaled, &large).message().to_owned();
    assert!(
        message.contains("breaks a rule:") && message.contains("cleanPodPolicy"),
        "{message}"
    );
    // And so is the same limit, exceeded by more.
    let larger = job_with(&json!({"ipusPerJobInstance": "256"}));
    assert!(!judge("UPDATE", &larger, &large).allowed());
}

#[test]
fn an_update_is_not_refused_for_what_was_wrong_with_the_stored_object_already() {
    let stored = job_with(&json!({"cleanPodPolicy": "Some", "unheard": 1}));
    let mut scaled = stored.clone();
    scaled["spec"]["jobInstances"] = json!(2);
    let answer = judge("UPDATE", &scaled, &stored);
    assert!(answer.allowed(), "{}", answer.message());
    assert_eq!(answer.warnings().len(), 2, "{:?}", answer.warnings());
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(judge("UPDATE", &labelled, &stored).allowed());
    assert!(mutated("UPDATE", &labelled, &stored).patch().is_empty());
}

#[test]
fn a_job_whose_workers_have_nothing_to_run_is_refused_by_field_value_rule_and_fix() {
    let field = "spec.workers.template.spec.containers";
    let rest =
        "its first item says what the workers run; add a container with a name, an image and a command";
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
        assert!(message.contains(rest), "{message}");
        // What runs is not emptied either, and what is wrong besides is told too.
        assert!(!judge("UPDATE", &idle, &job()).allowed());
        let worse = job_with(&json!({"workers": workers, "ipusPerJobInstance": "3"}));
        assert!(created(&worse).message().contains("breaks 2 rules:"));
    }
    let wrong = job_with(&json!({"workers": {"template": 7}}));
    let message = created(&wrong).message().to_owned();
    assert!(message.contains("breaks a rule:"), "{message}");
}

#[test]
fn a_template_that_names_the_account_of_a_launcher_is_refused() {
    let with = |account: &Value| {
        let mut job = job();
        for (field, name) in account.as_object().unwrap() {
            job["spec"]["workers"]["template"]["spec"][field] = name.clone();
        }
        job
    };
    for field in ["serviceAccountName", "serviceAccount"] {
        let thief = with(&json!({field: "db-launcher"}));
        let answer = created(&thief);
        let said = format!(
            "spec.workers.template.spec.{field} = db-launcher: names that end in -launcher are reserved"
        );
        assert!(answer.message().contains(&said), "{}", answer.message());
        assert!(!judge("UPDATE", &thief, &job()).allowed());
        // One that is stored can be changed otherwise.
        let mut suspended = thief.clone();
        suspended["spec"]["suspend"] = true.into();
        assert!(judge("UPDATE", &suspended, &thief).allowed());
    }
    for fine in ["trainer", "launcher", "db-launcher-1", ""] {
        let answer = created(&with(&json!({"serviceAccountName": fine})));
        assert!(answer.allowed(), "{}", answer.message());
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
        let answer = judge("UPDATE", &changed, &stored);
        assert!(answer.allowed(), "{}", answer.message());
        assert!(
            answer.warnings()[0].contains("spec.workers.template.spec.containers"),
            "{:?}",
            answer.warnings()
        );
    }
    assert!(judge("UPDATE", &job(), &stored).warnings().is_empty());
}

#[test]
fn scaling_is_held_to_every_rule_that_its_review_can_tell() {
    let rules = AdmissionRules::default().with_max_instances(200);
    let asked = |name: &str, new: &Value, old: &Value| {
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
        asked(name, &json!({"replicas": new}), &json!({"replicas": old}))
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
    assert_eq!(asked("job", &json!({}), &json!({"replicas": 1})).message(), "");
    for number in [json!(1.5), json!("2"), json!([])] {
        let message = asked("job", &json!({"replicas": number}), &json!({}))
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
    // What was too long already is not made more of, and may become less.
    assert_eq!(replicas(&long, 13, 13), "");
    assert_eq!(replicas(&long, 12, 13), "");
    assert!(replicas(&long, 14, 13).contains("must fit in 63"));
    // What else is wrong with a name is not about its number.
    assert_eq!(replicas("Not.a.label", 3, 1), "");
}

#[test]
fn the_instances_of_a_new_job_are_held_to_the_cap() {
    let rules = AdmissionRules::default().with_max_instances(8);
    let nine = job_with(&json!({"jobInstances": 9}));
    let answer = validate(&review("CREATE", "", &nine, &Value::Null), &rules).unwrap();
    assert!(answer.message().contains("spec.jobInstances = 9: at most 8"));
}

#[test]
fn a_limit_that_is_exceeded_is_exceeded_by_no_more_in_whichever_form() {
    let with = |spec: Value| {
        let mut job = job_with(&spec);
        if spec.get("modelReplicas").is_some() {
            job["spec"].as_object_mut().unwrap().remove("ipusPerJobInstance");
        }
        job
    };
    let refused = |new: Value, old: Value| {
        let (new, old) = (with(new), with(old));
        judge("UPDATE", &new, &old).message().to_owned()
    };
    let alpha = |replicas: u32, each: u32| json!({"modelReplicas": replicas, "ipusPerModelReplica": each});
    let today = |ipus: &str| json!({"ipusPerJobInstance": ipus});
    // The cap is 64.
    for (new, old) in [
        (alpha(2, 64), alpha(4, 32)),
        (alpha(4, 32), alpha(8, 32)),
        (today("128"), alpha(4, 32)),
        (alpha(4, 32), today("128")),
        (alpha(4, 16), alpha(4, 32)),
    ] {
        assert_eq!(refused(new.clone(), old.clone()), "", "{new} instead of {old}");
    }
    for (new, old) in [
        (alpha(4, 64), alpha(4, 32)),
        (alpha(4, 32), alpha(4, 16)),
        (today("256"), alpha(4, 32)),
        (alpha(8, 32), today("128")),
    ] {
        let message = refused(new.clone(), old.clone());
        assert!(
            message.contains("use at most 64"),
            "{new} instead of {old}: {message}"
        );
    }
}

#[test]
fn an_old_fault_of_a_field_excuses_no_other_one_of_it() {
    let refused = |new: &Value, old: &Value| judge("UPDATE", new, old).message().to_owned();
    let named = |name: &str, instances: i64| {
        let mut job = job_with(&json!({"jobInstances": instances}));
        job["metadata"]["name"] = json!(name);
        job
    };
    // No label, and with more instances too long besides.
    let odd = format!("a.{}", "x".repeat(50));
    assert_eq!(refused(&named(&odd, 9), &named(&odd, 1)), "");
    assert!(refused(&named(&odd, 20), &named(&odd, 1)).contains("must fit in 63"));
    let long = "x".repeat(60);
    assert_eq!(refused(&named(&long, 2), &named(&long, 3)), "");
    assert!(refused(&named(&long, 4), &named(&long, 3)).contains("must fit in 63"));
    // Too few is not too many, and nearer to a limit is not farther.
    assert!(refused(&named("job", -1), &named("job", 70_000)).contains("jobInstances = -1"));
    assert!(refused(&named("job", 70_000), &named("job", -1)).contains("jobInstances = 70000"));
    assert_eq!(refused(&named("job", -1), &named("job", -5)), "");
    assert!(refused(&named("job", -5), &named("job", -1)).contains("jobInstances = -5"));
    let codes = |codes: &str| job_with(&json!({"restartPolicy": {"type": "ExitCode", "exitCodes": codes}}));
    assert!(refused(&codes("300"), &codes("400")).contains("exitCodes = 300"));
    assert!(refused(&codes("x"), &codes("y")).contains("exitCodes = x"));
}

#[test]
fn the_cap_of_the_installation_on_ipus_is_held() {
    let limits = Limits::default().with_max_ipus("16".parse::<IpuCount>().unwrap());
    let rules = AdmissionRules::new(limits);
    let large = review(
        "CREATE",
        "",
        &job_with(&json!({"ipusPerJobInstance": 32})),
        &Value::Null,
    );
    let answer = validate(&large, &rules).unwrap();
    assert!(
        answer.message().contains("use at most 16"),
        "{}",
        answer.message()
    );
}

#[test]
fn the_status_and_other_resources_are_let_through() {
    let bad = json!({"spec": 1});
    let status = review("UPDATE", "status", &bad, &bad);
    assert!(validate(&status, &AdmissionRules::default()).unwrap().allowed());
    let stranger = String::from_utf8(review("CREATE", "", &bad, &Value::Null)).unwrap();
    let stranger = stranger.replace("ipujobs", "pods");
    let answer = validate(stranger.as_bytes(), &AdmissionRules::default()).unwrap();
    assert!(answer.allowed() && answer.warnings()[0].contains("pods.graphcore.ai"));
    assert!(mutate(stranger.as_bytes()).unwrap().patch().is_empty());
}

#[test]
fn what_is_no_review_is_an_error_and_a_review_without_its_object_is_refused() {
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
    let nobody = String::from_utf8(review("CREATE", "", &job(), &Value::Null)).unwrap();
    let nobody = nobody.replace("705ab4f5-6393-11e8-b7cc-42010a800002", "");
    let error = validate(nobody.as_bytes(), &rules).unwrap_err();
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
    let answer = validate(&review("CREATE", "", &Value::Null, &Value::Null), &rules).unwrap();
    assert_eq!(answer.to_review()["response"]["status"]["code"], 400);
}

#[test]
fn however_much_is_wrong_or_odd_the_answer_stays_small() {
    let mut bad = job();
    for number in 0..10_000 {
        bad["spec"][format!("field\n{number}")] = json!(1);
    }
    let answer = created(&bad);
    assert!(!answer.message().contains("field\n"));
    assert!(answer.message().len() < 64_000, "{}", answer.message().len());
    assert!(
        answer.message().contains("breaks 1000 rules") && answer.message().ends_with("- and 900 more"),
        "{}",
        answer.message()
    );
    let mut named = job();
    named["spec"]["x".repeat(1_000_000)] = json!(1);
    named["spec"]["restartPolicy"] = json!({"type": "ExitCode", "exitCodes": "y".repeat(1_000_000)});
    let answer = created(&named);
    assert!(!answer.allowed() && answer.to_review().to_string().len() < 6_000);
    let mut more = bad.clone();
    more["spec"]["jobInstances"] = json!(2);
    let answer = judge("UPDATE", &more, &bad);
    assert!(answer.allowed() && answer.warnings().len() == 16);
    assert!(answer.warnings().iter().all(|text| text.len() <= 250));
}
