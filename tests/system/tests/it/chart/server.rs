//! The API server validates renderings of the chart.

use std::fs;

use ipu_test_cluster::{Tool, shared};

use super::rendering::Renderer;
use crate::installation::{SYSTEM, repository};

/// Options of `--set-json`, several a rendering.
pub(super) const RENDERINGS: [&[&str]; 14] = [
    &[],
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
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rendering.yaml").display().to_string();
    for (options, helm) in RENDERINGS.iter().zip(Tool::HELM.iter().cycle()) {
        let options: Vec<&str> = options
            .iter()
            .flat_map(|option| ["--set-json", *option])
            .collect();
        fs::write(&file, renderer.render(*helm, "gc", &options).unwrap()).unwrap();
        let apply = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &file,
        ];
        let output = cluster
            .kubectl(&apply)
            .unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert!(output.lines().count() >= 10, "{output}");
    }
    let namespaced = cluster
        .kubectl(&["-n", SYSTEM, "get", "deployments", "-o", "name"])
        .unwrap();
    assert_eq!(namespaced, "", "nothing was stored");
}
