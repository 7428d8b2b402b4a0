//! The life of a partition: made, active, reset, removed.

use ipu_core::{AllocationId, PartitionSpec, PartitionState, Topology};
use ipu_vipu_client::{CreatePartition, Removal, ensure_present};

use super::harness::{Harness, able, id, patience, place, refused, request, size};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, broken, ok, same};

cases![
    a_new_partition_is_being_made_and_not_yet_active,
    a_partition_becomes_active_and_is_listed_as_it_was_asked_for,
    everything_that_a_partition_is_made_of_comes_back,
    explicit_ipus_are_taken_as_they_are,
    explicit_ipus_may_be_whole_link_domains,
    a_reset_partition_becomes_active_again,
    a_reset_is_seen_under_way,
    a_removed_partition_is_unknown,
    a_partition_that_is_being_removed_is_still_known,
    what_is_removed_is_free_again,
    the_longest_id_is_an_id,
    a_partition_that_is_there_is_not_made_twice,
    a_broken_partition_is_in_error_and_can_be_removed,
];

/// "Create, reset and remove only start something. Poll the status: it is the truth" (reference, Calls). The listing has no
/// operation state and tells pending as `CREATING` (reference, States).
async fn a_new_partition_is_being_made_and_not_yet_active(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::slow(Topology::pod16())).await;
    let answer = pod.create("p1", 4).await;
    let made = ok("a partition that fits is begun", answer)?;
    same("create answers the id that was asked for", &made, &id("p1"))?;
    let rule = "a partition is not active before it is made";
    same(rule, &pod.state("p1").await?, &PartitionState::Creating)?;
    let states: Vec<_> = pod.listed().await?.into_iter().map(|one| one.state).collect();
    same(rule, &states, &vec![PartitionState::Creating])
}

/// The spec of a listed partition is "the same facts for asking and for comparing" (`PartitionSpec`); an allocation that was
/// not asked for is the controller's choice.
async fn a_partition_becomes_active_and_is_listed_as_it_was_asked_for(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    let status = pod.controller.partition_status(&id("p1")).await;
    let status = ok("a partition that exists has a status", status)?;
    let rule = "a partition that never failed was never reset by the controller";
    same(rule, &(status.auto_resets, status.last_auto_reset), &(0, None))?;

    pod.lists_exactly(&["p1"]).await?;
    let listed = pod.listed().await?.swap_remove(0);
    let rule = "what is listed as active is active";
    same(rule, &listed.state, &PartitionState::Active)?;
    let found = PartitionSpec {
        allocation: None,
        ..listed.spec
    };
    let rule = "a partition is listed as it was asked for";
    same(rule, &found, &request("p1", 4).spec)
}

/// The same, for every field (reference, "What the client sends").
async fn everything_that_a_partition_is_made_of_comes_back(lab: Harness) -> CaseOutcome {
    let topology = Topology::pod64();
    let allocation: Option<AllocationId> = topology.allocations().first().map(|first| first.id.clone());
    let spec = PartitionSpec {
        size: size(32),
        gcds: 4,
        replicas: 8,
        reconfigurable: true,
        allocation,
    };
    let pod = lab.pod(Setup::quick(topology)).await;
    let asked = CreatePartition {
        spec: spec.clone(),
        ..request("p1", 1)
    };
    pod.make_as(asked).await?;
    let found: Vec<_> = pod.listed().await?.into_iter().map(|one| one.spec).collect();
    same("a partition is listed as it was asked for", &found, &vec![spec])
}

/// "Which IPUs, in routing order" (`CreatePartition`); IPUs that are held are no room (reference, Errors; the code is an
/// assumption).
async fn explicit_ipus_are_taken_as_they_are(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let places = vec![place(0, 9), place(0, 8)];
    let asked = CreatePartition {
        ipus: places.clone(),
        ..request("p1", 2)
    };
    pod.make_as(asked).await?;
    let found: Vec<_> = pod.listed().await?.into_iter().map(|one| one.ipus).collect();
    let rule = "IPUs that are asked for by place are given, in that order";
    same(rule, &found, &vec![places])?;

    let overlapping = CreatePartition {
        ipus: (8..12).map(|ipu| place(0, ipu)).collect(),
        ..request("p2", 4)
    };
    let answer = pod.controller.create_partition(overlapping).await;
    refused("IPUs that are held are not given again", answer, &["no_capacity"])?;
    pod.lists_exactly(&["p1"]).await
}

/// More than 64 IPUs are whole link domains (`place`; an assumption), and keep the order that they are asked for in.
async fn explicit_ipus_may_be_whole_link_domains(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod256())).await;
    let domains = [2, 1].into_iter();
    let places: Vec<_> = domains
        .flat_map(|domain| (0..64).map(move |ipu| place(domain, ipu)))
        .collect();
    let asked = CreatePartition {
        ipus: places.clone(),
        ..request("p1", 128)
    };
    pod.make_as(asked).await?;
    let found: Vec<_> = pod.listed().await?.into_iter().map(|one| one.ipus).collect();
    let rule = "IPUs that are asked for by place are given, in that order";
    same(rule, &found, &vec![places])
}

/// A reset leads back to active (`PartitionState::Resetting`) and changes nothing else.
async fn a_reset_partition_becomes_active_again(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    let before = pod.listed().await?;
    // Twice, so that one who is busy for ever after a reset is seen.
    for _ in 0..2 {
        let answer = pod.controller.reset_partition(&id("p1")).await;
        ok("an active partition can be reset", answer)?;
        pod.is_active("p1").await?;
    }
    same("a reset changes nothing else", &pod.listed().await?, &before)
}

/// The states of operations under way (reference, States); a reset meanwhile is refused (FAILED_PRECONDITION, an
/// assumption), a forced removal is not.
async fn a_reset_is_seen_under_way(lab: Harness) -> CaseOutcome {
    let slow = Setup::slow(Topology::pod16()).operation;
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    let needs = "the bench cannot change how long operations take";
    able(pod.bench.set_operation_time(slow).await, needs)?;
    let answer = pod.controller.reset_partition(&id("p1")).await;
    ok("an active partition can be reset", answer)?;
    let rule = "a partition is not active while it is reset";
    same(rule, &pod.state("p1").await?, &PartitionState::Resetting)?;
    let answer = pod.controller.reset_partition(&id("p1")).await;
    refused("a reset under way is not begun again", answer, &["refused"])?;
    let answer = pod.controller.remove_partition(&id("p1"), true).await;
    ok("a partition is removed by force whatever it does", answer)?;
    let rule = "a partition that is removed is removed, whatever it did";
    same(rule, &pod.state("p1").await?, &PartitionState::Removing)
}

/// "NOT_FOUND after a remove means gone, on a remove it means gone already" (reference, Calls).
async fn a_removed_partition_is_unknown(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    for _ in 0..2 {
        pod.remove("p1", Removal::Regular).await?;
        pod.is_unknown("p1").await?;
        pod.lists_exactly(&[]).await?;
    }
    let answer = pod.controller.remove_partition(&id("p1"), false).await;
    let rule = "to remove what does not exist is not found";
    refused(rule, answer, &["not_found"]).map(drop)
}

/// A removal takes time, and `NOT_FOUND` says that it is over (reference, Calls): until then the partition has its IPUs and
/// its id.
async fn a_partition_that_is_being_removed_is_still_known(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::slow(Topology::pod16())).await;
    ok("a partition that fits is begun", pod.create("p1", 16).await)?;
    let answer = pod.controller.remove_partition(&id("p1"), true).await;
    ok("a partition is removed by force whatever it does", answer)?;
    let rule = "a partition is known until its removal has ended";
    same(rule, &pod.state("p1").await?, &PartitionState::Removing)?;
    let rule = "IPUs are not free before their partition is gone";
    refused(rule, pod.create("p2", 1).await, &["no_capacity"])?;
    let rule = "an id is not free before its partition is gone";
    refused(rule, pod.create("p1", 1).await, &["already_exists"]).map(drop)
}

/// What is gone holds nothing: neither its IPUs nor its id.
async fn what_is_removed_is_free_again(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for name in ["p1", "p1", "p2"] {
        pod.make(name, 16).await?;
        pod.remove(name, Removal::Regular).await?;
    }
    pod.is_all_free(16).await
}

/// "An id has 1 to 50 letters, digits, `-`, `_` or `.`" (reference, Calls; an assumption).
async fn the_longest_id_is_an_id(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod4())).await;
    let names = [
        "x".repeat(50),
        format!("a-b_C.{}", "9".repeat(44)),
        ".a".to_owned(),
    ];
    for name in &names {
        let rule = "every call takes every id";
        pod.make(name, 1).await?;
        let at = id(name);
        same(rule, &pod.state(name).await?, &PartitionState::Active)?;
        ok(rule, pod.controller.reset_partition(&at).await)?;
        pod.is_active(name).await?;
        ok(rule, pod.controller.ipuof_config(&at, Some(0)).await)?;
        ok(rule, pod.controller.remove_partition(&at, true).await)?;
        pod.remove(name, Removal::Forced).await?;
    }
    pod.lists_exactly(&[]).await
}

/// `ensure_present` adopts what is as asked, and nothing else.
async fn a_partition_that_is_there_is_not_made_twice(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for _ in 0..2 {
        let answer = ensure_present(&*pod.controller, &request("p1", 4), &patience()).await;
        ok("a partition that is there as asked is taken", answer)?;
    }
    pod.lists_exactly(&["p1"]).await?;
    let answer = ensure_present(&*pod.controller, &request("p1", 8), &patience()).await;
    let rule = "a partition that is not as asked is not taken";
    refused(rule, answer, &["already_exists"]).map(drop)
}

/// ERROR tells of a partition that failed (reference, States), and force removes in spite of errors (`Removal::Forced`).
async fn a_broken_partition_is_in_error_and_can_be_removed(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    pod.make("p2", 4).await?;
    let needs = "the bench cannot break a partition";
    able(pod.bench.break_partition(&id("p1")).await, needs)?;
    match pod.state("p1").await? {
        PartitionState::Failed { errors } if !errors.is_empty() => {}
        other => {
            let seen = format!("{other:?}");
            return Err(broken(
                "a broken partition is in error, and says why",
                "ERROR with a reason",
                seen,
            ));
        }
    }
    let rule = "what is not broken goes on";
    same(rule, &pod.state("p2").await?, &PartitionState::Active)?;
    pod.lists_exactly(&["p1", "p2"]).await?;
    pod.remove("p1", Removal::Forced).await?;
    pod.lists_exactly(&["p2"]).await
}
