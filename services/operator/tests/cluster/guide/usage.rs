//! Usage reports of the proxy (V-IPU guide §6.9), requested from within a Pod as in the guide.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM, worker_job};

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_9_stats_and_query_return_the_documented_numbers() {
    let test = "vipu_guide_6_9_stats_and_query_return_the_documented_numbers";
    let change = |proxy: &mut vipu_proxy::Settings, _: &mut _| {
        proxy.listen = Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into());
        proxy.auth = Some(vipu_proxy::Auth::None);
    };
    let Some(fixture) = ClusterFixture::start_with(test, "guide-6-9", change).await else {
        return;
    };
    let nothing = json!({"total": {"used": 0, "available": 32}});
    assert_eq!(fixture.get_from_proxy("/stats").await, nothing);
    let mut job = worker_job("four", RUN_UNTIL_SIGTERM);
    job["spec"]["ipusPerJobInstance"] = "4".into();
    fixture.apply(&job);
    fixture.wait_for_phase("four", "Running").await;

    let proxy = format!(
        "http://{}:{}",
        fixture.cluster.host_address(),
        fixture.proxy().port()
    );
    let wget = |arguments: &[&str]| -> Value {
        let exec = ["exec", "four-worker-0", "--", "wget", "-q", "-O", "-"];
        serde_json::from_str(&fixture.kubectl(&[&exec[..], arguments].concat())).unwrap()
    };
    let used = json!({"used": 4, "available": 28});
    assert_eq!(
        wget(&[&format!("{proxy}/stats")]),
        json!({"guide-6-9": used, "total": used})
    );
    let query = |size: u32| {
        let body = json!({"size": size}).to_string();
        wget(&[
            "--header",
            "Content-Type: application/json",
            "--post-data",
            &body,
            &format!("{proxy}/query"),
        ])
    };
    for (size, number) in [(2, 14), (64, 0)] {
        let fits = json!({"available": true, "numOfPartitions": number, "message": ""});
        assert_eq!(query(size), fits, "partitions of {size}");
    }
    fixture.delete("four");
    crate::support::wait_until("all IPUs are free again", async || {
        fixture.get_from_proxy("/stats").await == nothing
    })
    .await;
    fixture.delete_all_and_shut_down().await;
}
