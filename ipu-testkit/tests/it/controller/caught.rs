//! Every mutant of a controller is detected by the intended case.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_testkit::{
    CallFault, CallKind, ControllerBench, FakeController, FaultSupport, Setup, SuiteFailure,
    try_controller_suite,
};
use ipu_vipu_client::VipuController;

use super::broken::{self, Mutant, Mutation};

struct MutantFixture<F>(Arc<Mutant<F>>);

#[async_trait]
impl<F: Mutation> ControllerBench for MutantFixture<F> {
    async fn start(setup: Setup) -> Self {
        let fake = FakeController::new(&setup.topology, 1);
        fake.set_operation_time(setup.operation);
        let mutation = F::default();
        Self(Arc::new(Mutant { mutation, fake }))
    }

    fn controller(&self) -> Arc<dyn VipuController> {
        Arc::clone(&self.0) as Arc<dyn VipuController>
    }

    async fn inject(&self, kind: CallKind, fault: CallFault) -> FaultSupport {
        super::inject(&self.0.fake, kind, fault)
    }

    async fn set_operation_time(&self, operation: Duration) -> FaultSupport {
        self.0.fake.set_operation_time(operation);
        FaultSupport::Done
    }

    async fn restart(&self) -> FaultSupport {
        self.0.mutation.restart(&self.0.fake);
        FaultSupport::Done
    }
}

async fn failure_of<F: Mutation>() -> SuiteFailure {
    match try_controller_suite::<MutantFixture<F>>().await {
        Ok(report) => panic!("not detected: {report}"),
        Err(failure) => failure,
    }
}

/// Declares a test per mutation, with the cases that must detect it.
macro_rules! detected {
    ($($test:ident: $mutation:ident by $($case:literal),+;)*) => {
        $(#[tokio::test(start_paused = true)]
        async fn $test() {
            let failure = failure_of::<broken::$mutation>().await;
            for case in [$($case),+] {
                assert!(failure.is_broken(case), "not detected by {case}:\n{failure}");
            }
        })*
    };
}

detected! {
    a_second_creation_that_succeeds: SecondCreateSucceeds
        by "a_create_with_a_taken_id_is_rejected", "one_of_many_creates_of_an_id_succeeds",
           "a_duplicate_call_takes_effect_once";
    a_removal_of_nothing_that_succeeds: UnknownIsRemoved
        by "an_unknown_partition_is_not_found_by_any_call", "a_removed_partition_is_unknown";
    a_listing_that_omits_one: ListOmitsOne
        by "every_partition_is_listed_and_has_a_status";
    a_status_that_is_kept_for_too_long: RemovedIsActive
        by "a_removed_partition_is_unknown";
    ipus_that_are_allocated_twice: DoubleBooks
        by "concurrent_partitions_never_share_an_ipu";
    a_capacity_error_that_is_reported_as_unreachable: NoCapacityIsUnreachable
        by "a_create_without_capacity_is_rejected", "the_last_block_is_granted_once";
    capacity_that_is_checked_before_the_id: CapacityBeforeId
        by "a_create_with_a_taken_id_is_rejected";
    a_reset_that_never_ends: ResetNeverEnds
        by "a_reset_partition_becomes_active_again", "concurrent_resets_restore_a_partition";
    a_reset_that_begins_again: ResetsAgain
        by "a_reset_in_progress_is_visible";
    a_reset_that_moves: ResetMoves
        by "a_reset_partition_becomes_active_again", "a_reset_with_a_crashed_caller_is_atomic";
    a_status_of_another: WrongIdInStatus
        by "a_new_partition_is_creating_before_it_is_active", "every_partition_is_listed_and_has_a_status";
    ipus_that_stay_allocated: KeepsIpus
        by "a_removed_partition_frees_its_ipus_and_id", "partition_churn_leaves_nothing";
    a_wrong_gcd: WrongGcd
        by "the_ipuof_configuration_covers_each_gcd_and_all";
    a_lost_reply_that_seems_final: LostReplyIsFinal
        by "a_lost_reply_is_ambiguous_and_the_status_resolves_it", "the_helpers_resolve_lost_replies";
    a_connection_that_stays_broken: NeverReconnects
        by "a_broken_connection_is_reestablished";
    a_partition_that_seems_made_before_it_is: ActiveAtOnce
        by "a_new_partition_is_creating_before_it_is_active";
    a_partition_that_is_reported_missing_too_early: MissingTooEarly
        by "a_partition_exists_until_its_removal_ends";
    places_that_are_ignored: IgnoresPlaces
        by "explicit_ipus_are_used_in_order", "explicit_ipus_may_be_whole_link_domains";
    a_spec_that_is_forgotten: LosesSpecFields
        by "every_field_of_a_partition_is_listed";
    allocations_that_are_ignored: IgnoresAllocations
        by "partitions_are_listed_by_allocation_and_never_span_two";
    a_refusal_that_leaves_something: RejectionLeavesPartition
        by "a_rejected_create_has_no_effect";
    a_creation_that_its_caller_cannot_leave: CrashBlocksId
        by "a_create_with_a_crashed_caller_is_atomic",
           "ensure_present_may_crash_at_any_step";
    a_partition_that_flickers: Flickers
        by "a_reset_partition_becomes_active_again", "every_partition_is_listed_and_has_a_status";
    a_restart_that_forgets: ForgetsOnRestart
        by "a_restarted_controller_keeps_its_partitions";
    a_panic: Panics
        by "explicit_ipus_may_be_whole_link_domains";
    a_call_that_hangs: Hangs
        by "the_version_is_reported";
}

#[tokio::test(start_paused = true)]
async fn a_failure_names_the_case_the_rule_and_both_values() {
    let failure = failure_of::<broken::WrongGcd>().await;
    let [broken] = failure.broken.as_slice() else {
        panic!("{failure}");
    };
    let text = failure.to_string();
    for part in [broken.case, &broken.rule, &broken.expected, &broken.actual] {
        assert!(!part.is_empty() && text.contains(part), "{part:?} in {text}");
    }
    assert!(text.contains("could not run: a_failed_partition_is_in_error_and_can_be_removed"));
    assert!(failure.report.ran.len() > 40, "all other cases ran: {text}");
}
