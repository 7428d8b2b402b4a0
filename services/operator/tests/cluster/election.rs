//! Tests of the leader election and of failover.

use ipu_operator::Leadership;
use ipu_test_cluster::{Cluster, private, shared};
use kube::Client;

use crate::support::config;

async fn compete(cluster: &Cluster, lease: &str, identity: &str) -> Leadership {
    let client = Client::try_from(config(cluster).await).unwrap();
    Leadership::join(client, "default", lease, identity)
}

async fn wait_until_leader(candidate: &Leadership) {
    candidate.is_leader().wait_for(|leads| *leads).await.unwrap();
}

fn holder(cluster: &Cluster, lease: &str) -> String {
    let path = "jsonpath={.spec.holderIdentity}/{.spec.leaseTransitions}";
    cluster.kubectl(&["get", "lease", lease, "-o", path]).unwrap()
}

#[tokio::test]
async fn one_operator_leads_at_a_time_and_another_takes_over_after_a_crash_or_release() {
    let name = "one_operator_leads_at_a_time_and_another_takes_over_after_a_crash_or_release";
    let Some(cluster) = shared(name) else {
        return;
    };
    let first = compete(cluster, "election", "first").await;
    wait_until_leader(&first).await;
    let second = compete(cluster, "election", "second").await;
    // The second waits while the first renews the Lease, for at least two of its intervals.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(*first.is_leader().borrow() && !*second.is_leader().borrow());
    assert_eq!(holder(cluster, "election"), "first/0");
    // The Lease is not released, as after SIGKILL.
    let killed = std::time::Instant::now();
    drop(first);
    wait_until_leader(&second).await;
    let took = killed.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    assert_eq!(holder(cluster, "election"), "second/1");
    let third = compete(cluster, "election", "third").await;
    second.release().await;
    wait_until_leader(&third).await;
    assert_eq!(holder(cluster, "election"), "third/2");
    third.release().await;
    assert_eq!(holder(cluster, "election"), "/2");
}

#[tokio::test]
async fn a_leader_that_cannot_renew_its_lease_steps_down_and_leads_again_later() {
    let name = "a_leader_that_cannot_renew_its_lease_steps_down_and_leads_again_later";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let candidate = compete(&cluster, "lonely", "one").await;
    wait_until_leader(&candidate).await;
    cluster.kill_apiserver();
    candidate.is_leader().wait_for(|leads| !*leads).await.unwrap();
    cluster.start_apiserver().unwrap();
    wait_until_leader(&candidate).await;
    candidate.release().await;
}
