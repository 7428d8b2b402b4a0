//! Conformance suite for [`LedgerStore`] implementations, with several processes, crashes and lost replies.
//!
//! Every case starts with an empty ledger in its own [`StoreFactory`]. It opens the store as often as it
//! needs: each opening represents a separate process, and dropping a store or a future represents a crash.

mod compare_and_swap;
mod concurrent_processes;
mod contents_diff;
mod crashes;
mod fixtures;
mod harness;
mod ledgers_on_store;
mod store_factory;
mod stored_data;
mod write_lock;

use std::future::Future;
use std::pin::Pin;

use ipu_ledger::LedgerStore;

use crate::conformance::{CaseOutcome, Runner, SuiteFailure, SuiteReport};
use harness::StoreFixture;
pub use store_factory::StoreFactory;

/// Name and function of a case.
type Case<S> = (
    &'static str,
    for<'a> fn(&'a StoreFixture<'a, S>) -> CaseFuture<'a>,
);

type CaseFuture<'a> = Pin<Box<dyn Future<Output = CaseOutcome> + 'a>>;

/// Lists functions as cases, by their names.
macro_rules! cases {
    ($($module:ident :: $name:ident,)*) => {
        [$((stringify!($name), |fixture| Box::pin($module::$name(fixture))),)*]
    };
}

fn cases<S: LedgerStore>() -> [Case<S>; 22] {
    cases![
        stored_data::an_empty_ledger_has_a_revision_and_no_entries,
        stored_data::every_field_of_every_entry_is_stored,
        stored_data::cordons_are_stored_until_lifted,
        stored_data::load_returns_none_only_without_a_new_commit,
        stored_data::changes_are_applied_in_order,
        stored_data::a_large_ledger_is_stored_or_rejected_as_a_whole,
        compare_and_swap::a_commit_on_an_old_revision_conflicts_without_effect,
        compare_and_swap::a_revision_is_never_reused,
        compare_and_swap::a_duplicate_commit_is_applied_once,
        compare_and_swap::exactly_one_of_several_commits_on_one_revision_wins,
        compare_and_swap::concurrent_writers_lose_no_update,
        concurrent_processes::a_commit_is_visible_to_other_processes_immediately,
        concurrent_processes::a_commit_survives_reopening,
        concurrent_processes::readers_see_atomic_commits_in_order,
        write_lock::the_write_lock_is_released_on_drop,
        write_lock::the_write_lock_is_released_when_its_task_ends,
        write_lock::a_cancelled_wait_leaves_no_write_lock,
        write_lock::a_commit_needs_no_write_lock,
        crashes::an_interrupted_commit_is_atomic,
        ledgers_on_store::cordons_of_another_process_prevent_placement,
        ledgers_on_store::a_stale_driver_cannot_release_a_newer_attempt,
        ledgers_on_store::drivers_sharing_a_store_never_double_book_or_leak,
    ]
}

/// Runs every case of the suite against a store and panics if a rule is broken.
///
/// `open` opens the ledger of a [`StoreFactory`]. The ledger is empty when it is opened for the first time,
/// and must be the same ledger whenever the same factory is passed again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use ipu_ledger::MemoryStore;
/// use ipu_testkit::ledger_store_suite;
///
/// // A store on disk would use: |factory| MyStore::open(factory.path().join("ledger"))
/// let report = ledger_store_suite(async |factory| factory.shared(MemoryStore::new)).await;
/// println!("{report}");
/// # }
/// ```
///
/// Call it from `#[tokio::test]`; with `flavor = "multi_thread"` the writers of a case run on several
/// threads. Do not pause the clock: a paused clock advances while a store waits for its disk or network.
///
/// # Panics
///
/// If a rule is broken: with all cases, and for each broken rule the expected and the actual value.
pub async fn ledger_store_suite<S, F>(open: F) -> SuiteReport
where
    S: LedgerStore,
    F: AsyncFn(&StoreFactory) -> S,
{
    match try_ledger_store_suite(open).await {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

/// Like [`ledger_store_suite`], but returns the broken rules as an error.
///
/// # Errors
///
/// All broken rules, at most one per case.
pub async fn try_ledger_store_suite<S, F>(open: F) -> Result<SuiteReport, SuiteFailure>
where
    S: LedgerStore,
    F: AsyncFn(&StoreFactory) -> S,
{
    let mut runner = Runner::new("ledger store");
    for (name, case) in cases() {
        let fixture = StoreFixture::new(&open);
        runner.run_inline(name, case(&fixture)).await;
    }
    runner.finish()
}
