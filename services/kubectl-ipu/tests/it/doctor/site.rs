//! An installation on a cluster without nodes.

use std::process::Command;
use std::time::Duration;

use ipu_test_cluster::Cluster;
use serde_json::{Value, json};

use crate::harness::{apply, set_status};

/// Names of an installation.
pub(super) struct Site {
    pub(super) namespace: &'static str,
    /// Start of the names of its objects.
    pub(super) prefix: &'static str,
    /// ConfigMap with the ledger.
    pub(super) tracker: &'static str,
    /// CA certificate of its webhooks.
    pub(super) ca: String,
}

/// A self-signed CA certificate in PEM.
pub(super) fn certificate() -> String {
    certificate_until(Duration::from_secs(3_000_000_000))
}

/// A self-signed CA certificate in PEM that ends at this time since 1970.
pub(super) fn certificate_until(end: Duration) -> String {
    let mut parameters = rcgen::CertificateParams::new(vec!["ca".into()]).unwrap();
    parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
    let key = rcgen::KeyPair::generate().unwrap();
    parameters.self_signed(&key).unwrap().pem()
}

/// Adds the kind of NetworkAttachmentDefinitions.
pub(super) fn install_attachments(cluster: &Cluster) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    apply(
        cluster,
        &json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
            "spec": {
                "group": "k8s.cni.cncf.io", "scope": "Namespaced",
                "names": {"kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
            },
        }),
    );
    let established = [
        "wait",
        "--for=condition=Established",
        "crd/network-attachment-definitions.k8s.cni.cncf.io",
        "--timeout=60s",
    ];
    let named = [
        "wait",
        "--for=jsonpath={.status.acceptedNames.kind}=NetworkAttachmentDefinition",
        "crd/network-attachment-definitions.k8s.cni.cncf.io",
        "--timeout=60s",
    ];
    cluster.kubectl(&named).unwrap();
    cluster.kubectl(&established).unwrap();
}

impl Site {
    /// Names an installation with a new CA.
    pub(super) fn new(namespace: &'static str, prefix: &'static str) -> Self {
        Self {
            namespace,
            prefix,
            tracker: "ipu-partitions-tracker",
            ca: certificate(),
        }
    }

    /// Returns the name of an object.
    pub(super) fn name(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.prefix)
    }

    /// Runs `kubectl` in the namespace.
    #[track_caller]
    pub(super) fn kubectl(&self, cluster: &Cluster, arguments: &[&str]) -> String {
        let arguments = [&["-n", self.namespace], arguments].concat();
        cluster.kubectl(&arguments).unwrap()
    }

    /// Writes what operator, proxy and kubelet would write after an installation or a repair.
    pub(super) fn settle(&self, cluster: &Cluster) {
        for suffix in ["controller-manager", "vipu-proxy"] {
            let status = json!({"status": {"replicas": 3, "readyReplicas": 3}});
            let deployment = format!("deployment/{}", self.name(suffix));
            set_status(cluster, self.namespace, &deployment, &status);
        }
        let ca = |cluster| {
            let name = self.name("admission");
            let path = r"jsonpath={.data.ca\.crt}";
            self.kubectl(
                cluster,
                &["get", "secret", &name, "--ignore-not-found", "-o", path],
            )
        };
        if ca(cluster).is_empty() {
            self.set_secret(cluster, &self.ca);
        }
        self.set_encoded_bundle(cluster, &ca(cluster));
        self.set_tracker(cluster, &json!({}));
        let labels = json!({"vipu-ctrl": "vctl1"});
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": labels},
        });
        apply(cluster, &node);
        self.renew(cluster);
    }

    /// Renews the Lease of the leader.
    pub(super) fn renew(&self, cluster: &Cluster) {
        let date = Command::new("date")
            .args(["-u", "+%Y-%m-%dT%H:%M:%S.000000Z"])
            .output();
        let now = String::from_utf8(date.unwrap().stdout).unwrap();
        let spec =
            json!({"holderIdentity": "operator-1", "renewTime": now.trim(), "leaseDurationSeconds": 3600});
        apply(
            cluster,
            &json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "ee82fc7a.graphcore.ai", "namespace": self.namespace}, "spec": spec,
            }),
        );
    }

    /// Writes the bundle of both webhooks.
    pub(super) fn set_bundle(&self, cluster: &Cluster, pem: &str) {
        let literal = format!("--from-literal=ca={pem}");
        let create = [
            "create",
            "secret",
            "generic",
            "x",
            "--dry-run=client",
            "-o",
            "json",
            &literal,
        ];
        let encoded: Value = serde_json::from_str(&cluster.kubectl(&create).unwrap()).unwrap();
        self.set_encoded_bundle(cluster, encoded["data"]["ca"].as_str().unwrap());
    }

    /// Writes the Secret of the webhooks' certificate, as the operator does.
    pub(super) fn set_secret(&self, cluster: &Cluster, pem: &str) {
        apply(
            cluster,
            &json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": self.name("admission"), "namespace": self.namespace},
                "stringData": {"ca.crt": pem},
            }),
        );
    }

    fn set_encoded_bundle(&self, cluster: &Cluster, bundle: &str) {
        let patch = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]);
        for kind in ["mutating", "validating"] {
            self.patch_webhooks(cluster, kind, &patch);
        }
    }

    /// Patches a webhook configuration, `mutating` or `validating`.
    pub(super) fn patch_webhooks(&self, cluster: &Cluster, kind: &str, patch: &Value) {
        let (kind, name, patch) = (
            format!("{kind}webhookconfiguration"),
            self.name("admission"),
            patch.to_string(),
        );
        let arguments = ["patch", &kind, &name, "--type=json", "-p", &patch];
        cluster.kubectl(&arguments).unwrap();
    }

    /// Writes the entries of the ledger.
    pub(super) fn set_tracker(&self, cluster: &Cluster, data: &Value) {
        apply(
            cluster,
            &json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": data,
                "metadata": {
                    "name": self.tracker, "namespace": self.namespace,
                    "annotations": {"ledger.graphcore.ai/layout": "1"},
                },
            }),
        );
    }
}
