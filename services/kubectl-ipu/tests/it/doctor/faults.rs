//! Faults that a printed command mends, planted one by one into installations by manifests, by both versions
//! of Helm, and by a rendering of the chart.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_test_cluster::{Cluster, Tool, find_tools, private};
use serde_json::{Value, json};

use super::site::{Site, certificate, certificate_until, install_attachments};
use super::{assert_clean, codes, examine, fix};
use crate::harness::{DEPLOY, apply, install_crd, set_status};

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
    ("WebhookCertificateExpires", |site, cluster| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let ca = certificate_until(now + Duration::from_secs(5 * 86_400));
        site.set_secret(cluster, &ca);
        site.set_bundle(cluster, &ca);
    }),
    ("WebhookOrphaned", |_, cluster| apply(cluster, &orphan())),
    ("ControllerListEmpty", |site, cluster| {
        site.kubectl(cluster, &["delete", "configmap", &site.name("vipu-controllers")]);
    }),
    ("ControllerListEmpty", |site, cluster| set_list(site, cluster, "")),
    ("ControllerListMalformed", |site, cluster| {
        set_list(site, cluster, "pod1:port");
    }),
    ("ControllerWithoutNode", |_, cluster| {
        cluster
            .kubectl(&["label", "node", "node-a", "vipu-ctrl-"])
            .unwrap();
    }),
    ("LauncherImagePullFailed", |site, cluster| {
        let deployment = format!("deployment/{}", site.name("controller-manager"));
        let variable = |name: &str| {
            let path = format!("jsonpath={{..env[?(@.name=='IPU_OPERATOR_LAUNCHER_{name}')].value}}");
            site.kubectl(cluster, &["get", &deployment, "-o", &path])
        };
        let (mut image, tag) = (variable("IMAGE"), variable("IMAGE_TAG"));
        if !tag.is_empty() {
            image = format!("{image}:{tag}");
        }
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
        let spec =
            json!({"initContainers": [{"name": "launcher", "image": image}], "containers": [container()]});
        add_pod(cluster, &json!({}), &spec);
        let status = json!({"name": "launcher", "image": image, "imageID": "", "ready": false, "restartCount": 0,
            "state": waiting});
        let status = json!({"status": {"phase": "Pending", "initContainerStatuses": [status]}});
        set_status(cluster, "default", "pod/training", &status);
    }),
    ("NetworkAttachmentAbsent", |_, cluster| {
        install_attachments(cluster);
        let network = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "rdma", "namespace": "default"},
        });
        std::fs::write(cluster.directory().join("NETWORK.yaml"), network.to_string()).unwrap();
        let kind = "network-attachment-definitions.k8s.cni.cncf.io";
        cluster
            .kubectl(&["delete", kind, "rdma", "--ignore-not-found"])
            .unwrap();
        let annotations = json!({"k8s.v1.cni.cncf.io/networks": "rdma"});
        add_pod(cluster, &annotations, &json!({"containers": [container()]}));
    }),
    ("OperatorAbsent", |site, cluster| {
        site.kubectl(
            cluster,
            &["delete", "deployment", &site.name("controller-manager")],
        );
    }),
];

/// Findings that other tests mend by their printed commands.
const ELSEWHERE: [&str; 4] = [
    "CrdAbsent",
    "InstallationsOverlap",
    "NamespaceRestricted",
    "QuotaWithoutLimitRange",
];

/// Asserts the effect of a command after which operator or kubelet still have work; returns false for other
/// commands.
fn asserts_effect(code: &str, cluster: &Cluster, site: &Site) -> bool {
    let operator = format!("deployment/{}", site.name("controller-manager"));
    let get = |object: &str, path: &str| {
        let path = format!("jsonpath={path}");
        site.kubectl(cluster, &["get", object, "--ignore-not-found", "-o", &path])
    };
    match code {
        "OperatorNotReady" => assert_eq!(get(&operator, "{.spec.replicas}"), "1"),
        "ProxyNotReady" => {
            let proxy = format!("deployment/{}", site.name("vipu-proxy"));
            assert_eq!(get(&proxy, "{.spec.replicas}"), "1");
        }
        "WebhookWrongBundle" => {
            let restarted = get(&operator, "{.spec.template.metadata.annotations}");
            assert!(restarted.contains("restartedAt"), "{restarted}");
        }
        "WebhookCertificateExpires" => {
            let secret = format!("secret/{}", site.name("admission"));
            assert_eq!(get(&secret, "{.metadata.name}"), "");
        }
        _ => return false,
    }
    true
}

/// Returns a webhook configuration whose installation is gone with its namespace.
fn orphan() -> Value {
    let service = json!({"namespace": "gone", "name": "webhook-svc", "path": "/validate"});
    let rule = json!({"apiGroups": ["graphcore.ai"], "apiVersions": ["v1alpha1"], "resources": ["ipujobs"],
        "operations": ["CREATE"]});
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "old-admission"},
        "webhooks": [{
            "name": "vipujob.graphcore.ai", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": service}, "rules": [rule],
        }],
    })
}

fn container() -> Value {
    json!({"name": "main", "image": "training:1"})
}

fn set_list(site: &Site, cluster: &Cluster, list: &str) {
    let data = json!({"data": {"controllers.yaml": list}}).to_string();
    let map = site.name("vipu-controllers");
    site.kubectl(
        cluster,
        &["patch", "configmap", &map, "--type=merge", "-p", &data],
    );
}

/// Adds a Pod of a job in the namespace `default`.
fn add_pod(cluster: &Cluster, annotations: &Value, spec: &Value) {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"},
    });
    apply(cluster, &account);
    let labels = json!({"graphcore.ai/ipujob-name": "training"});
    let metadata =
        json!({"name": "training", "namespace": "default", "labels": labels, "annotations": annotations});
    apply(
        cluster,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}),
    );
}

/// Plants each fault of `faults`, and asserts that doctor finds it alone and that its command mends it.
fn check_faults<'a>(
    faults: impl IntoIterator<Item = &'a Fault>,
    cluster: &Cluster,
    site: &Site,
    helm: Option<&Path>,
) {
    for (index, (code, plant)) in faults.into_iter().enumerate() {
        plant(site, cluster);
        site.renew(cluster);
        let planted = examine(cluster);
        assert_eq!(codes(&planted, "findings"), [*code], "{index}: {planted:#}");
        fix(cluster, &planted, code, helm);
        if !asserts_effect(code, cluster, site) {
            site.renew(cluster);
            let mended = examine(cluster);
            assert!(!codes(&mended, "findings").contains(code), "{index}: {mended:#}");
        }
        let job = ["delete", "pods", "--selector=graphcore.ai/ipujob-name", "--force"];
        cluster.kubectl(&job).unwrap();
        site.settle(cluster);
        assert_clean(&examine(cluster), &format!("{index}: {code}"));
    }
}

#[test]
fn each_finding_is_mended_by_its_command_in_a_test_or_listed_with_the_reason() {
    let page = std::fs::read_to_string(format!("{DEPLOY}/../docs/reference/doctor.md")).unwrap();
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let mut expected: BTreeSet<&str> = headings.filter(|heading| !heading.contains(' ')).collect();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ["));
    for row in rows {
        let code = row.split(']').next().unwrap();
        assert!(expected.remove(code), "{code}");
    }
    let mended: BTreeSet<&str> = FAULTS.iter().map(|(code, _)| *code).chain(ELSEWHERE).collect();
    assert_eq!(mended, expected);
}

#[test]
fn the_printed_commands_mend_faults_of_an_installation_by_manifests() {
    let Some(cluster) = private("the_printed_commands_mend_faults_of_an_installation_by_manifests") else {
        return;
    };
    // The webhooks are left of an installation whose namespace was deleted.
    let webhooks = format!("{DEPLOY}/kubernetes/webhooks.yaml");
    let selector = "--selector=app.kubernetes.io/component=admission-webhook";
    cluster.kubectl(&["apply", selector, "-f", &webhooks]).unwrap();
    let left = examine(&cluster);
    assert_eq!(
        codes(&left, "findings"),
        ["CrdAbsent", "OperatorAbsent", "WebhookOrphaned"],
        "{left:#}"
    );
    fix(&cluster, &left, "CrdAbsent", None);
    install_crd(&cluster);
    fix(&cluster, &left, "OperatorAbsent", None);
    let site = Site::new("ipu-operator-system", "ipu-operator");
    site.settle(&cluster);
    let image = |name: &str, prefix: &str| {
        format!(
            "{prefix}registry.example.com/{name}:{}",
            env!("CARGO_PKG_VERSION")
        )
    };
    // As step 2 of the guide does. No command of a finding resets it.
    let list = "pod1:8090:vipu-ctrl=vctl1";
    let map = site.name("vipu-controllers");
    set_list(&site, &cluster, list);
    let images = [
        "set",
        "image",
        "deployment/ipu-operator-controller-manager",
        &image("ipu-operator", "manager="),
    ];
    site.kubectl(&cluster, &images);
    site.settle(&cluster);
    assert_clean(&examine(&cluster), "by manifests");

    check_faults(FAULTS, &cluster, &site, None);

    let kept = site.kubectl(&cluster, &["get", "configmap", &map, "-o", "json"]);
    assert!(kept.contains(list), "{kept}");
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    for (name, expected) in [
        ("controller-manager", image("ipu-operator", "")),
        ("vipu-proxy", image("vipu-proxy", "")),
    ] {
        let deployment = format!("deployment/{}", site.name(name));
        assert_eq!(
            site.kubectl(&cluster, &["get", &deployment, "-o", path]),
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
        check_faults(FAULTS, &cluster, &site, Some(home.path()));
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

#[test]
fn the_printed_commands_mend_faults_of_a_rendering_of_the_chart() {
    let name = "the_printed_commands_mend_faults_of_a_rendering_of_the_chart";
    let Some(tools) = find_tools(name, &Tool::HELM) else {
        return;
    };
    let Some(cluster) = private(name) else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(tools.path(Tool::Helm4), home.path().join("helm")).unwrap();
    install_crd(&cluster);
    cluster.kubectl(&["create", "namespace", "ipu"]).unwrap();
    let chart = format!("{DEPLOY}/helm/ipu-operator");
    let mut template = tools.helm(Tool::Helm4, home.path());
    let rendered = template
        .args(["template", "gc", &chart, "--namespace", "ipu"])
        .output();
    let file = cluster.directory().join("rendered.yaml");
    std::fs::write(&file, rendered.unwrap().stdout).unwrap();
    let file = file.to_str().unwrap();
    cluster
        .kubectl(&["apply", "--namespace", "ipu", "-f", file])
        .unwrap();
    std::fs::write(cluster.directory().join("VALUES.yaml"), "{}\n").unwrap();
    let site = Site::new("ipu", "gc-ipu-operator");
    site.settle(&cluster);
    assert_clean(&examine(&cluster), "by a rendering");
    let restored = [
        "ProxyNotReady",
        "PermissionMissing",
        "WebhookAbsent",
        "OperatorAbsent",
    ];
    let faults = FAULTS.iter().filter(|(code, _)| restored.contains(code));
    check_faults(faults, &cluster, &site, Some(home.path()));
}
