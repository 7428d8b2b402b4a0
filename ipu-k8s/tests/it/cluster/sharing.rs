//! What the workers and the launcher of a job share, on a real API server.

use ipu_k8s::operator::{ApiServer as _, KubeApi};
use ipu_test_cluster::private;
use serde_json::{Value, json};

use super::config;

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_job_of_the_name_left_becomes_the_later_ones() {
    let Some(cluster) = private("what_an_earlier_job_of_the_name_left_becomes_the_later_ones") else {
        return;
    };
    let api = KubeApi::new(config(&cluster).await, "test").unwrap();
    let of_job = |uid: &str, host: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a-config", "namespace": "default", "ownerReferences": [{
                "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "a", "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }]},
            "data": {"hostfile": host},
        })
    };
    // Twice, as after an answer that was lost; then the job is gone, and what it left is not yet.
    for (uid, host) in [("first", "one"), ("first", "one"), ("second", "two")] {
        api.apply(&of_job(uid, host)).await.unwrap();
        let stored = cluster
            .kubectl(&["get", "configmap", "a-config", "-o", "json"])
            .unwrap();
        let stored: Value = serde_json::from_str(&stored).unwrap();
        let owners = stored["metadata"]["ownerReferences"].as_array().unwrap();
        let owners: Vec<_> = owners.iter().map(|owner| owner["uid"].as_str()).collect();
        assert_eq!(owners, [Some(uid)]);
        assert_eq!(stored["data"]["hostfile"], host);
    }
}
