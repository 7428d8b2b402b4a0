//! Deletion of the ledger ConfigMap under a running proxy.

use std::collections::BTreeMap;

use ipu_core::JobKey;
use ipu_core::hardware::Topology;
use ipu_test_cluster::private;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, Proxy, TRACKER, until};

/// Minimal CRD of IPUJobs.
const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ipujobs.graphcore.ai}
spec:
  group: graphcore.ai
  scope: Namespaced
  names: {kind: IPUJob, plural: ipujobs, singular: ipujob}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// Owner of a partition with its request.
struct Holder {
    id: String,
    body: Value,
}

impl Holder {
    fn new(kind: &str, namespace: &str, name: &str, uid: &str, attempt: u32) -> Self {
        let owner = json!({"kind": kind, "namespace": namespace, "name": name, "uid": uid});
        Self {
            id: JobKey::new(namespace, name, uid)
                .unwrap()
                .partition_id(0)
                .to_string(),
            body: json!({"owner": owner, "attempt": attempt, "size": 4}),
        }
    }

    /// Creates an IPUJob whose status shows a granted partition for this attempt.
    fn ipu_job(installation: &Installation<'_>, name: &str, attempt: u32) -> Self {
        let namespace = &installation.namespace;
        let job = json!({
            "apiVersion": "graphcore.ai/v1alpha1",
            "kind": "IPUJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "jobInstances": 1,
                "ipusPerJobInstance": "4",
                "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "x", "command": ["./train.sh"]}]}}},
            },
            "status": {"iPUPartitionCreated": true, "restartCount": attempt},
        });
        installation.apply(&job.to_string());
        let uid = installation.kubectl(&["get", "ipujob", name, "-o", "jsonpath={.metadata.uid}"]);
        Self::new("IPUJob", namespace, name, &uid, attempt)
    }

    async fn until_active(&self, proxy: &Proxy) {
        let path = format!("/v1/partitions/{}?wait=30s", self.id);
        until(
            async || match proxy.call(Method::PUT, &path, Some(&self.body)).await {
                (StatusCode::OK, document) if document["state"] == "active" => Ok(()),
                (status, document) => Err(format!("{status}: {document}")),
            },
        )
        .await;
    }

    async fn until_state(&self, proxy: &Proxy, state: &str) -> Value {
        let path = format!("/v1/partitions/{}", self.id);
        until(async || match proxy.call(Method::GET, &path, None).await {
            (StatusCode::OK, document) if document["state"] == state => Ok(document),
            (status, document) => Err(format!("{status}: {document}")),
        })
        .await
    }
}

/// Returns the partitions of the controller: ids with IPUs and state.
fn partitions_of(simulator: &Simulator) -> BTreeMap<String, (Vec<(u32, u8)>, String)> {
    let partitions = simulator.state().unwrap().partitions.into_iter();
    partitions
        .map(|partition| (partition.id, (partition.ipus, partition.state)))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_live_jobs_are_adopted_after_the_ledger_was_deleted_and_no_ipu_is_held_twice() {
    let name = "partitions_of_live_jobs_are_adopted_after_the_ledger_was_deleted_and_no_ipu_is_held_twice";
    let Some(cluster) = private(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(&cluster, "lost", &[&simulator]);
    installation.apply(CRD);
    let established = [
        "wait",
        "--for=condition=Established",
        "crd/ipujobs.graphcore.ai",
        "--timeout=120s",
    ];
    installation.kubectl(&established);
    let first = Holder::ipu_job(&installation, "first", 0);
    let restarted = Holder::ipu_job(&installation, "restarted", 2);
    // The API server knows neither the liveness nor the grant of this owner.
    let other = Holder::new("SlurmJob", "default", "other", "17", 0);
    let mut proxy = installation.proxy(&[]).await;
    for holder in [&first, &restarted, &other] {
        holder.until_active(&proxy).await;
    }
    let before = partitions_of(&simulator);
    assert_eq!(before.len(), 3);

    installation.kubectl(&["delete", "configmap", TRACKER]);
    // It ends at its next write. The next one finds no ledger, as between an uninstall and an installation.
    proxy.crash().await;
    let proxy = installation.proxy(&[]).await;
    for (holder, attempt) in [(&first, 0), (&restarted, 2)] {
        let adopted = holder.until_state(&proxy, "active").await;
        assert_eq!(adopted["attempt"], attempt, "{adopted}");
    }
    other.until_state(&proxy, "quarantined").await;
    // Four IPUs are free.
    let next = Holder::new("SlurmJob", "default", "next", "18", 0);
    next.until_active(&proxy).await;
    let late = Holder::new("SlurmJob", "default", "late", "19", 0);
    let path = format!("/v1/partitions/{}", late.id);
    let (status, queued) = proxy.call(Method::PUT, &path, Some(&late.body)).await;
    assert_eq!(
        (status, &queued["state"]),
        (StatusCode::ACCEPTED, &json!("waiting")),
        "{queued}"
    );

    // All held partitions are unchanged, and repeated requests reset none of them.
    first.until_active(&proxy).await;
    restarted.until_active(&proxy).await;
    let after = partitions_of(&simulator);
    assert_eq!(after.len(), 4);
    for (id, partition) in before {
        assert_eq!(after.get(&id), Some(&partition), "{id}");
    }

    // The proxy releases the partition of a deleted IPUJob, so that a queued request starts.
    installation.kubectl(&["delete", "ipujob", "first"]);
    late.until_active(&proxy).await;
    assert!(!partitions_of(&simulator).contains_key(&first.id));
}
