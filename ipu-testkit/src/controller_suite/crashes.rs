//! Callers that crash between any two steps: each call takes effect or does not, and a retry succeeds.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use ipu_core::{IpuPlace, PartitionId, PartitionSpec, PartitionState, Topology};
use ipu_vipu_client::{Removal, VipuController as _, ensure_absent, ensure_present};

use super::fault_injection::FaultyController;
use super::harness::{Fixture, Harness, check_error, id, request, wait_options};
use super::{Setup, cases};
use crate::conformance::{CaseError, CaseOutcome, broken, check_eq, check_ok};

cases![
    a_create_with_a_crashed_caller_is_atomic,
    a_removal_with_a_crashed_caller_is_atomic,
    a_reset_with_a_crashed_caller_is_atomic,
    ensure_present_may_crash_at_any_step,
    ensure_absent_may_crash_at_any_step,
];

/// Maximum number of steps before a caller crashes: more than a call over a network takes. Longer calls are
/// tested up to this step.
const MAX_STEPS: u32 = 32;

/// End of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// It received its reply.
    Answered,
    /// It crashed before.
    Crashed,
}

/// Polls the future at most `steps` times, and then drops it.
pub(super) async fn crash_after<T>(steps: u32, future: impl Future<Output = T>) -> CallEnd {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(CallEnd::Answered),
            Poll::Pending if polls >= steps => Poll::Ready(CallEnd::Crashed),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Checks that an active partition is listed as requested, and removes it.
async fn check_listed_and_remove(fixture: &Fixture, name: &str, size: u32) -> CaseOutcome {
    fixture.check_active(name).await?;
    fixture.check_listing(&[name]).await?;
    let found: Vec<_> = fixture
        .listed()
        .await?
        .iter()
        .map(|one| one.spec.size.get())
        .collect();
    check_eq("a partition is listed as requested", &found, &vec![size])?;
    fixture.remove(name, Removal::Regular).await
}

/// "Safe to retry": a create without a reply was done or not, and `ensure_present` handles both.
async fn a_create_with_a_crashed_caller_is_atomic(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    for steps in 1..=MAX_STEPS {
        let name = format!("p{steps}");
        let controller = FaultyController::stepping(&fixture.controller);
        let end = crash_after(steps, controller.create_partition(request(&name, 4))).await;
        match fixture.controller.partition_status(&id(&name)).await {
            Ok(status) if matches!(status.state, PartitionState::Creating | PartitionState::Active) => {}
            Err(error) if error.label() == "not_found" && end == CallEnd::Crashed => {}
            other => {
                let actual = format!("{other:?} after {steps} steps");
                let rule = "a create takes effect as a whole or not at all";
                return Err(broken(
                    rule,
                    "a partition that is creating or active, or none",
                    actual,
                ));
            }
        }
        let answer = ensure_present(&*fixture.controller, &request(&name, 4), &wait_options()).await;
        check_ok("a create whose caller crashed can be retried", answer)?;
        check_listed_and_remove(&fixture, &name, 4).await?;
        if end == CallEnd::Answered {
            break;
        }
    }
    fixture.check_all_free(16).await
}

/// "Safe to retry": a removal without a reply was done or not, and `ensure_absent` handles both.
async fn a_removal_with_a_crashed_caller_is_atomic(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    for steps in 1..=MAX_STEPS {
        let name = format!("p{steps}");
        fixture.create_active(&name, 4).await?;
        let controller = FaultyController::stepping(&fixture.controller);
        let end = crash_after(steps, controller.remove_partition(&id(&name), false)).await;
        match fixture.controller.partition_status(&id(&name)).await {
            Ok(status) if status.state == PartitionState::Removing => {}
            Ok(status) if status.state == PartitionState::Active && end == CallEnd::Crashed => {}
            Err(error) if error.label() == "not_found" => {}
            other => {
                let actual = format!("{other:?} after {steps} steps");
                let rule = "a removal takes effect as a whole or not at all";
                return Err(broken(rule, "a partition, being removed or gone", actual));
            }
        }
        fixture.remove(&name, Removal::Regular).await?;
        fixture.check_listing(&[]).await?;
        if end == CallEnd::Answered {
            break;
        }
    }
    fixture.check_all_free(16).await
}

/// Returns the partitions without their states: a reset may arrive late, after its caller crashed.
async fn stateless_listing(
    fixture: &Fixture,
) -> Result<Vec<(PartitionId, PartitionSpec, Vec<IpuPlace>)>, CaseError> {
    let listed = fixture.listed().await?.into_iter();
    Ok(listed.map(|one| (one.id, one.spec, one.ipus)).collect())
}

/// A reset without a reply was done or not: the partition becomes active again and can be reset again.
async fn a_reset_with_a_crashed_caller_is_atomic(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    let before = stateless_listing(&fixture).await?;
    for steps in 1..=MAX_STEPS {
        let controller = FaultyController::stepping(&fixture.controller);
        let end = crash_after(steps, controller.reset_partition(&id("p1"))).await;
        let state = fixture.state("p1").await?;
        if !matches!(state, PartitionState::Active | PartitionState::Resetting) {
            let rule = "a reset takes effect as a whole or not at all";
            return Err(broken(rule, "ACTIVE or RESETTING", state.label()));
        }
        fixture.check_active("p1").await?;
        check_eq(
            "a reset changes nothing else",
            &stateless_listing(&fixture).await?,
            &before,
        )?;
        let again = fixture.controller.reset_partition(&id("p1")).await;
        // The reset of the crashed caller may have arrived only now.
        if again.is_err() {
            check_error("a reset whose caller crashed can be retried", again, &["refused"])?;
        }
        fixture.check_active("p1").await?;
        if end == CallEnd::Answered {
            break;
        }
    }
    fixture.remove("p1", Removal::Regular).await
}

/// `ensure_present` continues from any state that a crashed run of it left.
async fn ensure_present_may_crash_at_any_step(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    // Every run crashes one step later; the partition of the previous run may or may not exist.
    for steps in 1..=MAX_STEPS {
        let name = format!("p{steps}");
        let mut end = CallEnd::Crashed;
        for run in 0..3 {
            let controller = FaultyController::stepping(&fixture.controller);
            let (request, wait_options) = (request(&name, 4), wait_options());
            let work = ensure_present(&controller, &request, &wait_options);
            if run < 2 {
                end = crash_after(steps, work).await;
            } else {
                check_ok("a create whose caller crashed can be retried", work.await)?;
            }
        }
        check_listed_and_remove(&fixture, &name, 4).await?;
        if end == CallEnd::Answered {
            break;
        }
    }
    fixture.check_all_free(16).await
}

/// `ensure_absent` continues from any state that a crashed run of it left, and `Ok` means gone.
async fn ensure_absent_may_crash_at_any_step(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    for steps in 1..=MAX_STEPS {
        let name = format!("p{steps}");
        fixture.create_active(&name, 4).await?;
        let mut end = CallEnd::Crashed;
        for run in 0..3 {
            let controller = FaultyController::stepping(&fixture.controller);
            let (id, wait_options) = (id(&name), wait_options());
            let work = ensure_absent(&controller, &id, Removal::Regular, &wait_options);
            if run < 2 {
                end = crash_after(steps, work).await;
            } else {
                check_ok("a removal whose caller crashed can be retried", work.await)?;
            }
        }
        fixture.check_unknown(&name).await?;
        fixture.check_listing(&[]).await?;
        if end == CallEnd::Answered {
            break;
        }
    }
    fixture.check_all_free(16).await
}
