//! Releases that must not force the controller to remove the partition.

use ipu_core::Topology;
use ipu_ledger::{Expiry, Released};
use ipu_testkit::{CallKind, Fault};

use crate::setup::{Fixture, TestLedger, advance, id, owner, request, state_of};

/// Returns the number of remove calls that arrived.
fn removals(fixture: &Fixture) -> usize {
    let calls = fixture.controller.calls();
    calls.iter().filter(|call| call.starts_with("remove")).count()
}

async fn release_unforced(ledger: &TestLedger) -> Released {
    let expiry = Expiry::default();
    ledger
        .release_without_force_until(&id("job"), &owner("job"), None, &expiry)
        .await
        .unwrap()
}

/// Returns a ledger whose controller has refused to remove the partition without force.
async fn refused(fixture: &Fixture) -> TestLedger {
    let ledger = fixture.ledger();
    ledger
        .ensure_active(request("job", 4), &mut |_| {})
        .await
        .unwrap();
    fixture.controller.inject(CallKind::Remove, Fault::Refused);
    let released = release_unforced(&ledger).await;
    assert!(matches!(&released, Released::InProgress { detail } if detail.contains("without force")));
    assert_eq!(removals(fixture), 1);
    ledger
}

/// Returns the reason code of the partition.
async fn reason(ledger: &TestLedger) -> String {
    let entry = ledger.get(&id("job")).await.unwrap().unwrap();
    ledger.reason(&entry).unwrap().code
}

#[tokio::test(start_paused = true)]
async fn a_refused_removal_is_not_forced_by_repairs_and_restarts() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = refused(&fixture).await;
    assert_eq!(reason(&ledger).await, "RemovalRefused");
    drop(ledger);
    let restarted = fixture.ledger();
    let report = restarted.repair(&crate::setup::all_dead).await.unwrap();
    assert_eq!(report.deferred.len(), 1, "{report:?}");
    let entry = restarted.get(&id("job")).await.unwrap().unwrap();
    restarted.resume(&entry).await.unwrap();
    assert_eq!(state_of(&restarted, "job").await, "releasing");
    assert_eq!(reason(&restarted).await, "RemovalRefused");
    // The controller is not called again, and the partition keeps its IPUs.
    assert_eq!(removals(&fixture), 1);
    assert_eq!(fixture.controller.ids(), [id("job")]);
    let capacity = restarted.capacity_by_size().await.unwrap();
    assert_eq!(capacity[0].1.as_ref().unwrap().free, 12);
}

#[tokio::test(start_paused = true)]
async fn a_release_with_force_removes_a_partition_whose_removal_was_refused() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    drop(refused(&fixture).await);
    let restarted = fixture.ledger();
    // The controller refuses the regular call again; the forced one follows at once.
    fixture.controller.inject(CallKind::Remove, Fault::Refused);
    let released = restarted.release(&id("job"), &owner("job"), None).await.unwrap();
    assert!(matches!(
        released,
        Released::InProgress { .. } | Released::Removed
    ));
    advance(1).await;
    restarted.repair(&crate::setup::all_dead).await.unwrap();
    assert_eq!(state_of(&restarted, "job").await, "gone");
    assert_eq!(removals(&fixture), 3);
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn the_controller_is_called_again_later_and_at_each_repetition() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = refused(&fixture).await;
    fixture.controller.inject(CallKind::Remove, Fault::Refused);
    let again = release_unforced(&ledger).await;
    assert!(matches!(again, Released::InProgress { .. }));
    assert_eq!(
        (removals(&fixture), &*reason(&ledger).await),
        (2, "RemovalRefused")
    );
    advance(31).await;
    ledger.repair(&crate::setup::all_dead).await.unwrap();
    advance(1).await;
    ledger.repair(&crate::setup::all_dead).await.unwrap();
    assert_eq!(removals(&fixture), 3);
    assert_eq!(state_of(&ledger, "job").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_its_administrator_removes_ends_the_release() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = refused(&fixture).await;
    fixture.controller.lose_partitions();
    advance(31).await;
    ledger.repair(&crate::setup::all_dead).await.unwrap();
    assert_eq!(state_of(&ledger, "job").await, "gone");
    assert_eq!(removals(&fixture), 1);
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_the_record_and_the_call_leaves_a_release_without_force() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = fixture.ledger();
    ledger
        .ensure_active(request("job", 4), &mut |_| {})
        .await
        .unwrap();
    fixture.controller.start_outage();
    release_unforced(&ledger).await;
    drop(ledger);
    fixture.controller.end_outage();
    let before = removals(&fixture);
    let restarted = fixture.ledger();
    advance(60).await;
    // Only calls without force are refused here; the next one would be the forced one.
    fixture.controller.inject(CallKind::Remove, Fault::Refused);
    let entry = restarted.get(&id("job")).await.unwrap().unwrap();
    restarted.resume(&entry).await.unwrap();
    assert_eq!(removals(&fixture), before + 1);
    assert_eq!(reason(&restarted).await, "RemovalRefused");
}
