//! Command-line flags of the control-plane servers.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::options::{Audit, ClusterProfile, Durability, Options};
use crate::pki::Pki;

/// Issuer and default audience of service-account tokens.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Address range of Services.
const SERVICE_ADDRESSES: &str = "10.0.0.0/16";

/// Inputs of the flags.
pub(crate) struct ServerPaths<'a> {
    pub(crate) options: Options,
    pub(crate) address: IpAddr,
    pub(crate) pki: &'a Pki,
    pub(crate) directory: &'a Path,
    pub(crate) etcd_url: String,
}

/// Returns the path of the audit policy.
pub(crate) fn audit_policy(directory: &Path) -> PathBuf {
    directory.join("audit-policy.json")
}

/// Audit policy: completed writes, without their content.
pub(crate) const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "omitManagedFields": true,
  "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}]
}"#;

impl ServerPaths<'_> {
    fn key(&self, name: &str) -> String {
        self.pki.path(name).display().to_string()
    }

    pub(crate) fn etcd(&self, data: &Path, peer_url: &str) -> Vec<String> {
        let client = &self.etcd_url;
        let mut arguments: Vec<String> = vec![
            "--name=test".into(),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=test={peer_url}"),
            "--log-level=warn".into(),
            // A single member elects itself and need not wait for others.
            "--heartbeat-interval=10".into(),
            "--election-timeout=100".into(),
        ];
        if self.options.durability == Durability::WithoutSync {
            arguments.push("--unsafe-no-fsync".into());
        }
        arguments
    }

    pub(crate) fn apiserver(&self, port: u16) -> Vec<String> {
        let mut arguments = vec![
            format!("--bind-address={}", self.address),
            format!("--advertise-address={}", self.address),
            format!("--secure-port={port}"),
            format!("--etcd-servers={}", self.etcd_url),
            "--authorization-mode=Node,RBAC".into(),
            "--allow-privileged=true".into(),
            format!("--service-cluster-ip-range={SERVICE_ADDRESSES}"),
            format!("--client-ca-file={}", self.key("ca.crt")),
            format!("--tls-cert-file={}", self.key("apiserver.crt")),
            format!("--tls-private-key-file={}", self.key("apiserver.key")),
            format!("--service-account-issuer={ISSUER}"),
            format!("--api-audiences={ISSUER}"),
            format!("--service-account-key-file={}", self.key("accounts.pub")),
            format!("--service-account-signing-key-file={}", self.key("accounts.key")),
        ];
        if self.options.audit == Audit::Writes {
            arguments.extend([
                format!("--audit-policy-file={}", audit_policy(self.directory).display()),
                format!(
                    "--audit-log-path={}",
                    self.directory.join("logs/audit.log").display()
                ),
                // One file of any size.
                "--audit-log-maxsize=100000".into(),
            ]);
        }
        if self.options.extent >= ClusterProfile::Node {
            arguments.extend([
                format!("--kubelet-certificate-authority={}", self.key("ca.crt")),
                format!("--kubelet-client-certificate={}", self.key("admin.crt")),
                format!("--kubelet-client-key={}", self.key("admin.key")),
                "--kubelet-preferred-address-types=InternalIP".into(),
            ]);
        } else {
            // Loopback is not a valid endpoint, and no client uses the API server's Service. Services lead
            // to the endpoints that a test writes: no kube-proxy routes their addresses.
            arguments.extend([
                "--endpoint-reconciler-type=none".into(),
                "--enable-aggregator-routing=true".into(),
            ]);
        }
        arguments
    }

    pub(crate) fn controller_manager(&self, kubeconfig: &Path, port: u16) -> Vec<String> {
        let mut arguments = self.component_flags(kubeconfig, port);
        arguments.extend([
            "--use-service-account-credentials=true".into(),
            format!("--service-account-private-key-file={}", self.key("accounts.key")),
            format!("--root-ca-file={}", self.key("ca.crt")),
            // No other workload on this machine needs protection.
            "--kube-api-qps=500".into(),
            "--kube-api-burst=1000".into(),
            // Tests wait for the autoscaler.
            "--horizontal-pod-autoscaler-sync-period=1s".into(),
        ]);
        arguments
    }

    pub(crate) fn scheduler(&self, kubeconfig: &Path, port: u16) -> Vec<String> {
        let mut arguments = self.component_flags(kubeconfig, port);
        arguments.extend(["--kube-api-qps=1000".into(), "--kube-api-burst=2000".into()]);
        arguments
    }

    /// Returns the flags that controller manager and scheduler share.
    fn component_flags(&self, kubeconfig: &Path, port: u16) -> Vec<String> {
        let config = kubeconfig.display();
        vec![
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            format!("--bind-address={}", self.address),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", self.key("apiserver.crt")),
            format!("--tls-private-key-file={}", self.key("apiserver.key")),
            "--leader-elect=false".into(),
        ]
    }
}
