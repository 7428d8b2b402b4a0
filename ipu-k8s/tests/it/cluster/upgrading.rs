//! Upgrade and downgrade by one version on a ConfigMap while jobs are submitted and deleted.

use ipu_test_cluster::shared;

use super::previous::{AnyStore, exchange_builds_under_load, refuse_records_of_a_newer_format};
use super::store;

#[tokio::test(flavor = "multi_thread")]
async fn builds_are_exchanged_under_load_and_nothing_is_lost_or_held_twice() {
    let Some(cluster) = shared("builds_are_exchanged_under_load_and_nothing_is_lost_or_held_twice") else {
        return;
    };
    exchange_builds_under_load(async || AnyStore::new(store(cluster, "exchanged").await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_build_before_refuses_by_number_what_it_does_not_know_and_goes_on_without_it() {
    let name = "the_build_before_refuses_by_number_what_it_does_not_know_and_goes_on_without_it";
    let Some(cluster) = shared(name) else {
        return;
    };
    refuse_records_of_a_newer_format(async || AnyStore::new(store(cluster, "refused").await)).await;
}
