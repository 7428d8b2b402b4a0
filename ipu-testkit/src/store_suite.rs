//! The conformance suite of a ledger store: whether [`LedgerStore`] is kept, with several processes, crashes and lost
//! replies.
//!
//! Every case begins with an empty ledger of its own, a [`StoreFactory`]. The store is opened there as often as the case needs
//! it: each opening stands for a process of its own, and to drop a store or a future stands for a crash.

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
use harness::Bench;
pub use store_factory::StoreFactory;

/// A case, by its name and what it does.
type Case<S> = (&'static str, for<'a> fn(&'a Bench<'a, S>) -> CaseFuture<'a>);

type CaseFuture<'a> = Pin<Box<dyn Future<Output = CaseOutcome> + 'a>>;

/// The cases that are these functions, by their names.
macro_rules! cases {
    ($($module:ident :: $name:ident,)*) => {
        [$((stringify!($name), |bench| Box::pin($module::$name(bench))),)*]
    };
}

fn cases<S: LedgerStore>() -> [Case<S>; 22] {
    cases![
        stored_data::an_empty_ledger_has_a_revision_and_no_entries,
        stored_data::every_field_of_every_entry_comes_back,
        stored_data::cordons_come_back_until_they_are_lifted,
        stored_data::load_answers_none_exactly_if_nothing_was_committed,
        stored_data::changes_are_taken_in_their_order,
        stored_data::a_large_ledger_is_kept_or_refused_whole,
        compare_and_swap::a_commit_on_an_old_revision_is_refused_and_changes_nothing,
        compare_and_swap::a_revision_never_comes_back,
        compare_and_swap::a_commit_that_is_sent_twice_is_taken_once,
        compare_and_swap::exactly_one_of_several_commits_on_one_revision_wins,
        compare_and_swap::writers_at_the_same_time_lose_no_update,
        concurrent_processes::what_is_committed_is_seen_by_others_at_once,
        concurrent_processes::what_is_committed_is_there_after_reopening,
        concurrent_processes::readers_see_whole_commits_and_never_go_back,
        write_lock::a_turn_ends_when_it_is_dropped,
        write_lock::a_turn_ends_with_the_task_that_has_it,
        write_lock::whoever_gives_up_waiting_for_a_turn_leaves_none_behind,
        write_lock::a_commit_needs_no_turn,
        crashes::a_commit_that_is_given_up_is_whole_or_absent,
        ledgers_on_store::nothing_new_is_placed_on_what_another_process_cordoned,
        ledgers_on_store::a_driver_with_an_old_record_takes_nothing_from_a_newer_attempt,
        ledgers_on_store::drivers_that_share_the_store_hold_nothing_twice_and_leak_nothing,
    ]
}

/// Proves a store: runs every case of the suite over it and panics if a rule is broken.
///
/// `open` opens the ledger of a [`StoreFactory`], which is empty when it is opened for the first time and has to be the same
/// ledger whenever the same home is opened again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use ipu_ledger::MemoryStore;
/// use ipu_testkit::ledger_store_suite;
///
/// // One on disk would say: |home| MyStore::open(home.path().join("ledger"))
/// let report = ledger_store_suite(async |home| home.shared(MemoryStore::new)).await;
/// println!("{report}");
/// # }
/// ```
///
/// Call it from `#[tokio::test]`; with `flavor = "multi_thread"` the writers of a case run on several threads. Leave the
/// clock running: a paused one moves on while a store waits for its disk or network.
///
/// # Panics
///
/// If a rule is broken: with all cases, and for each that failed the rule, what was expected and what was seen.
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

/// Like [`ledger_store_suite`], for those who look at what is broken.
///
/// # Errors
///
/// Every rule that is broken, one a case.
pub async fn try_ledger_store_suite<S, F>(open: F) -> Result<SuiteReport, SuiteFailure>
where
    S: LedgerStore,
    F: AsyncFn(&StoreFactory) -> S,
{
    let mut runner = Runner::new("ledger store");
    for (name, case) in cases() {
        let bench = Bench::new(&open);
        runner.run_here(name, case(&bench)).await;
    }
    runner.finish()
}
