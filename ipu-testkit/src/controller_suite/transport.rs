//! What a transport makes of faults behind it: lost replies, silence, errors, restarts. These cases need the bench to do that
//! to the transport.

use std::time::Duration;

use ipu_core::Topology;
use ipu_vipu_client::{Removal, RetryLayer, VipuController as _, ensure_absent, ensure_present, wait_active};

use super::harness::{Harness, able, attempts, id, is_unsure, patience, refused, request};
use super::{CallFault, CallKind, Persistence, Setup, cases};
use crate::conformance::{CaseOutcome, Stop, ok, same};

cases![
    a_lost_reply_may_have_happened_and_the_status_shows_it,
    a_lost_request_may_have_happened_and_the_status_shows_that_it_did_not,
    a_lost_removal_is_seen_through,
    a_lost_reply_is_settled_by_the_helpers,
    an_error_of_the_controller_may_be_tried_again,
    a_broken_connection_is_made_again,
    a_call_that_is_delivered_twice_is_done_once,
    retries_bridge_a_wire_that_breaks_now_and_then,
    a_slow_answer_is_an_answer,
    silence_is_a_timeout_that_may_have_happened,
    a_late_answer_is_a_timeout_that_may_have_happened,
    a_restarted_controller_knows_its_partitions,
    a_controller_that_is_not_there_cannot_be_reached,
];

const UNSURE: &str = "whoever has no reply cannot know, and may ask again soon";

/// "A connection that […] breaks is `Unreachable`": try again soon, may have been done (reference, Errors). "What may have
/// been done has to be settled by asking."
async fn a_lost_reply_may_have_happened_and_the_status_shows_it(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.inject(CallKind::Create, CallFault::LostReply).await?;
    is_unsure(UNSURE, pod.create("p1", 4).await)?;
    pod.is_active("p1").await?;
    pod.inject(CallKind::Reset, CallFault::LostReply).await?;
    is_unsure(UNSURE, pod.controller.reset_partition(&id("p1")).await)?;
    pod.is_active("p1").await?;
    pod.inject(CallKind::Remove, CallFault::LostReply).await?;
    is_unsure(UNSURE, pod.controller.remove_partition(&id("p1"), false).await)?;
    pod.remove("p1", Removal::Regular).await?;
    pod.is_all_free(16).await
}

/// The same, of what was not done.
async fn a_lost_request_may_have_happened_and_the_status_shows_that_it_did_not(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.inject(CallKind::Create, CallFault::LostRequest).await?;
    is_unsure(UNSURE, pod.create("p1", 4).await)?;
    pod.is_unknown("p1").await?;
    pod.make("p1", 4).await?;
    pod.inject(CallKind::Remove, CallFault::LostRequest).await?;
    is_unsure(UNSURE, pod.controller.remove_partition(&id("p1"), false).await)?;
    pod.is_active("p1").await
}

/// `ensure_absent` over a lost reply.
async fn a_lost_removal_is_seen_through(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    pod.inject(CallKind::Remove, CallFault::LostReply).await?;
    let answer = ensure_absent(&*pod.controller, &id("p1"), Removal::Regular, &patience()).await;
    ok("a removal whose reply is lost is seen through", answer)?;
    pod.lists_exactly(&[]).await
}

/// `ensure_present` and `wait_active` over lost replies of all that they call.
async fn a_lost_reply_is_settled_by_the_helpers(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for kind in [CallKind::Create, CallKind::Status, CallKind::List] {
        pod.inject(kind, CallFault::LostReply).await?;
    }
    let answer = ensure_present(&*pod.controller, &request("p1", 16), &patience()).await;
    ok("a creation whose reply is lost is seen through", answer)?;
    for _ in 0..2 {
        pod.inject(CallKind::Status, CallFault::LostRequest).await?;
    }
    let answer = wait_active(&*pod.controller, &id("p1"), &patience()).await;
    ok("a status that does not come is asked for again", answer)?;
    // A listing may still have its fault before it.
    let retrying = RetryLayer::new(pod.controller.clone(), attempts(4));
    let listed = ok("partitions are listed", retrying.list_partitions(None).await)?;
    same("a creation whose reply is lost is done once", &listed.len(), &1)
}

/// "`UNAVAILABLE`: `Unreachable`, soon, may have been done" (reference, Errors).
async fn an_error_of_the_controller_may_be_tried_again(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.inject(CallKind::Create, CallFault::Unavailable).await?;
    let answer = pod.create("p1", 4).await;
    let rule = "an unavailable controller is one that cannot be reached";
    is_unsure(rule, answer.clone())?;
    refused(rule, answer, &["unreachable"])?;
    pod.make("p1", 4).await
}

/// A transport outlives its connections.
async fn a_broken_connection_is_made_again(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod4())).await;
    pod.make("p1", 4).await?;
    for _ in 0..2 {
        pod.inject(CallKind::Status, CallFault::LostRequest).await?;
        let answer = pod.controller.partition_status(&id("p1")).await;
        is_unsure(UNSURE, answer)?;
        pod.is_active("p1").await?;
    }
    Ok(())
}

/// A network or a proxy may repeat a request: the second finds what the first did, and either reply may be heard.
async fn a_call_that_is_delivered_twice_is_done_once(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.inject(CallKind::Create, CallFault::Twice).await?;
    let answer = pod.create("p1", 16).await;
    if answer.is_err() {
        refused(
            "a second creation of an id is refused",
            answer,
            &["already_exists"],
        )?;
    }
    pod.is_active("p1").await?;
    pod.lists_exactly(&["p1"]).await?;
    pod.inject(CallKind::Remove, CallFault::Twice).await?;
    let answer = pod.controller.remove_partition(&id("p1"), false).await;
    if answer.is_err() {
        let rule = "a second removal finds it under way or over";
        refused(rule, answer, &["not_found", "refused"])?;
    }
    pod.remove("p1", Removal::Regular).await?;
    pod.is_all_free(16).await
}

/// The guarantees of `RetryLayer`, behind the transport.
async fn retries_bridge_a_wire_that_breaks_now_and_then(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let controller = RetryLayer::new(pod.controller.clone(), attempts(8));
    let kinds = [
        CallKind::Create,
        CallKind::Reset,
        CallKind::Remove,
        CallKind::Status,
    ];
    for _ in 0..3 {
        for kind in kinds {
            pod.inject(kind, CallFault::LostReply).await?;
            pod.inject(kind, CallFault::Unavailable).await?;
        }
        let rule = "whatever fails now and then is bridged by trying again";
        let answer = controller.create_partition(request("p1", 16)).await;
        ok(rule, answer)?;
        ok(rule, wait_active(&controller, &id("p1"), &patience()).await)?;
        ok(rule, controller.reset_partition(&id("p1")).await)?;
        ok(rule, wait_active(&controller, &id("p1"), &patience()).await)?;
        ok(rule, controller.remove_partition(&id("p1"), false).await)?;
        let gone = ensure_absent(&controller, &id("p1"), Removal::Regular, &patience()).await;
        ok(rule, gone)?;
    }
    let rule = "what was removed is gone";
    let listed = ok(rule, controller.list_partitions(None).await)?;
    same(rule, &listed, &Vec::new())
}

/// Slow is not an error before the deadline.
async fn a_slow_answer_is_an_answer(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod4())).await;
    let late = CallFault::Delayed(Duration::from_millis(20));
    pod.inject(CallKind::Create, late).await?;
    pod.make("p1", 4).await
}

/// "A call that takes longer than its deadline is `Timeout`": soon, may have been done (reference, Errors).
async fn silence_is_a_timeout_that_may_have_happened(lab: Harness) -> CaseOutcome {
    is_a_timeout(lab, CallFault::Silence).await
}

/// The same, of an answer that would have come.
async fn a_late_answer_is_a_timeout_that_may_have_happened(lab: Harness) -> CaseOutcome {
    is_a_timeout(lab, CallFault::Delayed(Duration::from_secs(3600))).await
}

async fn is_a_timeout(lab: Harness, fault: CallFault) -> CaseOutcome {
    let deadline = Duration::from_millis(150);
    let setup = Setup {
        deadline,
        ..Setup::quick(Topology::pod16())
    };
    let pod = lab.pod(setup).await;
    if pod.bench.deadline() != Some(deadline) {
        return Err(Stop::Unable("the bench has no deadline for its calls".to_owned()));
    }
    pod.inject(CallKind::Create, fault).await?;
    let answer = pod.create("p1", 4).await;
    is_unsure(UNSURE, answer.clone())?;
    refused("what does not answer in time is a timeout", answer, &["timeout"])?;
    let answer = ensure_present(&*pod.controller, &request("p1", 4), &patience()).await;
    ok("a creation that timed out can be tried again", answer)
}

/// A partition lives at the controller, not in a connection or a process.
async fn a_restarted_controller_knows_its_partitions(lab: Harness) -> CaseOutcome {
    let setup = Setup {
        memory: Persistence::Durable,
        ..Setup::quick(Topology::pod16())
    };
    let pod = lab.pod(setup).await;
    pod.make("p1", 4).await?;
    pod.make("p2", 4).await?;
    pod.remove("p2", Removal::Regular).await?;
    let before = pod.listed().await?;
    able(
        pod.bench.restart().await,
        "the bench cannot restart its controller",
    )?;
    // The first calls may find the old connection broken.
    let controller = RetryLayer::new(pod.controller.clone(), attempts(8));
    let rule = "a restarted controller is found again";
    let after = ok(rule, controller.list_partitions(None).await)?;
    same("a restart changes nothing", &after, &before)?;
    pod.is_active("p1").await?;
    pod.is_unknown("p2").await?;
    let rule = "an id that was taken before a restart is taken after it";
    refused(rule, pod.create("p1", 4).await, &["already_exists"])?;
    pod.remove("p1", Removal::Regular).await?;
    pod.is_all_free(16).await
}

/// "A connection that cannot be made […] is `Unreachable`" (reference, Errors).
async fn a_controller_that_is_not_there_cannot_be_reached(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod4())).await;
    pod.make("p1", 4).await?;
    able(pod.bench.stop().await, "the bench cannot stop its controller")?;
    let rule = "a controller that is not there cannot be reached";
    let controller = &pod.controller;
    for _ in 0..2 {
        let answers = [
            controller.version().await.map(drop),
            controller.list_partitions(None).await.map(drop),
            controller.partition_status(&id("p1")).await.map(drop),
            controller.remove_partition(&id("p1"), true).await,
            controller.create_partition(request("p2", 1)).await.map(drop),
        ];
        for answer in answers {
            is_unsure(rule, answer.clone())?;
            refused(rule, answer, &["unreachable"])?;
        }
    }
    Ok(())
}
