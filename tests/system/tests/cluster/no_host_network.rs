//! Jobs without the host network, with the files of `examples/kubernetes/no-host-network` (RDMA guide). The
//! guide `docs/how-to/no-host-network.md` names the stand-ins.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::process::Command;

use ipu_test_cluster::{Cluster, ClusterProfile, Tool, client, find_tools, private_with, product_images};
use serde_json::{Value, json};

use crate::installation::{Product, programs, repository, wait_until};

/// Address of the simulated controller, which listens in the network of the IPUs only.
const CONTROLLER: &str = "10.247.208.2:8090";

/// Size of the message that each rank sends.
const MESSAGE_BYTES: u64 = 4 << 20;

#[test]
fn jobs_without_host_network_use_the_network_of_the_ipus() {
    let name = "jobs_without_host_network_use_the_network_of_the_ipus";
    let Some(product) = install(name) else { return };
    test_pod(&product);
    for (user, suffix) in [(0, ""), (1000, "-user")] {
        if user != 0 {
            // Containers of normal users need no capability.
            product.kubectl(&[
                "label",
                "namespace",
                "default",
                "pod-security.kubernetes.io/enforce=baseline",
            ]);
        }
        ipu_job(&product, &format!("ipujob{suffix}"), user);
        native_job(&product, &format!("job{suffix}"), user);
        native_deployment(&product, &format!("deployment{suffix}"), user);
    }
    absent_network(&product);
    absent_devices(&product);
}

/// Installs the chart on a node with a second network, for jobs of two namespaces.
fn install(test: &str) -> Option<Product<Box<Cluster>>> {
    find_tools(test, &Tool::HELM)?;
    let mut cluster = private_with(test, ClusterProfile::Node)?;
    for image in product_images(&programs()).unwrap() {
        cluster.load(&image).unwrap();
    }
    let listen = format!("--listen={CONTROLLER}");
    let arguments = [listen, "--topology=pod16".into()];
    cluster
        .add_second_network(&programs().join("vipu-sim"), &arguments)
        .unwrap();
    let product = Product::with_examples(Box::new(cluster));
    if !product.has_mpi(test) {
        return None;
    }
    let definitions = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/testdata/no-host-network/definitions.yaml"
    );
    product.kubectl(&["apply", "-f", definitions]);
    product.kubectl(&["wait", "--for=condition=Established", "-f", definitions]);
    apply(&product, "macvlan-network");
    attach(&product);
    set_devices(&product, "1k");
    product.kubectl(&["label", "nodes", "--all", "ipunode=true"]);
    let chart = repository("deploy/helm/ipu-operator");
    let values = example("ipu-operator-values");
    for namespace in ["elsewhere", "unwatched"] {
        product.kubectl(&["create", "namespace", namespace]);
    }
    let watched = "watchNamespaces={default,elsewhere}";
    product.install_chart_with(
        Tool::Helm4,
        &["gc", &chart, "--values", &values, "--set", watched],
    );
    Some(product)
}

/// Sets the number of RDMA devices, which the RDMA device plugin reports otherwise.
fn set_devices(product: &Product<impl Deref<Target = Cluster>>, number: &str) {
    let path = "/status/capacity/rdma~1rdma_shared_device_a";
    let patch = json!([{"op": "add", "path": path, "value": number}]).to_string();
    let patch = ["--subresource=status", "--type=json", "-p", &patch];
    product.kubectl(&[&["patch", "node", "node"], &patch[..]].concat());
}

/// Creates the NetworkAttachmentDefinition of the MacvlanNetwork, as the Network Operator does. The node's
/// interface and the plugin for addresses differ.
fn attach(product: &Product<impl Deref<Target = Cluster>>) {
    let network = product.kubectl(&["get", "macvlannetwork", "rdma-net", "-o", "json"]);
    let network: Value = serde_json::from_str(&network).unwrap();
    let spec = &network["spec"];
    let ipam: Value = serde_json::from_str(spec["ipam"].as_str().unwrap()).unwrap();
    assert_eq!(ipam["exclude"], json!(["10.247.208.0/25"]));
    let range = json!({"subnet": ipam["range"], "rangeStart": "10.247.208.128"});
    let config = json!({
        "cniVersion": "0.3.1",
        "name": "rdma-net",
        "type": "macvlan",
        "master": "ipu0",
        "mode": spec["mode"],
        "mtu": spec["mtu"],
        "ipam": {"type": "host-local", "ranges": [[range]]},
    });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "rdma-net", "namespace": spec["networkNamespace"]},
        "spec": {"config": config.to_string()},
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("network.json");
    std::fs::write(&file, definition.to_string()).unwrap();
    product.kubectl(&["apply", "-f", &file.display().to_string()]);
}

fn test_pod(product: &Product<impl Deref<Target = Cluster>>) {
    apply(product, "test-pod");
    product.kubectl(&["wait", "pod/rdma-test", "--for=condition=Ready", "--timeout=300s"]);
    let addresses = product.kubectl(&["exec", "rdma-test", "--", "ip", "-4", "addr"]);
    assert!(addresses.contains("inet 10.247.208.1"), "{addresses}");
    assert!(addresses.contains(": net1@"), "{addresses}");
    let capabilities = product.kubectl(&["exec", "rdma-test", "--", "grep", "CapEff", "/proc/self/status"]);
    assert!(has_ipc_lock(&capabilities), "{capabilities}");
    product.kubectl(&["delete", "pod", "rdma-test", "--grace-period=1"]);
}

/// Runs four MPI ranks, and checks their interfaces by the counters of the kernel.
fn ipu_job(product: &Product<impl Deref<Target = Cluster>>, file: &str, user: u32) {
    let script = format!(
        "RING_BYTES={MESSAGE_BYTES} ring && grep CapEff /proc/self/status && for i in eth0 net1; do \
         echo sent $i $(id -u) $(cat /sys/class/net/$i/statistics/tx_bytes); done"
    );
    product.submit("default", &format!("no-host-network/{file}"), |job| {
        let launcher =
            "    - sh\n    - -c\n    - 'echo launcher $(id -u) $(ls /sys/class/net); exec \"$@\"'\n";
        let ranks = format!("    - sh\n    - -c\n    - {}\n", json!(script));
        job.replace(
            "    - mpirun\n",
            &format!("{launcher}    - launcher\n    - mpirun\n"),
        )
        .replace("    - ring\n", &ranks)
    });
    product.wait_for_phase("default", "training", "Completed");
    let log = product.kubectl(&["logs", "training-launcher"]);
    assert!(log.contains(&format!("launcher {user} eth0 lo net1\n")), "{log}");
    let sent = |interface: &str| -> Vec<u64> {
        let prefix = format!("sent {interface} {user} ");
        let bytes = log.lines().filter_map(|line| line.strip_prefix(&prefix));
        bytes.map(|bytes| bytes.trim().parse().unwrap()).collect()
    };
    for interface in ["eth0", "net1"] {
        assert_eq!(sent(interface).len(), 4, "{interface}: {log}");
    }
    assert!(sent("net1").iter().all(|bytes| *bytes > MESSAGE_BYTES), "{log}");
    assert!(
        sent("eth0").iter().all(|bytes| *bytes < MESSAGE_BYTES / 4),
        "{log}"
    );
    assert_eq!(
        log.lines().filter(|line| has_ipc_lock(line)).count(),
        if user == 0 { 4 } else { 0 },
        "{log}"
    );

    let pods = product.kubectl(&[
        "get",
        "pods",
        "-l",
        "graphcore.ai/ipujob-name=training",
        "-o",
        "json",
    ]);
    let pods: Value = serde_json::from_str(&pods).unwrap();
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 5);
    for pod in pods {
        assert_is_connected(pod, user);
        let spec = &pod["spec"];
        let container = &spec["containers"][0];
        let is_launcher = pod["metadata"]["name"] == "training-launcher";
        let devices = &container["resources"]["limits"]["rdma/rdma_shared_device_a"];
        assert_eq!(devices.is_null(), is_launcher, "{spec}");
        let added = &container["securityContext"]["capabilities"]["add"];
        assert_eq!(
            *added,
            if user == 0 {
                json!(["IPC_LOCK"])
            } else {
                Value::Null
            },
            "{spec}"
        );
    }
    // The workers run until the job is deleted.
    assert_eq!(doctor(product), Findings::default());
    product.delete("default", "training");
}

/// Checks that a Pod has an address in the network of the IPUs, and no privilege. The kernel routes the
/// addresses of the network over the interface with such an address.
fn assert_is_connected(pod: &Value, user: u32) {
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["k8s.v1.cni.cncf.io/networks"], "rdma-net");
    let status = annotations["k8s.v1.cni.cncf.io/network-status"].as_str();
    let status: Value = serde_json::from_str(status.unwrap_or_default()).expect("network-status");
    let address = status[1]["ips"][0].as_str().unwrap_or_default();
    assert_eq!(status[1]["interface"], "net1", "{status}");
    assert!(address.starts_with("10.247.208."), "{status}");
    let spec = &pod["spec"];
    assert!(spec["hostNetwork"].is_null(), "{spec}");
    assert_eq!(spec["securityContext"]["runAsUser"], user, "{spec}");
    let context = &spec["containers"][0]["securityContext"];
    assert!(context["privileged"].is_null(), "{spec}");
}

/// Returns the only Pod with this label.
fn pod_of(product: &Product<impl Deref<Target = Cluster>>, label: &str) -> Value {
    let pods = product.kubectl(&["get", "pods", "-l", label, "-o", "json"]);
    let mut pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "{pods}");
    pods["items"][0].take()
}

/// Result of `kubectl ipu doctor`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    codes: BTreeSet<String>,
    not_checked: BTreeSet<String>,
}

/// Returns the report of `kubectl ipu doctor`.
fn report(product: &Product<impl Deref<Target = Cluster>>) -> Value {
    let mut command = Command::new(client(&programs(), "kubectl-ipu").unwrap());
    command.args(["doctor", "-o", "json"]);
    let output = command
        .env("KUBECONFIG", product.cluster.kubeconfig())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

fn doctor(product: &Product<impl Deref<Target = Cluster>>) -> Findings {
    let report = report(product);
    // Several Pods of a job may have one code.
    let codes = |list: &str| {
        let items = report[list].as_array().expect(list).iter();
        items
            .map(|item| item["code"].as_str().expect("code").to_owned())
            .collect::<BTreeSet<String>>()
    };
    Findings {
        codes: codes("findings"),
        not_checked: codes("notChecked"),
    }
}

/// Waits until doctor has these findings and no other.
fn wait_for_findings(product: &Product<impl Deref<Target = Cluster>>, codes: &[&str]) {
    let expected = Findings {
        codes: codes.iter().map(|code| (*code).to_owned()).collect(),
        not_checked: BTreeSet::new(),
    };
    wait_until(&codes.join(", "), || {
        let found = doctor(product);
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
}

fn native_job(product: &Product<impl Deref<Target = Cluster>>, file: &str, user: u32) {
    partition(product, &["create", "training-partition", "--size", "1"]);
    apply(product, file);
    let arguments = [
        "wait",
        "job/simple-training",
        "--for=condition=Complete",
        "--timeout=300s",
    ];
    if let Err(error) = product.cluster.kubectl(&arguments) {
        panic!("{error}\n{}", product.describe_pods("default"));
    }
    let log = product.kubectl(&["logs", "job/simple-training"]);
    assert!(log.contains("ACTIVE"), "{log}");
    assert_is_connected(&pod_of(product, "app=simple-training"), user);
    product.kubectl(&["delete", "job", "simple-training"]);
    partition(product, &["remove", "training-partition"]);
}

fn native_deployment(product: &Product<impl Deref<Target = Cluster>>, file: &str, user: u32) {
    partition(product, &["create", "inference-partition", "--size", "1"]);
    apply(product, file);
    product.wait_for_rollout("default", "simple-inference");
    assert_is_connected(&pod_of(product, "app=simple-inference"), user);
    product.kubectl(&["delete", "deployment", "simple-inference", "--cascade=foreground"]);
    partition(product, &["remove", "inference-partition"]);
}

/// A Pod of a namespace without the network stays in creation, with the reason as an Event. Doctor names the
/// network, and the namespace that the release does not watch.
fn absent_network(product: &Product<impl Deref<Target = Cluster>>) {
    product.submit("unwatched", "no-host-network/ipujob", str::to_owned);
    product.submit("elsewhere", "no-host-network/ipujob", str::to_owned);
    let event = "events.events.k8s.io";
    wait_until("the absent network is reported", || {
        let events = product.kubectl(&["-n", "elsewhere", "get", event, "-o", "jsonpath={.items[*].note}"]);
        let expected = "no NetworkAttachmentDefinition rdma-net in namespace elsewhere";
        if events.contains(expected) {
            Ok(())
        } else {
            Err(events)
        }
    });
    wait_for_findings(product, &["NamespaceNotWatched", "PodNetworkFailed"]);
    // The operator has acted on the later job, and may not act on this one.
    let unwatched = product.kubectl(&["-n", "unwatched", "get", "ipujob,pods", "-o", "json"]);
    let unwatched: Value = serde_json::from_str(&unwatched).unwrap();
    let items = unwatched["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{unwatched}");
    assert!(items[0]["status"].is_null(), "{unwatched}");
    assert!(items[0]["metadata"]["finalizers"].is_null(), "{unwatched}");
    product.kubectl(&["-n", "unwatched", "delete", "ipujob", "training"]);
    wait_for_findings(product, &["PodNetworkFailed"]);
    delete_watched_namespace(product);
    wait_for_findings(product, &[]);
}

/// The deletion of a watched namespace takes the rights of the operator before its job has ended. The command
/// of doctor lets the job end, and its partition is released.
fn delete_watched_namespace(product: &Product<impl Deref<Target = Cluster>>) {
    let ledger = || product.ledger();
    assert!(ledger().contains("elsewhere"), "{}", ledger());
    product.kubectl(&["delete", "namespace", "elsewhere", "--wait=false"]);
    let fix = || {
        let report = report(product);
        let mut findings = report["findings"].as_array().unwrap().iter();
        let found = findings.find(|finding| finding["code"] == "PermissionMissing")?;
        let command = found["command"].as_str()?;
        command
            .contains("create clusterrolebinding")
            .then(|| command.to_owned())
    };
    wait_until("doctor prints the binding", || match fix() {
        Some(_) => Ok(()),
        None => Err(report(product).to_string()),
    });
    let command = fix().unwrap();
    let arguments: Vec<&str> = command.split(' ').skip(1).collect();
    product.kubectl(&arguments);
    product.kubectl(&["wait", "namespace/elsewhere", "--for=delete", "--timeout=300s"]);
    product.kubectl(&["delete", "clusterrolebinding", arguments[2]]);
    assert!(!ledger().contains("elsewhere"), "{}", ledger());
}

/// Doctor names the resource of a node without RDMA devices.
fn absent_devices(product: &Product<impl Deref<Target = Cluster>>) {
    set_devices(product, "0");
    wait_for_findings(product, &["RdmaUnavailable"]);
}

/// Runs `ipuctl partition` on the node.
fn partition(product: &Product<impl Deref<Target = Cluster>>, arguments: &[&str]) {
    let mut command = product.cluster.in_node_network(&programs().join("ipuctl"));
    let state = product.cluster.directory().join("ipuctl");
    command.args(["--vipu", CONTROLLER, "partition"]).args(arguments);
    let done = command.env("IPUCTL_STATE_DIR", state).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn apply(product: &Product<impl Deref<Target = Cluster>>, file: &str) {
    product.kubectl(&["apply", "-f", &example(file)]);
}

fn example(file: &str) -> String {
    repository(&format!("examples/kubernetes/no-host-network/{file}.yaml"))
}

/// Returns whether a line of `/proc/self/status` has the capability `IPC_LOCK`, bit 14.
fn has_ipc_lock(line: &str) -> bool {
    let mask = line
        .trim()
        .strip_prefix("CapEff:")
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << 14 != 0)
}
