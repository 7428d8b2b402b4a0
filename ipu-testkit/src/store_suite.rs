//! Conformance suite for [`Store`]: what the allocator relies on.

use std::sync::Arc;

use futures::future::join_all;
use ipu_allocator::{Record, Revision, Store, StoreError, UsagePosition};
use ipu_core::allocator::{Change, Entry, State, UsageRecord};
use ipu_core::{PartitionId, Timestamp};
use serde_json::json;

use crate::conformance::{CaseError, CaseOutcome, Runner, SuiteFailure, SuiteReport, check_eq, check_ok};

/// One record; each call returns a store of it, as another process opens it.
type EmptyRecord = Box<dyn Fn() -> Arc<dyn Store> + Send>;

/// Runs all cases in sequence, each on an empty record.
///
/// `empty_record` is called once for each case. It returns a function whose calls return stores of the same
/// record: each stands for another process.
///
/// # Panics
///
/// If a rule is broken: after the last case, with all broken rules.
pub async fn store_suite<P>(empty_record: impl Fn() -> P) -> SuiteReport
where
    P: Fn() -> Arc<dyn Store> + Send + 'static,
{
    match try_store_suite(empty_record).await {
        Ok(report) => report,
        Err(failure) => panic!("the store does not conform\n{failure}"),
    }
}

/// Like [`store_suite`], but returns the broken rules as an error.
///
/// # Errors
///
/// [`SuiteFailure`] with every case that found a broken rule.
pub async fn try_store_suite<P>(empty_record: impl Fn() -> P) -> Result<SuiteReport, SuiteFailure>
where
    P: Fn() -> Arc<dyn Store> + Send + 'static,
{
    let mut runner = Runner::new("store_suite");
    macro_rules! run {
        ($($case:ident),* $(,)?) => {
            $(runner.run(stringify!($case), $case(Box::new(empty_record()))).await;)*
        };
    }
    run![
        every_open_and_every_commit_has_a_new_revision,
        a_commit_on_another_revision_conflicts_and_writes_nothing,
        one_of_concurrent_commits_on_a_revision_succeeds,
        a_predecessor_cannot_write,
        every_field_survives,
        changes_apply_in_their_order,
        usage_is_paged_in_one_order,
    ];
    runner.finish(&[])
}

async fn every_open_and_every_commit_has_a_new_revision(record: EmptyRecord) -> CaseOutcome {
    let mut seen: Vec<Revision> = Vec::new();
    for _ in 0..3 {
        let store = record();
        let record = open(&*store).await?;
        check_state(&record, &[])?;
        let mut revision = record.revision;
        check_eq("a revision never repeats", &seen.contains(&revision), &false)?;
        // The contents come back to what they were: the revision must not.
        for change in [put(entry("a", 1)), Change::Remove(id("a"))] {
            seen.push(revision.clone());
            revision = commit(&*store, &revision, &[change]).await?;
            check_eq("a revision never repeats", &seen.contains(&revision), &false)?;
        }
        seen.push(revision);
        store.close().await;
    }
    Ok(())
}

async fn a_commit_on_another_revision_conflicts_and_writes_nothing(record: EmptyRecord) -> CaseOutcome {
    let store = record();
    let before = open(&*store).await?.revision;
    let first = commit(&*store, &before, &[put(entry("a", 1))]).await?;
    let late = [put(entry("b", 2)), Change::Remove(id("a"))];
    let ended = [usage("b", 9)];
    check_conflict(store.commit(&before, &late, &ended).await)?;
    let again = open(&*store).await?;
    check_conflict(store.commit(&first, &late, &ended).await)?;
    check_state(&again, &[put(entry("a", 1))])?;
    commit(&*store, &again.revision, &[]).await?;
    let usage = all_usage(&*store).await?;
    check_eq("a refused commit records no usage", &usage, &Vec::new())
}

async fn one_of_concurrent_commits_on_a_revision_succeeds(record: EmptyRecord) -> CaseOutcome {
    let store = record();
    let basis = open(&*store).await?.revision;
    let changes = [0, 1, 2, 3].map(|ticket| [put(entry("a", ticket))]);
    let results = join_all(changes.iter().map(|change| store.commit(&basis, change, &[]))).await;
    let won: Vec<usize> = (0..4).filter(|number| results[*number].is_ok()).collect();
    check_eq("one commit on a revision succeeds", &won.len(), &1)?;
    for result in results.into_iter().filter(Result::is_err) {
        check_conflict(result)?;
    }
    check_state(&open(&*store).await?, &changes[won[0]])
}

async fn a_predecessor_cannot_write(record: EmptyRecord) -> CaseOutcome {
    let (old, new) = (record(), record());
    let stale = open(&*old).await?.revision;
    let stale = commit(&*old, &stale, &[put(entry("a", 1))]).await?;
    // It lets the record go, and its last commit is still under way.
    old.close().await;
    let record = open(&*new).await?;
    let late = old.commit(&stale, &[Change::Remove(id("a"))], &[]).await;
    check_eq("a commit of a predecessor fails", &late.is_ok(), &false)?;
    commit(&*new, &record.revision, &[]).await?;
    check_state(&open(&*new).await?, &[put(entry("a", 1))])
}

async fn every_field_survives(record: EmptyRecord) -> CaseOutcome {
    let mut changes = vec![cordon("night", "line 1\nline 2 \"quoted\" \u{e9}")];
    changes.push(put(parsed(json!({
        "id": "p", "phase": {"is": "failed", "errors": ["a", ""]}, "ticket": u32::MAX, "since": 3, "heldSince": 2,
        "spec": {"size": 4, "gcds": 2}, "attempt": u32::MAX, "priority": i32::MIN, "operations": 7,
        "owner": {"kind": "Test", "job": {"namespace": "n", "name": "j", "uid": "u"}},
        "controller": "pod", "places": [{"linkDomain": 1, "ipu": 63}], "holder": "\u{fc}",
        "maxRuntimeMillis": 1, "account": "a", "preemptible": true, "unconfirmed": true,
    }))));
    // More than one page of any store.
    changes.extend((0..1_000).map(|number| put(entry(&format!("many-{number}"), number))));
    let store = record();
    let basis = open(&*store).await?.revision;
    commit(&*store, &basis, &changes).await?;
    store.close().await;
    check_state(&open(&*record()).await?, &changes)
}

async fn changes_apply_in_their_order(record: EmptyRecord) -> CaseOutcome {
    let changes = [
        [put(entry("a", 1)), Change::Remove(id("a")), put(entry("a", 2))],
        [put(entry("b", 3)), put(entry("b", 4)), Change::Remove(id("none"))],
        [cordon("c", "1"), uncordon("c"), cordon("d", "1")],
        [cordon("d", "2"), Change::Remove(id("a")), uncordon("none")],
    ];
    let store = record();
    let mut revision = open(&*store).await?.revision;
    for changes in &changes {
        revision = commit(&*store, &revision, changes).await?;
    }
    store.close().await;
    check_state(&open(&*record()).await?, changes.as_flattened())
}

async fn usage_is_paged_in_one_order(record: EmptyRecord) -> CaseOutcome {
    let store = record();
    let mut revision = open(&*store).await?.revision;
    let mut expected = Vec::new();
    // Ends out of order, and several at one time.
    for (number, end) in [5, 3, 9, 5, 5, 7].into_iter().enumerate() {
        let ended = [usage(&format!("p{number}"), end)];
        revision = check_ok(
            "usage can be recorded",
            store.commit(&revision, &[], &ended).await,
        )?;
        expected.extend(ended);
    }
    expected.sort_by_key(|record| UsagePosition::from(record));
    store.close().await;
    let store = record();
    open(&*store).await?;
    let rule = "every page begins after the one before";
    check_eq(rule, &all_usage(&*store).await?, &expected)?;
    let since = Timestamp::from_millis(7);
    let late = check_ok("usage can be read", store.usage(since, None, 10).await)?;
    let rule = "holds that ended before are left out";
    check_eq(rule, &late, &expected[4..].to_vec())
}

/// Reads the usage in pages of two.
async fn all_usage(store: &dyn Store) -> Result<Vec<UsageRecord>, CaseError> {
    let mut records: Vec<UsageRecord> = Vec::new();
    loop {
        let after = records.last().map(UsagePosition::from);
        let page = store.usage(Timestamp::from_millis(0), after.as_ref(), 2).await;
        let page = check_ok("usage can be read", page)?;
        if page.is_empty() {
            return Ok(records);
        }
        records.extend(page);
    }
}

async fn open(store: &dyn Store) -> Result<Record, CaseError> {
    check_ok("a released record can be opened", store.open().await)
}

async fn commit(store: &dyn Store, basis: &Revision, changes: &[Change]) -> Result<Revision, CaseError> {
    let committed = store.commit(basis, changes, &[]).await;
    check_ok("a commit on the present revision succeeds", committed)
}

fn check_conflict(result: Result<Revision, StoreError>) -> CaseOutcome {
    let is_conflict = matches!(result, Err(StoreError::Conflict { .. }));
    check_eq("a commit on another revision conflicts", &is_conflict, &true)
}

/// Checks that the record is that of all `changes`, in their order.
fn check_state(record: &Record, changes: &[Change]) -> CaseOutcome {
    let mut state = State::default();
    changes.iter().for_each(|change| state.apply(change));
    check_eq("the record has every change", &record.state, &state)
}

fn put(entry: Entry) -> Change {
    Change::Put(Arc::new(entry))
}

fn cordon(name: &str, reason: &str) -> Change {
    Change::Cordon(Arc::new(parsed(json!({
        "id": name, "controller": "pod", "target": {"ipu": ["agent-1", 3]}, "owner": "admin", "reason": reason,
        "since": 5,
    }))))
}

fn uncordon(name: &str) -> Change {
    Change::Uncordon(parsed(json!(name)))
}

fn id(name: &str) -> PartitionId {
    name.parse().expect("a valid id")
}

fn parsed<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("the values of the suite are valid")
}

/// Returns an entry that is being released.
fn entry(name: &str, ticket: u64) -> Entry {
    parsed(json!({
        "id": name, "spec": {"size": 1}, "phase": {"is": "releasing"}, "ticket": ticket, "since": 1, "heldSince": 1,
    }))
}

/// Returns the record of a hold that ended at `end`.
fn usage(name: &str, end: u64) -> UsageRecord {
    let end = Timestamp::from_millis(end);
    UsageRecord::from_transition(&entry(name, 1), None, end).expect("a hold that ended")
}
