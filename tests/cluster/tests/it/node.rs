//! Pods that run on a real node.

use ipu_test_cluster::{Cluster, ClusterProfile, private_with};
use serde_json::json;

#[test]
fn a_node_leaves_no_process_mount_link_or_control_group_behind() {
    let name = "a_node_leaves_no_process_mount_link_or_control_group_behind";
    let Some(cluster) = private_with(name, ClusterProfile::Node) else {
        return;
    };
    apply(&cluster, &pod("sleeper", "local/busybox:1", "sleep 3600"));
    wait_for(&cluster, "sleeper", "condition=Ready");
    let connect = "nc -w 5 192.0.2.1 80 </dev/null 2>&1 || true";
    let answer = cluster.kubectl(&["exec", "sleeper", "--", "sh", "-c", connect]);
    let answer = answer.unwrap();
    assert!(
        answer.contains("No route to host"),
        "a Pod reaches nothing outside: {answer}"
    );
    let directory = cluster.directory().display().to_string();
    let host = cluster.host_address().to_string();
    assert!(addresses().contains(&host));
    drop(cluster);
    assert_eq!(crate::servers_in(&directory), 0);
    assert!(
        !std::fs::read_to_string("/proc/mounts")
            .unwrap()
            .contains(&directory)
    );
    // The kernel removes a network asynchronously.
    while addresses().contains(&host) {
        std::thread::yield_now();
    }
    assert!(!std::path::Path::new(&directory).exists());
}

fn pod(name: &str, image: &str, script: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": image, "command": ["/bin/sh", "-c", script]}],
        },
    })
}

fn apply(cluster: &Cluster, object: &serde_json::Value) {
    let name = object["metadata"]["name"].as_str().unwrap();
    let path = cluster.directory().join(format!("{name}.json"));
    std::fs::write(&path, object.to_string()).unwrap();
    cluster
        .kubectl(&["apply", "-f", &path.display().to_string()])
        .unwrap();
}

fn wait_for(cluster: &Cluster, pod: &str, condition: &str) {
    let waited = cluster.kubectl(&[
        "wait",
        &format!("pod/{pod}"),
        &format!("--for={condition}"),
        "--timeout=120s",
    ]);
    if let Err(error) = waited {
        let described = cluster.kubectl(&["describe", "pod", pod]).unwrap_or_default();
        let log = cluster.kubectl(&["logs", pod]).unwrap_or_default();
        panic!("{error}\n{described}\n{log}");
    }
}

fn addresses() -> String {
    let output = std::process::Command::new("ip")
        .args(["-4", "addr"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
