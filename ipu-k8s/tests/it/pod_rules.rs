//! Pod templates that the API server refuses for ever, and fields at a wrong level: they are refused before a
//! job holds IPUs.

use ipu_core::job::Limits;
use ipu_k8s::crd::{Document, Manifest, job_container, read_manifests};

const JOB: &str = "
apiVersion: graphcore.ai/v1alpha1
kind: IPUJob
metadata: {name: a, uid: u}
spec:
  ipusPerJobInstance: 4
  workers:
    template:
      metadata: {}
      spec:
        volumes: [{name: data, emptyDir: {}}]
        initContainers: [{name: first, image: i}]
        containers: [{name: main, image: i, env: [{name: A, value: b}]}, {name: side, image: i}]
";

const CONTAINER: &str = "workers.template.spec.containers[0]";

/// Returns the job with its changes, one on each line.
pub(crate) fn manifest(edit: &str) -> Manifest {
    let edits: Vec<_> = edit.split('\n').filter(|edit| !edit.is_empty()).collect();
    let edits: Vec<_> = edits.iter().map(|edit| edit.parse().unwrap()).collect();
    match read_manifests(JOB, &edits).unwrap().remove(0) {
        Document::IpuJob(manifest) => *manifest,
        other => panic!("no IPUJob: {other:?}"),
    }
}

#[track_caller]
fn assert_refused(edit: &str, texts: &[&str]) {
    let violations = manifest(edit).parse(&Limits::default()).unwrap_err();
    let shown: Vec<_> = violations.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), texts.len(), "{edit}: {shown:#?}");
    for (shown, text) in shown.iter().zip(texts) {
        assert!(shown.starts_with(text), "{edit}: {shown}");
    }
}

#[track_caller]
fn assert_warned(edit: &str, texts: &[&str]) {
    let parsed = manifest(edit).parse(&Limits::default()).unwrap();
    let shown: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(shown, texts, "{edit}");
}

#[test]
fn a_template_that_kubernetes_accepts_has_no_violation_and_no_warning() {
    for edit in [
        "",
        "workers.template.metadata.labels={team: a_b.c, example.com/team: ''}",
        "workers.template.metadata.annotations={a: 'any text, of any length'}",
        "workers.template.spec.nodeSelector={kubernetes.io/arch: amd64}",
        "workers.template.spec.terminationGracePeriodSeconds=0",
        // A template of Helm may write an absent text so.
        "workers.template.spec.dnsPolicy=''\nworkers.template.spec.hostname=''",
        &format!(
            "{CONTAINER}.imagePullPolicy=''\n{CONTAINER}.ports=[{{containerPort: 80, name: '', protocol: ''}}]"
        ),
        &format!(
            "{CONTAINER}.volumeMounts=[{{name: data, mountPath: /data}}, {{name: data, mountPath: /other}}]"
        ),
        &format!(
            "{CONTAINER}.ports=[{{containerPort: 80, name: http}}, {{containerPort: 80, protocol: UDP}}]"
        ),
        &format!(
            "{CONTAINER}.resources={{requests: {{cpu: 1000m, memory: 1Gi}}, limits: {{cpu: 1, memory: 1024Mi}}}}"
        ),
        &format!("{CONTAINER}.resources={{limits: {{cpu: '1e3', memory: 1E}}}}"),
        "launcher={command: [a], resources: {requests: {cpu: 1}}}",
    ] {
        assert_warned(edit, &[]);
    }
}

#[test]
fn a_template_that_kubernetes_refuses_for_ever_is_refused_with_its_field() {
    let template = "spec.workers.template";
    let label = "the value of a label has at most 63";
    for (edit, text) in [
        (
            "metadata.labels.team=a b",
            format!("metadata.labels.team = \"a b\": {label}"),
        ),
        (
            "workers.template.metadata.labels.team=-a",
            format!("{template}.metadata.labels.team = \"-a\": {label}"),
        ),
        (
            "workers.template.metadata.labels={a b: c}",
            format!("{template}.metadata.labels = \"a b\": a key has"),
        ),
        (
            "workers.template.metadata.annotations={/a: c}",
            format!("{template}.metadata.annotations = \"/a\": a key"),
        ),
        (
            "workers.template.spec.nodeSelector.a=b c",
            format!("{template}.spec.nodeSelector.a = \"b c\": {label}"),
        ),
        (
            "workers.template.spec.dnsPolicy=default",
            format!("{template}.spec.dnsPolicy = \"default\": must be one of"),
        ),
        (
            "workers.template.spec.hostname=A_b",
            format!("{template}.spec.hostname = \"A_b\": must be at most 63"),
        ),
        (
            "workers.template.spec.terminationGracePeriodSeconds=-1",
            format!("{template}.spec.terminationGracePeriodSeconds = -1: must be from 0"),
        ),
        (
            "workers.template.spec.containers[1].name=main",
            format!("{template}.spec.containers[1].name = \"main\": must be unique"),
        ),
        (
            "workers.template.spec.initContainers[0].name=main",
            format!(
                "{template}.spec.containers[0].name = main: another container of the Pod has the same name"
            ),
        ),
        (
            "workers.template.spec.containers[0].name=Main_1",
            format!("{template}.spec.containers[0].name = \"Main_1\""),
        ),
        (
            "workers.template.spec.containers[0].name=",
            format!("{template}.spec.containers[0].name is absent"),
        ),
        (
            "workers.template.spec.volumes[1]={name: data, emptyDir: {}}",
            format!("{template}.spec.volumes[1].name = \"data\": must be unique"),
        ),
        (
            "workers.template.spec.volumes[0].hostPath={path: /a}",
            format!("{template}.spec.volumes[0] = emptyDir, hostPath: a volume has one source"),
        ),
        (
            "workers.template.spec.containers[0].volumeMounts=[{name: dat, mountPath: /a}]",
            format!("{template}.spec.containers[0].volumeMounts[0].name = dat: no volume"),
        ),
        (
            "workers.template.spec.containers[0].volumeMounts=[{name: data}]",
            format!("{template}.spec.containers[0].volumeMounts[0].mountPath is absent"),
        ),
        (
            "workers.template.spec.containers[0].env[0].valueFrom={fieldRef: {fieldPath: metadata.name}}",
            format!("{template}.spec.containers[0].env[0].valueFrom = {{…}}: a variable has either"),
        ),
        (
            "workers.template.spec.containers[0].imagePullPolicy=always",
            format!("{template}.spec.containers[0].imagePullPolicy = \"always\": must be one of"),
        ),
        (
            "workers.template.spec.containers[0].ports=[{containerPort: 70000}]",
            format!("{template}.spec.containers[0].ports[0].containerPort = 70000: must be from 1 to 65535"),
        ),
        (
            "workers.template.spec.containers[0].args=[1]",
            format!("{template}.spec.containers[0].args[0] = 1: must be a string"),
        ),
        (
            "workers.template.spec.containers[0].command=run",
            format!("{template}.spec.containers[0].command = \"run\": must be a list of strings"),
        ),
        (
            "workers.template.spec.containers[0].ports=[{containerPort: http}]",
            format!("{template}.spec.containers[0].ports[0].containerPort = \"http\": must be a number"),
        ),
        (
            "workers.template.spec.containers[0].resources.requests={memory: 2 GB}",
            format!("{template}.spec.containers[0].resources.requests.memory = \"2 GB\": must be a quantity"),
        ),
        (
            "workers.template.spec.containers[0].resources.requests={memory: 1e3Mi}",
            format!(
                "{template}.spec.containers[0].resources.requests.memory = \"1e3Mi\": must be a quantity"
            ),
        ),
        (
            "workers.template.spec.containers[0].resources={requests: {cpu: 2}, limits: {cpu: 1500m}}",
            format!(
                "{template}.spec.containers[0].resources.requests.cpu = 2: a request is at most the limit"
            ),
        ),
        (
            "workers.template.spec.containers[0].resources.limits={cpu: 0.5}",
            format!(
                "{template}.spec.containers[0].resources.limits.cpu = 0.5: must be a whole number or a string"
            ),
        ),
        (
            "launcher={command: [a], resources: {limits: {cpu: many}}}",
            "spec.launcher.resources.limits.cpu = \"many\": must be a quantity".to_owned(),
        ),
        (
            "launcher={command: [a]}\nworkers.template.spec.volumes[0].name=ipu-tools",
            format!("{template}.spec.volumes[0].name = ipu-tools: the operator adds"),
        ),
    ] {
        assert_refused(edit, &[&*text]);
    }
}

#[test]
fn a_stored_job_that_breaks_a_rule_of_pods_can_still_be_changed() {
    let mut stored = manifest("workers.template.metadata.labels.team=a b");
    stored.job.metadata.uid = Some("u".into());
    let parsed = stored.parse(&Limits::default().for_stored()).unwrap();
    assert_eq!(parsed.warnings.len(), 1, "{:?}", parsed.warnings);
}

#[test]
fn quoted_integers_are_read_with_a_warning_where_an_api_server_refuses_them() {
    let text = |field: &str, number: u32| {
        format!(
            "{field} = \"{number}\": is an integer, and the API server of Kubernetes refuses its quotes; write {number} without quotes"
        )
    };
    for (edit, field, number) in [
        ("jobInstances='2'", "spec.jobInstances", 2),
        ("activeDeadlineSeconds='60'", "spec.activeDeadlineSeconds", 60),
        (
            "restartPolicy={type: OnFailure, backOffLimit: '1'}",
            "spec.restartPolicy.backOffLimit",
            1,
        ),
        ("workers.replicas='1'", "spec.workers.replicas", 1),
        (
            "workers.template.spec.terminationGracePeriodSeconds='5'",
            "spec.workers.template.spec.terminationGracePeriodSeconds",
            5,
        ),
    ] {
        assert_warned(edit, &[&text(field, number)]);
    }
    // These are strings or integers.
    assert_warned("ipusPerJobInstance='4'\nworkersPerJobInstance='2'", &[]);
}

#[test]
fn a_field_at_a_wrong_level_names_the_right_one() {
    for (edit, text) in [
        ("backoffLimit=3", "did you mean spec.restartPolicy.backOffLimit?"),
        ("hostIPC=true", "did you mean spec.workers.template.spec.hostIPC?"),
        ("template={spec: {}}", "did you mean spec.workers.template?"),
        (
            "image=a",
            "did you mean spec.workers.template.spec.containers[0].image",
        ),
        (
            "runPolicy={cleanPodPolicy: All, backoffLimit: 1}",
            "write backoffLimit as spec.restartPolicy.backOffLimit, cleanPodPolicy as spec.cleanPodPolicy",
        ),
    ] {
        let violations = manifest(edit).parse(&Limits::default()).unwrap_err();
        let shown = violations[0].to_string();
        assert!(shown.contains(text), "{edit}: {shown}");
    }
    assert_warned(
        "workers.template.containers=[]",
        &[
            "spec.workers.template.containers = […]: is not a field of a Pod template, unless your version of Kubernetes \
           has added it; did you mean spec.workers.template.spec.containers?",
        ],
    );
}

#[test]
fn names_are_reported_where_they_stand() {
    assert_refused(
        "metadata.namespace=Team_A",
        &["metadata.namespace = \"Team_A\": must be lower-case letters"],
    );
    let mut generated = manifest("metadata.generateName=Train_\nmetadata.name=Train_abcde");
    let shown = |manifest: &Manifest| manifest.parse(&Limits::default()).unwrap_err()[0].to_string();
    assert!(shown(&generated).starts_with("metadata.generateName = Train_: must be lower-case"));
    let long = "x".repeat(50);
    generated.job.metadata.generate_name = Some(long.clone());
    generated.job.metadata.name = Some(format!("{long}abcde"));
    assert_eq!(
        shown(&generated),
        format!(
            "metadata.generateName = {long}: has 50 characters, to which 5 are added, and the name of its last process, \
             <job>-worker-0, must fit in 63; use at most 49 characters"
        )
    );
}

#[test]
fn a_variable_that_selects_ipus_is_named_in_every_container() {
    let rule = "is removed: it selects IPUs, and only the variables of the job's own partition may do that; leave it out";
    for name in [
        "IPUOF_CONFIG_PATH",
        "IPUOF_VIPU_API_HOST",
        "IPUOF_VIPU_API_GCD_ID",
        "IPUOF_VIPU_API_OTHER",
    ] {
        for (field, edit) in [
            (
                "spec.launcher.env",
                "launcher={command: [a], env: [{name: NAME}]}",
            ),
            (
                "spec.workers.template.spec.initContainers[0].env",
                "workers.template.spec.initContainers[0].env=[{name: NAME}]",
            ),
            (
                "spec.workers.template.spec.containers[1].env",
                "workers.template.spec.containers[1].env=[{name: NAME}]",
            ),
        ] {
            assert_warned(
                &edit.replace("NAME", name),
                &[&format!("{field} = {name}: {rule}")],
            );
        }
    }
    assert_warned(
        "workers.template.spec.containers[1].env=[{name: IPUOF_VIPU_API_TIMEOUT, value: '60'}]",
        &[],
    );
}

#[test]
fn an_annotation_that_names_no_container_is_a_warning() {
    let field = "spec.workers.template.metadata.annotations.kubectl.kubernetes.io/default-container";
    let rule = "names no container, and main runs the process of the job";
    assert_warned(
        "workers.template.metadata.annotations={kubectl.kubernetes.io/default-container: mian}",
        &[&format!(
            "{field} = mian: {rule}; write main or side, or leave it out"
        )],
    );
}

#[test]
fn the_container_of_the_job_is_the_annotated_one_or_the_first() {
    let annotated = |name: &str| {
        let annotations = [(
            "kubectl.kubernetes.io/default-container".to_owned(),
            name.to_owned(),
        )];
        job_container(Some(&annotations.into()), ["proxy", "main"])
    };
    assert_eq!(annotated("main"), Some("main"));
    assert_eq!(annotated("absent"), Some("proxy"));
    assert_eq!(job_container(None, ["proxy", "main"]), Some("proxy"));
    assert_eq!(job_container(None, []), None);
    let view =
        manifest("workers.template.metadata.annotations={kubectl.kubernetes.io/default-container: side}");
    let view = view.job.host_view().unwrap();
    assert_eq!(view.container.name, "side");
    assert!(!view.ignored.iter().any(|field| field.contains("annotations")));
    assert!(
        view.ignored
            .iter()
            .any(|field| field.starts_with("spec.workers.template.spec.containers[0]"))
    );
}
