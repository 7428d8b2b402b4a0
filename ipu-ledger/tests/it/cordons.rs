//! Cordons through the driver: other processes, restarts, and what is under way.

use ipu_core::Topology;
use ipu_ledger::{
    Cordon, CordonTarget, EnsureOutcome, LedgerError, OnNoCapacity, PartitionSpec, TransitionError,
};
use ipu_testkit::BlockChoice;

use crate::setup::{Bench, advance, id, name, owner, request};

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
async fn a_controller_that_would_choose_what_is_cordoned_is_told_other_ipus() {
    let topology = Topology::pod16();
    let bench = Bench::new(&topology, 1);
    bench.controller.choose(BlockChoice::Lowest);
    let admin = bench.ledger();
    admin.cordon(cordon(&topology, 0)).await.unwrap();
    drop(admin);
    let ledger = bench.ledger();
    assert_eq!(ledger.cordons().await.unwrap().len(), 1);
    for job in ["a", "b", "c"] {
        ledger.ensure_active(request(job, 4), &mut |_| {}).await.unwrap();
        assert!(bench.controller.ipus(&id(job)).iter().all(|ipu| ipu.ipu >= 4));
    }
    let mut fourth = request("d", 4);
    fourth.line = OnNoCapacity::Reject;
    let EnsureOutcome::Refused(waiting) = ledger.ensure(fourth).await.unwrap() else {
        panic!("the rest is excluded");
    };
    assert_eq!(waiting.reason.code, "Excluded");
    assert!(
        waiting.reason.message.contains("admin"),
        "{}",
        waiting.reason.message
    );
    let spec = PartitionSpec::of_size(1.try_into().unwrap());
    let room = ledger.query(&spec).await.unwrap().remove(0).1.unwrap();
    assert_eq!((room.free, room.fit_count), (0, 0));
    let stats = ledger.stats().await.unwrap();
    assert_eq!(
        (stats.used, stats.available, stats.cordoned, stats.ipus),
        (12, 0, 4, 16)
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_is_cordoned_goes_as_soon_as_it_is_lifted() {
    let topology = Topology::pod16();
    let bench = Bench::new(&topology, 1);
    let ledger = bench.ledger();
    let cordon = cordon(&topology, 3);
    ledger.cordon(cordon.clone()).await.unwrap();
    let waiting = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.ensure_active(request("a", 16), &mut |_| {}).await }
    });
    advance(5).await;
    assert!(!waiting.is_finished());
    let other = "somebody".parse().unwrap();
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
async fn a_holder_that_the_controller_lost_is_made_again_where_it_was_although_that_is_cordoned() {
    let topology = Topology::pod16();
    let bench = Bench::new(&topology, 1);
    bench.controller.choose(BlockChoice::Lowest);
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.repair(&crate::setup::all_live).await.unwrap();
    let before = bench.controller.ipus(&id("a"));
    let cordoned = ledger.cordon(cordon(&topology, 0)).await.unwrap();
    assert_eq!(cordoned.holders[0].owner, Some(owner("a")));
    bench.controller.lose_partitions();
    let mut next = request("a", 4);
    next.attempt = 1;
    ledger.ensure_active(next, &mut |_| {}).await.unwrap();
    assert_eq!(bench.controller.ipus(&id("a")), before);
}

#[tokio::test(start_paused = true)]
async fn who_cordons_at_a_silent_controller_hears_of_everybody_whom_the_ledger_knows_there() {
    let topology = Topology::pod16();
    let bench = Bench::new(&topology, 1);
    let ledger = bench.ledger();
    for job in ["a", "b"] {
        ledger.ensure_active(request(job, 4), &mut |_| {}).await.unwrap();
    }
    ledger.ensure(request("waits", 16)).await.unwrap();
    bench.controller.go_down();
    advance(1).await;
    let cordoned = ledger.cordon(cordon(&topology, 0)).await.unwrap();
    let holders: Vec<_> = cordoned
        .holders
        .iter()
        .map(|holder| holder.owner.clone())
        .collect();
    assert_eq!(holders, [Some(owner("a")), Some(owner("b"))]);
}
