//! Objects shared by workers and launcher of a job, on a real API server.

use ipu_k8s::controller::{ApiServer as _, KubeApi, PortError};
use ipu_test_cluster::{Cluster, private};
use serde_json::{Value, json};

use super::config;

/// Returns a ConfigMap owned by the job `a` with this uid.
fn config_map_of(uid: &str, host: &str) -> Value {
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
async fn an_object_of_an_earlier_job_of_the_same_name_is_taken_over() {
    let Some(cluster) = private("an_object_of_an_earlier_job_of_the_same_name_is_taken_over") else {
        return;
    };
    let api = KubeApi::new(config(&cluster).await, "test").unwrap();
    // The second apply repeats the first, as after a lost response. The third is for a new job before the
    // objects of the old one are deleted.
    for (uid, host) in [("first", "one"), ("first", "one"), ("second", "two")] {
        api.apply(&config_map_of(uid, host)).await.unwrap();
        let stored = stored(&cluster);
        let owners = stored["metadata"]["ownerReferences"].as_array().unwrap();
        let owners: Vec<_> = owners.iter().map(|owner| owner["uid"].as_str()).collect();
        assert_eq!(owners, [Some(uid)]);
        assert_eq!(stored["data"]["hostfile"], host);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_object_is_not_modified_and_the_job_gets_an_error() {
    let Some(cluster) = private("a_foreign_object_is_not_modified_and_the_job_gets_an_error") else {
        return;
    };
    let api = KubeApi::new(config(&cluster).await, "test").unwrap();
    let mut foreign = config_map_of("other", "theirs");
    foreign["metadata"]["ownerReferences"][0]["name"] = "b".into();
    let mut unowned = config_map_of("unowned", "mine");
    unowned["metadata"]["ownerReferences"] = Value::Null;
    for theirs in [foreign, unowned] {
        let file = cluster.directory().join("theirs.json");
        std::fs::write(&file, theirs.to_string()).unwrap();
        cluster
            .kubectl(&["create", "-f", &file.display().to_string()])
            .unwrap();
        let before = stored(&cluster);
        match api.apply(&config_map_of("first", "ours")).await {
            Err(PortError::Refused { code, message }) => {
                assert_eq!(code, "NameTaken");
                assert_eq!(
                    message,
                    "ConfigMap a-config exists and is not owned by this job: delete it, or give the job another name"
                );
            }
            result => panic!("{result:?}"),
        }
        assert_eq!(stored(&cluster), before);
        cluster.kubectl(&["delete", "configmap", "a-config"]).unwrap();
    }
}
