//! An installation on a cluster without nodes.

use std::sync::OnceLock;

use ipu_test_cluster::Cluster;
use serde_json::{Value, json};

use crate::fake_api::Request;
use crate::harness::{DEPLOY, apply, install_crd};
use crate::https::{self, NEVER};

/// Answers for webhooks and proxy.
fn answer(request: &Request) -> Value {
    if request.line.starts_with("GET") {
        return json!({"status": "ok"});
    }
    let review: Value = serde_json::from_str(&request.body).unwrap();
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": true}})
}

/// Returns the port of the server that answers.
fn port() -> u16 {
    static PORT: OnceLock<u16> = OnceLock::new();
    *PORT.get_or_init(|| https::serve(answer))
}

/// Returns the time in the format of Kubernetes.
fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// Names of an installation.
pub(super) struct Site {
    pub(super) namespace: &'static str,
    /// Start of the names of its objects.
    pub(super) prefix: &'static str,
    /// ConfigMap with the ledger.
    pub(super) tracker: &'static str,
}

impl Site {
    /// Names an installation.
    pub(super) const fn new(namespace: &'static str, prefix: &'static str) -> Self {
        Self {
            namespace,
            prefix,
            tracker: "ipu-partitions-tracker",
        }
    }

    /// Installs the manifests.
    pub(super) fn by_manifests(cluster: &Cluster) -> Self {
        install_crd(cluster);
        let site = Self::new("ipu-operator-system", "ipu-operator");
        site.apply_manifests(cluster);
        site.settle(cluster);
        site
    }

    pub(super) fn apply_manifests(&self, cluster: &Cluster) {
        cluster
            .kubectl(&["apply", "-k", &format!("{DEPLOY}/kubernetes")])
            .unwrap();
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
        // The API server calls only addresses of Pods. The namespace enforces the level `restricted`.
        let context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        let spec = json!({"containers": [{"name": "main", "image": "a", "securityContext": context}]});
        let mut objects = vec![
            self.object("v1", "ServiceAccount", "default", json!({})),
            self.object("v1", "Pod", "answers", json!({"spec": spec})),
            json!({
                "apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": false},
                "metadata": {"name": "node-a", "labels": {"vipu-ctrl": "vctl1"}},
            }),
            self.tracker(&json!({})),
            self.lease(),
        ];
        for service in ["webhook-svc", "vipu-proxy"] {
            objects.extend(self.endpoints(service, true));
        }
        apply(cluster, &objects, &[]);
        let deployment = |suffix: &str| {
            let status = json!({"status": {"replicas": 3, "readyReplicas": 3}});
            self.object("apps/v1", "Deployment", &self.name(suffix), status)
        };
        let address = https::host_address();
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let statuses = [
            deployment("controller-manager"),
            deployment("vipu-proxy"),
            self.object(
                "v1",
                "Pod",
                "answers",
                json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}}),
            ),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}, "status": ready}),
        ];
        apply(cluster, &statuses, &["--subresource=status"]);
        self.set_bundle(cluster, &https::own_ca(NEVER));
    }

    /// Returns an object of the namespace with these fields.
    fn object(&self, version: &str, kind: &str, name: &str, fields: Value) -> Value {
        let mut object = fields;
        object["apiVersion"] = version.into();
        object["kind"] = kind.into();
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = self.namespace.into();
        object
    }

    /// Lets a Service lead to the server of the tests, or nowhere.
    pub(super) fn set_endpoints(&self, cluster: &Cluster, service: &str, exist: bool) {
        apply(cluster, &self.endpoints(service, exist), &[]);
    }

    fn endpoints(&self, service: &str, exist: bool) -> [Value; 2] {
        let name = self.name(service);
        let (address, port) = (https::host_address(), port());
        let endpoints = if exist {
            json!([{"addresses": [address]}])
        } else {
            json!([])
        };
        let target = json!({"kind": "Pod", "name": "answers", "namespace": self.namespace});
        let subsets = if exist {
            let addresses = json!([{"ip": address, "targetRef": target}]);
            json!([{"addresses": addresses, "ports": [{"name": "https", "port": port}]}])
        } else {
            json!([])
        };
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": name}}, "addressType": "IPv4",
            "endpoints": endpoints, "ports": [{"name": "https", "port": port}],
        });
        [
            self.object("discovery.k8s.io/v1", "EndpointSlice", &name, slice),
            self.object("v1", "Endpoints", &name, json!({"subsets": subsets})),
        ]
    }

    /// Renews the Lease of the leader.
    pub(super) fn renew(&self, cluster: &Cluster) {
        apply(cluster, &[self.lease()], &[]);
    }

    fn lease(&self) -> Value {
        let spec = json!({"holderIdentity": "operator-1", "renewTime": now(), "leaseDurationSeconds": 3600});
        let lease = json!({"spec": spec});
        self.object("coordination.k8s.io/v1", "Lease", "ee82fc7a.graphcore.ai", lease)
    }

    /// Writes the bundle of both webhooks.
    pub(super) fn set_bundle(&self, cluster: &Cluster, pem: &str) {
        let bundle = json!(k8s_openapi::ByteString(pem.as_bytes().to_vec()));
        let patch = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]);
        for kind in ["mutating", "validating"] {
            self.patch_webhooks(cluster, kind, &patch);
        }
    }

    /// Patches a webhook configuration, `mutating` or `validating`.
    pub(super) fn patch_webhooks(&self, cluster: &Cluster, kind: &str, patch: &Value) {
        let kind = format!("{kind}webhookconfiguration");
        self.patch(cluster, &[&kind, &self.name("admission")], patch);
    }

    /// Applies a JSON patch to an object.
    pub(super) fn patch(&self, cluster: &Cluster, object: &[&str], patch: &Value) {
        let patch = patch.to_string();
        let arguments = [&["patch"], object, &["--type=json", "-p", &patch]].concat();
        self.kubectl(cluster, &arguments);
    }

    /// Writes the entries of the ledger.
    pub(super) fn set_tracker(&self, cluster: &Cluster, data: &Value) {
        apply(cluster, &[self.tracker(data)], &[]);
    }

    fn tracker(&self, data: &Value) -> Value {
        let annotations = json!({"ledger.graphcore.ai/layout": "1"});
        let fields = json!({"data": data, "metadata": {"annotations": annotations}});
        self.object("v1", "ConfigMap", self.tracker, fields)
    }
}
