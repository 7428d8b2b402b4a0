//! Requests and replies that are lost, repeated or slow, between the suite and the controller: what our own helpers make of
//! them rests on what the controller says when it is asked again.

use std::time::Duration;

use ipu_core::Topology;
use ipu_vipu_client::{Removal, RetryLayer, VipuController as _, ensure_absent, ensure_present};

use super::fault_injection::{Faulty, Strike};
use super::harness::{Harness, Pod, attempts, id, patience, refused, request};
use super::{CallKind, Setup, cases};
use crate::conformance::{CaseOutcome, ok, same};
use crate::random::Random;

cases![
    whatever_is_lost_a_partition_is_made_once,
    whatever_is_lost_a_partition_is_removed,
    retries_settle_what_was_lost,
    a_creation_whose_reply_was_lost_is_not_taken_for_a_full_pod,
    a_lost_reply_does_not_make_another_ones_partition_ours,
    a_call_that_arrives_twice_is_done_once,
    a_caller_who_does_not_wait_can_try_again,
    retries_bridge_a_controller_that_fails_now_and_then,
];

/// What can be lost of a call that is answered in the end.
const LOST: [Strike; 3] = [Strike::LostRequest, Strike::LostReply, Strike::Failed];

/// What is as asked is there once, and is given back.
async fn is_there_once(pod: &Pod, name: &str) -> CaseOutcome {
    pod.is_active(name).await?;
    pod.lists_exactly(&[name]).await?;
    pod.remove(name, Removal::Regular).await
}

/// `ensure_present`: "A partition of that id that exists already and is what was asked for is fine: an earlier call whose
/// reply was lost made it".
async fn whatever_is_lost_a_partition_is_made_once(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for call in 1..=3 {
        for strike in LOST.into_iter().chain([Strike::TwiceFirst, Strike::TwiceSecond]) {
            let rule = format!("{strike:?} of call {call} does not keep a partition from being made");
            let controller = Faulty::at(&pod.controller, call, strike);
            let answer = ensure_present(&controller, &request("p1", 16), &patience()).await;
            ok(&rule, answer)?;
            is_there_once(&pod, "p1").await?;
        }
    }
    // The creation is lost, and so is the first look at what became of it.
    let controller = Faulty::new(&pod.controller, |_, call| {
        (call <= 2).then_some(Strike::LostReply)
    });
    let answer = ensure_present(&controller, &request("p1", 16), &patience()).await;
    ok("two lost replies do not keep a partition from being made", answer)?;
    is_there_once(&pod, "p1").await?;
    pod.is_all_free(16).await
}

/// `ensure_absent`: "`Ok` means that the controller said that it does not know the partition".
async fn whatever_is_lost_a_partition_is_removed(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    for call in 1..=3 {
        for strike in LOST.into_iter().chain([Strike::TwiceFirst, Strike::TwiceSecond]) {
            pod.make("p1", 16).await?;
            let rule = format!("{strike:?} of call {call} does not keep a partition from being removed");
            let controller = Faulty::at(&pod.controller, call, strike);
            let answer = ensure_absent(&controller, &id("p1"), Removal::Regular, &patience()).await;
            ok(&rule, answer)?;
            pod.is_unknown("p1").await?;
            pod.lists_exactly(&[]).await?;
        }
    }
    pod.is_all_free(16).await
}

/// The guarantees of `RetryLayer`.
async fn retries_settle_what_was_lost(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for call in 1..=2 {
        for strike in LOST {
            let rule = format!("{strike:?} of call {call} is bridged by trying again");
            let retrying = || RetryLayer::new(Faulty::at(&pod.controller, call, strike), attempts(4));
            let made = retrying().create_partition(request("p1", 16)).await;
            same(
                "create answers the id that was asked for",
                &ok(&rule, made)?,
                &id("p1"),
            )?;
            pod.is_active("p1").await?;
            pod.lists_exactly(&["p1"]).await?;
            ok(&rule, retrying().reset_partition(&id("p1")).await)?;
            pod.is_active("p1").await?;
            ok(&rule, retrying().remove_partition(&id("p1"), false).await)?;
            pod.remove("p1", Removal::Regular).await?;
        }
    }
    pod.is_all_free(16).await
}

/// An id that is taken comes before a lack of room (reference, Errors; `RetryLayer`: "only tried again if it is not there").
async fn a_creation_whose_reply_was_lost_is_not_taken_for_a_full_pod(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let faulty = Faulty::new(&pod.controller, |kind, call| {
        (kind == CallKind::Create && call == 1).then_some(Strike::LostReply)
    });
    let answer = RetryLayer::new(faulty, attempts(4))
        .create_partition(request("p1", 16))
        .await;
    ok(
        "a creation of the whole Pod that was done is not refused for lack of room",
        answer,
    )?;
    is_there_once(&pod, "p1").await
}

/// `ensure_present`: "`AlreadyExists` if a partition of that id exists and is not what was asked for".
async fn a_lost_reply_does_not_make_another_ones_partition_ours(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.make("p1", 8).await?;
    let before = pod.listed().await?;
    for strike in LOST {
        let controller = Faulty::at(&pod.controller, 1, strike);
        let answer = ensure_present(&controller, &request("p1", 4), &patience()).await;
        let rule = "a partition that is not as asked is not taken";
        refused(rule, answer, &["already_exists"])?;
    }
    let rule = "a refused creation changes nothing";
    same(rule, &pod.listed().await?, &before)
}

/// A network or a proxy may repeat a request: the second finds what the first did.
async fn a_call_that_arrives_twice_is_done_once(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    let second = || Faulty::at(&pod.controller, 1, Strike::TwiceSecond);
    let answer = second().create_partition(request("p1", 4)).await;
    refused(
        "a second creation of an id is refused",
        answer,
        &["already_exists"],
    )?;
    pod.is_active("p1").await?;
    let before = pod.listed().await?;

    let answer = second().reset_partition(&id("p1")).await;
    if answer.is_err() {
        refused(
            "a second reset is begun, or one is under way",
            answer,
            &["refused"],
        )?;
    }
    pod.is_active("p1").await?;
    same("a reset changes nothing else", &pod.listed().await?, &before)?;

    let answer = second().remove_partition(&id("p1"), false).await;
    if answer.is_err() {
        let rule = "a second removal finds it under way or over";
        refused(rule, answer, &["not_found", "refused"])?;
    }
    pod.remove("p1", Removal::Regular).await?;
    pod.is_all_free(16).await
}

/// A caller with a deadline of its own, such as the ledger, drops the call when that is over and asks later.
async fn a_caller_who_does_not_wait_can_try_again(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let deadline = Duration::from_millis(30);
    for strike in [Strike::SlowRequest, Strike::SlowReply] {
        let slow = Faulty::at(&pod.controller, 1, strike);
        let early = tokio::time::timeout(deadline, slow.create_partition(request("p1", 16))).await;
        same("the suite's own delay works", &early.is_err(), &true)?;
        let answer = ensure_present(&*pod.controller, &request("p1", 16), &patience()).await;
        ok("a creation whose caller did not wait can be tried again", answer)?;
        pod.is_active("p1").await?;
        pod.lists_exactly(&["p1"]).await?;

        let slow = Faulty::at(&pod.controller, 1, strike);
        let early = tokio::time::timeout(deadline, slow.remove_partition(&id("p1"), false)).await;
        same("the suite's own delay works", &early.is_err(), &true)?;
        pod.remove("p1", Removal::Regular).await?;
        pod.lists_exactly(&[]).await?;
    }
    pod.is_all_free(16).await
}

/// The guarantees of `RetryLayer`, with faults in any order.
async fn retries_bridge_a_controller_that_fails_now_and_then(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let mut random = Random::new(7);
    let faulty = Faulty::new(&pod.controller, move |_, _| {
        random.chance(40).then(|| *random.pick(&LOST))
    });
    // More than the sequence of chances ever takes in a row.
    let controller = RetryLayer::new(faulty, attempts(40));
    for round in 0..8 {
        let name = format!("p{round}");
        let rule = "whatever fails now and then is bridged by trying again";
        let made = ok(rule, controller.create_partition(request(&name, 16)).await)?;
        same("create answers the id that was asked for", &made, &id(&name))?;
        pod.is_active(&name).await?;
        ok(rule, controller.reset_partition(&id(&name)).await)?;
        pod.is_active(&name).await?;
        ok(rule, controller.remove_partition(&id(&name), false).await)?;
        pod.remove(&name, Removal::Regular).await?;
    }
    pod.is_all_free(16).await
}
