//! `kubectl ipu partition` on a real API server without an operator.

use ipu_test_cluster::private;
use serde_json::json;

use crate::harness::{DEPLOY, run, set_status, wait_until_served};

#[test]
fn ipupartitions_are_created_listed_and_explained() {
    let Some(cluster) = private("ipupartitions_are_created_listed_and_explained") else {
        return;
    };
    let none = run(&cluster, &["partition", "list"]);
    assert_eq!((none.code, none.out.as_str()), (66, ""), "{}", none.err);
    let file = format!("{DEPLOY}/crd/ipupartitions.graphcore.ai.yaml");
    cluster.kubectl(&["apply", "-f", &file]).unwrap();
    let named = "--for=jsonpath={.status.acceptedNames.kind}=IPUPartition";
    for condition in [named, "--for=condition=Established"] {
        let wait = [
            "wait",
            condition,
            "crd/ipupartitions.graphcore.ai",
            "--timeout=60s",
        ];
        cluster.kubectl(&wait).unwrap();
    }
    wait_until_served(&cluster, "ipupartitions");
    let refused = run(&cluster, &["partition", "create", "odd", "--size", "3"]);
    assert_eq!(refused.code, 65);
    assert!(
        refused.err.contains("spec.size: must be a power of two"),
        "{}",
        refused.err
    );

    let mut create = vec![
        "partition",
        "create",
        "train",
        "--size",
        "16",
        "--gcds",
        "2",
        "--priority",
        "-1",
    ];
    create.extend(["--preemptible", "--ttl", "60", "--controller", "vipu-server:8090"]);
    let created = run(&cluster, &create);
    assert_eq!(
        (created.code, created.out.as_str()),
        (0, "ipupartition/train created\n"),
        "{}",
        created.err
    );
    let spec = cluster
        .kubectl(&["get", "ipup", "train", "-o", "jsonpath={.spec}"])
        .unwrap();
    let spec: serde_json::Value = serde_json::from_str(&spec).unwrap();
    assert_eq!(
        spec,
        json!({
            "size": 16, "gcds": 2, "priority": -1, "preemptible": true, "ttlSeconds": 60, "controller": "vipu-server:8090",
        })
    );
    let new = run(&cluster, &["partition", "why", "train"]);
    assert!(new.out.contains("has not reconciled train yet"), "{}", new.out);

    let reason =
        json!({"code": "NotEnoughFree", "numbers": {"free": 8}, "message": "cannot fit 16 IPUs: 8 are free"});
    let waiting = json!({"status": {"phase": "Waiting", "reason": reason}});
    set_status(&cluster, "default", "ipup/train", &waiting);
    let why = run(&cluster, &["partition", "why", "train"]);
    assert_eq!(
        why.out,
        "train is Waiting: NotEnoughFree: cannot fit 16 IPUs: 8 are free\n"
    );
    let list = run(&cluster, &["partition", "list", "-A"]);
    assert!(
        list.out
            .starts_with("NAMESPACE  NAME   IPUS  PHASE    CONTROLLER  AGE  REASON"),
        "{}",
        list.out
    );
    assert!(list.out.contains("NotEnoughFree"), "{}", list.out);

    let active = json!({"status": {
        "phase": "Active", "reason": null, "configMap": "train-ipuof", "nodeLabel": "vipu-ctrl=vctl1",
    }});
    set_status(&cluster, "default", "ipup/train", &active);
    let why = run(&cluster, &["partition", "why", "train"]);
    let expected = "train is Active: Pods on nodes with the label vipu-ctrl=vctl1 use it by envFrom of the ConfigMap train-ipuof\n";
    assert_eq!(why.out, expected);
    assert_eq!(run(&cluster, &["partition", "why", "other"]).code, 66);

    let reason = json!({"code": "TooLarge", "numbers": {}, "message": "no controller has 128 IPUs"});
    let waiting = json!({"status": {"phase": "Waiting", "reason": reason}});
    let create = ["partition", "create", "large", "--size", "128", "--wait"];
    let impossible = std::thread::scope(|scope| {
        let created = scope.spawn(|| run(&cluster, &create));
        let exists = ["wait", "--for=create", "ipup/large", "--timeout=60s"];
        cluster.kubectl(&exists).unwrap();
        set_status(&cluster, "default", "ipup/large", &waiting);
        created.join().unwrap()
    });
    assert_eq!(impossible.code, 78);
    let text = "can never fit: TooLarge: no controller has 128 IPUs; withdraw it by `kubectl delete ipupartition large`";
    assert!(impossible.err.contains(text), "{}", impossible.err);
}
