//! Cordons through the driver: other processes, restarts, and operations in flight.

use ipu_core::Topology;
use ipu_ledger::{
    Cordon, CordonTarget, EnsureOutcome, LedgerError, OnNoCapacity, PartitionSpec, TransitionError,
};
use ipu_testkit::BlockChoice;

use crate::setup::{Fixture, advance, id, name, owner, request};

fn cordon(topology: &Topology, machine: usize) -> Cordon {
    let (agent, _) = topology.agents().nth(machine).unwrap();
    Cordon::new(
        "maintenance".parse().unwrap(),
        name("fake"),
        CordonTarget::Machine(agent.clone()),
        "admin".parse().unwrap(),
        "a cable",
    )
}

#[tokio::test(start_paused = true)]
async fn a_create_call_names_ipus_if_the_controller_would_select_cordoned_ones() {
    let topology = Topology::pod16();
    let fixture = Fixture::new(&topology, 1);
    fixture.controller.choose(BlockChoice::Lowest);
    let admin = fixture.ledger();
    admin.cordon(cordon(&topology, 0)).await.unwrap();
    drop(admin);
    let ledger = fixture.ledger();
    assert_eq!(ledger.cordons().await.unwrap().len(), 1);
    for job in ["a", "b", "c"] {
        ledger.ensure_active(request(job, 4), &mut |_| {}).await.unwrap();
        assert!(fixture.controller.ipus(&id(job)).iter().all(|ipu| ipu.ipu >= 4));
    }
    let mut fourth = request("d", 4);
    fourth.on_no_capacity = OnNoCapacity::Reject;
    let EnsureOutcome::Refused(waiting) = ledger.ensure(fourth).await.unwrap() else {
        panic!("the other IPUs are cordoned");
    };
    assert_eq!(waiting.reason.code, "Excluded");
    assert!(
        waiting.reason.message.contains("admin"),
        "{}",
        waiting.reason.message
    );
    let spec = PartitionSpec::of_size(1.try_into().unwrap());
    let capacity = ledger.query(&spec).await.unwrap().remove(0).1.unwrap();
    assert_eq!((capacity.free, capacity.fit_count), (0, 0));
    let stats = ledger.stats().await.unwrap();
    assert_eq!(
        (stats.used, stats.available, stats.cordoned, stats.ipus),
        (12, 0, 4, 16)
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_queued_behind_a_cordon_starts_once_the_cordon_is_lifted() {
    let topology = Topology::pod16();
    let fixture = Fixture::new(&topology, 1);
    let ledger = fixture.ledger();
    let cordon = cordon(&topology, 3);
    ledger.cordon(cordon.clone()).await.unwrap();
    let waiting = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.ensure_active(request("a", 16), &mut |_| {}).await }
    });
    advance(5).await;
    assert!(!waiting.is_finished());
    let other = "other".parse().unwrap();
    let error = ledger.uncordon(&cordon.id, &other).await.unwrap_err();
    assert!(
        matches!(error, LedgerError::Illegal(TransitionError::OtherCordon { .. })),
        "{error}"
    );
    assert!(
        ledger
            .uncordon(&cordon.id, &cordon.owner)
            .await
            .unwrap()
            .is_some()
    );
    waiting.await.unwrap().unwrap();
    assert!(
        ledger
            .uncordon(&cordon.id, &cordon.owner)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_partition_is_created_again_in_its_place_although_that_is_cordoned() {
    let topology = Topology::pod16();
    let fixture = Fixture::new(&topology, 1);
    fixture.controller.choose(BlockChoice::Lowest);
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.repair(&crate::setup::all_live).await.unwrap();
    let before = fixture.controller.ipus(&id("a"));
    let cordoned = ledger.cordon(cordon(&topology, 0)).await.unwrap();
    assert_eq!(cordoned.holders[0].owner, Some(owner("a")));
    fixture.controller.lose_partitions();
    let mut next = request("a", 4);
    next.attempt = 1;
    ledger.ensure_active(next, &mut |_| {}).await.unwrap();
    assert_eq!(fixture.controller.ipus(&id("a")), before);
}

#[tokio::test(start_paused = true)]
async fn a_cordon_at_an_unavailable_controller_reports_all_holders_recorded_there() {
    let topology = Topology::pod16();
    let fixture = Fixture::new(&topology, 1);
    let ledger = fixture.ledger();
    for job in ["a", "b"] {
        ledger.ensure_active(request(job, 4), &mut |_| {}).await.unwrap();
    }
    ledger.ensure(request("queued", 16)).await.unwrap();
    fixture.controller.start_outage();
    advance(1).await;
    let cordoned = ledger.cordon(cordon(&topology, 0)).await.unwrap();
    let holders: Vec<_> = cordoned
        .holders
        .iter()
        .map(|holder| holder.owner.clone())
        .collect();
    assert_eq!(holders, [Some(owner("a")), Some(owner("b"))]);
}
