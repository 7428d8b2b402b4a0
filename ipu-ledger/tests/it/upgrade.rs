//! Upgrade and downgrade by one version while jobs run.

use ipu_ledger::SqliteStore;

use crate::format_compat::{AnyStore, exchange_builds_under_load, refuse_records_of_a_newer_format};

#[tokio::test(flavor = "multi_thread")]
async fn alternating_builds_under_load_neither_lose_nor_share_a_partition() {
    let scratch = tempfile::tempdir().unwrap();
    let open = async || AnyStore::new(SqliteStore::open(scratch.path().join("ledger.db")).unwrap());
    exchange_builds_under_load(open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_previous_build_refuses_a_newer_format_by_number_until_it_is_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let open = async || AnyStore::new(SqliteStore::open(scratch.path().join("ledger.db")).unwrap());
    refuse_records_of_a_newer_format(open).await;
}
