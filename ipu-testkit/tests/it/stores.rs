//! Store mutants: the intended case must detect each fault.

use ipu_ledger::MemoryStore;
use ipu_testkit::{SuiteFailure, ledger_store_suite, try_ledger_store_suite};

use crate::store_mutants::{Fault, StoreMutant};

#[tokio::test(start_paused = true)]
async fn a_conforming_store_passes_every_case() {
    let report = ledger_store_suite(async |factory| factory.shared(MemoryStore::new)).await;
    assert_eq!(report.skipped, []);
    ledger_store_suite(async |factory| StoreMutant::open(factory, Fault::None)).await;
}

async fn failure_of(fault: Fault) -> SuiteFailure {
    match try_ledger_store_suite(async |factory| StoreMutant::open(factory, fault)).await {
        Ok(report) => panic!("{fault:?} was not detected: {report}"),
        Err(failure) => failure,
    }
}

/// Faults, and the case that must detect each.
const INTENDED_CASES: [(Fault, &str); 22] = [
    (
        Fault::NoCheck,
        "a_commit_on_an_old_revision_conflicts_without_effect",
    ),
    (
        Fault::CheckThenAct,
        "exactly_one_of_several_commits_on_one_revision_wins",
    ),
    (
        Fault::ChecksEntriesOnly,
        "a_commit_on_an_old_revision_conflicts_without_effect",
    ),
    (Fault::RevisionOfContent, "a_revision_is_never_reused"),
    (
        Fault::ConflictAfterWriting,
        "a_commit_on_an_old_revision_conflicts_without_effect",
    ),
    (Fault::HalfWhenDropped, "an_interrupted_commit_is_atomic"),
    (Fault::LateWhenDropped, "an_interrupted_commit_is_atomic"),
    (
        Fault::FullAfterHalf,
        "a_large_ledger_is_stored_or_rejected_as_a_whole",
    ),
    (Fault::LosesRemovals, "changes_are_applied_in_order"),
    (Fault::IgnoresCordons, "cordons_are_stored_until_lifted"),
    (Fault::LosesLifts, "cordons_are_stored_until_lifted"),
    (Fault::DropsPassedOver, "every_field_of_every_entry_is_stored"),
    (Fault::DropsUnsettled, "every_field_of_every_entry_is_stored"),
    (Fault::EntryTwice, "every_field_of_every_entry_is_stored"),
    (
        Fault::OnlyOwnCommits,
        "a_commit_is_visible_to_other_processes_immediately",
    ),
    (Fault::AlwaysNewer, "load_returns_none_only_without_a_new_commit"),
    (
        Fault::ReturnsEarly,
        "a_commit_is_visible_to_other_processes_immediately",
    ),
    (Fault::EntryByEntry, "readers_see_atomic_commits_in_order"),
    (Fault::ForgetsOnClosing, "a_commit_survives_reopening"),
    (Fault::LockNeverReleased, "the_write_lock_is_released_on_drop"),
    (Fault::CommitWaitsForLock, "a_commit_needs_no_write_lock"),
    (Fault::Panics, "changes_are_applied_in_order"),
];

#[tokio::test(start_paused = true)]
async fn every_store_mutant_is_detected_by_the_intended_case() {
    for (fault, case) in INTENDED_CASES {
        let failure = failure_of(fault).await;
        assert!(
            failure.is_broken(case),
            "{fault:?} is not detected by {case}: {failure}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn drivers_detect_a_store_that_keeps_deleted_records() {
    let case = "drivers_sharing_a_store_never_double_book_or_leak";
    let failure = failure_of(Fault::LosesRemovals).await;
    assert!(failure.is_broken(case), "{failure}");
    let case = "cordons_of_another_process_prevent_placement";
    for fault in [Fault::IgnoresCordons, Fault::LosesLifts] {
        let failure = failure_of(fault).await;
        assert!(failure.is_broken(case), "{fault:?}: {failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_fault_fails_no_other_case() {
    // A report must point to the right place.
    for fault in [
        Fault::HalfWhenDropped,
        Fault::FullAfterHalf,
        Fault::DropsPassedOver,
        Fault::AlwaysNewer,
    ] {
        let failure = failure_of(fault).await;
        assert_eq!(failure.broken.len(), 1, "{fault:?}: {failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_mutant_is_reported_with_case_rule_and_both_values() {
    let text = failure_of(Fault::DropsUnsettled).await.to_string();
    for part in [
        "broken: every_field_of_every_entry_is_stored",
        "rule:     an entry is stored exactly as it was put",
        "unsettled = 1",
        "unsettled = nothing",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let text = failure_of(Fault::Panics).await.to_string();
    assert!(text.contains("panic: no removals here"), "{text}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a commit on an outdated revision is rejected")]
async fn the_suite_panics_with_the_broken_rule() {
    ledger_store_suite(async |factory| StoreMutant::open(factory, Fault::NoCheck)).await;
}
