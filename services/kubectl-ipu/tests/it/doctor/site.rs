//! An installation on a cluster without nodes.

use std::process::Command;

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
    let mut parameters = rcgen::CertificateParams::new(vec!["ca".into()]).unwrap();
    parameters.not_after = rcgen::date_time_ymd(2090, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    parameters.self_signed(&key).unwrap().pem()
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
        apply(
            cluster,
            &json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": self.name("admission"), "namespace": self.namespace},
                "stringData": {"ca.crt": self.ca},
            }),
        );
        self.set_bundle(cluster, &self.ca);
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
        let bundle = &encoded["data"]["ca"];
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
