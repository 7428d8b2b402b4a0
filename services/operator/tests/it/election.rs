//! One of several operators leads, and another one when it is gone.

use ipu_operator::{Leadership, LeaseOptions};
use ipu_test_cluster::{Cluster, private, shared};
use kube::Client;

use crate::support::config;

async fn compete(cluster: &Cluster, lease: &str, identity: &str) -> Leadership {
    let client = Client::try_from(config(cluster).await).unwrap();
    Leadership::join(client, LeaseOptions::new("default", lease, identity))
}

async fn leads(one: &Leadership) {
    one.leads().wait_for(|leads| *leads).await.unwrap();
}

fn holder(cluster: &Cluster, lease: &str) -> String {
    let path = "jsonpath={.spec.holderIdentity}/{.spec.leaseTransitions}";
    cluster.kubectl(&["get", "lease", lease, "-o", path]).unwrap()
}

#[tokio::test]
async fn one_leads_at_a_time_and_the_next_takes_over_from_one_that_crashed_or_stopped() {
    let name = "one_leads_at_a_time_and_the_next_takes_over_from_one_that_crashed_or_stopped";
    let Some(cluster) = shared(name) else {
        return;
    };
    let first = compete(cluster, "election", "first").await;
    leads(&first).await;
    let second = compete(cluster, "election", "second").await;
    // As long as the first renews it, the second waits: for two of its seconds at least.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(*first.leads().borrow() && !*second.leads().borrow());
    assert_eq!(holder(cluster, "election"), "first/0");
    // Not released, as after kill -9.
    let killed = std::time::Instant::now();
    drop(first);
    leads(&second).await;
    let took = killed.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    assert_eq!(holder(cluster, "election"), "second/1");
    let third = compete(cluster, "election", "third").await;
    second.release().await;
    leads(&third).await;
    assert_eq!(holder(cluster, "election"), "third/2");
    third.release().await;
    assert_eq!(holder(cluster, "election"), "/2");
}

#[tokio::test]
async fn a_leader_that_cannot_renew_its_lease_stops_and_leads_again_when_it_can() {
    let name = "a_leader_that_cannot_renew_its_lease_stops_and_leads_again_when_it_can";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let one = compete(&cluster, "lonely", "one").await;
    leads(&one).await;
    cluster.kill_apiserver();
    one.leads().wait_for(|leads| !*leads).await.unwrap();
    cluster.start_apiserver().unwrap();
    leads(&one).await;
    one.release().await;
}
