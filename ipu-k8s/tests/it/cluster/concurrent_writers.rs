//! Tests of two processes on one ledger.

use std::sync::Arc;

use ipu_core::Topology;
use ipu_ledger::{LedgerStore, Released, StoreError};
use ipu_test_cluster::shared;
use ipu_testkit::FakeController;
use tokio::task::JoinSet;

use super::fixtures::{entry, id, ledger, owner, put, request};
use super::store;

/// Number of jobs, half of them at each process.
const JOBS: usize = 128;

/// Number of concurrent writers without a ledger that batches their writes, and of writes each.
const WRITERS: usize = 16;
const WRITES: u32 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_jobs_at_two_processes_lose_no_update_and_hold_no_partition_twice() {
    let name = "a_hundred_jobs_at_two_processes_lose_no_update_and_hold_no_partition_twice";
    let Some(cluster) = shared(name) else {
        return;
    };
    // A quarter of the jobs fit at a time.
    let topology = Topology::pod128();
    let controller = FakeController::new(&topology, 1);
    controller.set_operation_time(std::time::Duration::from_millis(2));
    let mut ledgers = Vec::new();
    for _ in 0..2 {
        ledgers.push(ledger(
            &controller,
            &topology,
            store(cluster, "two-ledgers").await,
        ));
    }
    let mut jobs = JoinSet::new();
    for number in 0..JOBS {
        let (one, other) = (ledgers[number % 2].clone(), ledgers[(number + 1) % 2].clone());
        let controller = controller.clone();
        jobs.spawn(async move {
            let name = format!("job{number}");
            let request = request(&name, 4);
            one.ensure_active(request, &mut |_| {}).await.unwrap();
            // Panics if another job uses the partition, or used it without a reset.
            controller.mark_in_use(&id(&name));
            tokio::task::yield_now().await;
            controller.mark_unused(&id(&name));
            // The other process reads what the first one wrote.
            loop {
                match other.release(&id(&name), &owner(&name), None).await.unwrap() {
                    Released::InProgress { .. } => {}
                    released => return released,
                }
            }
        });
    }
    while let Some(released) = jobs.join_next().await {
        assert_eq!(released.unwrap(), Released::Removed);
    }
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    assert_eq!(controller.ids(), []);
    assert_eq!(ledgers[0].list().await.unwrap(), []);
    assert_eq!(ledgers[1].list().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_compare_and_swap_increments_are_all_counted() {
    let Some(cluster) = shared("concurrent_compare_and_swap_increments_are_all_counted") else {
        return;
    };
    let stores = [
        Arc::new(store(cluster, "counted").await),
        Arc::new(store(cluster, "counted").await),
    ];
    let empty = stores[0].load(None).await.unwrap().unwrap().revision;
    stores[0].commit(&empty, &[put(entry("counter"))]).await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..WRITERS {
        let store = Arc::clone(&stores[number % 2]);
        tasks.spawn(async move {
            for write in 1..=WRITES {
                let mut own = entry(&format!("writer{number}"));
                own.attempt = write;
                loop {
                    let found = store.load(None).await.unwrap().unwrap();
                    let mut counter = found
                        .entries
                        .iter()
                        .find(|entry| entry.id == id("counter"))
                        .unwrap()
                        .clone();
                    counter.attempt += 1;
                    match store
                        .commit(&found.revision, &[put(counter), put(own.clone())])
                        .await
                    {
                        Ok(_) => break,
                        Err(StoreError::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let found = stores[1].load(None).await.unwrap().unwrap().entries;
    assert_eq!(found.len(), WRITERS + 1);
    for entry in found {
        let expected = if entry.id == id("counter") {
            WRITES * u32::try_from(WRITERS).unwrap()
        } else {
            WRITES
        };
        assert_eq!(entry.attempt, expected, "{}", entry.id);
    }
}
