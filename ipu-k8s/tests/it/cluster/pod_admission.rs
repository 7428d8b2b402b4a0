//! The rules about Pod templates against the API server whose answer they anticipate.

use std::fs;

use ipu_core::job::Limits;
use ipu_test_cluster::{Cluster, private};
use serde_json::{Value, json};

use crate::pod_rules::manifest;

/// Changes of the template, one of which the API server may accept or refuse.
const EDITS: [&str; 52] = [
    "metadata.labels={team: a_b.c, example.com/team: ''}",
    "metadata.labels={team: 'a b'}",
    "metadata.labels={-team: a}",
    "metadata.annotations={/a: b}",
    "spec.dnsPolicy=''",
    "spec.dnsPolicy=default",
    "spec.hostname=''",
    "spec.hostname=A_b",
    "spec.hostname=a.b",
    "spec.subdomain=''",
    "spec.subdomain=-a",
    "spec.nodeSelector={a: ''}",
    "spec.nodeSelector={a: b c}",
    "spec.terminationGracePeriodSeconds=0",
    "spec.activeDeadlineSeconds=0",
    "spec.activeDeadlineSeconds=4294967296",
    "spec.volumes[0]={name: data}",
    "spec.volumes[0]={name: Data, emptyDir: {}}",
    "spec.volumes[0]={name: data, emptyDir: {}, hostPath: {path: /a}}",
    "spec.volumes[1]={name: data, emptyDir: {}}",
    "spec.initContainers[0].name=main",
    "spec.containers[0].name=''",
    "spec.containers[0].name=a.b",
    "spec.containers[0].imagePullPolicy=''",
    "spec.containers[0].imagePullPolicy=always",
    "spec.containers[0].terminationMessagePolicy=''",
    "spec.containers[0].terminationMessagePolicy=Log",
    "spec.containers[0].env=[{name: A, value: b}, {name: A, value: c}]",
    "spec.containers[0].env=[{name: A, value: '', valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
    "spec.containers[0].env=[{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
    "spec.containers[0].volumeMounts=[{name: other, mountPath: /a}]",
    "spec.containers[0].volumeMounts=[{name: data, mountPath: /a}, {name: data, mountPath: /a}]",
    "spec.containers[0].volumeMounts=[{name: data, mountPath: /a}, {name: data, mountPath: /b}]",
    "spec.containers[0].ports=[{containerPort: 80, name: '', protocol: ''}]",
    "spec.containers[0].ports=[{containerPort: 80, protocol: tcp}]",
    "spec.containers[0].ports=[{containerPort: 0}]",
    "spec.containers[0].ports=[{containerPort: 80, name: a--b}]",
    "spec.containers[0].ports=[{containerPort: 80, name: '80'}]",
    "spec.containers[0].ports=[{containerPort: 80, name: http}, {containerPort: 81, name: http}]",
    "spec.containers[0].resources={limits: {memory: '1e3'}}",
    "spec.containers[0].resources={limits: {memory: 1E}}",
    "spec.containers[0].resources={limits: {memory: 1e3Mi}}",
    "spec.containers[0].resources={limits: {memory: 1 Gi}}",
    "spec.containers[0].resources={limits: {memory: 1GB}}",
    "spec.containers[0].resources={limits: {memory: '.5Gi'}}",
    "spec.containers[0].resources={limits: {memory: '5.'}}",
    "spec.containers[0].resources={limits: {cpu: '+1'}}",
    "spec.containers[0].resources={limits: {cpu: '-1'}}",
    "spec.containers[0].resources={limits: {cpu: ''}}",
    "spec.containers[0].resources={requests: {cpu: 2}, limits: {cpu: 1500m}}",
    "spec.containers[0].resources={requests: {memory: 1Gi}, limits: {memory: 1024Mi}}",
    "spec.containers[0].resources={requests: {cpu: 1}}",
];

/// Lets the API server check the Pod of a template.
fn create(cluster: &Cluster, template: &Value) -> Result<String, String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"]},
        "spec": template["spec"],
    });
    let file = cluster.directory().join("pod.json");
    fs::write(&file, pod.to_string()).map_err(|error| error.to_string())?;
    let arguments = [
        "create",
        "--dry-run=server",
        "-f",
        file.to_str().unwrap_or_default(),
    ];
    cluster.kubectl(&arguments).map_err(|error| error.to_string())
}

#[test]
fn a_template_is_refused_if_and_only_if_the_api_server_refuses_its_pods() {
    let name = "a_template_is_refused_if_and_only_if_the_api_server_refuses_its_pods";
    let Some(cluster) = private(name) else {
        return;
    };
    cluster.kubectl(&["create", "serviceaccount", "default"]).unwrap();
    let mut differences = Vec::new();
    for edit in EDITS {
        let manifest = manifest(&format!("workers.template.{edit}"));
        let refused = manifest.parse(&Limits::default()).err();
        let workers = manifest.job.spec.workers.unwrap();
        let created = create(&cluster, &workers.template.unwrap().0);
        if refused.is_none() != created.is_ok() {
            differences.push(format!("{edit}: {refused:?}, but the API server: {created:?}"));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
