//! Every broken controller is caught, by the case that is meant for it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_testkit::{
    CallFault, CallKind, ControllerBench, FakeController, FaultSupport, Setup, SuiteFailure,
    try_controller_suite,
};
use ipu_vipu_client::VipuController;

use super::broken::{self, Flaw, Flawed};

struct Bench<F>(Arc<Flawed<F>>);

#[async_trait]
impl<F: Flaw> ControllerBench for Bench<F> {
    async fn start(setup: Setup) -> Self {
        let right = FakeController::new(&setup.topology, 1);
        right.operation(setup.operation);
        let flaw = F::default();
        Self(Arc::new(Flawed { flaw, right }))
    }

    fn controller(&self) -> Arc<dyn VipuController> {
        Arc::clone(&self.0) as Arc<dyn VipuController>
    }

    async fn inject(&self, kind: CallKind, fault: CallFault) -> FaultSupport {
        super::inject(&self.0.right, kind, fault)
    }

    async fn set_operation_time(&self, operation: Duration) -> FaultSupport {
        self.0.right.operation(operation);
        FaultSupport::Done
    }

    async fn restart(&self) -> FaultSupport {
        self.0.flaw.restart(&self.0.right);
        FaultSupport::Done
    }
}

async fn failure_of<F: Flaw>() -> SuiteFailure {
    match try_controller_suite::<Bench<F>>().await {
        Ok(report) => panic!("not caught: {report}"),
        Err(failure) => failure,
    }
}

/// One test for each flaw, with the cases that have to find it.
macro_rules! caught {
    ($($test:ident: $flaw:ident by $($case:literal),+;)*) => {
        $(#[tokio::test(start_paused = true)]
        async fn $test() {
            let failure = failure_of::<broken::$flaw>().await;
            for case in [$($case),+] {
                assert!(failure.is_broken(case), "not caught by {case}:\n{failure}");
            }
        })*
    };
}

caught! {
    a_second_creation_that_succeeds: SecondCreateSucceeds
        by "an_id_that_is_taken_is_refused_whatever_is_asked_for", "of_many_creations_of_one_id_one_is_done",
           "a_call_that_arrives_twice_is_done_once";
    a_removal_of_nothing_that_succeeds: UnknownIsRemoved
        by "an_unknown_partition_is_not_found_everywhere", "a_removed_partition_is_unknown";
    a_listing_that_omits_one: ListOmitsOne
        by "every_partition_is_listed_and_has_a_status";
    a_status_that_is_kept_for_too_long: RemovedIsActive
        by "a_removed_partition_is_unknown";
    ipus_that_are_given_twice_at_once: DoubleBooks
        by "many_at_once_never_share_an_ipu";
    a_lack_of_room_that_seems_a_lack_of_connection: NoRoomIsUnreachable
        by "what_does_not_fit_now_has_no_room", "the_last_block_goes_to_one";
    room_that_is_looked_for_before_the_id: RoomBeforeId
        by "an_id_that_is_taken_is_refused_whatever_is_asked_for";
    a_reset_that_never_ends: BusyForEver
        by "a_reset_partition_becomes_active_again", "many_resets_of_one_partition_lead_back_to_it";
    a_reset_that_begins_again: ResetsAgain
        by "a_reset_is_seen_under_way";
    a_reset_that_moves: ResetMoves
        by "a_reset_partition_becomes_active_again", "a_reset_whose_caller_dies_was_done_or_was_not";
    a_status_of_another: WrongIdInStatus
        by "a_new_partition_is_being_made_and_not_yet_active", "every_partition_is_listed_and_has_a_status";
    ipus_that_stay_taken: KeepsIpus
        by "what_is_removed_is_free_again", "whoever_comes_and_goes_leaves_nothing";
    a_wrong_gcd: WrongGcd
        by "the_ipuof_configuration_is_told_for_each_gcd_and_for_all";
    a_lost_reply_that_seems_final: LostReplyIsFinal
        by "a_lost_reply_may_have_happened_and_the_status_shows_it", "a_lost_reply_is_settled_by_the_helpers";
    a_connection_that_stays_broken: NeverReconnects
        by "a_broken_connection_is_made_again";
    a_partition_that_seems_made_before_it_is: ActiveAtOnce
        by "a_new_partition_is_being_made_and_not_yet_active";
    a_partition_that_seems_gone_before_it_is: GoneTooEarly
        by "a_partition_that_is_being_removed_is_still_known";
    places_that_are_ignored: IgnoresPlaces
        by "explicit_ipus_are_taken_as_they_are", "explicit_ipus_may_be_whole_link_domains";
    a_spec_that_is_forgotten: ForgetsTheSpec
        by "everything_that_a_partition_is_made_of_comes_back";
    allocations_that_are_ignored: IgnoresAllocations
        by "partitions_are_listed_by_allocation_and_never_span_two";
    a_refusal_that_leaves_something: RefusalLeavesSomething
        by "a_refused_creation_leaves_nothing";
    a_creation_that_its_caller_cannot_leave: DiesInTheMiddle
        by "a_creation_whose_caller_dies_was_done_or_was_not",
           "whoever_sees_a_creation_through_may_die_at_any_step";
    a_partition_that_flickers: Flickers
        by "a_reset_partition_becomes_active_again", "every_partition_is_listed_and_has_a_status";
    a_restart_that_forgets: ForgetsOnRestart
        by "a_restarted_controller_knows_its_partitions";
    a_panic: Panics
        by "explicit_ipus_may_be_whole_link_domains";
    a_call_that_hangs: Hangs
        by "the_version_is_told";
}

#[tokio::test(start_paused = true)]
async fn a_failure_tells_case_rule_expectation_and_what_was_seen() {
    let failure = failure_of::<broken::WrongGcd>().await;
    let [broken] = failure.broken.as_slice() else {
        panic!("{failure}");
    };
    let text = failure.to_string();
    for part in [broken.case, &broken.rule, &broken.expected, &broken.seen] {
        assert!(!part.is_empty() && text.contains(part), "{part:?} in {text}");
    }
    assert!(text.contains("could not run: a_broken_partition_is_in_error_and_can_be_removed"));
    assert!(failure.report.ran.len() > 40, "all other cases ran: {text}");
}
