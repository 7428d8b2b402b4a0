//! What the workers and the launcher of a job share, on a real API server.

use ipu_k8s::controller::{ApiServer as _, KubeApi, PortError};
use ipu_test_cluster::{Cluster, private};
use serde_json::{Value, json};

use super::config;

/// A ConfigMap of the job `a` with this uid.
fn of_job(uid: &str, host: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a-config", "namespace": "default", "ownerReferences": [{
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "a", "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        }]},
        "data": {"hostfile": host},
    })
}

fn stored(cluster: &Cluster) -> Value {
    let text = cluster.kubectl(&["get", "configmap", "a-config", "-o", "json"]);
    serde_json::from_str(&text.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_job_of_the_name_left_becomes_the_later_ones() {
    let Some(cluster) = private("what_an_earlier_job_of_the_name_left_becomes_the_later_ones") else {
        return;
    };
    let api = KubeApi::new(config(&cluster).await, "test").unwrap();
    // Twice, as after an answer that was lost; then the job is gone, and what it left is not yet.
    for (uid, host) in [("first", "one"), ("first", "one"), ("second", "two")] {
        api.apply(&of_job(uid, host)).await.unwrap();
        let stored = stored(&cluster);
        let owners = stored["metadata"]["ownerReferences"].as_array().unwrap();
        let owners: Vec<_> = owners.iter().map(|owner| owner["uid"].as_str()).collect();
        assert_eq!(owners, [Some(uid)]);
        assert_eq!(stored["data"]["hostfile"], host);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_somebody_elses_is_left_alone_and_the_job_is_told_so() {
    let Some(cluster) = private("what_is_somebody_elses_is_left_alone_and_the_job_is_told_so") else {
        return;
    };
    let api = KubeApi::new(config(&cluster).await, "test").unwrap();
    let mut of_another = of_job("other", "theirs");
    of_another["metadata"]["ownerReferences"][0]["name"] = "b".into();
    let mut of_nobody = of_job("nobody", "mine");
    of_nobody["metadata"]["ownerReferences"] = Value::Null;
    for theirs in [of_another, of_nobody] {
        let file = cluster.directory().join("theirs.json");
        std::fs::write(&file, theirs.to_string()).unwrap();
        cluster
            .kubectl(&["create", "-f", &file.display().to_string()])
            .unwrap();
        let before = stored(&cluster);
        match api.apply(&of_job("first", "ours")).await {
            Err(PortError::Refused { code, message }) => {
                assert_eq!(code, "NameTaken");
                assert_eq!(
                    message,
                    "a ConfigMap that is not of this job is called a-config: delete it, or give the job another name"
                );
            }
            done => panic!("{done:?}"),
        }
        assert_eq!(stored(&cluster), before);
        cluster.kubectl(&["delete", "configmap", "a-config"]).unwrap();
    }
}
