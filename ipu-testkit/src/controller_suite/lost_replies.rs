//! Lost, repeated or slow requests and replies between the suite and the controller: recovery by the client
//! helpers depends on the controller's results of repeated calls.

use std::time::Duration;

use ipu_core::Topology;
use ipu_vipu_client::{Removal, VipuController as _, ensure_absent, ensure_present};

use super::fault_injection::{FaultyController, InjectedFault};
use super::harness::{Fixture, Harness, check_error, id, request, wait_options};
use super::{CallKind, Setup, cases};
use crate::conformance::{CaseOutcome, check_eq, check_ok};

cases![
    a_partition_is_created_once_despite_lost_messages,
    a_partition_is_removed_despite_lost_messages,
    a_create_with_a_lost_reply_is_not_a_capacity_error,
    a_lost_reply_does_not_adopt_a_foreign_partition,
    a_duplicate_call_takes_effect_once,
    a_caller_that_times_out_can_retry,
];

/// Faults of a call that a retry resolves.
const FAULTS: [InjectedFault; 3] = [
    InjectedFault::LostRequest,
    InjectedFault::LostReply,
    InjectedFault::Failed,
];

/// Checks that the partition exists once as requested, and removes it.
async fn check_created_once(fixture: &Fixture, name: &str) -> CaseOutcome {
    fixture.check_active(name).await?;
    fixture.check_listing(&[name]).await?;
    fixture.remove(name, Removal::Regular).await
}

/// `ensure_present` accepts an existing partition of that id that matches the request: an earlier call, whose
/// reply was lost, created it.
async fn a_partition_is_created_once_despite_lost_messages(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    for call in 1..=3 {
        for fault in FAULTS
            .into_iter()
            .chain([InjectedFault::TwiceFirst, InjectedFault::TwiceSecond])
        {
            let rule = format!("{fault:?} of call {call} does not prevent creation");
            let controller = FaultyController::at(&fixture.controller, call, fault);
            let answer = ensure_present(&controller, &request("p1", 16), &wait_options()).await;
            check_ok(&rule, answer)?;
            check_created_once(&fixture, "p1").await?;
        }
    }
    // The create is lost, and so is the first status call after it.
    let controller = FaultyController::new(&fixture.controller, |_, call| {
        (call <= 2).then_some(InjectedFault::LostReply)
    });
    let answer = ensure_present(&controller, &request("p1", 16), &wait_options()).await;
    check_ok("two lost replies do not prevent creation", answer)?;
    check_created_once(&fixture, "p1").await?;
    fixture.check_all_free(16).await
}

/// `Ok` of `ensure_absent` means that the controller reported the partition as not found.
async fn a_partition_is_removed_despite_lost_messages(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    for call in 1..=3 {
        for fault in FAULTS
            .into_iter()
            .chain([InjectedFault::TwiceFirst, InjectedFault::TwiceSecond])
        {
            fixture.create_active("p1", 16).await?;
            let rule = format!("{fault:?} of call {call} does not prevent removal");
            let controller = FaultyController::at(&fixture.controller, call, fault);
            let answer = ensure_absent(&controller, &id("p1"), Removal::Regular, &wait_options()).await;
            check_ok(&rule, answer)?;
            fixture.check_unknown("p1").await?;
            fixture.check_listing(&[]).await?;
        }
    }
    fixture.check_all_free(16).await
}

/// A taken id is reported before a lack of capacity (reference, Errors).
async fn a_create_with_a_lost_reply_is_not_a_capacity_error(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    let faulty = FaultyController::new(&fixture.controller, |kind, call| {
        (kind == CallKind::Create && call == 1).then_some(InjectedFault::LostReply)
    });
    let answer = ensure_present(&faulty, &request("p1", 16), &wait_options()).await;
    check_ok(
        "a retried create of the whole system does not fail for lack of capacity",
        answer,
    )?;
    check_created_once(&fixture, "p1").await
}

/// `ensure_present` returns `AlreadyExists` if a partition of that id exists and differs from the request.
async fn a_lost_reply_does_not_adopt_a_foreign_partition(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.create_active("p1", 8).await?;
    let before = fixture.listed().await?;
    for fault in FAULTS {
        let controller = FaultyController::at(&fixture.controller, 1, fault);
        let answer = ensure_present(&controller, &request("p1", 4), &wait_options()).await;
        let rule = "a partition that differs from the request is not adopted";
        check_error(rule, answer, &["already_exists"])?;
    }
    let rule = "a rejected create has no effect";
    check_eq(rule, &fixture.listed().await?, &before)
}

/// A network or a proxy may repeat a request: the second one sees the effect of the first.
async fn a_duplicate_call_takes_effect_once(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    let second = || FaultyController::at(&fixture.controller, 1, InjectedFault::TwiceSecond);
    let answer = second().create_partition(request("p1", 4)).await;
    check_error(
        "a second create of an id is rejected",
        answer,
        &["already_exists"],
    )?;
    fixture.check_active("p1").await?;
    let before = fixture.listed().await?;

    let answer = second().reset_partition(&id("p1")).await;
    if answer.is_err() {
        check_error(
            "a second reset starts, or one is in progress",
            answer,
            &["refused"],
        )?;
    }
    fixture.check_active("p1").await?;
    check_eq("a reset changes nothing else", &fixture.listed().await?, &before)?;

    let answer = second().remove_partition(&id("p1"), false).await;
    if answer.is_err() {
        let rule = "a second removal finds the first in progress or ended";
        check_error(rule, answer, &["not_found", "refused"])?;
    }
    fixture.remove("p1", Removal::Regular).await?;
    fixture.check_all_free(16).await
}

/// A caller with its own deadline, such as the ledger, drops the call then and retries later.
async fn a_caller_that_times_out_can_retry(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    let deadline = Duration::from_millis(30);
    for fault in [InjectedFault::SlowRequest, InjectedFault::SlowReply] {
        let slow = FaultyController::at(&fixture.controller, 1, fault);
        let early = tokio::time::timeout(deadline, slow.create_partition(request("p1", 16))).await;
        check_eq("the injected delay works", &early.is_err(), &true)?;
        let answer = ensure_present(&*fixture.controller, &request("p1", 16), &wait_options()).await;
        check_ok("a create whose caller timed out can be retried", answer)?;
        fixture.check_active("p1").await?;
        fixture.check_listing(&["p1"]).await?;

        let slow = FaultyController::at(&fixture.controller, 1, fault);
        let early = tokio::time::timeout(deadline, slow.remove_partition(&id("p1"), false)).await;
        check_eq("the injected delay works", &early.is_err(), &true)?;
        fixture.remove("p1", Removal::Regular).await?;
        fixture.check_listing(&[]).await?;
    }
    fixture.check_all_free(16).await
}
