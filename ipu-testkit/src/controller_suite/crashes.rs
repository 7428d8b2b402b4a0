//! Callers that crash within a call: it takes effect as a whole or not at all, and a retry succeeds.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use ipu_core::hardware::{PartitionState, Topology};

use super::harness::{Fixture, Harness, Removal, check_error, id, request};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, broken, check_eq};

cases![
    a_create_with_a_crashed_caller_is_atomic,
    a_removal_with_a_crashed_caller_is_atomic,
    a_reset_with_a_crashed_caller_is_atomic,
];

/// Maximum number of steps before a caller crashes: more than a call over a network takes. Longer calls are
/// tested up to this step.
const MAX_STEPS: u32 = 32;

/// Polls the future at most `steps` times, and then drops it. Returns whether it ended.
async fn crash_after<T>(steps: u32, future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls >= steps => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Checks that the partition, of 4 IPUs, is in one of these states, or is unknown and may be.
async fn check_state(
    fixture: &Fixture,
    name: &str,
    allowed: [PartitionState; 2],
    may_be_unknown: bool,
) -> CaseOutcome {
    match fixture.controller.partition_status(&id(name)).await {
        Ok(status) if allowed.contains(&status.state) => Ok(()),
        Err(error) if error.label() == "not_found" && may_be_unknown => Ok(()),
        other => {
            let rule = "a call takes effect as a whole or not at all";
            Err(broken(
                rule,
                format_args!("{allowed:?}"),
                format_args!("{other:?}"),
            ))
        }
    }
}

/// A create without a reply was done or not: a second one succeeds or finds the first.
async fn a_create_with_a_crashed_caller_is_atomic(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    for steps in 1..=MAX_STEPS {
        let name = format!("p{steps}");
        let answered = crash_after(steps, fixture.controller.create_partition(request(&name, 4))).await;
        let allowed = [PartitionState::Creating, PartitionState::Active];
        check_state(&fixture, &name, allowed, !answered).await?;
        if let Err(error) = fixture.create(&name, 4).await {
            let rule = "a create whose caller crashed can be retried";
            check_error::<()>(rule, Err(error), &["already_exists"])?;
        }
        fixture.check_active(&name).await?;
        fixture.check_listing(&[&name]).await?;
        fixture.remove(&name, Removal::Regular).await?;
        if answered {
            break;
        }
    }
    fixture.check_all_free(16).await
}

/// A removal without a reply was done or not.
async fn a_removal_with_a_crashed_caller_is_atomic(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    for steps in 1..=MAX_STEPS {
        let name = format!("p{steps}");
        fixture.create_active(&name, 4).await?;
        let answered = crash_after(steps, fixture.controller.remove_partition(&id(&name), false)).await;
        let active = if answered {
            PartitionState::Removing
        } else {
            PartitionState::Active
        };
        check_state(&fixture, &name, [PartitionState::Removing, active], true).await?;
        fixture.remove(&name, Removal::Regular).await?;
        fixture.check_listing(&[]).await?;
        if answered {
            break;
        }
    }
    fixture.check_all_free(16).await
}

/// A reset without a reply was done or not: the partition becomes active again and can be reset again.
async fn a_reset_with_a_crashed_caller_is_atomic(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    let before = fixture.listed().await?;
    for steps in 1..=MAX_STEPS {
        let answered = crash_after(steps, fixture.controller.reset_partition(&id("p1"))).await;
        let allowed = [PartitionState::Active, PartitionState::Resetting];
        check_state(&fixture, "p1", allowed, false).await?;
        fixture.check_active("p1").await?;
        let again = fixture.controller.reset_partition(&id("p1")).await;
        // The reset of the crashed caller may have arrived only now.
        if again.is_err() {
            check_error("a reset whose caller crashed can be retried", again, &["refused"])?;
        }
        fixture.check_active("p1").await?;
        if answered {
            break;
        }
    }
    check_eq("a reset changes nothing else", &fixture.listed().await?, &before)?;
    fixture.remove("p1", Removal::Regular).await
}
