//! The CRD of the IPUPartition on a real API server, and the liveness of these owners.

use ipu_allocator::Liveness;
use ipu_core::JobKey;
use ipu_core::allocator::{Entry, OwnerLiveness};
use ipu_k8s::crd::IpuPartition;
use ipu_k8s::liveness::KubernetesLiveness;
use ipu_test_cluster::{Cluster, private};
use serde_json::{Value, json};

use super::config;
use super::fixtures::entry;

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.kubectl(arguments).unwrap()
}

fn try_apply(cluster: &Cluster, object: &Value) -> Result<String, String> {
    let file = cluster.directory().join("applied.json");
    std::fs::write(&file, object.to_string()).map_err(|error| error.to_string())?;
    let arguments = ["apply", "--validate=strict", "-f", &file.display().to_string()];
    cluster.kubectl(&arguments).map_err(|error| error.to_string())
}

fn partition(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": IpuPartition::API_VERSION, "kind": IpuPartition::KIND,
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

fn install(cluster: &Cluster) {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/crd/ipupartitions.graphcore.ai.yaml"
    );
    kubectl(cluster, &["apply", "-f", file]);
    let crd = "crd/ipupartitions.graphcore.ai";
    let named = "--for=jsonpath={.status.acceptedNames.kind}=IPUPartition";
    for condition in [named, "--for=condition=Established"] {
        kubectl(cluster, &["wait", condition, crd, "--timeout=60s"]);
    }
    // The API server still initializes the storage.
    while cluster.kubectl(&["get", "ipupartitions"]).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn owned(name: &str, uid: &str) -> Entry {
    let mut entry = entry("any");
    let owner = entry.owner.as_mut().unwrap();
    owner.kind = IpuPartition::KIND.into();
    owner.job = JobKey::new("default", name, uid).unwrap();
    entry
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_keeps_the_rules_of_ipupartitions_and_their_owners_live_as_long_as_pods_use_them() {
    let test =
        "the_api_server_keeps_the_rules_of_ipupartitions_and_their_owners_live_as_long_as_pods_use_them";
    let Some(cluster) = private(test) else {
        return;
    };
    install(&cluster);
    for (spec, message) in [
        (json!({}), "spec.size: Required value"),
        (json!({"size": 3}), "spec.size: must be a power of two"),
        (json!({"size": 131_072}), "should be less than or equal to 65536"),
        (
            json!({"size": 4, "gcds": 3}),
            "spec.gcds: each graph compilation domain",
        ),
        (json!({"size": 4, "account": "a b"}), "spec.account"),
        (json!({"size": 4, "unknown": 1}), "unknown field"),
    ] {
        let error = try_apply(&cluster, &partition("bad", spec.clone())).expect_err(message);
        assert!(error.contains(message), "{spec}: {error}");
    }
    let long = try_apply(&cluster, &partition(&"n".repeat(64), json!({"size": 1})));
    assert!(long.unwrap_err().contains("at most 63 characters"));
    let full = json!({
        "size": 8, "gcds": 2, "controller": "c:1", "allocation": "a", "account": "b", "priority": -3,
        "preemptible": true, "reconfigurable": true, "ttlSeconds": 60, "attempt": 2,
    });
    try_apply(&cluster, &partition("train", full.clone())).unwrap();
    let with = |field: &str, value: Value| {
        let mut spec = full.clone();
        spec[field] = value;
        try_apply(&cluster, &partition("train", spec))
    };
    for (field, value) in [
        ("size", json!(16)),
        ("gcds", json!(1)),
        ("controller", Value::Null),
        ("allocation", json!("b")),
        ("account", json!("c")),
        ("priority", json!(0)),
        ("preemptible", json!(false)),
        ("reconfigurable", Value::Null),
    ] {
        let error = with(field, value).expect_err(field);
        assert!(
            error.contains("only attempt and ttlSeconds can be changed"),
            "{error}"
        );
    }
    assert!(
        with("attempt", json!(1))
            .unwrap_err()
            .contains("spec.attempt: only grows")
    );
    with("attempt", json!(3)).unwrap();
    let mut later = full.clone();
    (later["attempt"], later["ttlSeconds"]) = (json!(3), Value::Null);
    try_apply(&cluster, &partition("train", later)).unwrap();

    // The object, and after it a Pod with its variables, keep the partition.
    let liveness = KubernetesLiveness::new(config(&cluster).await).unwrap();
    let uid = kubectl(
        &cluster,
        &["get", "ipup", "train", "-o", "jsonpath={.metadata.uid}"],
    );
    assert_eq!(
        liveness.liveness_of(&owned("train", &uid)).await,
        OwnerLiveness::Live
    );
    assert_eq!(
        liveness.liveness_of(&owned("train", "u1")).await,
        OwnerLiveness::Dead
    );
    assert_eq!(
        liveness.liveness_of(&owned("gone", "u2")).await,
        OwnerLiveness::Dead
    );
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}});
    try_apply(&cluster, &account).unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user", "namespace": "default"},
        "spec": {"nodeName": "n", "automountServiceAccountToken": false, "containers": [
            {"name": "main", "image": "x", "envFrom": [{"configMapRef": {"name": "gone-ipuof"}}]},
        ]},
    });
    try_apply(&cluster, &pod).unwrap();
    assert_eq!(
        liveness.liveness_of(&owned("gone", "u2")).await,
        OwnerLiveness::Unknown
    );
    let ended = r#"{"status": {"phase": "Succeeded"}}"#;
    kubectl(
        &cluster,
        &["patch", "pod", "user", "--subresource=status", "-p", ended],
    );
    assert_eq!(
        liveness.liveness_of(&owned("gone", "u2")).await,
        OwnerLiveness::Dead
    );

    // A lost record is rebuilt from the status.
    assert!(liveness.claims().await.is_empty());
    let active = r#"{"status": {"phase": "Active", "attempt": 4, "controller": "c:1"}}"#;
    kubectl(
        &cluster,
        &[
            "patch",
            "ipup",
            "train",
            "--subresource=status",
            "--type=merge",
            "-p",
            active,
        ],
    );
    let claims = liveness.claims().await;
    let [claim] = claims.as_slice() else {
        panic!("{claims:?}");
    };
    let request = &claim.request;
    assert_eq!(
        (
            request.spec.size.get(),
            request.spec.gcds,
            request.attempt,
            request.priority
        ),
        (8, 2, 4, -3)
    );
    assert_eq!(claim.controller.as_ref().unwrap().as_str(), "c:1");
    assert_eq!(request.owner.job.uid.as_str(), uid);
}
