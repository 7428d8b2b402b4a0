//! The list of V-IPU controllers, edited while it is watched.

use std::time::Duration;

use ipu_k8s::controller_list::{ControllersOptions, ControllersText, ControllersWatch, watch};
use ipu_test_cluster::{Cluster, private, shared};

use super::config;

/// Returns the next change; the timeout is much longer than the detection of a broken watch.
async fn next(watch: &mut ControllersWatch) -> ControllersText {
    tokio::time::timeout(Duration::from_secs(120), watch.next())
        .await
        .unwrap()
}

fn list(text: &str) -> ControllersText {
    ControllersText::List(text.into())
}

fn edit(cluster: &Cluster, name: &str, list: &str) {
    let patch = serde_json::json!({"data": {"controllers.yaml": list}}).to_string();
    cluster
        .kubectl(&["patch", "configmap", name, "--type=merge", "-p", &patch])
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_edit_of_the_list_is_reported_and_a_missing_list_differs_from_an_empty_one() {
    let name = "every_edit_of_the_list_is_reported_and_a_missing_list_differs_from_an_empty_one";
    let Some(cluster) = shared(name) else {
        return;
    };
    let options = ControllersOptions::new("default", "edited");
    let mut watch = watch(config(cluster).await, options).unwrap();
    let absent = next(&mut watch).await;
    assert!(
        matches!(&absent, ControllersText::Absent { detail } if detail.contains("ConfigMap default/edited does not exist")),
        "{absent:?}"
    );
    cluster.kubectl(&["create", "configmap", "edited"]).unwrap();
    let absent = next(&mut watch).await;
    assert!(
        matches!(&absent, ControllersText::Absent { detail } if detail.contains("no key controllers.yaml")),
        "{absent:?}"
    );
    for text in [
        "pod001:8090:vipu-ctrl=pod001",
        "pod001:8090:vipu-ctrl=pod001,pod002:8090",
        "",
    ] {
        edit(cluster, "edited", text);
        assert_eq!(next(&mut watch).await, list(text));
    }
    // Other changes of the ConfigMap are not reported.
    cluster.kubectl(&["label", "configmap", "edited", "a=b"]).unwrap();
    edit(cluster, "edited", "pod003:8090");
    assert_eq!(next(&mut watch).await, list("pod003:8090"));
    cluster.kubectl(&["delete", "configmap", "edited"]).unwrap();
    assert!(matches!(next(&mut watch).await, ControllersText::Absent { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_after_the_api_server_was_killed_is_reported_too() {
    let Some(mut cluster) = private("an_edit_after_the_api_server_was_killed_is_reported_too") else {
        return;
    };
    cluster
        .kubectl(&[
            "create",
            "configmap",
            "outlives",
            "--from-literal=controllers.yaml=before:8090",
        ])
        .unwrap();
    let options = ControllersOptions::new("default", "outlives");
    let mut watch = watch(config(&cluster).await, options).unwrap();
    assert_eq!(next(&mut watch).await, list("before:8090"));
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.kill_apiserver();
        cluster.start_apiserver().unwrap();
        edit(&cluster, "outlives", "after:8090");
        cluster
    });
    assert_eq!(next(&mut watch).await, list("after:8090"));
    drop(cluster.await.unwrap());
}
