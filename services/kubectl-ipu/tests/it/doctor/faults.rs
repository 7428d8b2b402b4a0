//! Faults that a printed command mends, planted one by one into installations by manifests and by both
//! versions of Helm.

use std::path::Path;

use ipu_test_cluster::{Cluster, Tool, find_tools, private};
use serde_json::json;

use super::site::{Site, certificate};
use super::{assert_clean, codes, examine, fix};
use crate::harness::{DEPLOY, install_crd, set_status};

/// A fault with the code of its finding.
type Fault = (&'static str, fn(&Site, &Cluster));

/// Faults of objects that are shipped.
const FAULTS: &[Fault] = &[
    ("CrdOlder", |_, cluster| {
        let version = "graphcore.ai/crd-version=0.0.1";
        let annotate = ["annotate", "crd", "ipujobs.graphcore.ai", "--overwrite", version];
        cluster.kubectl(&annotate).unwrap();
    }),
    ("OperatorNotReady", |site, cluster| {
        let deployment = format!("deployment/{}", site.name("controller-manager"));
        site.kubectl(cluster, &["scale", &deployment, "--replicas=0"]);
        let status = json!({"status": {"replicas": 0, "readyReplicas": 0}});
        set_status(cluster, site.namespace, &deployment, &status);
    }),
    ("ProxyNotReady", |site, cluster| {
        site.kubectl(cluster, &["delete", "deployment", &site.name("vipu-proxy")]);
    }),
    ("PermissionMissing", |site, cluster| {
        // Secrets with the certificates, and Leases.
        site.kubectl(cluster, &["delete", "role", &site.name("manager")]);
    }),
    ("PermissionMissing", |site, cluster| {
        site.kubectl(
            cluster,
            &["delete", "clusterrolebinding", &site.name("vipu-proxy")],
        );
    }),
    ("WebhookAbsent", |site, cluster| {
        let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        site.kubectl(cluster, &["delete", kinds, &site.name("admission")]);
    }),
    ("WebhookMisdirected", |site, cluster| {
        let patch =
            json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/name", "value": "old"}]);
        site.patch_webhooks(cluster, "mutating", &patch);
    }),
    ("WebhookMisdirected", |site, cluster| {
        let patch = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/"}]);
        site.patch_webhooks(cluster, "mutating", &patch);
    }),
    ("WebhookMisdirected", |site, cluster| {
        let patch = json!([
            {"op": "remove", "path": "/webhooks/0/clientConfig/service"},
            {"op": "add", "path": "/webhooks/0/clientConfig/url", "value": "https://example.com/validate"},
        ]);
        site.patch_webhooks(cluster, "validating", &patch);
    }),
    ("WebhookMisdirected", |site, cluster| {
        site.kubectl(cluster, &["delete", "service", &site.name("webhook-svc")]);
    }),
    // The operator writes the bundle when it starts.
    ("WebhookWrongBundle", |site, cluster| {
        site.set_bundle(cluster, &certificate());
    }),
];

/// Plants each fault, and asserts that doctor finds it alone and that its command mends it.
fn check_faults(cluster: &Cluster, site: &Site, helm: Option<&Path>) {
    for (index, (code, plant)) in FAULTS.iter().enumerate() {
        plant(site, cluster);
        site.renew(cluster);
        let planted = examine(cluster);
        assert_eq!(codes(&planted, "findings"), [*code], "{index}: {planted:#}");
        fix(cluster, &planted, code, helm);
        site.settle(cluster);
        assert_clean(&examine(cluster), &format!("{index}: {code}"));
    }
}

#[test]
fn the_printed_commands_mend_faults_of_an_installation_by_manifests() {
    let Some(cluster) = private("the_printed_commands_mend_faults_of_an_installation_by_manifests") else {
        return;
    };
    let empty = examine(&cluster);
    assert_eq!(codes(&empty, "findings"), ["CrdAbsent", "OperatorAbsent"]);
    fix(&cluster, &empty, "CrdAbsent", None);
    install_crd(&cluster);
    cluster
        .kubectl(&["apply", "-k", &format!("{DEPLOY}/kubernetes")])
        .unwrap();
    let site = Site::new("ipu-operator-system", "ipu-operator");
    site.settle(&cluster);
    // As step 2 of the guide does. No command of a finding resets it.
    let list = "pod1:8090:vipu-ctrl=vctl1";
    let data = json!({"data": {"controllers.yaml": list}}).to_string();
    let map = site.name("vipu-controllers");
    site.kubectl(
        &cluster,
        &["patch", "configmap", &map, "--type=merge", "-p", &data],
    );
    let images = [
        "set",
        "image",
        "deployment/ipu-operator-controller-manager",
        "manager=registry.example.com/ipu-operator:0.1.0",
    ];
    site.kubectl(&cluster, &images);
    site.settle(&cluster);
    assert_clean(&examine(&cluster), "by manifests");

    check_faults(&cluster, &site, None);

    let kept = site.kubectl(&cluster, &["get", "configmap", &map, "-o", "json"]);
    assert!(kept.contains(list), "{kept}");
    let image = "jsonpath={.spec.template.spec.containers[0].image}";
    for (name, expected) in [
        ("controller-manager", "registry.example.com/ipu-operator:0.1.0"),
        ("vipu-proxy", "registry.example.com/vipu-proxy:0.1.0"),
    ] {
        let deployment = format!("deployment/{}", site.name(name));
        assert_eq!(
            site.kubectl(&cluster, &["get", &deployment, "-o", image]),
            expected
        );
    }
}

#[test]
fn the_printed_commands_mend_faults_of_a_release_of_both_versions_of_helm() {
    let name = "the_printed_commands_mend_faults_of_a_release_of_both_versions_of_helm";
    let Some(tools) = find_tools(name, &Tool::HELM) else {
        return;
    };
    let Some(cluster) = private(name) else {
        return;
    };
    for helm in Tool::HELM {
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(tools.path(helm), home.path().join("helm")).unwrap();
        let empty = examine(&cluster);
        assert_eq!(
            codes(&empty, "findings"),
            ["CrdAbsent", "OperatorAbsent"],
            "{helm:?}"
        );
        for code in ["CrdAbsent", "OperatorAbsent"] {
            fix(&cluster, &empty, code, Some(home.path()));
            install_crd(&cluster);
        }
        let site = Site::new("ipu", "gc-ipu-operator");
        site.settle(&cluster);
        assert_clean(&examine(&cluster), &format!("by {helm:?}"));
        check_faults(&cluster, &site, Some(home.path()));
        let mut uninstall = tools.helm(helm, home.path());
        let uninstall =
            uninstall
                .env("KUBECONFIG", cluster.kubeconfig())
                .args(["uninstall", "gc", "--namespace", "ipu"]);
        let output = uninstall.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        cluster
            .kubectl(&["delete", "crd", "ipujobs.graphcore.ai"])
            .unwrap();
    }
}
