//! The API server validates renderings of the chart.

use std::fs;

use ipu_test_cluster::{Tool, shared};

use super::matrix::{rendering, value_sets};
use super::rendering::Renderer;
use super::schemas::SKIPPED;
use crate::installation::{SYSTEM, repository};

/// Options of `--set-json`, several a rendering.
pub(super) const RENDERINGS: [&[&str]; 15] = [
    &[],
    // A cluster with another domain.
    &[
        r#"global.vipuControllers="vipu-server.vipu.svc.example.org:8090:vipu-ctrl=vctl1""#,
        "simulator.enabled=true",
        "certManager.enabled=true",
        r#"serviceMonitor={"enabled":true,"account":"a:b"}"#,
        r#"monitoring={"prometheusRule":{"enabled":true},"dashboards":{"enabled":true}}"#,
    ],
    &["controller.replicas=3", "vipuProxy.replicas=3"],
    &[
        "controller.hostNetwork=true",
        "worker.hostNetwork=false",
        "controller.develLogs=true",
    ],
    &[
        r#"watchNamespaces=["default","kube-system"]"#,
        r#"commonLabels={"team":"a"}"#,
    ],
    &[
        r#"global={"imageRegistry":"r.example.com","imagePullSecrets":["a",{"name":"b"}],"launcherImage":"l@sha256:12"}"#,
        r#"admissionWebhooks={"failurePolicy":"Ignore","port":9444,"service":{"type":"NodePort","servicePort":444}}"#,
    ],
    &[
        r#"controller={"podSecurityContext":{"runAsUser":null},"tolerations":[{"operator":"Exists"}],"priorityClassName":"x"}"#,
        r#"vipuProxy={"nodeSelector":{"a":"b"},"resources":{"limits":{"cpu":"1"}},"extraEnv":[{"name":"A","value":"b"}]}"#,
        r#"fullnameOverride="mine""#,
    ],
    &["crds.maintain=false", "simulator.enabled=true"],
    &[
        r#"vipuProxy={"quotas":[{"namespace":"a","maxIpus":4}],"priorities":[{"maxPriority":0}],"placements":{"a:8090":"delegated"}}"#,
        "administrator.create=true",
    ],
    &[
        "networkPolicy.enabled=true",
        r#"networkPolicy.proxyClients=[{"namespaceSelector":{"matchLabels":{"team":"a"}}}]"#,
        r#"networkPolicy.egress=[{"ports":[{"port":443}]},{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]}]"#,
    ],
    &[
        r#"admissionWebhooks={"existingSecret":"a","annotations":{"b":"c"}}"#,
        r#"watchNamespaces=["default"]"#,
    ],
    &[
        r#"extraObjects=[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{{ .Release.Name }}","namespace":"default"}}]"#,
        r#"simulator={"enabled":true,"topology":"1x8","image":{"tag":2}}"#,
    ],
    &["controller.rbac.create=false", "vipuProxy.rbac.create=false"],
    &[
        r#"controller.serviceAccount={"create":false,"name":"a"}"#,
        r#"vipuProxy.serviceAccount={"create":false,"name":"b"}"#,
    ],
    &[
        r#"controller={"affinity":{"nodeAffinity":{}},"podLabels":{"a":"b"},"extraArgs":["--x"],"service":{"type":"LoadBalancer"}}"#,
        r#"vipuProxy={"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}]}"#,
    ],
];

#[test]
fn the_api_server_accepts_renderings_with_strict_validation() {
    let name = "the_api_server_accepts_renderings_with_strict_validation";
    let (Some(renderer), Some(cluster)) = (Renderer::find(name), shared(name)) else {
        return;
    };
    cluster
        .kubectl(&["apply", "-f", &repository("deploy/kubernetes/namespace.yaml")])
        .unwrap();
    // Values name these namespaces.
    for namespace in ["a", "b", "c"] {
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let sets = value_sets();
    let folder = tempfile::tempdir().unwrap();
    let file_of = |number: usize| folder.path().join(format!("{number}.yaml")).display().to_string();
    let mut objects = 0;
    for (number, (options, helm)) in sets.iter().zip(Tool::HELM.iter().cycle()).enumerate() {
        let text = rendering(&renderer, *helm, number);
        let documents: Vec<&str> = text
            .split("---\n")
            .filter(|text| is_of_kubernetes(text))
            .collect();
        assert!(documents.len() >= 10, "{options:?}: {documents:?}");
        objects += documents.len();
        fs::write(file_of(number), documents.join("---\n")).unwrap();
    }
    let apply = |path: &str| {
        let dry_run = ["apply", "--server-side", "--dry-run=server", "--validate=strict"];
        cluster.kubectl(&[&dry_run[..], &["-f", path]].concat())
    };
    match apply(&folder.path().display().to_string()) {
        Ok(output) => assert_eq!(output.lines().count(), objects, "{output}"),
        Err(error) => {
            let rejected = (0..sets.len()).filter(|number| apply(&file_of(*number)).is_err());
            let rejected: Vec<_> = rejected.map(|number| &sets[number]).collect();
            panic!("{rejected:#?}: {error}");
        }
    }
    let namespaced = cluster
        .kubectl(&["-n", SYSTEM, "get", "deployments", "-o", "name"])
        .unwrap();
    assert_eq!(namespaced, "", "nothing was stored");
}

/// Returns whether a document has an object whose kind the API server knows without a CRD.
fn is_of_kubernetes(document: &str) -> bool {
    let is_skipped = |kind: &str| document.contains(&format!("\nkind: {kind}\n"));
    document.contains("kind: ") && !SKIPPED.split(',').any(is_skipped)
}
