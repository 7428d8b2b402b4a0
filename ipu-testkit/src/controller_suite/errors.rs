//! What a controller refuses, and the error that says so.

use ipu_core::{AgentId, AllocationId, Topology};
use ipu_vipu_client::{CreatePartition, Removal, VipuError};

use super::harness::{Harness, id, place, refused, request};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, ok, same};

cases![
    an_unknown_partition_is_not_found_everywhere,
    an_id_that_is_taken_is_refused_whatever_is_asked_for,
    what_does_not_fit_now_has_no_room,
    gcds_and_replicas_that_do_not_divide_are_refused,
    ipus_that_do_not_exist_or_do_not_match_are_refused,
    an_unknown_allocation_or_agent_is_refused_and_is_no_missing_partition,
    a_gcd_that_does_not_exist_is_refused,
    a_refused_creation_leaves_nothing,
];

/// "`NOT_FOUND`: `NotFound` of a call about an existing partition" (reference, Errors).
async fn an_unknown_partition_is_not_found_everywhere(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.make("other", 4).await?;
    let (controller, p1) = (&pod.controller, id("p1"));
    let answers = [
        ("status", controller.partition_status(&p1).await.map(drop)),
        ("ipuof_config", controller.ipuof_config(&p1, None).await.map(drop)),
        (
            "ipuof_config of a GCD",
            controller.ipuof_config(&p1, Some(0)).await.map(drop),
        ),
        ("reset", controller.reset_partition(&p1).await),
        ("remove", controller.remove_partition(&p1, false).await),
        ("remove by force", controller.remove_partition(&p1, true).await),
    ];
    for (call, answer) in answers {
        let rule = "a call about a partition that does not exist is not found, by its id";
        let expected = Err(VipuError::NotFound { id: p1.clone() });
        same(rule, &(call, answer), &(call, expected))?;
    }
    pod.lists_exactly(&["other"]).await
}

/// "`ALREADY_EXISTS`: `AlreadyExists` of a create" (reference, Errors; the code is an assumption). It comes before a look at
/// the room, or a lost reply would pass for a full Pod.
async fn an_id_that_is_taken_is_refused_whatever_is_asked_for(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.make("p1", 16).await?;
    let before = pod.listed().await?;
    for size in [16, 1] {
        let rule = "an id that is taken exists already, whatever is asked for";
        let expected = Err(VipuError::AlreadyExists { id: id("p1") });
        same(rule, &pod.create("p1", size).await, &expected)?;
    }
    let rule = "a refused creation changes nothing";
    same(rule, &pod.listed().await?, &before)
}

/// "`RESOURCE_EXHAUSTED`: `NoCapacity`, after a change, not done" (reference, Errors; the code is an assumption).
async fn what_does_not_fit_now_has_no_room(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let rule = "what does not fit has no room";
    refused(rule, pod.create("big", 32).await, &["no_capacity"])?;
    pod.make("p1", 8).await?;
    refused(rule, pod.create("p2", 16).await, &["no_capacity"])?;
    pod.make("p3", 8).await?;
    refused(rule, pod.create("p4", 1).await, &["no_capacity"])?;
    pod.remove("p1", Removal::Regular).await?;
    pod.make("p4", 8).await
}

/// "Graph compilation domains […] divides `size`", replicas "at least `gcds`" (`PartitionSpec`).
async fn gcds_and_replicas_that_do_not_divide_are_refused(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for (gcds, replicas) in [(3, 3), (8, 8), (2, 1)] {
        let mut wanted = request("p1", 4);
        wanted.spec.gcds = gcds;
        wanted.spec.replicas = replicas;
        let answer = pod.controller.create_partition(wanted).await;
        let rule = format!("4 IPUs with {gcds} GCDs and {replicas} replicas are refused");
        refused(&rule, answer, &["refused"])?;
    }
    pod.lists_exactly(&[]).await
}

/// IPUs by place are as many as the size, exist, and are named once (simulator, The user API; the code is an assumption).
async fn ipus_that_do_not_exist_or_do_not_match_are_refused(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let wishes = [
        vec![place(0, 16), place(0, 17)],
        vec![place(1, 0), place(1, 1)],
        vec![place(0, 0)],
        vec![place(0, 0), place(0, 0)],
    ];
    for ipus in wishes {
        let rule = format!("two IPUs by the places {ipus:?} are refused");
        let wanted = CreatePartition {
            ipus,
            ..request("p1", 2)
        };
        let answer = pod.controller.create_partition(wanted).await;
        refused(&rule, answer, &["refused"])?;
    }
    pod.lists_exactly(&[]).await
}

/// "`NotFound` of a call about an existing partition, else `ControllerRejection`" (reference, Errors): taken for the partition, it would
/// let a held one pass for gone.
async fn an_unknown_allocation_or_agent_is_refused_and_is_no_missing_partition(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    // With everything in it that a URL has a meaning for.
    let nowhere = AllocationId::new("no/where?&=%20").expect("an id");
    let mut wanted = request("p1", 4);
    wanted.spec.allocation = Some(nowhere.clone());
    let rule = "an allocation that does not exist is refused";
    let answer = pod.controller.create_partition(wanted).await;
    refused(rule, answer, &["refused"])?;
    let answer = pod.controller.list_partitions(Some(nowhere)).await;
    refused(rule, answer, &["refused"])?;
    let nobody = AgentId::new("nobody&x").expect("an id");
    let answer = pod.controller.ipu_attributes(&[nobody]).await;
    refused("an agent that does not exist is refused", answer, &["refused"]).map(drop)
}

/// GCDs are numbered from 0 (`GcdID`; the code is an assumption).
async fn a_gcd_that_does_not_exist_is_refused(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    let answer = pod.controller.ipuof_config(&id("p1"), Some(1)).await;
    let rule = "the configuration of a GCD that does not exist is refused";
    refused(rule, answer, &["refused"]).map(drop)
}

/// An error that says "not done" (reference, Errors) is true.
async fn a_refused_creation_leaves_nothing(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod4())).await;
    let rule = "what does not fit has no room";
    refused(rule, pod.create("p1", 8).await, &["no_capacity"])?;
    pod.is_unknown("p1").await?;
    pod.lists_exactly(&[]).await?;
    let rule = "an id that was refused is free";
    ok(rule, pod.create("p1", 4).await).map(drop)
}
