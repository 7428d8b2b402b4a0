//! Liveness that panics, hangs or is out of date, and leases in an outage. Time passes only while all tasks
//! wait.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::{
    Allocator, Clock, Lease, LeaseLiveness, Liveness, MemoryStore, Options, Store, StoreError,
};
use ipu_core::allocator::{Entry, OwnerLiveness, Phase, Release};
use ipu_core::{PartitionId, Timestamp};
use ipu_vipu_client::{ControllerPool, VipuController};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bed::{Bed, FakeController, name, options, request, soon};
use crate::commands::FailingStore;

/// The liveness of owners whose names say how it fails. All others are dead.
struct Unreliable;

#[async_trait]
impl Liveness for Unreliable {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        match entry.holder.as_str() {
            "hangs" => std::future::pending().await,
            "panics" => panic!("no answer"),
            _ => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                OwnerLiveness::Dead
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_liveness_panics_or_hangs_keeps_its_partition_and_the_others_are_judged() {
    let mut options = options();
    options.liveness = Arc::new(Unreliable);
    let bed = Bed::with(options).await;
    let owners = ["panics", "hangs", "dead"].map(|holder| request(holder, 4).with_holder(holder));
    for owner in &owners {
        bed.ensure(owner).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.allocator.compare().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let left: BTreeSet<PartitionId> = bed.controller.partitions().keys().cloned().collect();
    assert_eq!(left, owners[..2].iter().map(|owner| owner.id.clone()).collect());
}

#[tokio::test(start_paused = true)]
async fn owners_whose_liveness_is_not_answered_do_not_keep_others_waiting() {
    let mut options = options();
    options.liveness = Arc::new(Unreliable);
    options.compare_interval = Duration::from_secs(3600);
    let bed = Bed::with(options).await;
    // Each of two comparisons asks for 32, as many as at once, and the second one goes on after the last.
    for number in 0..64 {
        let holder = if number < 63 { "hangs" } else { "dead" };
        let owner = request(&format!("job-{number:02}"), 1).with_holder(holder);
        bed.allocator.ensure(owner, Instant::now()).await.unwrap();
    }
    for left in [64, 63] {
        bed.allocator.compare().await.unwrap();
        let view = bed.allocator.view().await.unwrap();
        assert_eq!(view.state().entries().count(), left);
    }
    let view = bed.allocator.view().await.unwrap();
    assert!(view.state().entries().all(|entry| entry.holder == "hangs"));
}

/// The running jobs, whose liveness is answered once the test lets it.
#[derive(Default)]
struct Jobs {
    running: Mutex<BTreeSet<String>>,
    is_gated: Mutex<bool>,
    asked: Notify,
    gate: Notify,
}

#[async_trait]
impl Liveness for Jobs {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        let is_running = self.running.lock().unwrap().contains(&entry.holder);
        let is_gated = *self.is_gated.lock().unwrap();
        if is_gated {
            self.asked.notify_one();
            self.gate.notified().await;
        }
        if is_running {
            OwnerLiveness::Live
        } else {
            OwnerLiveness::Dead
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_starts_again_while_it_is_judged_keeps_its_partition() {
    // It releases before it requests the partition again, or not.
    for releases in [true, false] {
        let jobs = Arc::new(Jobs::default());
        let shared: Arc<dyn Liveness> = Arc::clone(&jobs) as _;
        let mut options = options();
        options.liveness = Arc::new(shared);
        let bed = Bed::with(options).await;
        let job = request("job", 4).with_holder("job");
        bed.ensure(&job).await;
        *jobs.is_gated.lock().unwrap() = true;
        let restart = async {
            jobs.asked.notified().await;
            if releases {
                bed.allocator.release(Release::of(&job), soon()).await.unwrap();
            }
            jobs.running.lock().unwrap().insert("job".into());
            assert_eq!(bed.ensure(&job).await.phase, Phase::Active);
            jobs.gate.notify_waiters();
        };
        let (compared, ()) = tokio::join!(bed.allocator.compare(), restart);
        assert_eq!(compared.unwrap().actions, []);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let entry = bed.allocator.get(&job.id).await.unwrap().unwrap();
        assert_eq!(entry.phase, Phase::Active, "{releases}");
    }
}

/// Options with leases, and their clock.
fn with_leases() -> (Options, Clock) {
    let begun = Instant::now();
    let clock: Clock =
        Arc::new(move || Timestamp::from_millis(1_000_000).plus(Instant::now().duration_since(begun)));
    let mut options = options();
    options.compare_interval = Duration::from_secs(10);
    options.clock = Arc::clone(&clock);
    let leases: Arc<dyn Liveness> = Arc::new(LeaseLiveness::new(Arc::clone(&clock)));
    options.liveness = Arc::new(leases);
    (options, clock)
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_ends_no_owner_that_renews_its_lease() {
    let (options, clock) = with_leases();
    let store = Arc::new(FailingStore::default());
    let controller = Arc::new(FakeController::default());
    let pool = ControllerPool::single(name(), Arc::clone(&controller) as Arc<dyn VipuController>);
    let allocator = Allocator::start(options, Arc::clone(&store) as Arc<dyn Store>, pool);
    let length = Duration::from_secs(60);
    let owner = request("one", 4).with_holder(Lease::of(length, clock()).to_string());
    allocator.ensure(owner.clone(), soon()).await.unwrap();
    for round in 0..30 {
        // The outage of five minutes ends between two renewals.
        let detail = || StoreError::Full {
            detail: "no space".into(),
        };
        let is_down = (3..18).contains(&round);
        if is_down {
            store
                .commit_errors
                .lock()
                .unwrap()
                .extend((0..1_000).map(|_| detail()));
        }
        let renewed = allocator.renew(&owner.id, &owner.owner, length).await;
        assert_eq!(renewed.is_err(), is_down, "{round}: {renewed:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        if round == 17 {
            store.commit_errors.lock().unwrap().clear();
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(controller.partitions().contains_key(&owner.id), "{round}");
    }
    // It is released once its owner is silent.
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(controller.partitions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_without_space_for_requests_keeps_no_lease_alive() {
    // The request is a new one, or a queued one with an account.
    for is_queued in [false, true] {
        let (options, clock) = with_leases();
        let store = Arc::new(FailingStore::default());
        let controller = Arc::new(FakeController::default());
        let pool = ControllerPool::single(name(), Arc::clone(&controller) as Arc<dyn VipuController>);
        let allocator = Allocator::start(options, Arc::clone(&store) as Arc<dyn Store>, pool);
        let silent = Lease::of(Duration::from_secs(60), clock()).to_string();
        let one = request("one", 16).with_holder(silent);
        allocator.ensure(one.clone(), soon()).await.unwrap();
        let mut two = request("two", 4);
        if is_queued {
            allocator.ensure(two.clone(), Instant::now()).await.unwrap();
            two.account = Some("physics".parse().unwrap());
        }
        *store.refused.lock().unwrap() = Some(two.id.clone());
        for _ in 0..30 {
            assert!(allocator.ensure(two.clone(), soon()).await.is_err());
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        assert!(controller.partitions().is_empty(), "{is_queued}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_client_does_not_wait_for_a_slow_store_counts() {
    let (options, clock) = with_leases();
    let store = Arc::new(FailingStore::default());
    let controller = Arc::new(FakeController::default());
    let pool = ControllerPool::single(name(), Arc::clone(&controller) as Arc<dyn VipuController>);
    let allocator = Allocator::start(options, Arc::clone(&store) as Arc<dyn Store>, pool);
    let length = Duration::from_secs(60);
    let owner = request("one", 4).with_holder(Lease::of(length, clock()).to_string());
    allocator.ensure(owner.clone(), soon()).await.unwrap();
    *store.delay.lock().unwrap() = Duration::from_secs(5);
    for number in 0..20 {
        // By a renewal, or by the same request with a newer lease.
        let again = request("one", 4).with_holder(Lease::of(length, clock()).to_string());
        let other = request(&format!("other-{number}"), 1);
        let slow = allocator.ensure(other.clone(), Instant::now());
        let renew = async {
            tokio::task::yield_now().await;
            let timeout = Duration::from_secs(1);
            if number < 10 {
                let renewed = allocator.renew(&owner.id, &owner.owner, length);
                tokio::time::timeout(timeout, renewed).await.is_err()
            } else {
                let ensured = allocator.ensure(again, soon());
                tokio::time::timeout(timeout, ensured).await.is_err()
            }
        };
        let (_, is_late) = tokio::join!(slow, renew);
        assert!(is_late, "{number}");
        allocator.release(Release::of(&other), soon()).await.unwrap();
        assert!(controller.partitions().contains_key(&owner.id), "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_request_with_an_equal_lease_has_its_own_time() {
    let (options, clock) = with_leases();
    let bed = Bed::with(options).await;
    let length = Duration::from_secs(60);
    let owner = request("one", 4).with_holder(Lease::of(length, clock()).to_string());
    bed.ensure(&owner).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(
        bed.allocator.get(&owner.id).await.unwrap().is_none(),
        "it has lapsed"
    );
    bed.ensure(&owner).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    bed.allocator
        .renew(&owner.id, &owner.owner, length)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_allocator_whose_observer_panics_ends_and_says_so() {
    let pool = ControllerPool::single(
        name(),
        Arc::new(FakeController::default()) as Arc<dyn VipuController>,
    );
    let allocator = Allocator::start(options(), Arc::new(MemoryStore::default()), pool);
    allocator.check_ready().await.unwrap();
    allocator.observe_commits(|_, _| panic!("no space for a metric"));
    assert!(allocator.ensure(request("one", 4), soon()).await.is_err());
    assert!(allocator.ended().await.is_err());
    assert!(allocator.check_leading().is_err());
}
