//! Upgrade and downgrade by one version while jobs come and go.

use ipu_ledger::SqliteStore;

use crate::format_compat::{AnyStore, exchange_builds_under_load, refuse_what_only_this_build_knows};

#[tokio::test(flavor = "multi_thread")]
async fn builds_are_exchanged_under_load_and_nothing_is_lost_or_held_twice() {
    let scratch = tempfile::tempdir().unwrap();
    let open = async || AnyStore::new(SqliteStore::open(scratch.path().join("ledger.db")).unwrap());
    exchange_builds_under_load(open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_build_before_refuses_by_number_what_it_does_not_know_and_goes_on_without_it() {
    let scratch = tempfile::tempdir().unwrap();
    let open = async || AnyStore::new(SqliteStore::open(scratch.path().join("ledger.db")).unwrap());
    refuse_what_only_this_build_knows(open).await;
}
