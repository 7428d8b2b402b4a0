//! Stores that are broken on purpose: the case that is meant for a fault has to find it.

use ipu_ledger::MemoryStore;
use ipu_testkit::{SuiteFailure, ledger_store_suite, try_ledger_store_suite};

use crate::store_mutants::{Broken, Fault};

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_the_contract_passes_every_case() {
    let report = ledger_store_suite(async |home| home.shared(MemoryStore::new)).await;
    assert_eq!(report.skipped, []);
    ledger_store_suite(async |home| Broken::open(home, Fault::None)).await;
}

async fn broken(fault: Fault) -> SuiteFailure {
    match try_ledger_store_suite(async |home| Broken::open(home, fault)).await {
        Ok(report) => panic!("{fault:?} was not found: {report}"),
        Err(failure) => failure,
    }
}

/// The faults, and the case that is meant for each.
const MEANT: [(Fault, &str); 22] = [
    (
        Fault::NoCheck,
        "a_commit_on_an_old_revision_is_refused_and_changes_nothing",
    ),
    (
        Fault::CheckThenAct,
        "exactly_one_of_several_commits_on_one_revision_wins",
    ),
    (
        Fault::ChecksEntriesOnly,
        "a_commit_on_an_old_revision_is_refused_and_changes_nothing",
    ),
    (Fault::RevisionOfContent, "a_revision_never_comes_back"),
    (
        Fault::ConflictAfterWriting,
        "a_commit_on_an_old_revision_is_refused_and_changes_nothing",
    ),
    (
        Fault::HalfWhenDropped,
        "a_commit_that_is_given_up_is_whole_or_absent",
    ),
    (
        Fault::LateWhenDropped,
        "a_commit_that_is_given_up_is_whole_or_absent",
    ),
    (Fault::FullAfterHalf, "a_large_ledger_is_kept_or_refused_whole"),
    (Fault::LosesRemovals, "changes_are_taken_in_their_order"),
    (
        Fault::IgnoresCordons,
        "exclusions_come_back_until_they_are_lifted",
    ),
    (Fault::LosesLifts, "exclusions_come_back_until_they_are_lifted"),
    (Fault::DropsPassedOver, "every_field_of_every_entry_comes_back"),
    (Fault::DropsUnsettled, "every_field_of_every_entry_comes_back"),
    (Fault::EntryTwice, "every_field_of_every_entry_comes_back"),
    (Fault::OnlyOwnNews, "what_is_committed_is_seen_by_others_at_once"),
    (
        Fault::AlwaysNews,
        "load_answers_none_exactly_if_nothing_was_committed",
    ),
    (Fault::AnswersEarly, "what_is_committed_is_seen_by_others_at_once"),
    (Fault::EntryByEntry, "readers_see_whole_commits_and_never_go_back"),
    (
        Fault::ForgetsOnClosing,
        "what_is_committed_is_there_after_reopening",
    ),
    (Fault::TurnNeverEnds, "a_turn_ends_when_it_is_dropped"),
    (Fault::CommitWaitsForTurn, "a_commit_needs_no_turn"),
    (Fault::Panics, "changes_are_taken_in_their_order"),
];

#[tokio::test(start_paused = true)]
async fn every_broken_store_is_found_by_the_case_that_is_meant_for_it() {
    for (fault, case) in MEANT {
        let failure = broken(fault).await;
        assert!(
            failure.is_broken(case),
            "{fault:?} is not found by {case}: {failure}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn drivers_on_a_store_that_keeps_what_is_over_come_to_harm() {
    let case = "drivers_that_share_the_store_hold_nothing_twice_and_leak_nothing";
    let failure = broken(Fault::LosesRemovals).await;
    assert!(failure.is_broken(case), "{failure}");
    let case = "nothing_new_is_placed_on_what_another_process_excluded";
    for fault in [Fault::IgnoresCordons, Fault::LosesLifts] {
        let failure = broken(fault).await;
        assert!(failure.is_broken(case), "{fault:?}: {failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_shows_in_one_place_fails_no_other_case() {
    // So that whoever reads the report looks at the right place.
    for fault in [
        Fault::HalfWhenDropped,
        Fault::FullAfterHalf,
        Fault::DropsPassedOver,
        Fault::AlwaysNews,
    ] {
        let failure = broken(fault).await;
        assert_eq!(failure.broken.len(), 1, "{fault:?}: {failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_store_is_reported_with_case_rule_expectation_and_what_was_seen() {
    let text = broken(Fault::DropsUnsettled).await.to_string();
    for words in [
        "broken: every_field_of_every_entry_comes_back",
        "rule:     an entry comes back exactly as it was put",
        "unsettled = 1",
        "unsettled = nothing",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    let text = broken(Fault::Panics).await.to_string();
    assert!(text.contains("panic: no removals here"), "{text}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a revision that is not the newest is refused")]
async fn the_suite_panics_with_what_is_broken() {
    ledger_store_suite(async |home| Broken::open(home, Fault::NoCheck)).await;
}
