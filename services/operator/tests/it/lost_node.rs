//! A node that nothing is heard of any more.

use std::net::{Ipv4Addr, SocketAddr};

use ipu_operator::Settings;
use ipu_test_cluster::{ClusterProfile, FakeNodes, FakeOptions, private_with};
use kube::Client;
use serde_json::{Value, json};
use vipu_proxy::Proxy;

use crate::cluster_fixture::{define, worker_job};
use crate::support::{apply, config, here, settings, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_says_that_its_node_is_not_heard_from_and_begins_anew_elsewhere_when_its_worker_is_taken_away()
{
    let test =
        "a_job_says_that_its_node_is_not_heard_from_and_begins_anew_elsewhere_when_its_worker_is_taken_away";
    let Some(cluster) = private_with(test, ClusterProfile::Controllers) else {
        return;
    };
    define(&cluster).await;
    let mut fake = FakeOptions::default();
    // Of a cluster that is silent as a whole, Kubernetes takes nothing away.
    fake.nodes = 3;
    let client = Client::try_from(config(&cluster).await).unwrap();
    let nodes = FakeNodes::start(client, fake).await.unwrap();
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut of_proxy = vipu_proxy::Settings::default();
    of_proxy.sim = Some("1x8".into());
    of_proxy.sim_delay_ms = Some(0);
    of_proxy.sim_listen = Some(anywhere);
    of_proxy.listen = Some(anywhere);
    let proxy = Proxy::start(of_proxy.check().unwrap()).await.unwrap();
    let mut of_operator = Settings::default();
    of_operator.vipu_proxy_svc = Some(format!("http://{}", here(proxy.addr())));
    let operator = start(&cluster, of_operator.or(settings("lost-node"))).await;

    let mut job = worker_job("serving", "nobody runs it");
    let at_once =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    job["spec"]["workers"]["template"]["spec"]["tolerations"] = json!([
        at_once("node.kubernetes.io/unreachable"),
        at_once("node.kubernetes.io/not-ready"),
    ]);
    apply(&cluster, &job);
    let seen = |kind: &str, name: &str| -> Value {
        let text = cluster.kubectl(&["get", kind, name, "--output=json", "--ignore-not-found"]);
        serde_json::from_str(&text.unwrap()).unwrap_or_default()
    };
    let status = || seen("ipujob", "serving")["status"].clone();
    let says = |words: &str| {
        status()["lastMessage"]
            .as_str()
            .is_some_and(|message| message.contains(words))
    };
    until("it runs", async || status()["phase"] == "Running").await;
    let node = seen("pod", "serving-worker-0")["spec"]["nodeName"].clone();
    let node = node.as_str().unwrap();

    nodes.fall_silent(node);
    until("it says what is not ready, and where", async || {
        says("serving-worker-0: NotReady: since ") && says(&format!(" on node {node}"))
    })
    .await;
    until(
        "it says that Kubernetes waits in vain for the end of its worker",
        async || says("serving-worker-0: DeletionOverdue: it was to be gone by "),
    )
    .await;
    assert_eq!(status()["phase"], "Running");
    assert_eq!(status()["ipusHeld"], 1, "the process may still run");

    let by_force = ["delete", "pod", "serving-worker-0", "--grace-period=0", "--force"];
    cluster.kubectl(&by_force).unwrap();
    let runs_again = async |attempt: u32| {
        until("it runs again, on a partition that was reset", async || {
            let status = status();
            status["phase"] == "Running" && status["instances"][0]["attempt"] == attempt
        })
        .await;
        seen("pod", "serving-worker-0")["spec"]["nodeName"].clone()
    };
    let next = runs_again(1).await;
    assert_ne!(next, node);

    let next = next.as_str().unwrap();
    cluster.kubectl(&["drain", next, "--timeout=60s"]).unwrap();
    let last = runs_again(2).await;
    assert!(last != node && last != next, "{last}");
    assert_eq!(status()["restartCount"], 0);
    assert!(!says("serving-worker-0"), "{}", status());
    operator.shutdown().await;
    proxy.shutdown().await;
}
