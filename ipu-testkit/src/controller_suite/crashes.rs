//! Callers that die between any two steps: whatever a call was, it was done or was not, and trying again ends well.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use ipu_core::{IpuPlace, PartitionId, PartitionSpec, PartitionState, Topology};
use ipu_vipu_client::{Removal, VipuController as _, ensure_absent, ensure_present};

use super::fault_injection::Faulty;
use super::harness::{Harness, Pod, id, patience, refused, request};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, Stop, broken, ok, same};

cases![
    a_creation_whose_caller_dies_was_done_or_was_not,
    a_removal_whose_caller_dies_was_done_or_was_not,
    a_reset_whose_caller_dies_was_done_or_was_not,
    whoever_sees_a_creation_through_may_die_at_any_step,
    whoever_sees_a_removal_through_may_die_at_any_step,
];

/// The most steps after which a caller dies: more than a call over a network takes. Whoever needs more is looked at up
/// to there.
const STEPS: u32 = 32;

/// How a caller ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It had its answer.
    Answered,
    /// It died before.
    Died,
}

/// Polls the future `steps` times at most, and then drops it.
pub(super) async fn die_after<T>(steps: u32, future: impl Future<Output = T>) -> End {
    let mut future = pin!(future);
    let mut taken = 0;
    poll_fn(|context| {
        taken += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(End::Answered),
            Poll::Pending if taken >= steps => Poll::Ready(End::Died),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A partition that is active is listed as it was asked for, and is given back.
async fn is_as_asked_and_removed(pod: &Pod, name: &str, size: u32) -> CaseOutcome {
    pod.is_active(name).await?;
    pod.lists_exactly(&[name]).await?;
    let found: Vec<_> = pod
        .listed()
        .await?
        .iter()
        .map(|one| one.spec.size.get())
        .collect();
    same("a partition is listed as it was asked for", &found, &vec![size])?;
    pod.remove(name, Removal::Regular).await
}

/// "Safe to retry": a creation that nobody heard of was done or was not, and `ensure_present` takes both.
async fn a_creation_whose_caller_dies_was_done_or_was_not(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for steps in 1..=STEPS {
        let name = format!("p{steps}");
        let controller = Faulty::stepping(&pod.controller);
        let end = die_after(steps, controller.create_partition(request(&name, 4))).await;
        match pod.controller.partition_status(&id(&name)).await {
            Ok(status) if matches!(status.state, PartitionState::Creating | PartitionState::Active) => {}
            Err(error) if error.label() == "not_found" && end == End::Died => {}
            other => {
                let seen = format!("{other:?} after {steps} steps");
                let rule = "a creation was done or was not";
                return Err(broken(rule, "a partition on its way, or none", seen));
            }
        }
        let answer = ensure_present(&*pod.controller, &request(&name, 4), &patience()).await;
        ok("a creation whose caller died can be tried again", answer)?;
        is_as_asked_and_removed(&pod, &name, 4).await?;
        if end == End::Answered {
            break;
        }
    }
    pod.is_all_free(16).await
}

/// The same of a removal, and `ensure_absent`.
async fn a_removal_whose_caller_dies_was_done_or_was_not(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    for steps in 1..=STEPS {
        let name = format!("p{steps}");
        pod.make(&name, 4).await?;
        let controller = Faulty::stepping(&pod.controller);
        let end = die_after(steps, controller.remove_partition(&id(&name), false)).await;
        match pod.controller.partition_status(&id(&name)).await {
            Ok(status) if status.state == PartitionState::Removing => {}
            Ok(status) if status.state == PartitionState::Active && end == End::Died => {}
            Err(error) if error.label() == "not_found" => {}
            other => {
                let seen = format!("{other:?} after {steps} steps");
                let rule = "a removal was done or was not";
                return Err(broken(rule, "a partition, being removed or gone", seen));
            }
        }
        pod.remove(&name, Removal::Regular).await?;
        pod.lists_exactly(&[]).await?;
        if end == End::Answered {
            break;
        }
    }
    pod.is_all_free(16).await
}

/// What the partitions are, without their states: a reset may arrive late, while its caller is dead.
async fn made_of(pod: &Pod) -> Result<Vec<(PartitionId, PartitionSpec, Vec<IpuPlace>)>, Stop> {
    let listed = pod.listed().await?.into_iter();
    Ok(listed.map(|one| (one.id, one.spec, one.ipus)).collect())
}

/// The same of a reset: the partition comes back, and can be reset again.
async fn a_reset_whose_caller_dies_was_done_or_was_not(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    let before = made_of(&pod).await?;
    for steps in 1..=STEPS {
        let controller = Faulty::stepping(&pod.controller);
        let end = die_after(steps, controller.reset_partition(&id("p1"))).await;
        let state = pod.state("p1").await?;
        if !matches!(state, PartitionState::Active | PartitionState::Resetting) {
            let rule = "a reset was done or was not";
            return Err(broken(rule, "ACTIVE or RESETTING", state.label()));
        }
        pod.is_active("p1").await?;
        same("a reset changes nothing else", &made_of(&pod).await?, &before)?;
        let again = pod.controller.reset_partition(&id("p1")).await;
        // The one whose caller died may have arrived only now.
        if again.is_err() {
            refused(
                "a reset whose caller died can be tried again",
                again,
                &["refused"],
            )?;
        }
        pod.is_active("p1").await?;
        if end == End::Answered {
            break;
        }
    }
    pod.remove("p1", Removal::Regular).await
}

/// `ensure_present` goes on from whatever an earlier life of it left.
async fn whoever_sees_a_creation_through_may_die_at_any_step(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    // Every life dies one step later; the partition of the one before may or may not be there.
    for steps in 1..=STEPS {
        let name = format!("p{steps}");
        let mut end = End::Died;
        for life in 0..3 {
            let controller = Faulty::stepping(&pod.controller);
            let (request, patience) = (request(&name, 4), patience());
            let work = ensure_present(&controller, &request, &patience);
            if life < 2 {
                end = die_after(steps, work).await;
            } else {
                ok("a creation whose caller died can be tried again", work.await)?;
            }
        }
        is_as_asked_and_removed(&pod, &name, 4).await?;
        if end == End::Answered {
            break;
        }
    }
    pod.is_all_free(16).await
}

/// `ensure_absent` goes on from whatever an earlier life of it left, and `Ok` means gone.
async fn whoever_sees_a_removal_through_may_die_at_any_step(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for steps in 1..=STEPS {
        let name = format!("p{steps}");
        pod.make(&name, 4).await?;
        let mut end = End::Died;
        for life in 0..3 {
            let controller = Faulty::stepping(&pod.controller);
            let (id, patience) = (id(&name), patience());
            let work = ensure_absent(&controller, &id, Removal::Regular, &patience);
            if life < 2 {
                end = die_after(steps, work).await;
            } else {
                ok("a removal whose caller died can be tried again", work.await)?;
            }
        }
        pod.is_unknown(&name).await?;
        pod.lists_exactly(&[]).await?;
        if end == End::Answered {
            break;
        }
    }
    pod.is_all_free(16).await
}
