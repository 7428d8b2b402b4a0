//! Pods that run on a real node.

use ipu_test_cluster::{Cluster, ClusterProfile, Image, private_with, shared_with};
use serde_json::json;

#[test]
fn a_pod_runs_to_completion_with_its_exit_code_and_log() {
    let name = "a_pod_runs_to_completion_with_its_exit_code_and_log";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    apply(
        cluster,
        &pod("ends", "local/busybox:1", "echo all is well; exit 7"),
    );
    wait_for(cluster, "ends", "jsonpath={.status.phase}=Failed");
    let path = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(cluster.kubectl(&["get", "pod", "ends", "-o", path]).unwrap(), "7");
    assert_eq!(cluster.kubectl(&["logs", "ends"]).unwrap(), "all is well\n");
}

#[test]
fn a_command_runs_in_a_running_pod() {
    let name = "a_command_runs_in_a_running_pod";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    apply(cluster, &pod("sleeper", "local/busybox:1", "sleep 3600"));
    wait_for(cluster, "sleeper", "condition=Ready");
    let output = cluster.kubectl(&["exec", "sleeper", "--", "hostname"]).unwrap();
    assert_eq!(output, "sleeper\n");
    let error = cluster
        .kubectl(&["exec", "sleeper", "--", "sh", "-c", "exit 3"])
        .unwrap_err();
    assert!(error.to_string().contains("exit code 3"), "{error}");
}

#[test]
fn pods_reach_only_the_api_server_and_each_other_by_services() {
    let name = "pods_reach_only_the_api_server_and_each_other_by_services";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let mut server = pod(
        "server",
        "local/busybox:1",
        "mkdir /www; echo served >/www/index.html; httpd -f -p 8080 -h /www",
    );
    server["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    apply(cluster, &server);
    cluster
        .kubectl(&["expose", "pod", "server", "--port=80", "--target-port=8080"])
        .unwrap();
    wait_for(cluster, "server", "condition=Ready");
    let service = cluster
        .kubectl(&["get", "service", "server", "-o", "jsonpath={.spec.clusterIP}"])
        .unwrap();
    let host = cluster.host_address();
    let script = format!(
        "until wget -q -O - http://{service}; do sleep 1; done
         wget -q -O - http://server | sed 's/^/by name /'
         wget -q -O - http://server.default.svc.cluster.local | sed 's/^/by its full name /'
         nslookup nobody.default.svc.cluster.local | grep -o NXDOMAIN
         printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT
         timeout 2 nc -w 1 192.0.2.1 80 </dev/null 2>/dev/null || echo nowhere
         ping -c 1 -W 5 {host} >/dev/null && echo the host answers"
    );
    apply(cluster, &pod("client", "local/busybox:1", &script));
    wait_for(cluster, "client", "jsonpath={.status.phase}=Succeeded");
    let log = cluster.kubectl(&["logs", "client"]).unwrap();
    for line in ["served", "by name served", "by its full name served", "NXDOMAIN"] {
        assert!(log.lines().any(|logged| logged == line), "{line}: {log}");
    }
    assert!(
        log.contains("Client sent an HTTP request to an HTTPS server"),
        "{log}"
    );
    assert!(log.contains("nowhere\n"), "{log}");
    assert!(log.contains("the host answers\n"), "{log}");
}

#[test]
fn an_image_made_of_local_files_runs() {
    let Some(cluster) = shared_with("an_image_made_of_local_files_runs", ClusterProfile::Node) else {
        return;
    };
    let long = format!(
        "/{}/greeting",
        ["a folder of forty letters in its name, or"; 3].join("/")
    );
    let image = Image::busybox("local/greeting:1")
        .unwrap()
        .text(&long, "hello from afar\n")
        .link("/greeting", "etc/greeting")
        .text("/etc/greeting", "and from here\n")
        .variable("WHO", "nobody")
        .entrypoint(["/bin/sh", "-c", &format!("cat '{long}' /greeting; echo $WHO")]);
    cluster.load(&image).unwrap();
    let mut greeting = pod("greeting", "local/greeting:1", "");
    greeting["spec"]["containers"][0]
        .as_object_mut()
        .unwrap()
        .remove("command");
    apply(cluster, &greeting);
    wait_for(cluster, "greeting", "jsonpath={.status.phase}=Succeeded");
    assert_eq!(
        cluster.kubectl(&["logs", "greeting"]).unwrap(),
        "hello from afar\nand from here\nnobody\n"
    );
}

#[test]
fn a_node_leaves_no_process_mount_link_or_control_group_behind() {
    let name = "a_node_leaves_no_process_mount_link_or_control_group_behind";
    let Some(cluster) = private_with(name, ClusterProfile::Node) else {
        return;
    };
    apply(&cluster, &pod("sleeper", "local/busybox:1", "sleep 3600"));
    wait_for(&cluster, "sleeper", "condition=Ready");
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

#[test]
fn an_owned_object_is_deleted_with_its_owner() {
    let name = "an_owned_object_is_deleted_with_its_owner";
    let Some(cluster) = shared_with(name, ClusterProfile::Controllers) else {
        return;
    };
    cluster.kubectl(&["create", "configmap", "owner"]).unwrap();
    let uid = cluster
        .kubectl(&["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"])
        .unwrap();
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid});
    apply(
        cluster,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [owner]}}),
    );
    cluster.kubectl(&["delete", "configmap", "owner"]).unwrap();
    cluster
        .kubectl(&["wait", "--for=delete", "configmap/owned", "--timeout=300s"])
        .unwrap();
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
