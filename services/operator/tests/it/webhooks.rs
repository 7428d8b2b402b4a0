//! The admission webhooks, asked by a real API server about what people apply.

use std::process::{Command, Output};
use std::sync::OnceLock;

use ipu_operator::{Operator, Settings};
use ipu_test_cluster::{Cluster, Tool, Tools, private, shared};
use serde_json::{Value, json};

use crate::support::{apply, here, ready, settings, start, until};

const TRAINING: &str = include_str!("../../../../ipu-k8s/tests/data/seeds/000-training.yaml");

/// A resource of the kind IPUJob with which the API server itself is content, whatever is in it.
pub(crate) fn resource(cluster: &Cluster) {
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

/// The two configurations called `name`, for IPUJobs of the namespace of that name, of webhooks at `address`. Who made their
/// certificates is not in them.
pub(crate) fn register(cluster: &Cluster, name: &str, address: &str) {
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

/// An operator whose webhooks are asked about the IPUJobs of a namespace.
struct Asked<'a> {
    cluster: &'a Cluster,
    namespace: &'static str,
    operator: Operator,
}

impl<'a> Asked<'a> {
    async fn new(cluster: &'a Cluster, namespace: &'static str, change: impl FnOnce(&mut Settings)) -> Self {
        resource(cluster);
        Self::of(cluster, namespace, change).await
    }

    /// The same where the resource is there already.
    async fn of(cluster: &'a Cluster, namespace: &'static str, change: impl FnOnce(&mut Settings)) -> Self {
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        let mut settings = settings(namespace);
        change(&mut settings);
        let operator = start(cluster, settings).await;
        register(cluster, namespace, &here(operator.webhooks()));
        ready(&operator).await;
        let asked = Self {
            cluster,
            namespace,
            operator,
        };
        until("the API server asks the webhooks", async || {
            asked
                .run(&["create", "--dry-run=server", "-f", "-"], TRAINING)
                .status
                .success()
        })
        .await;
        asked
    }

    /// kubectl in the namespace, with `input`.
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

    /// What kubectl says on standard error, and whether it succeeded.
    fn said(&self, arguments: &[&str], input: &str) -> (bool, String) {
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
            "workers": {"template": {"spec": {"containers": [{"name": "main"}]}}},
        },
    });
    for (name, value) in spec.as_object().unwrap() {
        job["spec"][name] = value.clone();
    }
    job.to_string()
}

// On threads, because kubectl is waited for without giving way to the operator in this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_is_stored_with_defaults_and_finalizer_and_its_misspelling_is_warned_about() {
    let name = "a_seed_is_stored_with_defaults_and_finalizer_and_its_misspelling_is_warned_about";
    let Some(cluster) = shared(name) else {
        return;
    };
    let asked = Asked::new(cluster, "admitted", |_| {}).await;
    let (done, said) = asked.said(&["create", "-f", "-"], TRAINING);
    assert!(done, "{said}");
    assert!(
        said.contains("Warning: spec.workerPerJobInstance = \"1\": is read as workersPerJobInstance"),
        "{said}"
    );
    let stored = asked.get("ipujob-sample");
    assert_eq!(
        stored["metadata"]["finalizers"],
        json!(["ipu.finalizers.graphcore.ai"])
    );
    assert_eq!(stored["spec"]["restartPolicy"]["backOffLimit"], 3);
    assert_eq!(stored["spec"]["workers"]["replicas"], 1);
    assert!(stored["spec"]["cleanPodPolicy"].is_string());
    assert_eq!(stored["spec"]["workerPerJobInstance"], "1");
    asked.operator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_job_is_refused_with_everything_that_is_wrong_with_it() {
    let Some(cluster) = shared("a_bad_job_is_refused_with_everything_that_is_wrong_with_it") else {
        return;
    };
    let asked = Asked::new(cluster, "refused", |_| {}).await;
    let bad = job(
        "bad",
        &json!({"ipusPerJobInstance": "3", "cleanPodPolicy": "Some", "interactive": {"ttl": "soon"}}),
    );
    let (done, said) = asked.said(&["create", "-f", "-"], &bad);
    assert!(!done);
    for part in [
        "The IPUJob \"bad\" is invalid:",
        "* spec.ipusPerJobInstance: Invalid value: \"3\": must be a power of two from 1 to 64; use 2 or 4",
        "* spec.cleanPodPolicy: Invalid value: Some: ",
        "* spec.interactive.ttl: Invalid value: \"soon\": ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    asked.operator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_and_the_removal_of_finalizers_work_on_what_would_be_refused() {
    let Some(cluster) = shared("deletion_and_the_removal_of_finalizers_work_on_what_would_be_refused") else {
        return;
    };
    let asked = Asked::new(cluster, "deleted", |settings| {
        settings.max_ipus_per_instance = Some(4);
    })
    .await;
    let (done, said) = asked.said(&["create", "-f", "-"], &job("large", &json!({})));
    assert!(done, "{said}");
    asked.operator.shutdown().await;
    // The cap was lowered since.
    let mut lower = settings("deleted");
    lower.max_ipus_per_instance = Some(2);
    let operator = start(cluster, lower).await;
    register(cluster, "deleted", &here(operator.webhooks()));
    ready(&operator).await;
    let asked = Asked { operator, ..asked };
    until("the API server asks the new operator", async || {
        let said = asked.said(
            &["create", "--dry-run=server", "-f", "-"],
            &job("other", &json!({})),
        );
        said.1.contains("use at most 2")
    })
    .await;
    for patch in [
        r#"{"metadata":{"labels":{"a":"b"}}}"#,
        r#"{"spec":{"jobInstances":2}}"#,
    ] {
        let (done, said) = asked.said(&["patch", "ipujob", "large", "--type=merge", "-p", patch], "");
        assert!(done, "{patch}: {said}");
    }
    let (done, said) = asked.said(&["delete", "ipujob", "large", "--wait=false"], "");
    assert!(done, "{said}");
    assert!(asked.get("large")["metadata"]["deletionTimestamp"].is_string());
    let free = [
        "patch",
        "ipujob",
        "large",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ];
    let (done, said) = asked.said(&free, "");
    assert!(done, "{said}");
    let (found, _) = asked.said(&["get", "ipujob", "large"], "");
    assert!(!found, "it is gone");
    asked.operator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_beyond_the_cap_is_refused_and_below_it_is_not() {
    let Some(cluster) = shared("scaling_beyond_the_cap_is_refused_and_below_it_is_not") else {
        return;
    };
    let asked = Asked::new(cluster, "scaled", |settings| settings.max_instances = Some(4)).await;
    let (done, said) = asked.said(&["create", "-f", "-"], &job("inference", &json!({})));
    assert!(done, "{said}");
    let (done, said) = asked.said(&["scale", "ipujob", "inference", "--replicas=4"], "");
    assert!(done, "{said}");
    let (done, said) = asked.said(&["scale", "ipujob", "inference", "--replicas=5"], "");
    assert!(!done);
    assert!(
        said.contains("spec.replicas: Invalid value: 5: at most 4 instances of a job are allowed here"),
        "{said}"
    );
    assert_eq!(asked.get("inference")["spec"]["jobInstances"], 4);
    // Its last launcher would have a name of 64 characters.
    let long = "x".repeat(54);
    let (done, said) = asked.said(&["create", "-f", "-"], &job(&long, &json!({})));
    assert!(done, "{said}");
    let (done, said) = asked.said(&["scale", "ipujob", &long, "--replicas=2"], "");
    assert!(!done);
    assert!(
        said.contains("spec.replicas: Invalid value: 2: of metadata.name xxx"),
        "{said}"
    );
    asked.operator.shutdown().await;
}

#[tokio::test]
async fn what_is_no_review_or_too_large_is_refused_by_its_status() {
    let Some(cluster) = shared("what_is_no_review_or_too_large_is_refused_by_its_status") else {
        return;
    };
    let operator = start(cluster, settings("unread")).await;
    ready(&operator).await;
    let post = async |path: &str, body: Vec<u8>| {
        let url = format!("https://{}{path}", here(operator.webhooks()));
        let answer = crate::support::http().post(url).body(body).send().await.unwrap();
        answer.status().as_u16()
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
async fn every_manifest_of_the_seeds_is_admitted_under_the_resource_that_is_shipped() {
    let name = "every_manifest_of_the_seeds_is_admitted_under_the_resource_that_is_shipped";
    let Some(cluster) = private(name) else {
        return;
    };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let definition = root.join("deploy/crd/ipujobs.graphcore.ai.yaml");
    cluster
        .kubectl(&["apply", "-f", definition.to_str().unwrap()])
        .unwrap();
    // Before it has any condition, kubectl cannot wait for one.
    until("IPUJobs are served", async || {
        cluster.kubectl(&["get", "ipujobs"]).is_ok()
    })
    .await;
    let asked = Asked::of(&cluster, "shipped", |_| {}).await;
    let mut warned = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(root.join("ipu-k8s/tests/data/seeds"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("namespace: default", "namespace: shipped");
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let (done, said) = asked.said(&["apply", "--dry-run=server", "-f", "-"], &text);
        assert!(done, "{name}: {said}");
        // Kubernetes itself warns of a policy of volumes.
        let ours = |line: &str| {
            line.starts_with("Warning: spec.") && !line.contains("persistentVolumeReclaimPolicy")
        };
        if said.lines().any(ours) {
            warned.push(name);
        }
    }
    assert_eq!(
        warned,
        ["000-training", "001-interactive", "001-nfs", "001-training"]
    );
    asked.operator.shutdown().await;
}
