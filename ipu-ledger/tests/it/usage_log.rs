//! Usage records: one per hold, across crashes and retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::Topology;
use ipu_ledger::{
    HoldEnd, Ledger, LedgerError, LedgerOptions, MemoryUsageLog, Released, SqliteStore, StoreError,
    Timestamp, UsageLog, UsagePosition, UsageRecord,
};
use ipu_testkit::{CallKind, Fault};
use ipu_vipu_client::ControllerPool;

use crate::setup::{Fixture, advance, all_dead, id, name, owner, request};

const EPOCH: Timestamp = Timestamp::from_millis(0);

fn recording(fixture: &mut Fixture) -> MemoryUsageLog {
    let log = MemoryUsageLog::new();
    fixture.options.usage = Some(Arc::new(log.clone()));
    log
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_recorded_once_with_owner_size_and_duration() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    recording(&mut fixture);
    let ledger = fixture.ledger();
    let mut wanted = request("a", 4);
    wanted.account = Some("physics".into());
    ledger.ensure_active(wanted.clone(), &mut |_| {}).await.unwrap();
    advance(60).await;
    wanted.attempt = 2;
    ledger.ensure_active(wanted, &mut |_| {}).await.unwrap();
    advance(40).await;
    assert_eq!(ledger.usage_since(EPOCH).await.unwrap(), []);
    ledger.release(&id("a"), &owner("a"), Some(2)).await.unwrap();
    ledger.release(&id("a"), &owner("a"), Some(2)).await.unwrap();

    let records = ledger.usage_since(EPOCH).await.unwrap();
    let [record] = &records[..] else {
        panic!("{records:?}");
    };
    assert_eq!((&record.id, record.owner.as_ref()), (&id("a"), Some(&owner("a"))));
    assert_eq!(
        (record.attempts, record.size.get(), record.end),
        (3, 4, HoldEnd::Released)
    );
    assert_eq!(record.account.as_deref(), Some("physics"));
    assert_eq!(record.controller, Some(name("fake")));
    let held = record.released_at.since(record.held_since).as_secs();
    assert_eq!(held, 100);
    let after = record.released_at.plus(std::time::Duration::from_millis(1));
    assert_eq!(ledger.usage_since(record.released_at).await.unwrap().len(), 1);
    assert_eq!(ledger.usage_since(after).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_driver_with_an_old_state_does_not_record_an_earlier_end_again() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    recording(&mut fixture);
    fixture.controller.set_operation_time(Duration::from_secs(60));
    let (one, other) = (fixture.ledger(), fixture.ledger());
    one.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    let later = one.release(&id("a"), &owner("a"), None).await.unwrap();
    assert!(matches!(later, Released::InProgress { .. }), "{later:?}");
    advance(120).await;
    // Its status query is answered after the other driver has finished.
    fixture
        .controller
        .inject(CallKind::Status, Fault::Slow(Duration::from_secs(3)));
    let ended = async {
        advance(1).await;
        one.release(&id("a"), &owner("a"), None).await.unwrap();
        one.now()
    };
    let (wanted, holder) = (id("a"), owner("a"));
    let (_, ended) = tokio::join!(other.release(&wanted, &holder, None), ended);
    let records = one.usage_since(EPOCH).await.unwrap();
    assert_eq!(records.iter().map(|r| r.released_at).collect::<Vec<_>>(), [ended]);
}

#[tokio::test(start_paused = true)]
async fn every_hold_of_a_job_has_a_record_and_a_queued_request_has_none() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    recording(&mut fixture);
    let ledger = fixture.ledger();
    for _ in 0..3 {
        ledger.ensure_active(request("a", 16), &mut |_| {}).await.unwrap();
        let _ = ledger.ensure(request("b", 4)).await.unwrap();
        let released = ledger.release(&id("b"), &owner("b"), None).await.unwrap();
        assert_eq!(released, Released::Dequeued);
        advance(1).await;
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    }
    ledger
        .ensure_active(request("dead", 4), &mut |_| {})
        .await
        .unwrap();
    ledger.repair(&all_dead).await.unwrap();
    let records = ledger.usage_since(EPOCH).await.unwrap();
    let ids: Vec<_> = records.iter().map(|record| record.id.clone()).collect();
    assert_eq!(ids, [id("a"), id("a"), id("a"), id("dead")]);
}

#[tokio::test(start_paused = true)]
async fn a_usage_query_without_a_log_is_an_error() {
    let ledger = Fixture::new(&Topology::pod16(), 1).ledger();
    let refused = ledger.usage_since(EPOCH).await.unwrap_err();
    assert!(matches!(refused, LedgerError::NoUsageLog), "{refused}");
}

/// A log with injected failures.
struct FailingLog(MemoryUsageLog, AtomicBool);

#[async_trait]
impl UsageLog for FailingLog {
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError> {
        if self.1.swap(false, Ordering::Relaxed) {
            return Err(StoreError::Unavailable {
                step: "write",
                detail: "the disk failed".into(),
            });
        }
        self.0.append(records).await
    }

    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        self.0.since(since).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_kept_until_its_record_is_written() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    let log = Arc::new(FailingLog(MemoryUsageLog::new(), AtomicBool::new(false)));
    fixture.options.usage = Some(Arc::clone(&log) as Arc<dyn UsageLog>);
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    log.1.store(true, Ordering::Relaxed);
    assert!(ledger.release(&id("a"), &owner("a"), None).await.is_err());
    assert!(ledger.get(&id("a")).await.unwrap().is_some());
    let released = ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    assert_eq!(released, Released::Removed);
    assert_eq!(ledger.usage_since(EPOCH).await.unwrap().len(), 1);
}

#[tokio::test]
async fn sqlite_keeps_one_record_per_key_across_restarts() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let open = || {
        let store = SqliteStore::open(&path).unwrap();
        let mut options: LedgerOptions = fixture.options.clone();
        options.usage = Some(Arc::new(store.clone()));
        let pool = ControllerPool::single(name("fake"), Arc::new(fixture.controller.clone()));
        (Ledger::new(pool, store.clone(), options), store)
    };
    let (ledger, store) = open();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.release(&id("a"), &owner("a"), Some(0)).await.unwrap();
    let records = ledger.usage_since(EPOCH).await.unwrap();
    assert_eq!(records.len(), 1);
    // As after a crash before the commit: the same hold ends again, later. And an old duplicate.
    let mut later = records[0].clone();
    later.released_at = later.released_at.plus(std::time::Duration::from_secs(7));
    store.append(&[later.clone(), records[0].clone()]).await.unwrap();
    drop((ledger, store));
    let (ledger, _) = open();
    assert_eq!(ledger.usage_since(EPOCH).await.unwrap(), [later]);
}

#[tokio::test(start_paused = true)]
async fn pages_cover_all_records_even_if_records_are_added_meanwhile() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    let memory = recording(&mut fixture);
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    let first = ledger.usage_since(EPOCH).await.unwrap().remove(0);
    let directory = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(directory.path().join("ledger.db")).unwrap();
    for log in [&memory as &dyn UsageLog, &sqlite] {
        let record = |number: u64| {
            let mut record = first.clone();
            // Three holds end at a time, and their tickets have different numbers of digits.
            record.ticket = number * 7;
            record.released_at = Timestamp::from_millis(1_000 + number / 3);
            record
        };
        let records: Vec<_> = (0..20).map(record).collect();
        log.append(&records).await.unwrap();
        let since = Timestamp::from_millis(1_001);
        let (mut joined, mut after) = (Vec::new(), None::<UsagePosition>);
        loop {
            let page = log.page(since, after.as_ref(), 4).await.unwrap();
            assert!(page.len() <= 4, "{}", page.len());
            let Some(last) = page.last() else { break };
            after = Some(UsagePosition::from(last));
            joined.extend(page);
            if joined.len() == 8 {
                log.append(&[record(60)]).await.unwrap();
            }
        }
        let tickets = |records: &[UsageRecord]| {
            let mut tickets: Vec<u64> = records.iter().map(|record| record.ticket).collect();
            tickets.sort_unstable();
            tickets
        };
        let all = log.since(since).await.unwrap();
        assert_eq!(tickets(&joined), tickets(&all));
        assert!(all.len() >= 18, "{}", all.len());
        // A position does not reach back before the time.
        let start = UsagePosition::from(&records[0]);
        let later = Timestamp::from_millis(1_006);
        let page = log.page(later, Some(&start), 100).await.unwrap();
        assert_eq!(tickets(&page), tickets(&log.since(later).await.unwrap()));
    }
}
