//! The handle of an allocator. Time passes only while all tasks wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::{
    Allocator, AllocatorError, EnsureOutcome, Lease, Liveness, MemoryStore, Record, ReleaseOutcome, Revision,
    SqliteStore, Store, StoreError, StoreFill, UsagePosition,
};
use ipu_core::allocator::{
    Change, Cordon, CordonTarget, Entry, OnNoCapacity, OwnerLiveness, Phase, Policy, Release, Request,
    RequestError, UsageRecord,
};
use ipu_core::{BootTime, CordonId, CordonOwner, PartitionId, Timestamp};
use ipu_vipu_client::{ControllerPool, VipuController, VipuError, boot_time};
use serde_json::json;
use tokio::time::Instant;

use crate::bed::{Bed, FakeController, name, options, request, soon};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn pool() -> ControllerPool {
    let controller = Arc::new(FakeController::default()) as Arc<dyn VipuController>;
    ControllerPool::single(name(), controller)
}

async fn until_leading(allocator: &Allocator) {
    allocator.leading().wait_for(|leading| *leading).await.unwrap();
}

fn is_gone(answer: &Result<EnsureOutcome, AllocatorError>) -> bool {
    matches!(
        answer,
        Err(AllocatorError::Refused(RequestError::Moved { state: "gone", .. }))
    )
}

// Handles.

#[tokio::test(start_paused = true)]
async fn another_process_takes_over_once_the_last_handle_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let store = || Arc::new(SqliteStore::at(directory.path().join("ledger.db")).unwrap());
    let pool = pool();
    let first = Allocator::start(options(), store(), pool.clone());
    until_leading(&first).await;
    let second = Allocator::start(options(), store(), pool);
    let clone = first.clone();
    drop(first);
    // The clone keeps it.
    clone.ensure(request("one", 4), soon()).await.unwrap();
    assert!(matches!(second.check_leading(), Err(AllocatorError::Standby)));
    let mut policy = Policy::default();
    policy.length_limit = 0;
    second.set_policy(policy).await;
    assert!(matches!(second.check_ready().await, Err(AllocatorError::Standby)));
    drop(clone);
    until_leading(&second).await;
    // The policy of that time holds.
    let refused = second.ensure(request("two", 16), soon()).await;
    assert!(
        matches!(
            refused,
            Err(AllocatorError::Refused(RequestError::QueueFull { limit: 0 }))
        ),
        "{refused:?}"
    );
    assert_eq!(
        second.get(&request("one", 4).id).await.unwrap().unwrap().phase,
        Phase::Active
    );
}

#[tokio::test(start_paused = true)]
async fn an_allocator_ends_once_another_process_has_the_record() {
    let store = Arc::new(MemoryStore::default());
    let first = Allocator::start(options(), Arc::clone(&store) as Arc<dyn Store>, pool());
    until_leading(&first).await;
    let revision = store.open().await.unwrap().revision;
    let refused = first.ensure(request("one", 4), soon()).await;
    assert!(matches!(refused, Err(AllocatorError::Store(_))), "{refused:?}");
    let error = first.ended().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the record may no longer be at revision 1: another process took over, or a write failed"
    );
    assert!(matches!(first.check_leading(), Err(AllocatorError::Ended)));
    let refused = first.ensure(request("one", 4), soon()).await;
    assert!(matches!(refused, Err(AllocatorError::Ended)), "{refused:?}");
    assert!(
        store.commit(&revision, &[], &[]).await.is_ok(),
        "nothing was written since"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stopped_allocator_refuses_commands_and_reads() {
    let bed = Bed::with(options()).await;
    bed.ensure(&request("one", 4)).await;
    bed.allocator.stop().await;
    assert!(bed.allocator.ended().await.is_ok());
    assert!(!*bed.allocator.leading().borrow());
    let answers = [
        bed.allocator.check_ready().await.unwrap_err(),
        bed.allocator.view().await.unwrap_err(),
        bed.allocator.compare().await.unwrap_err(),
        bed.allocator
            .usage(Timestamp::from_millis(0), None, 1)
            .await
            .unwrap_err(),
        bed.allocator
            .release(Release::of(&request("one", 4)), soon())
            .await
            .unwrap_err(),
    ];
    for answer in answers {
        assert!(matches!(answer, AllocatorError::Ended), "{answer}");
    }
    assert!(bed.allocator.cached(&request("one", 4).id).is_some());
}

/// A store whose next operations fail.
#[derive(Default)]
pub(crate) struct FailingStore {
    inner: MemoryStore,
    open_errors: Mutex<Vec<StoreError>>,
    pub(crate) commit_errors: Mutex<Vec<StoreError>>,
    /// No commit with this entry succeeds.
    pub(crate) refused: Mutex<Option<PartitionId>>,
    leads_until: Mutex<Option<BootTime>>,
    /// Duration of a commit.
    pub(crate) delay: Mutex<Duration>,
}

#[async_trait]
impl Store for FailingStore {
    async fn open(&self) -> Result<Record, StoreError> {
        let failed = self.open_errors.lock().unwrap().pop();
        match failed {
            Some(error) => Err(error),
            None => self.inner.open().await,
        }
    }

    async fn commit(
        &self,
        basis: &Revision,
        changes: &[Change],
        usage: &[UsageRecord],
    ) -> Result<Revision, StoreError> {
        let delay = *self.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        let refused = self.refused.lock().unwrap().clone();
        let is_refused =
            |change: &Change| matches!(change, Change::Put(entry) if Some(&entry.id) == refused.as_ref());
        if changes.iter().any(is_refused) {
            return Err(full());
        }
        let failed = self.commit_errors.lock().unwrap().pop();
        match failed {
            Some(error) => Err(error),
            None => self.inner.commit(basis, changes, usage).await,
        }
    }

    async fn usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        self.inner.usage(since, after, limit).await
    }

    fn leads_until(&self) -> Option<BootTime> {
        *self.leads_until.lock().unwrap()
    }

    fn fill(&self) -> Option<StoreFill> {
        Some(StoreFill::new(7, 9))
    }
}

fn full() -> StoreError {
    StoreError::Full {
        detail: "no space".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_may_lead_no_longer_ends_and_answers_nothing() {
    let store = Arc::new(FailingStore::default());
    let lead = |until| *store.leads_until.lock().unwrap() = Some(until);
    lead(boot_time().plus(Duration::from_secs(3_600)));
    let allocator = Allocator::start(options(), Arc::clone(&store) as Arc<dyn Store>, pool());
    until_leading(&allocator).await;
    allocator.check_ready().await.unwrap();
    lead(boot_time());
    assert!(matches!(allocator.check_leading(), Err(AllocatorError::Standby)));
    let error = allocator.ended().await.unwrap_err();
    assert!(matches!(*error, StoreError::Conflict { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_called_before_record_controllers_and_owners_were_compared() {
    let creating = json!({"id": "a", "spec": {"size": 1}, "phase": {"is": "creating"}, "ticket": 1, "since": 1,
        "controller": "fake", "owner": request("one", 1).owner});
    let creating: Entry = serde_json::from_value(creating).unwrap();
    let store = Arc::new(MemoryStore::default());
    let opened = store.open().await.unwrap().revision;
    let mut queued = creating.clone();
    (queued.id, queued.phase, queued.controller) = (PartitionId::new("b").unwrap(), Phase::Queued, None);
    let id = queued.id.clone();
    let changes = [Change::Put(creating.into()), Change::Put(queued.into())];
    store.commit(&opened, &changes, &[]).await.unwrap();
    let controller = Arc::new(FakeController::default());
    let pool = ControllerPool::single(name(), Arc::clone(&controller) as Arc<dyn VipuController>);
    let mut options = options();
    options.liveness = Arc::new(Unanswered);
    let allocator = Allocator::start(options, store, pool);
    until_leading(&allocator).await;
    assert!(matches!(
        allocator.check_ready().await,
        Err(AllocatorError::Starting)
    ));
    let refused = allocator.ensure(request("one", 4), soon()).await;
    assert!(matches!(refused, Err(AllocatorError::Starting)), "{refused:?}");
    assert_eq!((controller.count("status"), controller.count("create")), (0, 0));
    assert_eq!(allocator.cached(&id).unwrap().phase, Phase::Queued);
}

/// A system that does not answer whether owners live.
struct Unanswered;

#[async_trait]
impl Liveness for Unanswered {
    async fn liveness_of(&self, _: &Entry) -> OwnerLiveness {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_commit_failed_has_no_effect_and_can_be_repeated() {
    let store = Arc::new(FailingStore::default());
    let allocator = Allocator::start(options(), Arc::clone(&store) as Arc<dyn Store>, pool());
    until_leading(&allocator).await;
    let fail = || store.commit_errors.lock().unwrap().push(full());
    let is_failed = |error: Option<AllocatorError>| matches!(error, Some(AllocatorError::Store(_)));
    let mut changes = allocator.changes();
    fail();
    assert!(is_failed(allocator.ensure(request("one", 4), soon()).await.err()));
    assert!(changes.try_recv().is_err());
    fail();
    assert!(is_failed(allocator.cordon(cordon("a")).await.err()));
    // Neither is there.
    let entry = allocator.ensure(request("one", 16), soon()).await.unwrap();
    assert!(matches!(entry, EnsureOutcome::Entry(entry) if entry.phase == Phase::Active));
    fail();
    assert!(is_failed(
        allocator
            .release(Release::of(&request("one", 16)), soon())
            .await
            .err()
    ));
    assert_eq!(
        allocator.cached(&request("one", 16).id).unwrap().phase,
        Phase::Active
    );
    allocator
        .release(Release::of(&request("one", 16)), soon())
        .await
        .unwrap();
    allocator.cordon(cordon("b")).await.unwrap();
    fail();
    assert!(is_failed(
        allocator
            .uncordon(&cordon("b").id, &cordon("b").owner)
            .await
            .err()
    ));
    // It is still there.
    let entry = allocator.ensure(request("two", 4), Instant::now()).await.unwrap();
    assert!(matches!(entry, EnsureOutcome::Entry(entry) if entry.phase == Phase::Queued));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        allocator.cached(&request("two", 4).id).unwrap().phase,
        Phase::Queued
    );
    let view = allocator.view().await.unwrap();
    let cordons: Vec<_> = view.state().cordons().map(|cordon| cordon.id.clone()).collect();
    assert_eq!(cordons, [cordon("b").id]);
    assert_eq!(allocator.store_fill(), Some(StoreFill::new(7, 9)));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_more_requests_takes_releases_that_come_with_them() {
    let store = Arc::new(FailingStore::default());
    let allocator = Allocator::start(options(), Arc::clone(&store) as Arc<dyn Store>, pool());
    allocator.check_ready().await.unwrap();
    for name in ["one", "two"] {
        allocator.ensure(request(name, 4), soon()).await.unwrap();
    }
    // The commands of one line are in one batch. The first batch is undone, the next is split.
    *store.refused.lock().unwrap() = Some(request("three", 4).id);
    let release = |name| allocator.release(Release::of(&request(name, 4)), soon());
    let refused = || allocator.ensure(request("three", 4), soon());
    let (ensured, released) = tokio::join!(refused(), release("one"));
    assert!(ensured.is_err() && released.is_err(), "{ensured:?} {released:?}");
    let (ensured, released) = tokio::join!(refused(), release("one"));
    assert!(ensured.is_err(), "{ensured:?}");
    assert_eq!(released.unwrap(), ReleaseOutcome::Gone);
    *store.refused.lock().unwrap() = None;
    let (ensured, released) = tokio::join!(refused(), release("two"));
    assert!(ensured.is_ok(), "{ensured:?}");
    assert_eq!(released.unwrap(), ReleaseOutcome::Gone);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_opened_is_the_error_of_every_command_until_it_can() {
    let store = Arc::new(FailingStore::default());
    store
        .open_errors
        .lock()
        .unwrap()
        .extend([full(), full(), full(), full()]);
    let allocator = Allocator::start(options(), Arc::clone(&store) as Arc<dyn Store>, pool());
    let mut policy = Policy::default();
    policy.length_limit = 0;
    allocator.set_policy(policy).await;
    let refused = allocator.check_ready().await;
    assert!(matches!(refused, Err(AllocatorError::Store(_))), "{refused:?}");
    until_leading(&allocator).await;
    allocator.check_ready().await.unwrap();
    // The policy of that time holds.
    let refused = allocator.ensure(request("one", 16), soon()).await;
    let is_full = matches!(
        refused,
        Err(AllocatorError::Refused(RequestError::QueueFull { limit: 0 }))
    );
    assert!(is_full, "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn commits_and_comparisons_are_observed() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    let (commits, comparisons) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    let (committed, compared) = (Arc::clone(&commits), Arc::clone(&comparisons));
    bed.allocator
        .observe_commits(move |changes, _| committed.lock().unwrap().push(changes));
    bed.allocator
        .observe_comparisons(move |_| *compared.lock().unwrap() += 1);
    bed.allocator.compare().await.unwrap();
    bed.ensure(&request("one", 4)).await;
    assert!(!commits.lock().unwrap().is_empty());
    assert!(commits.lock().unwrap().iter().all(|changes| *changes == 1));
    let age = bed.allocator.last_comparison().unwrap();
    assert!(age < Duration::from_secs(3_600), "{age:?}");
    bed.allocator.compare_soon();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*comparisons.lock().unwrap(), 2);
    assert!(bed.allocator.last_comparison().unwrap() <= Duration::from_secs(1));
}

// Requests.

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_queue_is_judged_by_a_listing_of_now() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    bed.controller.create_by_hand(&request("foreign", 1).id, 16);
    let rejected = bed
        .allocator
        .ensure(request("one", 4).when_full(OnNoCapacity::Reject), soon())
        .await;
    assert!(matches!(rejected, Ok(EnsureOutcome::Rejected(_))), "{rejected:?}");
    assert!(bed.allocator.get(&request("one", 4).id).await.unwrap().is_none());
    // A request that queues needs no listing.
    bed.controller.partitions().clear();
    let before = bed.controller.count("list");
    let queued = bed.ensure_until(&request("two", 4), Instant::now()).await;
    assert_eq!(
        (queued.phase.clone(), bed.controller.count("list")),
        (Phase::Queued, before)
    );
    assert_eq!(bed.controller.count("attributes"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_is_answered_after_the_commit_of_what_was_found() {
    let store = Arc::new(FailingStore::default());
    let controller = Arc::new(FakeController::default());
    let pool = ControllerPool::single(name(), Arc::clone(&controller) as Arc<dyn VipuController>);
    let allocator = Allocator::start(options(), Arc::clone(&store) as Arc<dyn Store>, pool);
    until_leading(&allocator).await;
    allocator.ensure(request("one", 4), soon()).await.unwrap();
    *store.delay.lock().unwrap() = Duration::from_millis(500);
    controller.partitions().clear();
    let answer = allocator.ensure(request("one", 4), soon()).await.unwrap();
    let is_failed =
        matches!(&answer, EnsureOutcome::Entry(entry) if matches!(entry.phase, Phase::Failed { .. }));
    assert!(is_failed, "{answer:?}");
    // There is nothing to wait for then.
    let begun = Instant::now();
    allocator.ensure(request("one", 4), soon()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fits_starts_at_once_and_a_refused_one_once_its_pause_has_passed() {
    let (begun, behind) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let set_back = Arc::clone(&behind);
    let mut options = options();
    options.clock = Arc::new(move || {
        let now = DAY * 2 + begun.elapsed() - Duration::from_secs(set_back.load(Ordering::Relaxed));
        Timestamp::from_millis(0).plus(now)
    });
    let bed = Bed::with(options).await;
    for name in ["one", "two"] {
        let begun = Instant::now();
        bed.ensure(&request(name, 4)).await;
        assert!(
            begun.elapsed() < Duration::from_millis(500),
            "{:?}",
            begun.elapsed()
        );
    }
    bed.controller.fail(
        "create",
        VipuError::NoCapacity {
            detail: "no block".into(),
        },
    );
    let three = request("three", 4);
    bed.ensure_until(&three, Instant::now() + Duration::from_secs(1))
        .await;
    bed.controller.heal("create");
    let begun = Instant::now();
    let started = bed.ensure_until(&three, begun + Duration::from_secs(60)).await;
    assert_eq!(started.phase, Phase::Active);
    let waited = begun.elapsed().as_secs();
    assert!((28..=32).contains(&waited), "{waited}");
    // A clock that is set back by a day does not lengthen the pause.
    bed.controller.fail(
        "create",
        VipuError::NoCapacity {
            detail: "no block".into(),
        },
    );
    let four = request("four", 4);
    bed.ensure_until(&four, Instant::now() + Duration::from_secs(1))
        .await;
    bed.controller.heal("create");
    behind.store(DAY.as_secs(), Ordering::Relaxed);
    let started = bed
        .ensure_until(&four, Instant::now() + Duration::from_secs(60))
        .await;
    assert_eq!(started.phase, Phase::Active);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_undone_in_its_batch_is_never_written() {
    let mut options = options();
    options.clock = Arc::new(|| Timestamp::from_millis(1_000));
    let bed = Bed::with(options).await;
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    let leased = request("one", 4).with_holder(Lease::of(minute, bed.allocator.now()).to_string());
    bed.ensure(&leased).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let commits = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&commits);
    bed.allocator
        .observe_commits(move |_, _| *counted.lock().unwrap() += 1);
    let renew = |length| bed.allocator.renew(&leased.id, &leased.owner, length);
    let (first, second) = tokio::join!(renew(hour), renew(minute));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(*commits.lock().unwrap(), 0);
    renew(hour).await.unwrap();
    assert_eq!(*commits.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_queue_reports_what_the_controller_said() {
    let bed = Bed::with(options()).await;
    bed.controller.fail(
        "create",
        VipuError::NoCapacity {
            detail: "no block".into(),
        },
    );
    let one = request("one", 4).when_full(OnNoCapacity::Reject);
    let error = bed.allocator.ensure(one.clone(), soon()).await.unwrap_err();
    let expected = format!("controller fake refused partition {}: no block", one.id);
    assert_eq!(error.to_string(), expected);
    assert!(bed.allocator.get(&one.id).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_is_never_answered_with_the_end_of_an_earlier_one() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    bed.controller.silence("create");
    let one = request("one", 4);
    let ensure = |on_no_capacity| {
        bed.allocator
            .ensure(one.clone().when_full(on_no_capacity), soon())
    };
    let first = async {
        let refused = ensure(OnNoCapacity::Reject).await;
        assert!(
            matches!(refused, Err(AllocatorError::ControllerRefused { .. })),
            "{refused:?}"
        );
    };
    // The second request watches the id while the first one ends, and is recorded after that.
    let second = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bed.controller.silence("list");
        ensure(OnNoCapacity::QueueUnlessImpossible).await
    };
    let others = async {
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        bed.controller.fail(
            "create",
            VipuError::NoCapacity {
                detail: "full at noon".into(),
            },
        );
        bed.controller.resume("create");
        tokio::time::sleep(Duration::from_secs(5)).await;
        bed.allocator.release(Release::of(&one), soon()).await.unwrap();
    };
    let ((), second, ()) = tokio::join!(first, second, others);
    assert!(is_gone(&second), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_refuses_a_partition_is_listed_again_at_once() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    let before = bed.controller.count("list");
    bed.controller.fail(
        "create",
        VipuError::NoCapacity {
            detail: "no block".into(),
        },
    );
    bed.ensure_until(&request("one", 4), Instant::now() + Duration::from_secs(1))
        .await;
    assert_eq!(
        (bed.controller.count("create"), bed.controller.count("list")),
        (1, before + 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_allocation_reads_the_hardware_again_the_first_time() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    let mut request = request("one", 4);
    request.spec.allocation = Some(ipu_core::AllocationId::new("a").unwrap());
    let before = bed.controller.count("attributes");
    bed.ensure(&request).await;
    assert_eq!(bed.controller.count("attributes"), before + 1);
    bed.ensure(&request).await;
    assert_eq!(bed.controller.count("attributes"), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_that_is_released_or_replaced_is_gone() {
    let bed = Bed::with(options()).await;
    bed.ensure(&request("holder", 16)).await;
    let of = |name| {
        Request::with_id(
            PartitionId::new("p").unwrap(),
            request(name, 4).owner,
            request(name, 4).spec,
        )
    };
    let (one, other) = (of("one"), of("other"));
    let waiting = || bed.allocator.ensure(one.clone(), soon());
    let leave = || bed.allocator.release(Release::of(&one), soon());
    let (answer, released) = tokio::join!(waiting(), leave());
    assert!(is_gone(&answer), "{answer:?}");
    assert_eq!(released.unwrap(), ReleaseOutcome::Gone);
    // Another owner requests the same id in the batch of the release.
    let replace = || bed.allocator.ensure(other.clone(), Instant::now());
    let (answer, released, replaced) = tokio::join!(waiting(), leave(), replace());
    assert!(is_gone(&answer), "{answer:?}");
    assert_eq!(released.unwrap(), ReleaseOutcome::Gone);
    let Ok(EnsureOutcome::Entry(entry)) = replaced else {
        panic!("{replaced:?}")
    };
    assert_eq!(
        (entry.owner.as_ref(), &entry.phase),
        (Some(&other.owner), &Phase::Queued)
    );
    // Its own answer is not the entry of the other one.
    bed.allocator.release(Release::of(&other), soon()).await.unwrap();
    let queue = || bed.allocator.ensure(one.clone(), Instant::now());
    let (queued, ..) = tokio::join!(queue(), leave(), replace());
    let Ok(EnsureOutcome::Entry(entry)) = queued else {
        panic!("{queued:?}")
    };
    assert_eq!(entry.owner.as_ref(), Some(&one.owner));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_released_in_its_own_batch_is_never_written() {
    let bed = Bed::with(options()).await;
    bed.ensure(&request("holder", 16)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let commits = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&commits);
    bed.allocator
        .observe_commits(move |_, _| *counted.lock().unwrap() += 1);
    let ensured = bed.allocator.ensure(request("one", 4), Instant::now());
    let released = bed.allocator.release(Release::of(&request("one", 4)), soon());
    let (ensured, released) = tokio::join!(ensured, released);
    // It was queued, for a moment.
    assert!(matches!(ensured, Ok(EnsureOutcome::Entry(entry)) if entry.phase == Phase::Queued));
    assert_eq!(released.unwrap(), ReleaseOutcome::Gone);
    assert_eq!(*commits.lock().unwrap(), 0);
}

#[tokio::test]
async fn a_request_whose_previous_partition_is_being_removed_waits_for_it() {
    let bed = Bed::with(options()).await;
    let one = request("one", 4);
    bed.ensure(&one).await;
    bed.controller.fail(
        "remove",
        VipuError::Denied {
            detail: "no key".into(),
        },
    );
    let released = bed
        .allocator
        .release(Release::of(&one), Instant::now())
        .await
        .unwrap();
    assert!(matches!(released, ReleaseOutcome::InProgress(_)), "{released:?}");
    let heal = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        bed.controller.heal("remove");
    };
    let (entry, ()) = tokio::join!(bed.ensure(&one), heal);
    assert_eq!(entry.phase, Phase::Active);
    assert!(bed.controller.count("remove") >= 2);
    assert_eq!(bed.controller.count("create"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_the_controller_refuses_without_force_returns_at_once() {
    let bed = Bed::with(options()).await;
    let one = request("one", 4);
    bed.ensure(&one).await;
    bed.controller.fail(
        "remove",
        VipuError::Refused {
            detail: "in error".into(),
        },
    );
    let mut release = Release::of(&one);
    release.force = false;
    let begun = Instant::now();
    let released = bed.allocator.release(release, soon()).await.unwrap();
    let ReleaseOutcome::InProgress(entry) = released else {
        panic!("gone")
    };
    assert_eq!(
        entry.removal_refusal().unwrap().message,
        "the controller refuses the request: in error"
    );
    assert!(begun.elapsed() < Duration::from_secs(1));
    let reason = bed.allocator.reason(&entry).unwrap();
    assert_eq!(reason.code.as_str(), "RemovalRefused");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_but_never_made_by_a_heartbeat() {
    let bed = Bed::with(options()).await;
    let minute = Duration::from_secs(60);
    let plain = request("plain", 4);
    let leased = request("leased", 4).with_holder(Lease::of(minute, bed.allocator.now()).to_string());
    bed.ensure(&plain).await;
    let before = bed.ensure(&leased).await;
    let refused = bed.allocator.renew(&plain.id, &plain.owner, minute).await;
    assert!(
        matches!(
            refused,
            Err(AllocatorError::Refused(RequestError::NoLease { .. }))
        ),
        "{refused:?}"
    );
    let lease = bed
        .allocator
        .renew(&leased.id, &leased.owner, 2 * minute)
        .await
        .unwrap();
    assert_eq!(lease.length(), 2 * minute);
    let after = bed.allocator.get(&leased.id).await.unwrap().unwrap();
    assert_eq!(after.holder, lease.to_string());
    assert_ne!(after.holder, before.holder);
}

// Policy, cordons and preemption.

#[tokio::test(start_paused = true)]
async fn a_new_policy_holds_for_the_next_request() {
    let bed = Bed::with(options()).await;
    let mut policy = Policy::default();
    policy.length_limit = 0;
    bed.ensure(&request("one", 16)).await;
    bed.allocator.set_policy(policy).await;
    let refused = bed.allocator.ensure(request("two", 16), soon()).await;
    let is_full = matches!(
        refused,
        Err(AllocatorError::Refused(RequestError::QueueFull { .. }))
    );
    assert!(is_full, "{refused:?}");
}

fn cordon(id: &str) -> Cordon {
    let what = CordonTarget::Controller;
    Cordon::new(
        CordonId::new(id).unwrap(),
        name(),
        what,
        CordonOwner::new("admin").unwrap(),
        "repair",
    )
}
