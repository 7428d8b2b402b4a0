//! Lifecycle of a partition: created, active, reset, removed.

use ipu_core::AllocationId;
use ipu_core::hardware::{PartitionSpec, PartitionState, Topology};
use ipu_vipu_client::CreatePartition;

use super::harness::{Harness, Removal, check_error, id, place, request, require, size};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, broken, check_eq, check_ok};

cases![
    a_new_partition_is_creating_before_it_is_active,
    a_partition_becomes_active_and_is_listed_as_requested,
    every_field_of_a_partition_is_listed,
    explicit_ipus_are_used_in_order,
    explicit_ipus_may_be_whole_link_domains,
    a_reset_partition_becomes_active_again,
    a_reset_in_progress_is_visible,
    a_removed_partition_is_unknown,
    a_partition_exists_until_its_removal_ends,
    a_removed_partition_frees_its_ipus_and_id,
    the_longest_id_is_accepted,
    a_failed_partition_is_in_error_and_can_be_removed,
];

/// "Create, reset and remove only start something. Poll the status: it is the truth" (reference, Calls). The
/// listing has no operation state and shows pending partitions as `CREATING` (reference, States).
async fn a_new_partition_is_creating_before_it_is_active(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::slow(Topology::pod16())).await;
    let answer = fixture.create("p1", 4).await;
    let made = check_ok("a partition that fits starts", answer)?;
    check_eq("create returns the requested id", &made, &id("p1"))?;
    let rule = "a partition is not active before it is created";
    check_eq(rule, &fixture.state("p1").await?, &PartitionState::Creating)?;
    let states: Vec<_> = fixture.listed().await?.into_iter().map(|one| one.state).collect();
    check_eq(rule, &states, &vec![PartitionState::Creating])
}

/// The spec of a listed partition is "the same facts for asking and for comparing" (`PartitionSpec`); without
/// a requested allocation the controller chooses one.
async fn a_partition_becomes_active_and_is_listed_as_requested(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    let status = fixture.controller.partition_status(&id("p1")).await;
    let status = check_ok("a partition that exists has a status", status)?;
    let rule = "the controller never resets a partition that never failed";
    check_eq(rule, &(status.auto_resets, status.last_auto_reset), &(0, None))?;

    fixture.check_listing(&["p1"]).await?;
    let listed = fixture.listed().await?.swap_remove(0);
    let rule = "a partition that is listed as active is active";
    check_eq(rule, &listed.state, &PartitionState::Active)?;
    let found = PartitionSpec {
        allocation: None,
        ..listed.spec
    };
    let rule = "a partition is listed as requested";
    check_eq(rule, &found, &request("p1", 4).spec)
}

/// The listing contains every requested field (reference, "What the client sends").
async fn every_field_of_a_partition_is_listed(harness: Harness) -> CaseOutcome {
    let topology = Topology::pod64();
    let allocation: Option<AllocationId> = topology.allocations().first().map(|first| first.id.clone());
    let spec = PartitionSpec {
        size: size(32),
        gcds: 4,
        replicas: 8,
        reconfigurable: true,
        allocation,
    };
    let fixture = harness.start(Setup::quick(topology)).await;
    let requested = CreatePartition {
        spec: spec.clone(),
        ..request("p1", 1)
    };
    fixture.create_active_from(requested).await?;
    let found: Vec<_> = fixture.listed().await?.into_iter().map(|one| one.spec).collect();
    check_eq("a partition is listed as requested", &found, &vec![spec])
}

/// "Which IPUs, in routing order" (`CreatePartition`); held IPUs are not capacity (reference, Errors; the
/// code is an assumption).
async fn explicit_ipus_are_used_in_order(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    let places = vec![place(0, 9), place(0, 8)];
    let requested = CreatePartition {
        ipus: places.clone(),
        ..request("p1", 2)
    };
    fixture.create_active_from(requested).await?;
    let found: Vec<_> = fixture.listed().await?.into_iter().map(|one| one.ipus).collect();
    let rule = "IPUs that are requested by place are used in that order";
    check_eq(rule, &found, &vec![places])?;

    let overlapping = CreatePartition {
        ipus: (8..12).map(|ipu| place(0, ipu)).collect(),
        ..request("p2", 4)
    };
    let answer = fixture.controller.create_partition(overlapping).await;
    check_error("held IPUs are not allocated again", answer, &["no_capacity"])?;
    fixture.check_listing(&["p1"]).await
}

/// More than 64 IPUs are whole link domains (`place`; an assumption), and keep their requested order.
async fn explicit_ipus_may_be_whole_link_domains(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod256())).await;
    let domains = [2, 1].into_iter();
    let places: Vec<_> = domains
        .flat_map(|domain| (0..64).map(move |ipu| place(domain, ipu)))
        .collect();
    let requested = CreatePartition {
        ipus: places.clone(),
        ..request("p1", 128)
    };
    fixture.create_active_from(requested).await?;
    let found: Vec<_> = fixture.listed().await?.into_iter().map(|one| one.ipus).collect();
    let rule = "IPUs that are requested by place are used in that order";
    check_eq(rule, &found, &vec![places])
}

/// A reset restores the active state (`PartitionState::Resetting`) and changes nothing else.
async fn a_reset_partition_becomes_active_again(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    let before = fixture.listed().await?;
    // Twice, so that a partition that never finishes a reset is detected.
    for _ in 0..2 {
        let answer = fixture.controller.reset_partition(&id("p1")).await;
        check_ok("an active partition can be reset", answer)?;
        fixture.check_active("p1").await?;
    }
    check_eq("a reset changes nothing else", &fixture.listed().await?, &before)
}

/// States of operations in progress (reference, States); another reset is rejected meanwhile
/// (FAILED_PRECONDITION, an assumption), a forced removal is not.
async fn a_reset_in_progress_is_visible(harness: Harness) -> CaseOutcome {
    let slow = Setup::slow(Topology::pod16()).operation;
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    let needs = "the fixture cannot change the duration of operations";
    require(fixture.implementation.set_operation_time(slow).await, needs)?;
    let answer = fixture.controller.reset_partition(&id("p1")).await;
    check_ok("an active partition can be reset", answer)?;
    let rule = "a partition is not active while it is reset";
    check_eq(rule, &fixture.state("p1").await?, &PartitionState::Resetting)?;
    let answer = fixture.controller.reset_partition(&id("p1")).await;
    check_error("a reset in progress is not started again", answer, &["refused"])?;
    let answer = fixture.controller.remove_partition(&id("p1"), true).await;
    check_ok("a forced removal succeeds in any state", answer)?;
    let rule = "a removal supersedes other operations";
    check_eq(rule, &fixture.state("p1").await?, &PartitionState::Removing)
}

/// "NOT_FOUND after a remove means gone, on a remove it means gone already" (reference, Calls).
async fn a_removed_partition_is_unknown(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    for _ in 0..2 {
        fixture.remove("p1", Removal::Regular).await?;
        fixture.check_unknown("p1").await?;
        fixture.check_listing(&[]).await?;
    }
    let answer = fixture.controller.remove_partition(&id("p1"), false).await;
    let rule = "removing a missing partition is not found";
    check_error(rule, answer, &["not_found"]).map(drop)
}

/// A removal takes time, and `NOT_FOUND` means that it has ended (reference, Calls): until then the partition
/// keeps its IPUs and its id.
async fn a_partition_exists_until_its_removal_ends(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::slow(Topology::pod16())).await;
    check_ok("a partition that fits starts", fixture.create("p1", 16).await)?;
    let answer = fixture.controller.remove_partition(&id("p1"), true).await;
    check_ok("a forced removal succeeds in any state", answer)?;
    let rule = "a partition exists until its removal has ended";
    check_eq(rule, &fixture.state("p1").await?, &PartitionState::Removing)?;
    let rule = "IPUs are not free before their partition is gone";
    check_error(rule, fixture.create("p2", 1).await, &["no_capacity"])?;
    let rule = "an id is not free before its partition is gone";
    check_error(rule, fixture.create("p1", 1).await, &["already_exists"]).map(drop)
}

/// A removed partition holds neither its IPUs nor its id.
async fn a_removed_partition_frees_its_ipus_and_id(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    for name in ["p1", "p1", "p2"] {
        fixture.create_active(name, 16).await?;
        fixture.remove(name, Removal::Regular).await?;
    }
    fixture.check_all_free(16).await
}

/// "An id has 1 to 50 letters, digits, `-`, `_` or `.`" (reference, Calls; an assumption).
async fn the_longest_id_is_accepted(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod4())).await;
    let names = [
        "x".repeat(50),
        format!("a-b_C.{}", "9".repeat(44)),
        ".a".to_owned(),
    ];
    for name in &names {
        let rule = "every call accepts every valid id";
        fixture.create_active(name, 1).await?;
        let at = id(name);
        check_eq(rule, &fixture.state(name).await?, &PartitionState::Active)?;
        check_ok(rule, fixture.controller.reset_partition(&at).await)?;
        fixture.check_active(name).await?;
        check_ok(rule, fixture.controller.ipuof_config(&at, Some(0)).await)?;
        check_ok(rule, fixture.controller.remove_partition(&at, true).await)?;
        fixture.remove(name, Removal::Forced).await?;
    }
    fixture.check_listing(&[]).await
}

/// ERROR marks a partition that failed (reference, States), and force removes despite errors
/// (`Removal::Forced`).
async fn a_failed_partition_is_in_error_and_can_be_removed(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    fixture.create_active("p2", 4).await?;
    let needs = "the fixture cannot break a partition";
    require(fixture.implementation.break_partition(&id("p1")).await, needs)?;
    match fixture.state("p1").await? {
        PartitionState::Failed { errors } if !errors.is_empty() => {}
        other => {
            let actual = format!("{other:?}");
            return Err(broken(
                "a failed partition is in error, with a reason",
                "ERROR with a reason",
                actual,
            ));
        }
    }
    let rule = "other partitions are not affected";
    check_eq(rule, &fixture.state("p2").await?, &PartitionState::Active)?;
    fixture.check_listing(&["p1", "p2"]).await?;
    fixture.remove("p1", Removal::Forced).await?;
    fixture.check_listing(&["p2"]).await
}
