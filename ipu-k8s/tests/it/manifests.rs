//! Parsing manifest files: accepted and rejected input, and the position of errors.

use ipu_core::job::{IntOrString, Limits};
use ipu_k8s::crd::{Document, FieldEdit, MAX_MANIFEST_BYTES, Manifest, ManifestError, read_manifests};
use proptest::prelude::*;

const HEAD: &str = "apiVersion: graphcore.ai/v1alpha1\nkind: IPUJob\nmetadata: {name: a, uid: u}\n";

/// Workers with a container.
const WORKERS: &str = "workers: {template: {spec: {containers: [{name: main}]}}}";

fn only(text: &str, edits: &[&str]) -> Manifest {
    let edits: Vec<FieldEdit> = edits.iter().map(|edit| edit.parse().unwrap()).collect();
    match read_manifests(text, &edits).unwrap().remove(0) {
        Document::IpuJob(manifest) => *manifest,
        other => panic!("no IPUJob: {other:?}"),
    }
}

#[track_caller]
fn check_violations(spec: &str, expected: &[&str]) {
    let violations = only(&format!("{HEAD}spec:\n  {WORKERS}\n{spec}"), &[])
        .parse(&Limits::default())
        .unwrap_err();
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    assert_eq!(violations, expected);
}

#[test]
fn the_example_of_the_guide_runs_without_a_warning() {
    let guide = include_str!("../../../docs/ipujob.md");
    let example = guide
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let mut manifest = only(example.unwrap(), &[]);
    manifest.job.metadata.uid = Some("u".into());
    assert_eq!(manifest.parse(&Limits::default()).unwrap().warnings, []);
    assert!(manifest.job.host_view().is_ok());
}

#[test]
fn unknown_fields_are_named_with_the_likely_field() {
    check_violations(
        "  jobInstance: 1\n  ipusPerJobInstance: '3'\n  template: {spec: {}}\n  colour: red\n  interactive: {TTL: 1}\n",
        &[
            "spec.colour = \"red\": is not a field of an IPUJob; remove it; the known fields are account, activeDeadlineSeconds, allocation, cleanPodPolicy, headlessService, interactive, ipusPerJobInstance, ipusPerModelReplica, jobInstances, launcher, managedBy, modelReplicas, modelReplicasPerWorker, preemptible, priority, reconfigurable, restartPolicy, startDeadlineSeconds, suspend, ttlSecondsAfterFinished, workerPerJobInstance, workers, workersPerJobInstance",
            "spec.interactive.TTL = 1: is not a field of an IPUJob; did you mean ttl?",
            "spec.jobInstance = 1: is not a field of an IPUJob; did you mean jobInstances?",
            "spec.template = {…}: is not a field of an IPUJob; did you mean spec.workers.template?",
            "spec.ipusPerJobInstance = \"3\": must be a power of two from 1 to 64; use 2 or 4",
            "spec.interactive.ttl is absent: an interactive job ends after it; add the seconds that the session may last",
        ],
    );
}

#[test]
fn values_of_a_wrong_type_are_named_and_not_reported_as_absent() {
    check_violations(
        "  ipusPerJobInstance: [4]\n  suspend: 'yes'\n  launcher:\n    command: [sleep, 10]\n    env: [{name: A, value: 1}, 7]\n",
        &[
            "spec.ipusPerJobInstance = [4]: must be a number, or a number in quotes; write the number alone",
            "spec.launcher.command[1] = 10: must be a string; put it in quotes",
            "spec.launcher.env[0].value = …: must be a string; put it in quotes",
            "spec.launcher.env[1] = 7: must be an object; write its fields below it, indented",
            "spec.suspend = \"yes\": must be true or false; write true or false without quotes",
        ],
    );
}

#[test]
fn a_list_and_a_short_form_are_written_out_in_the_fix() {
    let exit_codes = "spec.restartPolicy.exitCodes";
    let policy = "spec.restartPolicy";
    let object = "must be an object";
    for (spec, expected) in [
        (
            "restartPolicy: {type: ExitCode, exitCodes: [1, 2]}",
            format!("{exit_codes} = [1,2]: must be a number, or a number in quotes; write \"1,2\""),
        ),
        (
            "restartPolicy: {type: ExitCode, exitCodes: ['1-3', 5]}",
            format!("{exit_codes} = [\"1-3\",5]: must be a number, or a number in quotes; write \"1-3,5\""),
        ),
        (
            "restartPolicy: OnFailure",
            format!("{policy} = \"OnFailure\": {object}; write restartPolicy: {{type: OnFailure}}"),
        ),
        (
            "restartPolicy: never",
            format!("{policy} = \"never\": {object}; write restartPolicy: {{type: Never}}"),
        ),
        (
            "restartPolicy: Sometimes",
            format!("{policy} = \"Sometimes\": {object}; write its fields below it, indented"),
        ),
    ] {
        check_violations(&format!("  ipusPerJobInstance: 4\n  {spec}\n"), &[&expected]);
    }
}

#[test]
fn a_syntax_error_has_its_line() {
    let text = format!("{HEAD}spec:\n  jobInstances: 1\n ipusPerJobInstance: 1\n");
    match read_manifests(&text, &[]) {
        Err(ManifestError::Syntax { line, message, .. }) => {
            assert_eq!(line, 6, "{message}");
            assert!(!message.contains("line"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_that_occurs_twice_is_an_error_without_terms_of_a_library() {
    let text = format!("{HEAD}spec:\n  jobInstances: 1\n  jobInstances: 2\n");
    match read_manifests(&text, &[]) {
        Err(ManifestError::Syntax { line, message, .. }) => {
            assert_eq!(
                (line, &*message),
                (6, "duplicate mapping key: jobInstances not allowed here")
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn anchors_lists_and_json_are_manifests_too() {
    let yaml =
        format!("{HEAD}spec: {{ipusPerJobInstance: &size 4, workersPerJobInstance: *size, {WORKERS}}}\n");
    let parsed = only(&yaml, &[]).parse(&Limits::default()).unwrap();
    assert_eq!(parsed.spec.workers_per_instance(), 4);

    let item = r#"{"apiVersion":"graphcore.ai/v1alpha1","kind":"IPUJob","metadata":{"name":"a","uid":"u"},"spec":{"ipusPerJobInstance":"4","workers":{"template":{"spec":{"containers":[{"name":"main"}]}}}}}"#;
    for text in [
        item.to_owned(),
        format!("{item}\n{item}"),
        item.replace(",", ",\n\t"),
        format!(r#"{{"kind":"List","apiVersion":"v1","items":[{item}]}}"#),
    ] {
        assert!(only(&text, &[]).parse(&Limits::default()).is_ok(), "{text}");
    }
}

#[test]
fn other_documents_are_reported_and_each_document_has_its_line() {
    let text = format!("# first\nkind: Service\nmetadata: {{name: web}}\n---\n---\n{HEAD}spec: {{}}\n");
    let documents = read_manifests(&text, &[]).unwrap();
    let [Document::Skipped(service), Document::IpuJob(job)] = &documents[..] else {
        panic!("{documents:?}")
    };
    assert_eq!(
        (service.kind.as_str(), service.name.as_str(), service.line),
        ("Service", "web", 2)
    );
    assert_eq!(job.line, 6);
}

#[test]
fn a_file_without_an_ipujob_is_rejected_with_its_contents() {
    let error = read_manifests("kind: Service\nmetadata: {name: web}\n", &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no IPUJob in the file, which has Service web: a job starts with `apiVersion: graphcore.ai/v1alpha1` and `kind: IPUJob`"
    );
    assert!(matches!(
        read_manifests("", &[]),
        Err(ManifestError::NoIpuJob { .. })
    ));
    let large = " ".repeat(MAX_MANIFEST_BYTES + 1);
    assert!(matches!(
        read_manifests(&large, &[]),
        Err(ManifestError::TooLarge { .. })
    ));
}

#[test]
fn another_version_or_spelling_of_the_kind_is_named() {
    let text = HEAD.replace("v1alpha1", "v1").replace("IPUJob", "IpuJob");
    let manifest = only(&format!("{text}spec: {{ipusPerJobInstance: 1}}\n"), &[]);
    let faults: Vec<_> = manifest.violations().iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "apiVersion = graphcore.ai/v1: must be graphcore.ai/v1alpha1; write graphcore.ai/v1alpha1",
            "kind = IpuJob: must be IPUJob; write IPUJob",
        ]
    );
    assert!(manifest.parse(&Limits::default()).is_err());
}

#[test]
fn edits_change_exactly_their_fields() {
    let text = format!("{HEAD}spec: {{jobInstances: 1, ipusPerJobInstance: '4', suspend: true}}\n");
    let edits = [
        "jobInstances=3",
        "spec.launcher.command=[mpirun, '-np', '2']",
        "launcher.command[3]=x",
        "spec.suspend=",
        "metadata.annotations.a\\.b/c=d",
    ];
    let job = only(&text, &edits).job;
    assert_eq!(job.spec.job_instances, Some(IntOrString::Int(3)));
    assert_eq!(job.spec.suspend, None);
    assert_eq!(
        job.spec.launcher.unwrap().command.unwrap(),
        ["mpirun", "-np", "2", "x"]
    );
    assert_eq!(job.metadata.annotations.unwrap()["a.b/c"], "d");

    for edit in ["jobInstances.x=1", "launcher.command[7]=x"] {
        let error = read_manifests(&text, &[edit.parse().unwrap()]);
        assert!(matches!(error, Err(ManifestError::Edit { .. })), "{edit}");
    }
    for edit in ["", "a", "=1", "a[=1", "a[x]=1", "a[1001]=1", "a..b=1"] {
        assert!(edit.parse::<FieldEdit>().is_err(), "{edit}");
    }
}

#[test]
fn an_alias_bomb_is_rejected() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let aliases = vec![format!("*a{}", i - 1); 10].join(", ");
        text.push_str(&format!("a{i}: &a{i} [{aliases}]\n"));
    }
    assert!(matches!(
        read_manifests(&text, &[]),
        Err(ManifestError::Syntax { .. })
    ));
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(text in "(apiVersion|kind|IPUJob|spec|metadata|[-:{}\\[\\]&*!|>'\", \n0-9a-z]){0,60}") {
        for document in read_manifests(&text, &[]).unwrap_or_default() {
            if let Document::IpuJob(manifest) = document {
                let _ = manifest.parse(&Limits::default());
                let _ = manifest.job.host_view();
            }
        }
    }

    #[test]
    fn every_value_of_every_field_is_parsed_or_named(field in prop::sample::select(FIELDS), value in value()) {
        let edit: FieldEdit = format!("{field}={value}").parse().unwrap();
        let text = format!("{HEAD}spec: {{ipusPerJobInstance: 4, launcher: {{env: [{{name: A}}]}}, interactive: {{ttl: 1}}, workers: {{}}}}\n");
        for document in read_manifests(&text, &[edit]).unwrap() {
            if let Document::IpuJob(manifest) = document {
                prop_assert!(manifest.violations().iter().all(|fault| fault.field != "spec"), "{:?}", manifest.violations());
            }
        }
    }
}

/// Every field, so that the schema and the types are compared.
const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.generateName",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels",
    "metadata.annotations",
    "metadata.finalizers",
    "metadata.generation",
    "metadata.managedFields",
    "spec.jobInstances",
    "spec.ipusPerJobInstance",
    "spec.workersPerJobInstance",
    "spec.workerPerJobInstance",
    "spec.modelReplicasPerWorker",
    "spec.modelReplicas",
    "spec.ipusPerModelReplica",
    "spec.cleanPodPolicy",
    "spec.interactive",
    "spec.interactive.ttl",
    "spec.launcher",
    "spec.launcher.command",
    "spec.launcher.env",
    "spec.launcher.env[0].name",
    "spec.launcher.env[0].value",
    "spec.launcher.env[0].valueFrom",
    "spec.launcher.resources",
    "spec.launcher.tcpInterface",
    "spec.restartPolicy",
    "spec.restartPolicy.type",
    "spec.restartPolicy.backOffLimit",
    "spec.restartPolicy.exitCodes",
    "spec.restartPolicy.backOffSeconds",
    "spec.workers",
    "spec.workers.replicas",
    "spec.workers.strategy",
    "spec.workers.strategy.type",
    "spec.workers.strategy.rollingUpdate",
    "spec.workers.strategy.rollingUpdate.maxSurge",
    "spec.workers.template",
    "spec.workers.hostNetwork",
    "spec.suspend",
    "spec.managedBy",
    "spec.ttlSecondsAfterFinished",
    "spec.activeDeadlineSeconds",
    "spec.startDeadlineSeconds",
    "spec.priority",
    "spec.account",
    "spec.preemptible",
    "spec.reconfigurable",
    "spec.allocation",
];

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("1.5".to_owned()),
        Just("18446744073709551615".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        "\"[a-z0-9]{0,6}\"",
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec(("(name|value|type|ttl|command|env|a)", inner), 0..3).prop_map(|items| {
                let mut fields: Vec<String> = items
                    .iter()
                    .map(|(name, value)| format!("\"{name}\":{value}"))
                    .collect();
                fields.dedup_by_key(|field| field.split(':').next().map(str::to_owned));
                format!("{{{}}}", fields.join(","))
            }),
        ]
    })
}

#[test]
fn an_edit_with_an_unprintable_value_round_trips() {
    let edit: FieldEdit = "spec.a=[\u{7f}name: A, value: \"1\"}]".parse().unwrap();
    assert_eq!(edit.to_string().parse(), Ok(edit));
}
