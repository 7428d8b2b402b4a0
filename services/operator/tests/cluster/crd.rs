//! The operator maintains the CRD, with the rights of the shipped manifests.

use ipu_operator::{Operator, Settings};
use ipu_test_cluster::{Cluster, private};
use serde_json::{Value, json};

use crate::support::{apply, config, probe, settings, wait_until, wait_until_ready};

pub(crate) const NAME: &str = "ipujobs.graphcore.ai";
const SYSTEM: &str = "ipu-operator-system";
const ACCESS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../deploy/kubernetes/operator-access.yaml"
);
pub(crate) const VERSION: &str = "graphcore.ai/crd-version";

/// Starts an operator with the rights of its ServiceAccount.
async fn start(cluster: &Cluster, maintain: bool) -> Operator {
    let mut settings: Settings = settings("ipu-operator-admission");
    settings.namespace = Some(SYSTEM.into());
    settings.maintain_crd = Some(maintain);
    let mut kube = config(cluster).await;
    kube.auth_info.impersonate = Some(format!("system:serviceaccount:{SYSTEM}:ipu-operator-controller"));
    Operator::start(settings.check(SYSTEM).unwrap(), kube)
        .await
        .unwrap()
}

/// Runs an operator until it is ready.
async fn run(cluster: &Cluster) {
    let operator = start(cluster, true).await;
    wait_until_ready(&operator).await;
    operator.shutdown().await;
}

fn crd(cluster: &Cluster) -> Value {
    let output = cluster.kubectl(&["get", "crd", NAME, "-o", "json", "--show-managed-fields"]);
    serde_json::from_str(&output.unwrap()).unwrap()
}

/// Returns the schema of `spec` in an installed CRD.
fn spec_fields(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
}

fn delete_crd(cluster: &Cluster) {
    cluster.kubectl(&["delete", "crd", NAME]).unwrap();
}

/// Returns a CRD of the shape of Graphcore's 1.2.0, with `annotations`.
pub(crate) fn other_crd(annotations: &Value) -> Value {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "annotations": annotations},
        "spec": {
            "group": "graphcore.ai", "scope": "Namespaced",
            "names": {"plural": "ipujobs", "singular": "ipujob", "kind": "IPUJob", "listKind": "IPUJobList"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
                "subresources": {"status": {}},
            }],
        },
    })
}

/// Applies a CRD on the server, as Helm 4 does.
fn apply_as_helm(cluster: &Cluster, crd: &Value) {
    let file = cluster.directory().join("crd.json");
    std::fs::write(&file, crd.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let arguments = ["apply", "--server-side", "--field-manager=helm", "-f", file];
    cluster.kubectl(&arguments).unwrap();
    let wait = [
        "wait",
        "--for=condition=Established",
        "crd",
        NAME,
        "--timeout=60s",
    ];
    wait_for_condition(cluster);
    cluster.kubectl(&wait).unwrap();
}

/// `kubectl wait` fails before the first condition is set.
fn wait_for_condition(cluster: &Cluster) {
    let kind = "jsonpath={.status.acceptedNames.kind}=IPUJob";
    let arguments = ["wait", "--for", kind, "crd", NAME, "--timeout=60s"];
    cluster.kubectl(&arguments).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_updates_the_crd_before_it_is_ready_and_never_downgrades_it() {
    let name = "the_operator_updates_the_crd_before_it_is_ready_and_never_downgrades_it";
    let Some(cluster) = private(name) else {
        return;
    };
    cluster.kubectl(&["create", "namespace", SYSTEM]).unwrap();
    cluster.kubectl(&["-n", SYSTEM, "apply", "-f", ACCESS]).unwrap();
    let own = env!("CARGO_PKG_VERSION");

    // No CRD: a ready operator means that jobs can be created.
    run(&cluster).await;
    assert_eq!(crd(&cluster)["metadata"]["annotations"][VERSION], own);
    cluster.kubectl(&["get", "ipujobs"]).unwrap();

    // A CRD of this version: the first start adopts the fields, the second one writes nothing.
    run(&cluster).await;
    let version = crd(&cluster)["metadata"]["resourceVersion"].take();
    run(&cluster).await;
    assert_eq!(crd(&cluster)["metadata"]["resourceVersion"], version);
    delete_crd(&cluster);

    // The original's, by kubectl and by Helm, with a job that is stored, and one of an older build.
    let original = other_crd(&json!({"controller-gen.kubebuilder.io/version": "v0.4.1"}));
    let older = other_crd(&json!({VERSION: "0.0.9"}));
    for (crd_before, with_helm) in [(&original, false), (&original, true), (&older, true)] {
        if with_helm {
            apply_as_helm(&cluster, crd_before);
        } else {
            apply(&cluster, crd_before);
            wait_for_condition(&cluster);
        }
        let job = json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
            "metadata": {"name": "stored", "namespace": "default"}, "spec": {"managedBy": "example.com/other"},
        });
        wait_until("IPUJobs are served", async || {
            cluster.kubectl(&["get", "ipujobs"]).is_ok()
        })
        .await;
        apply(&cluster, &job);
        run(&cluster).await;
        let updated = crd(&cluster);
        assert_eq!(updated["metadata"]["annotations"][VERSION], own, "{crd_before}");
        assert!(spec_fields(&updated)["ipusPerJobInstance"].is_object());
        assert_eq!(updated["metadata"]["uid"].as_str().map(str::len), Some(36));
        cluster.kubectl(&["get", "ipujob", "stored"]).unwrap();
        cluster.kubectl(&["delete", "ipujob", "stored"]).unwrap();
        delete_crd(&cluster);
    }

    // A newer one: an older operator, as after a rollback, keeps it.
    apply_as_helm(&cluster, &other_crd(&json!({VERSION: "99.0.0-rc.1"})));
    let before = crd(&cluster);
    run(&cluster).await;
    assert_eq!(crd(&cluster), before);

    // An operator that must not maintain the CRD starts with any.
    delete_crd(&cluster);
    apply_as_helm(&cluster, &original);
    let before = crd(&cluster);
    let operator = start(&cluster, false).await;
    wait_until_ready(&operator).await;
    operator.shutdown().await;
    assert_eq!(crd(&cluster), before);

    // Without the right to update it, the operator is not ready, until it has the right.
    let role = ["get", "clusterrole", "ipu-operator-manager", "-o", "json"];
    let mut role: Value = serde_json::from_str(&cluster.kubectl(&role).unwrap()).unwrap();
    let rules = role["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["apiGroups"][0] != "apiextensions.k8s.io");
    apply(&cluster, &role);
    let operator = start(&cluster, true).await;
    wait_until("the operator waits for the CRD", async || {
        let (_, text) = probe(&operator, "/readyz").await;
        text.contains("the CRD") && !text.contains("certificate")
    })
    .await;
    assert_eq!(crd(&cluster), before);
    cluster.kubectl(&["-n", SYSTEM, "apply", "-f", ACCESS]).unwrap();
    wait_until_ready(&operator).await;
    operator.shutdown().await;
    assert_eq!(crd(&cluster)["metadata"]["annotations"][VERSION], own);

    // A CRD that is being deleted with jobs that have finalizers: they need an operator that runs.
    let job = json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
        "metadata": {"name": "held", "namespace": "default", "finalizers": ["example.com/hold"]},
        "spec": {"managedBy": "example.com/other", "jobInstances": 1, "ipusPerJobInstance": "1", "workers": {"template": {"spec": {"containers": [
            {"name": "main", "image": "x"},
        ]}}}},
    });
    apply(&cluster, &job);
    cluster.kubectl(&["delete", "crd", NAME, "--wait=false"]).unwrap();
    run(&cluster).await;
    assert!(crd(&cluster)["metadata"]["deletionTimestamp"].is_string());
    let release = r#"{"metadata": {"finalizers": null}}"#;
    let patch = ["patch", "ipujob", "held", "--type=merge", "-p", release];
    cluster.kubectl(&patch).unwrap();
    cluster
        .kubectl(&["wait", "--for=delete", "crd", NAME, "--timeout=60s"])
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_job_that_cannot_be_read_is_reported_and_stops_no_other() {
    let name = "a_stored_job_that_cannot_be_read_is_reported_and_stops_no_other";
    let Some(cluster) = private(name) else {
        return;
    };
    cluster.kubectl(&["create", "namespace", SYSTEM]).unwrap();
    cluster.kubectl(&["-n", SYSTEM, "apply", "-f", ACCESS]).unwrap();
    apply(&cluster, &other_crd(&json!({})));
    wait_for_condition(&cluster);
    wait_until("IPUJobs are served", async || {
        cluster.kubectl(&["get", "ipujobs"]).is_ok()
    })
    .await;
    let workers = json!({"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}});
    for (name, workers) in [("unreadable", json!("four")), ("other", workers)] {
        let job = json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"jobInstances": 1, "ipusPerJobInstance": "1", "workers": workers},
        });
        apply(&cluster, &job);
    }
    let operator = start(&cluster, true).await;
    let of_unreadable = "--field-selector=reason=InvalidJob,regarding.name=unreadable";
    let notes = [
        "get",
        "events.events.k8s.io",
        of_unreadable,
        "--output=jsonpath={.items[*].note}",
    ];
    wait_until("the unreadable job is reported", async || {
        let notes = cluster.kubectl(&notes).unwrap_or_default();
        notes.contains("spec.workers") || notes.contains("four")
    })
    .await;
    let finalizers = [
        "get",
        "ipujob",
        "other",
        "--output=jsonpath={.metadata.finalizers}",
    ];
    wait_until("the other job is reconciled", async || {
        cluster
            .kubectl(&finalizers)
            .is_ok_and(|text| text.contains("graphcore.ai"))
    })
    .await;
    cluster.kubectl(&["delete", "ipujob", "unreadable"]).unwrap();
    operator.shutdown().await;
}
