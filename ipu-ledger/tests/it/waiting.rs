//! Waits of queued requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipu_core::Topology;
use ipu_ledger::{Entry, OwnerLiveness};
use tokio::task::JoinSet;

use crate::setup::{Fixture, advance, id, owner, request};

const WAITERS: usize = 50;

/// Number of polls within 10 s.
const POLLS: usize = 40;

#[tokio::test(start_paused = true)]
async fn one_queue_scan_serves_all_waiting_requests() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    // Each scan judges the owners of the queue.
    let judged = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&judged);
    fixture.options.liveness = Some(Arc::new(move |_: &Entry| {
        count.fetch_add(1, Ordering::Relaxed);
        OwnerLiveness::Live
    }));
    let ledger = fixture.ledger();
    let granted = ledger.ensure_active(request("first", 16), &mut |_| {}).await;
    granted.unwrap();
    let mut waits = JoinSet::new();
    for number in 0..WAITERS {
        let ledger = ledger.clone();
        waits.spawn(async move {
            let request = request(&format!("queued{number}"), 16);
            ledger.ensure_active(request, &mut |_| {}).await.unwrap();
        });
    }
    advance(1).await;
    judged.store(0, Ordering::Relaxed);
    advance(10).await;
    let scans = judged.load(Ordering::Relaxed).div_ceil(WAITERS - 1);
    assert!((1..=POLLS + 2).contains(&scans), "{scans} scans");

    // A release wakes the first request in the queue at once.
    ledger.release(&id("first"), &owner("first"), None).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(1), waits.join_next()).await;
    woken.unwrap().unwrap().unwrap();
}
