//! Pod templates on a bare host.

use ipu_k8s::crd::{Document, HostView, IpuJob, read_manifests};

fn job(text: &str) -> IpuJob {
    let documents = read_manifests(text, &[]).unwrap();
    let job = documents.into_iter().find_map(|document| match document {
        Document::IpuJob(manifest) => Some(manifest.job),
        _ => None,
    });
    job.unwrap()
}

fn fields(view: &HostView) -> Vec<String> {
    view.ignored
        .iter()
        .map(|ignored| ignored.replace("spec.workers.template", "…"))
        .collect()
}

#[test]
fn the_job_of_listing_8_7_runs_its_command_and_ignored_fields_are_named() {
    let view = job(include_str!("../data/guides/rdma-mnist.yaml"))
        .host_view()
        .unwrap();
    assert_eq!(
        view.container.program().unwrap(),
        [
            "bash",
            "-c",
            "pip3 install -r requirements.txt && python3 mnist_poptorch.py --epochs=1"
        ]
    );
    assert_eq!(
        view.container.working_dir.as_deref(),
        Some("/opt/tutorials/simple_applications/pytorch/mnist")
    );
    assert_eq!(
        fields(&view),
        [
            "….metadata.annotations (k8s.v1.cni.cncf.io/networks)",
            "….spec.restartPolicy (Never)",
            "….spec.securityContext (runAsUser)",
            "….spec.containers[0].image (graphcore/pytorch-tutorials:latest)",
            "….spec.containers[0].resources (limits, requests)",
            "….spec.containers[0].securityContext (capabilities)",
        ]
    );
}

#[test]
fn ignored_volumes_are_named_with_their_kind() {
    let view = job(include_str!("../data/guides/vipu-nfs.yaml"))
        .host_view()
        .unwrap();
    assert_eq!(
        fields(&view),
        [
            "….spec.volumes[0] (mypvc (persistentVolumeClaim))",
            "….spec.containers[0].image (resnet:latest)",
            "….spec.containers[0].volumeMounts (mypvc (mountPath))",
        ]
    );
    assert_eq!(view.container.program(), None);
    let env: Vec<_> = view
        .container
        .env
        .iter()
        .map(|var| (var.name.as_str(), var.value.as_str()))
        .collect();
    assert_eq!(env, [("IPUOF_LOG_LEVEL", "INFO"), ("POPLAR_LOG_LEVEL", "INFO")]);
}

#[test]
fn variables_that_need_kubernetes_are_named_and_the_others_are_kept() {
    let view = job("
apiVersion: graphcore.ai/v1alpha1
kind: IPUJob
spec:
  launcher:
    command: [a]
    env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}, {name: B, value: b}]
  workers:
    template:
      spec:
        containers:
        - name: main
          env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: EMPTY}]
        - {name: sidecar, image: i}
")
    .host_view()
    .unwrap();
    let unsupported: Vec<_> = view.unsupported_env.iter().map(ToString::to_string).collect();
    let rule = "is not set, because its value comes from Kubernetes";
    assert_eq!(
        unsupported,
        [
            format!(
                "spec.workers.template.spec.containers[0].env[0] = NODE: {rule} (fieldRef); give it a value"
            ),
            format!("spec.launcher.env[0] = TOKEN: {rule} (secretKeyRef); give it a value"),
        ]
    );
    assert_eq!(view.container.env.len(), 1);
    assert_eq!(fields(&view), ["….spec.containers[1] (sidecar (image))"]);
}

#[test]
fn an_invalid_template_is_rejected_with_all_its_errors() {
    for (workers, expected) in [
        (
            "{}",
            vec![
                "spec.workers.template.spec.containers is absent: its first item defines the process of the workers; add a container with a name, an image and a command",
            ],
        ),
        (
            "{template: {spec: {containers: [{name: a, env: [{value: x}]}]}}}",
            vec![
                "spec.workers.template.spec.containers[0].env[0] = \"\": a variable's name is not empty and holds no '=', and neither name nor value holds NUL; correct it",
            ],
        ),
        (
            "{template: {spec: {containers: [{name: a, command: [\"a\\0b\"], env: [{name: ''}, {name: A=B}]}]}}}",
            vec![
                "spec.workers.template.spec.containers[0].env[0] = \"\": a variable's name is not empty and holds no '=', and neither name nor value holds NUL; correct it",
                "spec.workers.template.spec.containers[0].env[1] = \"A=B\": a variable's name is not empty and holds no '=', and neither name nor value holds NUL; correct it",
                "spec.workers.template.spec.containers[0].command[0] = a\u{fffd}b: must not contain a NUL character; remove it",
            ],
        ),
    ] {
        let text = format!("apiVersion: graphcore.ai/v1alpha1\nkind: IPUJob\nspec: {{workers: {workers}}}\n");
        let violations = job(&text).host_view().unwrap_err();
        let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
        assert_eq!(violations, expected);
    }
}
