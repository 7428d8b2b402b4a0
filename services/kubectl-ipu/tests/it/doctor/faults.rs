//! Faults, planted one by one into installations by manifests and by both versions of Helm. Doctor finds each
//! alone, and its printed command fixes it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_test_cluster::{Cluster, Tool, find_tools, private};
use serde_json::{Value, json};

use super::site::Site;
use super::{assert_clean, codes, examine, fix};
use crate::harness::{DEPLOY, apply, install_crd, set_status};
use crate::https::{foreign_ca, own_ca};

/// A fault with the code of its finding, and a part of its actual state.
type Fault = (&'static str, &'static str, fn(&Site, &Cluster));

const FAULTS: &[Fault] = &[
    ("CrdOlder", "its version is 0.0.1", |_, cluster| {
        let version = "graphcore.ai/crd-version=0.0.1";
        let annotate = ["annotate", "crd", "ipujobs.graphcore.ai", "--overwrite", version];
        cluster.kubectl(&annotate).unwrap();
    }),
    ("OperatorAbsent", "absent", |site, cluster| {
        site.kubectl(
            cluster,
            &["delete", "deployment", &site.name("controller-manager")],
        );
    }),
    ("OperatorNotReady", "0 of 0 replicas", |site, cluster| {
        let deployment = format!("deployment/{}", site.name("controller-manager"));
        site.kubectl(cluster, &["scale", &deployment, "--replicas=0"]);
        let status = json!({"status": {"replicas": 0, "readyReplicas": 0}});
        set_status(cluster, site.namespace, &deployment, &status);
    }),
    ("NoLeader", "last renewed at 2026-01-01", |site, cluster| {
        let spec = json!({"holderIdentity": "operator-1", "renewTime": "2026-01-01T00:00:00.000000Z"});
        let metadata = json!({"name": "ee82fc7a.graphcore.ai", "namespace": site.namespace});
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec});
        apply(cluster, &[lease], &[]);
    }),
    ("ProxyNotReady", "absent", |site, cluster| {
        site.kubectl(cluster, &["delete", "deployment", &site.name("vipu-proxy")]);
    }),
    (
        "ProxyUnreachable",
        "leads to port 9999 of the Pods, and they listen on https",
        |site, cluster| {
            let service = site.name("vipu-proxy");
            let path = "/spec/ports/1/targetPort";
            site.patch(
                cluster,
                &["service", &service],
                &json!([{"op": "replace", "path": path, "value": 9999}]),
            );
            // As the controller of endpoints does for a port that no container has.
            site.set_endpoints(cluster, "vipu-proxy", false);
        },
    ),
    (
        "PermissionMissing",
        "may not update leases/ee82fc7a.graphcore.ai",
        |site, cluster| {
            // Secrets with the certificates, and Leases.
            site.kubectl(cluster, &["delete", "role", &site.name("manager")]);
        },
    ),
    ("PermissionMissing", "create tokenreviews", |site, cluster| {
        site.kubectl(
            cluster,
            &["delete", "clusterrolebinding", &site.name("vipu-proxy")],
        );
    }),
    ("WebhookAbsent", "absent", |site, cluster| {
        let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        site.kubectl(cluster, &["delete", kinds, &site.name("admission")]);
    }),
    ("WebhookMisdirected", "/old, port 443", |site, cluster| {
        let path = "/webhooks/0/clientConfig/service/name";
        let patch = json!([{"op": "replace", "path": path, "value": "old"}]);
        site.patch_webhooks(cluster, "mutating", &patch);
    }),
    ("WebhookMisdirected", "port 444", |site, cluster| {
        let path = "/webhooks/0/clientConfig/service/port";
        let patch = json!([{"op": "replace", "path": path, "value": 444}]);
        site.patch_webhooks(cluster, "validating", &patch);
    }),
    ("WebhookMisdirected", "leads to a URL", |site, cluster| {
        let patch = json!([
            {"op": "remove", "path": "/webhooks/0/clientConfig/service"},
            {"op": "add", "path": "/webhooks/0/clientConfig/url", "value": "https://127.0.0.1:9/validate"},
        ]);
        site.patch_webhooks(cluster, "validating", &patch);
    }),
    ("WebhookUnreachable", "its Service is absent", |site, cluster| {
        site.kubectl(cluster, &["delete", "service", &site.name("webhook-svc")]);
    }),
    (
        "WebhookUnreachable",
        "selects app.kubernetes.io/component=old",
        |site, cluster| {
            let service = site.name("webhook-svc");
            let path = "/spec/selector/app.kubernetes.io~1component";
            site.patch(
                cluster,
                &["service", &service],
                &json!([{"op": "replace", "path": path, "value": "old"}]),
            );
            // As the controller of endpoints does for a selector that no Pod has.
            site.set_endpoints(cluster, "webhook-svc", false);
        },
    ),
    // The operator writes the bundle when it starts.
    (
        "WebhookUnreachable",
        "certificate signed by unknown authority",
        |site, cluster| {
            site.set_bundle(cluster, &foreign_ca());
        },
    ),
    (
        "WebhookCertificateExpires",
        "the last CA certificate ends at",
        |site, cluster| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            site.set_bundle(cluster, &own_ca(now + Duration::from_secs(5 * 86_400)));
            let secret = site.name("admission");
            let arguments = ["create", "secret", "generic", &secret, "--from-literal=ca.crt=ca"];
            site.kubectl(cluster, &arguments);
        },
    ),
    ("WebhookOrphaned", "leads to namespace gone", |_, cluster| {
        apply(cluster, &[orphan()], &[])
    }),
    ("ControllerListInvalid", "absent", |site, cluster| {
        site.kubectl(cluster, &["delete", "configmap", &site.name("vipu-controllers")]);
    }),
    (
        "ControllerListInvalid",
        "controllers.yaml is \"\"",
        |site, cluster| set_list(site, cluster, ""),
    ),
    ("ControllerListInvalid", "pod1:port", |site, cluster| {
        set_list(site, cluster, "pod1:port")
    }),
    ("ControllerWithoutNode", "no node has it", |_, cluster| {
        cluster
            .kubectl(&["label", "node", "node-a", "vipu-ctrl-"])
            .unwrap();
    }),
    (
        "ControllerWithoutNode",
        "Node node-a has it and is cordoned",
        |_, cluster| {
            cluster.kubectl(&["cordon", "node-a"]).unwrap();
        },
    ),
    (
        "ControllerWithoutNode",
        "Node node-a has it and is not ready",
        |_, cluster| {
            let down = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
            set_status(cluster, "default", "node/node-a", &down);
        },
    ),
    (
        "RdmaUnavailable",
        "rdma/hca has nothing allocatable",
        |_, cluster| {
            let status = json!({"status": {"capacity": {"rdma/hca": "8"}, "allocatable": {"rdma/hca": "0"}}});
            set_status(cluster, "default", "node/node-a", &status);
        },
    ),
    (
        "LedgerNearlyFull",
        "bytes, and 1048576 are the maximum",
        |site, cluster| {
            site.set_tracker(cluster, &json!({"other": "x".repeat(900_000)}));
        },
    ),
    (
        "PartitionsQuarantined",
        "no IPUJob or Pod of this cluster uses it",
        |site, cluster| {
            site.set_tracker(cluster, &entry(&json!({"is": "quarantined"}), &Value::Null));
        },
    ),
    (
        "PartitionsQuarantined",
        "Pod default/training uses it",
        |site, cluster| {
            let variable = json!({"name": "IPUOF_VIPU_API_PARTITION_ID", "value": "p-lost-0"});
            add_pod(
                cluster,
                &json!({"containers": [{"name": "main", "image": "a", "env": [variable]}]}),
            );
            site.set_tracker(cluster, &entry(&json!({"is": "quarantined"}), &Value::Null));
        },
    ),
    (
        "PartitionsLeaked",
        "for IPUJob team/lost, which does not exist",
        |site, cluster| {
            let owner = json!({"kind": "IPUJob", "job": {"namespace": "team", "name": "lost", "uid": "1"}});
            site.set_tracker(cluster, &entry(&json!({"is": "active"}), &owner));
        },
    ),
    (
        "LauncherImagePullFailed",
        "ErrImagePull: not found",
        |site, cluster| {
            let deployment = format!("deployment/{}", site.name("controller-manager"));
            let variable = |name: &str| {
                let path = format!("jsonpath={{..env[?(@.name=='IPU_OPERATOR_LAUNCHER_{name}')].value}}");
                site.kubectl(cluster, &["get", &deployment, "-o", &path])
            };
            let (mut image, tag) = (variable("IMAGE"), variable("IMAGE_TAG"));
            if !tag.is_empty() {
                image = format!("{image}:{tag}");
            }
            let launcher = json!([{"name": "launcher", "image": image}]);
            add_pod(
                cluster,
                &json!({"initContainers": launcher, "containers": [{"name": "main", "image": "a"}]}),
            );
            let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
            let status = json!({"name": "launcher", "image": image, "imageID": "", "ready": false, "restartCount": 0,
            "state": waiting});
            let status = json!({"status": {"phase": "Pending", "initContainerStatuses": [status]}});
            set_status(cluster, "default", "pod/training", &status);
        },
    ),
    (
        "PodNetworkFailed",
        "failed to find plugin \"macvlan\"",
        |_, cluster| {
            add_pod(cluster, &json!({"containers": [{"name": "main", "image": "a"}]}));
            let event = json!({
                "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "FailedCreatePodSandBox",
                "metadata": {"name": "training.1", "namespace": "default"},
                "message": "failed to find plugin \"macvlan\" in path [/opt/cni/bin]",
                "involvedObject": {"kind": "Pod", "namespace": "default", "name": "training"},
            });
            apply(cluster, &[event], &[]);
        },
    ),
];

/// Findings that other tests plant, and those that only a running proxy or a running job has.
const ELSEWHERE: [&str; 9] = [
    "ControllerUnreachable",
    "CrdAbsent",
    "InstallationsOverlap",
    "MemlockLimitTooLow",
    "NamespaceNotWatched",
    "NamespaceRestricted",
    "PartitionsForeign",
    "PodsLeft",
    "QuotaWithoutLimitRange",
];

/// Returns a ledger with one old entry.
fn entry(phase: &Value, owner: &Value) -> Value {
    let entry = json!({
        "id": "p-lost-0", "spec": {"size": 4}, "phase": phase, "controller": "pod1:8090", "ticket": 1, "since": 0,
        "owner": owner,
    });
    json!({"partition.p-lost-0": entry.to_string()})
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

fn set_list(site: &Site, cluster: &Cluster, list: &str) {
    let data = json!({"data": {"controllers.yaml": list}}).to_string();
    let map = site.name("vipu-controllers");
    site.kubectl(
        cluster,
        &["patch", "configmap", &map, "--type=merge", "-p", &data],
    );
}

/// Adds a Pod of a job in the namespace `default`.
fn add_pod(cluster: &Cluster, spec: &Value) {
    let account = json!({"name": "default", "namespace": "default"});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account});
    let labels = json!({"graphcore.ai/ipujob-name": "training"});
    let metadata = json!({"name": "training", "namespace": "default", "labels": labels});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    apply(cluster, &[account, pod], &[]);
}

/// Asserts the effect of a command after which operator or kubelet still have work; returns false for other
/// commands.
fn asserts_effect((code, actual, _): Fault, cluster: &Cluster, site: &Site) -> bool {
    let operator = format!("deployment/{}", site.name("controller-manager"));
    let get = |object: &str, path: &str| {
        let path = format!("jsonpath={path}");
        site.kubectl(cluster, &["get", object, "--ignore-not-found", "-o", &path])
    };
    match code {
        "OperatorNotReady" => assert_eq!(get(&operator, "{.spec.replicas}"), "1"),
        "OperatorAbsent" => assert_ne!(get(&operator, "{.metadata.name}"), ""),
        "ProxyNotReady" => assert_ne!(
            get(&format!("deployment/{}", site.name("vipu-proxy")), "{.kind}"),
            ""
        ),
        "WebhookUnreachable" if actual.starts_with("certificate") => {
            let restarted = get(&operator, "{.spec.template.metadata.annotations}");
            assert!(restarted.contains("restartedAt"), "{restarted}");
        }
        "WebhookUnreachable" => {
            // The controller of endpoints finds the Pods again.
            site.set_endpoints(cluster, "webhook-svc", true);
            return false;
        }
        "ProxyUnreachable" => {
            site.set_endpoints(cluster, "vipu-proxy", true);
            return false;
        }
        "WebhookAbsent" => {
            // The operator writes the bundle.
            site.set_bundle(cluster, &own_ca(crate::https::NEVER));
            return false;
        }
        "WebhookCertificateExpires" => {
            let secret = format!("secret/{}", site.name("admission"));
            assert_eq!(get(&secret, "{.metadata.name}"), "");
        }
        _ => return false,
    }
    true
}

/// Plants each of these faults, and asserts that doctor finds it alone and that its command fixes it.
/// `restore` does what a note advises instead of a command.
fn check_faults<'a>(
    faults: impl Iterator<Item = &'a Fault>,
    cluster: &Cluster,
    site: &Site,
    helm: Option<&Path>,
    restore: impl Fn(),
) {
    for (index, fault) in faults.enumerate() {
        let (code, actual, plant) = *fault;
        let case = format!("{index}: {code}: {actual}");
        site.renew(cluster);
        plant(site, cluster);
        let planted = examine(cluster);
        assert_eq!(codes(&planted, "findings"), [code], "{case}: {planted:#}");
        let text = planted["findings"][0]["actual"].as_str().unwrap();
        assert!(
            planted.to_string().contains(&actual.replace('"', "\\\"")),
            "{case}: {text}"
        );
        let finding = &planted["findings"][0];
        // Without Helm, the command to install a release is not meant.
        if code == "OperatorAbsent" && helm.is_none() || finding["command"].is_null() {
            restore();
        } else {
            fix(cluster, &planted, code, helm);
        }
        if code != "PartitionsLeaked"
            && finding["commandKind"] != "inspect"
            && !asserts_effect(*fault, cluster, site)
        {
            let fixed = examine(cluster);
            assert!(!codes(&fixed, "findings").contains(&code), "{case}: {fixed:#}");
        }
        let job = ["delete", "pods,events", "--all", "--force", "-n", "default"];
        cluster.kubectl(&job).unwrap();
        let healthy = json!({"status": {"capacity": {"rdma/hca": "8"}, "allocatable": {"rdma/hca": "8"}}});
        set_status(cluster, "default", "node/node-a", &healthy);
        site.settle(cluster);
        assert_clean(&examine(cluster), &case);
    }
}

#[test]
fn each_finding_is_planted_in_a_test() {
    let page = std::fs::read_to_string(format!("{DEPLOY}/../docs/reference/doctor.md")).unwrap();
    let documented: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let planted: BTreeSet<&str> = FAULTS.iter().map(|(code, ..)| *code).chain(ELSEWHERE).collect();
    assert_eq!(planted, documented);
}

#[test]
fn the_printed_commands_fix_faults_of_an_installation_by_manifests() {
    let Some(cluster) = private("the_printed_commands_fix_faults_of_an_installation_by_manifests") else {
        return;
    };
    let empty = examine(&cluster);
    assert_eq!(
        codes(&empty, "findings"),
        ["CrdAbsent", "OperatorAbsent"],
        "{empty:#}"
    );
    assert!(fix(
        &cluster,
        &json!({"findings": [empty["findings"][0]]}),
        "CrdAbsent",
        None
    ));
    let site = Site::by_manifests(&cluster);
    set_list(&site, &cluster, "pod1:8090:vipu-ctrl=vctl1");
    assert_clean(&examine(&cluster), "by manifests");
    // Faults of shipped objects have a note, which says to apply the manifests again.
    check_faults(FAULTS.iter(), &cluster, &site, None, || {
        site.apply_manifests(&cluster);
        set_list(&site, &cluster, "pod1:8090:vipu-ctrl=vctl1");
    });
}

#[test]
fn the_printed_commands_fix_faults_of_a_release_of_both_versions_of_helm() {
    let name = "the_printed_commands_fix_faults_of_a_release_of_both_versions_of_helm";
    let Some(tools) = find_tools(name, &Tool::HELM) else {
        return;
    };
    let Some(cluster) = private(name) else {
        return;
    };
    for (first, helm) in Tool::HELM.into_iter().enumerate() {
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(tools.path(helm), home.path().join("helm")).unwrap();
        let empty = examine(&cluster);
        assert_eq!(
            codes(&empty, "findings"),
            ["CrdAbsent", "OperatorAbsent"],
            "{helm:?}"
        );
        for code in ["CrdAbsent", "OperatorAbsent"] {
            assert!(fix(&cluster, &empty, code, Some(home.path())));
            install_crd(&cluster);
        }
        let site = Site::new("ipu", "gc-ipu-operator");
        site.settle(&cluster);
        assert_clean(&examine(&cluster), &format!("by {helm:?}"));
        // An edit by hand is not a reason for a printed command to fail.
        let deployment = format!("deployment/{}", site.name("vipu-proxy"));
        site.kubectl(
            &cluster,
            &["set", "resources", &deployment, "--requests=memory=100Mi"],
        );
        // Half of the faults with each version.
        let faults = FAULTS.iter().skip(first).step_by(2);
        check_faults(faults, &cluster, &site, Some(home.path()), || ());
        // No command changes the version of an installation.
        let operator = format!("deployment/{}", site.name("controller-manager"));
        let version = "app.kubernetes.io/version=99.1.0";
        site.kubectl(&cluster, &["label", &operator, version, "--overwrite"]);
        site.kubectl(&cluster, &["delete", &deployment]);
        let other = examine(&cluster);
        assert_eq!(
            codes(&other, "findings"),
            ["CrdOlder", "ProxyNotReady"],
            "{other:#}"
        );
        for finding in other["findings"].as_array().unwrap() {
            let note = finding["note"].as_str().unwrap();
            assert!(
                finding["command"].is_null() && note.contains("version 99.1.0"),
                "{other:#}"
            );
        }
        let mut uninstall = tools.helm(helm, home.path());
        uninstall.env("KUBECONFIG", cluster.kubeconfig());
        let output = uninstall
            .args(["uninstall", "gc", "--namespace", "ipu"])
            .output()
            .unwrap();
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
