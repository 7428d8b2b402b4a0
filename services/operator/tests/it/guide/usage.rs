//! What the proxy tells of the use of IPUs (seed 000 §6.9), asked from within a Kubernetes Pod as the seed does.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, FOREVER, worker_job};

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_9_stats_and_query_tell_the_documented_numbers() {
    let test = "seed_000_6_9_stats_and_query_tell_the_documented_numbers";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| {
        proxy.listen = Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        proxy.auth = Some(vipu_proxy::Auth::None);
    };
    let Some(served) = ClusterFixture::start_with(test, "seed-000-6-9", change).await else {
        return;
    };
    let nothing = json!({"total": {"used": 0, "available": 32}});
    assert_eq!(served.ask("/stats").await, nothing);
    let mut job = worker_job("four", FOREVER);
    job["spec"]["ipusPerJobInstance"] = "4".into();
    served.apply(&job);
    served.is("four", "Running").await;

    let proxy = format!(
        "http://{}:{}",
        served.cluster.host_address(),
        served.proxy().port()
    );
    let ask = |words: &[&str]| -> Value {
        let exec = ["exec", "four-worker-0", "--", "wget", "-q", "-O", "-"];
        serde_json::from_str(&served.kubectl(&[&exec[..], words].concat())).unwrap()
    };
    let used = json!({"used": 4, "available": 28});
    assert_eq!(
        ask(&[&format!("{proxy}/stats")]),
        json!({"seed-000-6-9": used, "total": used})
    );
    let query = |size: u32| {
        let question = json!({"size": size}).to_string();
        ask(&[
            "--header",
            "Content-Type: application/json",
            "--post-data",
            &question,
            &format!("{proxy}/query"),
        ])
    };
    for (size, number) in [(2, 14), (64, 0)] {
        let fits = json!({"available": true, "numOfPartitions": number, "message": ""});
        assert_eq!(query(size), fits, "partitions of {size}");
    }
    served.delete("four");
    crate::support::until("all is free again", async || {
        served.ask("/stats").await == nothing
    })
    .await;
    served.ends_without_a_trace().await;
}
