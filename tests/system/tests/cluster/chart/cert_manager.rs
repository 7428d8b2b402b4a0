//! The chart with certificates of cert-manager. This is a soak, because cert-manager takes minutes to build.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use ipu_test_cluster::{Cluster, Tool, Tools, client};
use serde_json::{Value, json};

use super::installation::CONTROLLERS;
use super::removal::CRD;
use crate::figures::record;
use crate::installation::{Product, SYSTEM, prepared_privately, programs, repository, wait_until};

/// Environment variable that chooses the soak.
const CHOSEN: &str = "IPU_SYSTEM_CERT_MANAGER";

/// Namespace of the jobs.
const NAMESPACE: &str = "certified";

/// Format of `kubectl get` for the certificate of a Secret.
const CERTIFICATE: &str = r#"go-template={{index .data "tls.crt" | base64decode}}"#;
/// Format for its CA certificate.
const AUTHORITY: &str = r#"go-template={{index .data "ca.crt" | base64decode}}"#;
/// Format for the CA certificates of a webhook configuration.
const BUNDLE: &str =
    "go-template={{range .webhooks}}{{with .clientConfig.caBundle}}{{base64decode .}}{{end}}{{end}}";

/// A CA of the cluster, as an administrator creates it by cert-manager.
const CLUSTER_ISSUER: &str = r#"
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: root}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: team, namespace: kube-system}
spec:
  isCA: true
  commonName: team
  secretName: team
  issuerRef: {kind: ClusterIssuer, name: root}
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: team}
spec: {ca: {secretName: team}}
"#;

/// Values that select that CA.
const ISSUER_REF: [&str; 4] = [
    "--set",
    "certManager.issuerRef.kind=ClusterIssuer",
    "--set",
    "certManager.issuerRef.name=team",
];

#[test]
fn cert_manager_issues_and_renews_the_certificate_of_the_webhooks() {
    let name = "cert_manager_issues_and_renews_the_certificate_of_the_webhooks";
    if std::env::var_os(CHOSEN).is_none() {
        println!("skipped: {name}: a soak, which {CHOSEN}=1 chooses");
        return;
    }
    let required = [&Tool::HELM[..], &Tool::CERT_MANAGER].concat();
    Tools::find_all(&required).unwrap_or_else(|error| panic!("{error}, with --cert-manager"));
    // The soak is chosen: outside CI, too, it fails without a node.
    let mut product = prepared_privately(name).unwrap();
    assert!(product.has_curl(name));
    product.cluster.start_cert_manager().unwrap();
    product.apply_text(CLUSTER_ISSUER);
    product.kubectl(&["create", "namespace", NAMESPACE]);

    for (release, options) in [("gc", &[][..]), ("ipu-operator", &ISSUER_REF[..])] {
        let release = Certified::install(&product, release, options);
        release.assert_trusted();
        release.run_jobs();
        release.renew("its Secret is deleted", || {
            let secret = ["delete", "secret", &release.certificate()];
            product.kubectl(&[&["-n", SYSTEM], &secret[..]].concat());
        });
        release.renew("its renewal is requested", || release.request_renewal());
        release.assert_healthy();
        release.upgrade();
        release.run_jobs();
        product.uninstall_chart(Tool::Helm4, release.name);
        let left =
            "certificates,issuers,deployments,mutatingwebhookconfigurations,validatingwebhookconfigurations";
        let left = ["-n", SYSTEM, "get", left, "-o", "name"];
        wait_until("the objects of the release are deleted", || {
            match product.kubectl(&left) {
                left if left.is_empty() => Ok(()),
                left => Err(left),
            }
        });
    }
    assert!(product.kubectl(&["get", "crds", "-o", "name"]).contains(CRD));
}

/// A release whose certificate cert-manager issues.
struct Certified<'a> {
    product: &'a Product<Box<Cluster>>,
    name: &'a str,
    chart: String,
    options: &'a [&'a str],
    /// The operator's Pods with their restarts.
    operator: String,
}

impl<'a> Certified<'a> {
    fn install(product: &'a Product<Box<Cluster>>, name: &'a str, options: &'a [&'a str]) -> Self {
        let started = Instant::now();
        let mut release = Self {
            product,
            name,
            chart: repository("deploy/helm/ipu-operator"),
            options,
            operator: String::new(),
        };
        product.install_chart_with(Tool::Helm4, &release.arguments());
        record(&format!(
            "helm install --wait with certManager.enabled=true {}: {:.1} s",
            options.join(" "),
            started.elapsed().as_secs_f64()
        ));
        release.operator = release.operators();
        release
    }

    /// Returns the arguments `RELEASE CHART OPTION…`.
    fn arguments(&self) -> Vec<&str> {
        let values = ["--set", CONTROLLERS, "--set", "certManager.enabled=true"];
        [&[self.name, &self.chart][..], &values, self.options].concat()
    }

    /// Returns the prefix of the object names.
    fn prefix(&self) -> String {
        if self.name == "ipu-operator" {
            self.name.to_owned()
        } else {
            format!("{}-ipu-operator", self.name)
        }
    }

    /// Returns the name of the Certificate and of its Secret.
    fn certificate(&self) -> String {
        format!("{}-webhook-certificate", self.prefix())
    }

    fn in_system(&self, arguments: &[&str]) -> String {
        self.product.kubectl(&[&["-n", SYSTEM], arguments].concat())
    }

    /// Returns a part of the Secret; empty without the Secret.
    fn of_secret(&self, format: &str) -> String {
        let secret = [
            "get",
            "secret",
            &self.certificate(),
            "--ignore-not-found",
            "-o",
            format,
        ];
        self.in_system(&secret)
    }

    fn operators(&self) -> String {
        let path =
            "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{end}";
        self.in_system(&[
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/component=controller-manager",
            "-o",
            path,
        ])
    }

    /// Waits until both webhooks trust the CA of the certificate.
    fn assert_trusted(&self) {
        for kind in ["mutating", "validating"] {
            let configuration = format!("{kind}webhookconfiguration/{}-admission", self.prefix());
            wait_until("the webhooks trust the CA", || {
                let bundle = self.product.kubectl(&["get", &configuration, "-o", BUNDLE]);
                let ca = self.of_secret(AUTHORITY);
                if !ca.is_empty() && bundle == ca {
                    Ok(())
                } else {
                    Err(format!("{bundle:?}, {ca:?}"))
                }
            });
        }
    }

    /// Runs a job, which both webhooks admit, to its end, and submits a job that only a webhook refuses.
    fn run_jobs(&self) {
        let job = "short";
        self.product.submit(NAMESPACE, "inference", |example| {
            example
                .replacen("name: inference", &format!("name: {job}"), 1)
                .replace("mpi-example:1", "local/busybox:1")
                .replace("while true; do sleep 30000; done", "true")
        });
        self.product.wait_for_phase(NAMESPACE, job, "Completed");
        self.product
            .kubectl(&["-n", NAMESPACE, "delete", "ipujob", job, "--timeout=120s"]);
        let refusal = self.product.submit_refused(NAMESPACE, "inference", |example| {
            example.replacen("ipusPerJobInstance: \"1\"", "ipusPerJobInstance: \"128\"", 1)
        });
        assert!(
            refusal.contains("raise the limit of this installation"),
            "{refusal}"
        );
    }

    /// Returns the certificate that the operator serves.
    fn served(&self) -> String {
        let service = format!("{}-webhook-svc", self.prefix());
        let address = self.in_system(&["get", "service", &service, "-o", "jsonpath={.spec.clusterIP}"]);
        let mut curl = self.product.cluster.in_node_network(Path::new("/usr/bin/curl"));
        let options = [
            "--insecure",
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{certs}",
        ];
        let output = curl
            .args(options)
            .arg(format!("https://{address}/"))
            .output()
            .unwrap();
        let chain = String::from_utf8(output.stdout).unwrap();
        let start = chain.find("-----BEGIN CERTIFICATE-----");
        let rest = &chain[start.unwrap_or_else(|| panic!("{chain}"))..];
        let (certificate, _) = rest.split_once("-----END CERTIFICATE-----").unwrap();
        format!("{certificate}-----END CERTIFICATE-----\n")
    }

    /// Sets the condition that `cmctl renew` sets.
    fn request_renewal(&self) {
        let condition = json!({
            "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "requested by a test",
        });
        let patch = json!([{"op": "add", "path": "/status/conditions/-", "value": condition}]).to_string();
        let certificate = format!("certificate/{}", self.certificate());
        self.in_system(&[
            "patch",
            &certificate,
            "--subresource=status",
            "--type=json",
            "-p",
            &patch,
        ]);
    }

    /// Lets cert-manager make a new certificate, and waits until the operator serves it. Meanwhile, every job
    /// must be admitted.
    fn renew(&self, reason: &str, renewal: impl FnOnce()) {
        let before = self.of_secret(CERTIFICATE);
        let started = Instant::now();
        let admitted = thread::scope(|scope| {
            let admissions = scope.spawn(|| {
                let mut admitted = 0;
                while admitted == 0 || !self.serves_another_than(&before) {
                    self.product.admit(NAMESPACE, "inference", str::to_owned);
                    admitted += 1;
                }
                admitted
            });
            renewal();
            admissions.join().unwrap()
        });
        record(&format!(
            "certificate of cert-manager, {reason}: served after {:.1} s, {admitted} jobs were admitted meanwhile",
            started.elapsed().as_secs_f64()
        ));
        self.assert_trusted();
        self.run_jobs();
        assert_eq!(self.operators(), self.operator, "the operator was not restarted");
    }

    /// Returns whether the operator serves the certificate of the Secret, and that is another one.
    fn serves_another_than(&self, before: &str) -> bool {
        let present = self.of_secret(CERTIFICATE);
        present != before && self.served() == present
    }

    /// Asserts that doctor finds nothing and checks all rules of the webhooks.
    fn assert_healthy(&self) {
        let output = Command::new(client(&programs(), "kubectl-ipu").unwrap())
            .args(["doctor", "-o", "json"])
            .env("KUBECONFIG", self.product.cluster.kubeconfig())
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(report["findings"], json!([]), "{report:#}");
        let unchecked = report["notChecked"].as_array().unwrap();
        assert!(
            !unchecked
                .iter()
                .any(|rule| rule["code"].as_str().unwrap().starts_with("Webhook")),
            "{report:#}"
        );
    }

    /// Upgrades the release with another value of the webhooks, which keep their CA.
    fn upgrade(&self) {
        let (product, arguments) = (self.product, self.arguments());
        let value = [
            "--set",
            "admissionWebhooks.timeoutSeconds=7",
            "--wait",
            "--timeout",
            "300s",
        ];
        product.helm(Tool::Helm4, &[&["upgrade"], &arguments[..], &value].concat());
        let configuration = format!("validatingwebhookconfiguration/{}-admission", self.prefix());
        let timeout = "jsonpath={.webhooks[0].timeoutSeconds}";
        assert_eq!(product.kubectl(&["get", &configuration, "-o", timeout]), "7");
        self.assert_trusted();
    }
}
