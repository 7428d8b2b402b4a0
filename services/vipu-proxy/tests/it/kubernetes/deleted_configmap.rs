//! The ledger's ConfigMap is deleted: under running proxies, and between an uninstall and the next installation.

use std::collections::BTreeMap;

use ipu_core::{JobKey, Topology};
use ipu_test_cluster::private;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, Proxy, TRACKER, until};

/// As little of the resource as an API server wants to know.
const RESOURCE: &str = "
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

/// Something that holds a partition.
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

    /// An IPUJob at the API server whose status says that it was granted its partition for this attempt.
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

    async fn until_is(&self, proxy: &Proxy, state: &str) -> Value {
        let path = format!("/v1/partitions/{}", self.id);
        until(async || match proxy.call(Method::GET, &path, None).await {
            (StatusCode::OK, document) if document["state"] == state => Ok(document),
            (status, document) => Err(format!("{status}: {document}")),
        })
        .await
    }
}

/// What is at the controller: ids with IPUs and state.
fn there(simulator: &Simulator) -> BTreeMap<String, (Vec<(u32, u8)>, String)> {
    let all = simulator.state().unwrap().partitions.into_iter();
    all.map(|partition| (partition.id, (partition.ipus, partition.state)))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_live_jobs_hold_is_adopted_after_the_ledger_was_deleted_and_nothing_is_held_twice() {
    let name = "what_live_jobs_hold_is_adopted_after_the_ledger_was_deleted_and_nothing_is_held_twice";
    let Some(cluster) = private(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(&cluster, "lost", &[&simulator]);
    installation.apply(RESOURCE);
    let established = [
        "wait",
        "--for=condition=Established",
        "crd/ipujobs.graphcore.ai",
        "--timeout=120s",
    ];
    installation.kubectl(&established);
    let first = Holder::ipu_job(&installation, "first", 0);
    let restarted = Holder::ipu_job(&installation, "restarted", 2);
    // Nobody can tell whether this one lives, nor what it was granted.
    let other = Holder::new("SlurmJob", "default", "other", "17", 0);
    let mut one = installation.proxy(&[]).await;
    let mut two = installation.proxy(&[]).await;
    for holder in [&first, &restarted, &other] {
        holder.until_active(&one).await;
    }
    let before = there(&simulator);
    assert_eq!(before.len(), 3);

    installation.kubectl(&["delete", "configmap", TRACKER]);
    // Four IPUs are left; whoever asks in this very moment gets those or none.
    let next = Holder::new("SlurmJob", "default", "next", "18", 0);
    next.until_active(&two).await;
    let late = Holder::new("SlurmJob", "default", "late", "19", 0);
    let path = format!("/v1/partitions/{}", late.id);
    let (status, waits) = one.call(Method::PUT, &path, Some(&late.body)).await;
    assert_eq!(
        (status, &waits["state"]),
        (StatusCode::ACCEPTED, &json!("waiting")),
        "{waits}"
    );
    for (holder, attempt) in [(&first, 0), (&restarted, 2)] {
        let adopted = holder.until_is(&one, "active").await;
        assert_eq!(adopted["attempt"], attempt, "{adopted}");
    }
    other.until_is(&two, "quarantined").await;

    // The same with nobody there, as between an uninstall and an installation.
    one.crash().await;
    two.crash().await;
    installation.kubectl(&["delete", "configmap", TRACKER]);
    let proxy = installation.proxy(&[]).await;
    first.until_is(&proxy, "active").await;
    restarted.until_is(&proxy, "active").await;
    other.until_is(&proxy, "quarantined").await;
    next.until_is(&proxy, "quarantined").await;

    // All that was held was left alone, and those who ask again as ever have nothing reset under them.
    first.until_active(&proxy).await;
    restarted.until_active(&proxy).await;
    let after = there(&simulator);
    assert_eq!(after.len(), 4);
    for (id, partition) in before {
        assert_eq!(after.get(&id), Some(&partition), "{id}");
    }

    // Whoever ends makes room, and an IPUJob that is deleted is given back.
    installation.kubectl(&["delete", "ipujob", "first"]);
    late.until_active(&proxy).await;
    assert!(!there(&simulator).contains_key(&first.id));
}
