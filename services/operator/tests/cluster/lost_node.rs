//! Test of an unreachable node.

use std::net::{Ipv4Addr, SocketAddr};

use ipu_operator::Settings;
use ipu_test_cluster::{ClusterProfile, FakeNodes, FakeOptions, private_with};
use kube::Client;
use serde_json::{Value, json};
use vipu_proxy::Proxy;

use crate::cluster_fixture::{install_crd, worker_job};
use crate::support::{apply, config, local_address, settings, start, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_reports_its_unreachable_node_and_restarts_on_another_once_its_worker_is_deleted() {
    let test = "a_job_reports_its_unreachable_node_and_restarts_on_another_once_its_worker_is_deleted";
    let Some(cluster) = private_with(test, ClusterProfile::Controllers) else {
        return;
    };
    install_crd(&cluster).await;
    let mut fake = FakeOptions::default();
    // If all nodes are unreachable, Kubernetes evicts no Pod.
    fake.nodes = 3;
    let client = Client::try_from(config(&cluster).await).unwrap();
    let nodes = FakeNodes::start(client, fake).await.unwrap();
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut proxy_settings = vipu_proxy::Settings::default();
    proxy_settings.sim = Some("1x8".into());
    proxy_settings.sim_delay_ms = Some(0);
    proxy_settings.sim_listen = Some(any_port);
    proxy_settings.listen = Some(any_port.into());
    let proxy = Proxy::start(proxy_settings.check().unwrap()).await.unwrap();
    let mut operator_settings = Settings::default();
    operator_settings.vipu_proxy_svc = Some(format!("http://{}", local_address(proxy.addr())));
    let operator = start(&cluster, operator_settings.or(settings("lost-node"))).await;

    let mut job = worker_job("serving", "never executed");
    let toleration =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    job["spec"]["workers"]["template"]["spec"]["tolerations"] = json!([
        toleration("node.kubernetes.io/unreachable"),
        toleration("node.kubernetes.io/not-ready"),
    ]);
    apply(&cluster, &job);
    let object = |kind: &str, name: &str| -> Value {
        let text = cluster.kubectl(&["get", kind, name, "--output=json", "--ignore-not-found"]);
        serde_json::from_str(&text.unwrap()).unwrap_or_default()
    };
    let status = || object("ipujob", "serving")["status"].clone();
    let message_contains = |arguments: &str| {
        status()["lastMessage"]
            .as_str()
            .is_some_and(|message| message.contains(arguments))
    };
    wait_until("the job runs", async || status()["phase"] == "Running").await;
    let node = object("pod", "serving-worker-0")["spec"]["nodeName"].clone();
    let node = node.as_str().unwrap();

    nodes.fall_silent(node);
    wait_until(
        "the job reports the worker that is not ready, and its node",
        async || {
            message_contains("serving-worker-0: NotReady: since ")
                && message_contains(&format!(" on node {node}"))
        },
    )
    .await;
    wait_until("the job reports the overdue deletion of its worker", async || {
        message_contains("serving-worker-0: DeletionOverdue: its deletion was due by ")
    })
    .await;
    assert_eq!(status()["phase"], "Running");
    assert_eq!(status()["ipusHeld"], 1, "the process may still run");

    let force_delete = ["delete", "pod", "serving-worker-0", "--grace-period=0", "--force"];
    cluster.kubectl(&force_delete).unwrap();
    let runs_again = async |attempt: u32| {
        wait_until("the job runs again on a reset partition", async || {
            let status = status();
            status["phase"] == "Running" && status["instances"][0]["attempt"] == attempt
        })
        .await;
        object("pod", "serving-worker-0")["spec"]["nodeName"].clone()
    };
    let next = runs_again(1).await;
    assert_ne!(next, node);

    let next = next.as_str().unwrap();
    cluster.kubectl(&["drain", next, "--timeout=60s"]).unwrap();
    let last = runs_again(2).await;
    assert!(last != node && last != next, "{last}");
    assert_eq!(status()["restartCount"], 0);
    assert!(!message_contains("serving-worker-0"), "{}", status());
    operator.shutdown().await;
    proxy.shutdown().await;
}
