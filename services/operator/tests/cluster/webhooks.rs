//! Tests of the admission webhooks, called by a real API server.

use std::process::{Command, Output};
use std::sync::OnceLock;

use ipu_operator::{Operator, Settings};
use ipu_test_cluster::{Cluster, Tool, Tools, private, shared};
use serde_json::{Value, json};

use crate::support::{apply, local_address, settings, start, wait_until, wait_until_ready};

const TRAINING: &str = include_str!("../../../../ipu-k8s/tests/data/guides/vipu-training.yaml");

/// Installs a CRD for IPUJob whose schema accepts every content.
pub(crate) fn install_permissive_crd(cluster: &Cluster) {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": "v1alpha1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
        "subresources": {"status": {}, "scale": {
            "specReplicasPath": ".spec.jobInstances", "statusReplicasPath": ".status.currentReplicas",
        }},
    });
    APPLIED.get_or_init(|| {
        apply(
            cluster,
            &json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "ipujobs.graphcore.ai"},
                "spec": {
                    "group": "graphcore.ai", "scope": "Namespaced", "versions": [version],
                    "names": {"plural": "ipujobs", "singular": "ipujob", "kind": "IPUJob", "listKind": "IPUJobList"},
                },
            }),
        );
        cluster
            .kubectl(&[
                "wait",
                "--for=condition=Established",
                "crd/ipujobs.graphcore.ai",
                "--timeout=60s",
            ])
            .unwrap();
    });
}

/// Registers both webhook configurations called `name` for IPUJobs of the namespace of that name, with
/// webhooks at `address` and without a CA bundle.
pub(crate) fn register_webhooks(cluster: &Cluster, name: &str, address: &str) {
    for (kind, short, path) in [
        ("MutatingWebhookConfiguration", "mipujob", "mutate"),
        ("ValidatingWebhookConfiguration", "vipujob", "validate"),
    ] {
        apply(
            cluster,
            &json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name},
                "webhooks": [{
                    "name": format!("{short}.graphcore.ai"),
                    "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
                    "timeoutSeconds": 30,
                    "clientConfig": {"url": format!("https://{address}/{path}-graphcore-ai-v1alpha1-ipujob")},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                    "rules": [{
                        "apiGroups": ["graphcore.ai"], "apiVersions": ["v1alpha1"],
                        "resources": ["ipujobs", "ipujobs/scale"], "operations": ["CREATE", "UPDATE"],
                    }],
                }],
            }),
        );
    }
}

/// Fixture: an operator whose webhooks review the IPUJobs of a namespace.
struct WebhookFixture<'a> {
    cluster: &'a Cluster,
    namespace: &'static str,
    operator: Operator,
}

impl<'a> WebhookFixture<'a> {
    async fn new(cluster: &'a Cluster, namespace: &'static str, change: impl FnOnce(&mut Settings)) -> Self {
        install_permissive_crd(cluster);
        Self::with_crd(cluster, namespace, change).await
    }

    /// Creates the fixture on a cluster that has the CRD already.
    async fn with_crd(
        cluster: &'a Cluster,
        namespace: &'static str,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        let mut settings = settings(namespace);
        change(&mut settings);
        let operator = start(cluster, settings).await;
        register_webhooks(cluster, namespace, &local_address(operator.webhooks()));
        wait_until_ready(&operator).await;
        let fixture = Self {
            cluster,
            namespace,
            operator,
        };
        wait_until("the API server calls the webhooks", async || {
            fixture
                .run(&["create", "--dry-run=server", "-f", "-"], TRAINING)
                .status
                .success()
        })
        .await;
        fixture
    }

    /// Runs kubectl in the namespace with `input`.
    fn run(&self, arguments: &[&str], input: &str) -> Output {
        use std::io::Write as _;
        let mut child = Command::new(Tools::find().unwrap().path(Tool::Kubectl))
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(["--namespace", self.namespace])
            .args(arguments)
            .env("KUBECACHEDIR", self.cluster.directory().join("kubectl-cache"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Returns whether kubectl succeeded, and its standard error.
    fn run_for_errors(&self, arguments: &[&str], input: &str) -> (bool, String) {
        let output = self.run(arguments, input);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    }

    fn get(&self, name: &str) -> Value {
        let output = self.run(&["get", "ipujob", name, "-o", "json"], "");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn job(name: &str, spec: &Value) -> String {
    let mut job = json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": name},
        "spec": {
            "jobInstances": 1, "ipusPerJobInstance": "4",
            "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
        },
    });
    for (name, value) in spec.as_object().unwrap() {
        job["spec"][name] = value.clone();
    }
    job.to_string()
}

// Multi-threaded, because waiting for kubectl blocks the thread of this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_is_stored_with_the_finalizer_and_its_misspelling_causes_a_warning() {
    let name = "a_seed_is_stored_with_the_finalizer_and_its_misspelling_causes_a_warning";
    let Some(cluster) = shared(name) else {
        return;
    };
    let fixture = WebhookFixture::new(cluster, "admitted", |_| {}).await;
    let (succeeded, errors) = fixture.run_for_errors(&["create", "-f", "-"], TRAINING);
    assert!(succeeded, "{errors}");
    assert!(
        errors.contains("Warning: spec.workerPerJobInstance = \"1\": is read as workersPerJobInstance"),
        "{errors}"
    );
    let stored = fixture.get("ipujob-sample");
    assert_eq!(
        stored["metadata"]["finalizers"],
        json!(["ipu.finalizers.graphcore.ai"])
    );
    assert_eq!(stored["spec"]["workerPerJobInstance"], "1");
    fixture.operator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_beyond_the_maximum_is_rejected_and_below_it_is_not() {
    let Some(cluster) = shared("scaling_beyond_the_maximum_is_rejected_and_below_it_is_not") else {
        return;
    };
    let fixture = WebhookFixture::new(cluster, "scaled", |settings| settings.max_instances = Some(4)).await;
    let (succeeded, errors) = fixture.run_for_errors(&["create", "-f", "-"], &job("inference", &json!({})));
    assert!(succeeded, "{errors}");
    let (succeeded, errors) = fixture.run_for_errors(&["scale", "ipujob", "inference", "--replicas=4"], "");
    assert!(succeeded, "{errors}");
    let (succeeded, errors) = fixture.run_for_errors(&["scale", "ipujob", "inference", "--replicas=5"], "");
    assert!(!succeeded);
    assert!(
        errors.contains("spec.replicas: Invalid value: 5: at most 4 instances of a job are allowed here"),
        "{errors}"
    );
    assert_eq!(fixture.get("inference")["spec"]["jobInstances"], 4);
    fixture.operator.shutdown().await;
}

#[tokio::test]
async fn an_invalid_or_too_large_review_is_rejected_with_its_http_status() {
    let Some(cluster) = shared("an_invalid_or_too_large_review_is_rejected_with_its_http_status") else {
        return;
    };
    let operator = start(cluster, settings("unread")).await;
    wait_until_ready(&operator).await;
    let post = async |path: &str, body: Vec<u8>| {
        let url = format!("https://{}{path}", local_address(operator.webhooks()));
        let response = crate::support::http().post(url).body(body).send().await.unwrap();
        response.status().as_u16()
    };
    let validate = "/validate-graphcore-ai-v1alpha1-ipujob";
    assert_eq!(post(validate, b"{}".to_vec()).await, 400);
    assert_eq!(
        post("/mutate-graphcore-ai-v1alpha1-ipujob", Vec::new()).await,
        400
    );
    assert_eq!(post("/elsewhere", Vec::new()).await, 404);
    assert_eq!(post(validate, vec![b' '; (8 << 20) + 1]).await, 413);
    operator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_manifest_of_the_seeds_is_admitted_under_the_shipped_crd() {
    let name = "every_manifest_of_the_seeds_is_admitted_under_the_shipped_crd";
    let Some(cluster) = private(name) else {
        return;
    };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let definition = root.join("deploy/crd/ipujobs.graphcore.ai.yaml");
    cluster
        .kubectl(&["apply", "-f", definition.to_str().unwrap()])
        .unwrap();
    // kubectl cannot wait for a condition before the first one is set.
    wait_until("IPUJobs are served", async || {
        cluster.kubectl(&["get", "ipujobs"]).is_ok()
    })
    .await;
    let fixture = WebhookFixture::with_crd(&cluster, "shipped", |_| {}).await;
    let mut warned = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(root.join("ipu-k8s/tests/data/guides"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("namespace: default", "namespace: shipped");
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let (succeeded, errors) = fixture.run_for_errors(&["apply", "--dry-run=server", "-f", "-"], &text);
        assert!(succeeded, "{name}: {errors}");
        // Kubernetes itself warns about a volume policy.
        let ours = |line: &str| {
            line.starts_with("Warning: spec.") && !line.contains("persistentVolumeReclaimPolicy")
        };
        if errors.lines().any(ours) {
            warned.push(name);
        }
    }
    assert_eq!(
        warned,
        [
            "alpha-interactive",
            "alpha-nfs",
            "alpha-training",
            "vipu-training"
        ]
    );
    fixture.operator.shutdown().await;
}
