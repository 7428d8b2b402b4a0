//! Faults behind a transport: lost replies, silence, errors, restarts. These cases need a fixture that can
//! inject them.

use std::time::Duration;

use ipu_core::hardware::Topology;
use ipu_vipu_client::{boot_time, send_before};

use super::harness::{Harness, Removal, check_ambiguous, check_error, id, request, require};
use super::{CallFault, CallKind, Persistence, Setup, cases};
use crate::conformance::{CaseError, CaseOutcome, check_eq};

cases![
    a_lost_reply_is_ambiguous_and_the_status_resolves_it,
    a_cut_reply_is_ambiguous_and_the_status_resolves_it,
    a_lost_request_is_ambiguous_and_the_status_resolves_it,
    an_unavailable_controller_error_is_retryable,
    a_broken_connection_is_reestablished,
    a_call_delivered_twice_takes_effect_once,
    a_slow_reply_is_accepted,
    silence_is_an_ambiguous_timeout,
    a_late_reply_is_an_ambiguous_timeout,
    a_call_after_its_deadline_is_not_sent,
    a_restarted_controller_keeps_its_partitions,
    a_stopped_controller_is_unreachable,
];

const AMBIGUOUS: &str = "a call without a reply is ambiguous and retryable soon";

/// "A connection that […] breaks is `Unreachable`": try again soon, may have been done (reference, Errors).
/// "What may have been done has to be settled by asking."
async fn a_lost_reply_is_ambiguous_and_the_status_resolves_it(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.inject(CallKind::Create, CallFault::LostReply).await?;
    check_ambiguous(AMBIGUOUS, fixture.create("p1", 4).await)?;
    fixture.check_active("p1").await?;
    fixture.inject(CallKind::Reset, CallFault::LostReply).await?;
    check_ambiguous(AMBIGUOUS, fixture.controller.reset_partition(&id("p1")).await)?;
    fixture.check_active("p1").await?;
    fixture.inject(CallKind::Remove, CallFault::LostReply).await?;
    check_ambiguous(
        AMBIGUOUS,
        fixture.controller.remove_partition(&id("p1"), false).await,
    )?;
    fixture.remove("p1", Removal::Regular).await?;
    fixture.check_all_free(16).await
}

/// "Without a complete reply, the error is Timeout or Unreachable" (guide, transport).
async fn a_cut_reply_is_ambiguous_and_the_status_resolves_it(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.inject(CallKind::Create, CallFault::CutReply).await?;
    check_ambiguous(AMBIGUOUS, fixture.create("p1", 4).await)?;
    fixture.check_active("p1").await?;
    fixture.inject(CallKind::List, CallFault::CutReply).await?;
    check_ambiguous(AMBIGUOUS, fixture.controller.list_partitions(None).await)?;
    fixture.check_listing(&["p1"]).await
}

/// A lost request is ambiguous like a lost reply.
async fn a_lost_request_is_ambiguous_and_the_status_resolves_it(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.inject(CallKind::Create, CallFault::LostRequest).await?;
    check_ambiguous(AMBIGUOUS, fixture.create("p1", 4).await)?;
    fixture.check_unknown("p1").await?;
    fixture.create_active("p1", 4).await?;
    fixture.inject(CallKind::Remove, CallFault::LostRequest).await?;
    check_ambiguous(
        AMBIGUOUS,
        fixture.controller.remove_partition(&id("p1"), false).await,
    )?;
    fixture.check_active("p1").await
}

/// "`UNAVAILABLE`: `Unreachable`, soon, may have been done" (reference, Errors).
async fn an_unavailable_controller_error_is_retryable(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.inject(CallKind::Create, CallFault::Unavailable).await?;
    let answer = fixture.create("p1", 4).await;
    let rule = "an unavailable controller is unreachable";
    check_ambiguous(rule, answer.clone())?;
    check_error(rule, answer, &["unreachable"])?;
    fixture.create_active("p1", 4).await
}

/// A transport survives broken connections.
async fn a_broken_connection_is_reestablished(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod4())).await;
    fixture.create_active("p1", 4).await?;
    for _ in 0..2 {
        fixture.inject(CallKind::Status, CallFault::LostRequest).await?;
        let answer = fixture.controller.partition_status(&id("p1")).await;
        check_ambiguous(AMBIGUOUS, answer)?;
        fixture.check_active("p1").await?;
    }
    Ok(())
}

/// A network or a proxy may repeat a request: the second one sees the effect of the first, and the caller may
/// receive either reply.
async fn a_call_delivered_twice_takes_effect_once(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.inject(CallKind::Create, CallFault::Twice).await?;
    let answer = fixture.create("p1", 16).await;
    if answer.is_err() {
        check_error(
            "a second create of an id is rejected",
            answer,
            &["already_exists"],
        )?;
    }
    fixture.check_active("p1").await?;
    fixture.check_listing(&["p1"]).await?;
    fixture.inject(CallKind::Remove, CallFault::Twice).await?;
    let answer = fixture.controller.remove_partition(&id("p1"), false).await;
    if answer.is_err() {
        let rule = "a second removal finds the first in progress or ended";
        check_error(rule, answer, &["not_found", "refused"])?;
    }
    fixture.remove("p1", Removal::Regular).await?;
    fixture.check_all_free(16).await
}

/// A slow reply before the deadline is not an error.
async fn a_slow_reply_is_accepted(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod4())).await;
    let late = CallFault::Delayed(Duration::from_millis(20));
    fixture.inject(CallKind::Create, late).await?;
    fixture.create_active("p1", 4).await
}

/// "A call that takes longer than its deadline is `Timeout`": soon, may have been done (reference, Errors).
async fn silence_is_an_ambiguous_timeout(harness: Harness) -> CaseOutcome {
    check_timeout(harness, CallFault::Silence).await
}

/// A reply after the deadline counts as a timeout.
async fn a_late_reply_is_an_ambiguous_timeout(harness: Harness) -> CaseOutcome {
    check_timeout(harness, CallFault::Delayed(Duration::from_secs(3600))).await
}

/// "It sends nothing after `send_deadline()`" (guide, transport): what the allocator has settled by then
/// stays settled. The deadline passes before the transport gets the call.
async fn a_call_after_its_deadline_is_not_sent(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    if fixture.implementation.deadline().is_none() {
        let needs = "the fixture has no deadline for its calls";
        return Err(CaseError::Unsupported(needs.to_owned()));
    }
    let deadline = boot_time().plus(Duration::from_millis(20));
    let late = async {
        while boot_time() <= deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fixture.create("p1", 4).await
    };
    let answer = send_before(deadline, late).await;
    let rule = "a call after its deadline is not sent";
    check_error(rule, answer, &["not_sent"])?;
    fixture.check_listing(&[]).await
}

async fn check_timeout(harness: Harness, fault: CallFault) -> CaseOutcome {
    let deadline = Duration::from_millis(150);
    let setup = Setup {
        deadline,
        ..Setup::quick(Topology::pod16())
    };
    let fixture = harness.start(setup).await;
    if fixture.implementation.deadline() != Some(deadline) {
        return Err(CaseError::Unsupported(
            "the fixture has no deadline for its calls".to_owned(),
        ));
    }
    fixture.inject(CallKind::Create, fault).await?;
    let answer = fixture.create("p1", 4).await;
    check_ambiguous(AMBIGUOUS, answer.clone())?;
    check_error(
        "a call without a reply in time is a timeout",
        answer,
        &["timeout"],
    )?;
    let again = fixture.create("p1", 4).await;
    if again.is_err() {
        let rule = "a create that timed out can be retried";
        check_error(rule, again, &["already_exists"])?;
    }
    fixture.check_active("p1").await
}

/// The controller stores partitions, not a connection or a process.
async fn a_restarted_controller_keeps_its_partitions(harness: Harness) -> CaseOutcome {
    let setup = Setup {
        persistence: Persistence::Durable,
        ..Setup::quick(Topology::pod16())
    };
    let fixture = harness.start(setup).await;
    fixture.create_active("p1", 4).await?;
    fixture.create_active("p2", 4).await?;
    fixture.remove("p2", Removal::Regular).await?;
    let before = fixture.listed().await?;
    require(
        fixture.implementation.restart().await,
        "the fixture cannot restart its controller",
    )?;
    // The first calls may find the old connection broken, which this wait bridges.
    fixture.check_active("p1").await?;
    check_eq("a restart changes nothing", &fixture.listed().await?, &before)?;
    fixture.check_unknown("p2").await?;
    let rule = "an id that was taken before a restart is taken afterwards";
    check_error(rule, fixture.create("p1", 4).await, &["already_exists"])?;
    fixture.remove("p1", Removal::Regular).await?;
    fixture.check_all_free(16).await
}

/// "A connection that cannot be made […] is `Unreachable`" (reference, Errors).
async fn a_stopped_controller_is_unreachable(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod4())).await;
    fixture.create_active("p1", 4).await?;
    require(
        fixture.implementation.stop().await,
        "the fixture cannot stop its controller",
    )?;
    let rule = "a stopped controller is unreachable";
    let controller = &fixture.controller;
    for _ in 0..2 {
        let answers = [
            controller.version().await.map(drop),
            controller.list_partitions(None).await.map(drop),
            controller.partition_status(&id("p1")).await.map(drop),
            controller.remove_partition(&id("p1"), true).await,
            controller.create_partition(request("p2", 1)).await.map(drop),
        ];
        for answer in answers {
            check_ambiguous(rule, answer.clone())?;
            check_error(rule, answer, &["unreachable"])?;
        }
    }
    Ok(())
}
