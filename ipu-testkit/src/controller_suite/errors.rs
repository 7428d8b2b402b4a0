//! Cases about rejected calls and their errors.

use ipu_core::hardware::Topology;
use ipu_core::{AgentId, AllocationId};
use ipu_vipu_client::{CreatePartition, VipuError};

use super::harness::{Harness, Removal, check_error, id, place, request};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, check_eq, check_ok};

cases![
    an_unknown_partition_is_not_found_by_any_call,
    a_create_with_a_taken_id_is_rejected,
    a_create_without_capacity_is_rejected,
    gcds_and_replicas_that_do_not_divide_are_rejected,
    unknown_or_mismatched_ipus_are_rejected,
    an_unknown_allocation_or_agent_is_not_a_missing_partition,
    an_unknown_gcd_is_rejected,
    a_rejected_create_has_no_effect,
];

/// "`NOT_FOUND`: `NotFound` of a call about an existing partition" (reference, Errors).
async fn an_unknown_partition_is_not_found_by_any_call(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.create_active("other", 4).await?;
    let (controller, p1) = (&fixture.controller, id("p1"));
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
        let rule = "a call for a missing partition returns not found with its id";
        let expected = Err(VipuError::NotFound { id: p1.clone() });
        check_eq(rule, &(call, answer), &(call, expected))?;
    }
    fixture.check_listing(&["other"]).await
}

/// "`ALREADY_EXISTS`: `AlreadyExists` of a create" (reference, Errors; the code is an assumption). The
/// controller checks it before capacity; otherwise a retry after a lost reply would look like a lack of
/// capacity.
async fn a_create_with_a_taken_id_is_rejected(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.create_active("p1", 16).await?;
    let before = fixture.listed().await?;
    for size in [16, 1] {
        let rule = "a create with a taken id returns already exists";
        let expected = Err(VipuError::AlreadyExists { id: id("p1") });
        check_eq(rule, &fixture.create("p1", size).await, &expected)?;
    }
    let rule = "a rejected create has no effect";
    check_eq(rule, &fixture.listed().await?, &before)
}

/// "`RESOURCE_EXHAUSTED`: `NoCapacity`, after a change, not done" (reference, Errors; the code is an
/// assumption).
async fn a_create_without_capacity_is_rejected(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    let rule = "a partition that does not fit is rejected for lack of capacity";
    check_error(rule, fixture.create("big", 32).await, &["no_capacity"])?;
    fixture.create_active("p1", 8).await?;
    check_error(rule, fixture.create("p2", 16).await, &["no_capacity"])?;
    fixture.create_active("p3", 8).await?;
    check_error(rule, fixture.create("p4", 1).await, &["no_capacity"])?;
    fixture.remove("p1", Removal::Regular).await?;
    fixture.create_active("p4", 8).await
}

/// "Graph compilation domains […] divides `size`", replicas "at least `gcds`" (`PartitionSpec`).
async fn gcds_and_replicas_that_do_not_divide_are_rejected(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    for (gcds, replicas) in [(3, 3), (8, 8), (2, 1)] {
        let mut wanted = request("p1", 4);
        wanted.spec.gcds = gcds;
        wanted.spec.replicas = replicas;
        let answer = fixture.controller.create_partition(wanted).await;
        let rule = format!("4 IPUs with {gcds} GCDs and {replicas} replicas are rejected");
        check_error(&rule, answer, &["refused"])?;
    }
    fixture.check_listing(&[]).await
}

/// IPUs by place must match the size, exist, and be named once (simulator, The user API; the code is an
/// assumption).
async fn unknown_or_mismatched_ipus_are_rejected(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    let choices = [
        vec![place(0, 16), place(0, 17)],
        vec![place(1, 0), place(1, 1)],
        vec![place(0, 0)],
        vec![place(0, 0), place(0, 0)],
    ];
    for ipus in choices {
        let rule = format!("two IPUs at the places {ipus:?} are rejected");
        let wanted = CreatePartition {
            ipus,
            ..request("p1", 2)
        };
        let answer = fixture.controller.create_partition(wanted).await;
        check_error(&rule, answer, &["refused"])?;
    }
    fixture.check_listing(&[]).await
}

/// "`NotFound` of a call about an existing partition, else `Refused`" (reference, Errors): with
/// `NotFound`, a held partition would appear to be gone.
async fn an_unknown_allocation_or_agent_is_not_a_missing_partition(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    // An id with characters that have a meaning in URLs.
    let unknown_allocation = AllocationId::new("no/where?&=%20").expect("an id");
    let mut wanted = request("p1", 4);
    wanted.spec.allocation = Some(unknown_allocation.clone());
    let rule = "an unknown allocation is rejected";
    let answer = fixture.controller.create_partition(wanted).await;
    check_error(rule, answer, &["refused"])?;
    let answer = fixture.controller.list_partitions(Some(unknown_allocation)).await;
    check_error(rule, answer, &["refused"])?;
    let unknown_agent = AgentId::new("nobody&x").expect("an id");
    let answer = fixture.controller.ipu_attributes(&[unknown_agent]).await;
    check_error("an unknown agent is rejected", answer, &["refused"]).map(drop)
}

/// GCDs are numbered from 0 (`GcdID`; the code is an assumption).
async fn an_unknown_gcd_is_rejected(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    let answer = fixture.controller.ipuof_config(&id("p1"), Some(1)).await;
    let rule = "the configuration of an unknown GCD is rejected";
    check_error(rule, answer, &["refused"]).map(drop)
}

/// An error that means "not done" (reference, Errors) must be correct.
async fn a_rejected_create_has_no_effect(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod4())).await;
    let rule = "a partition that does not fit is rejected for lack of capacity";
    check_error(rule, fixture.create("p1", 8).await, &["no_capacity"])?;
    fixture.check_unknown("p1").await?;
    fixture.check_listing(&[]).await?;
    let rule = "the id of a rejected create is free";
    check_ok(rule, fixture.create("p1", 4).await).map(drop)
}
