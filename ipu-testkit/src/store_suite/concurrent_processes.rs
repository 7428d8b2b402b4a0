//! Cases about visibility in other processes, and durability after a process ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipu_ledger::{LedgerStore, Revision};
use tokio::task::{JoinSet, yield_now};

use super::contents_diff::LedgerContents;
use super::fixtures::{entry, put, put_attempt, remove};
use super::harness::{
    CaseResult, StoreFixture, check_contents, commit, error_text, join_all, load, load_if_newer,
};
use crate::conformance::{broken, check_eq};

/// Number of writes of a pair of entries while others read it.
const WRITES: u32 = 24;

/// Number of concurrent readers.
const READERS: usize = 3;

pub(super) async fn a_commit_is_visible_to_other_processes_immediately<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let stores = fixture.open_all(3).await;
    let (mut revision, mut contents) = load(&stores[0]).await?;
    for store in &stores {
        load(store).await?;
    }
    for number in 0..9_u32 {
        let writer = &stores[number as usize % stores.len()];
        let changes = match number % 3 {
            0 => vec![put_attempt("a", number), put("b")],
            1 => vec![put_attempt("a", number), remove("b")],
            _ => vec![put_attempt("c", number), remove("a")],
        };
        let before = revision;
        revision = commit(writer, &before, &changes).await?;
        contents.apply(&changes);
        for reader in stores.iter().chain([&fixture.open().await]) {
            let rule = "a commit is visible to every process as soon as commit returns";
            let Some((found, actual)) = load_if_newer(reader, Some(&before)).await? else {
                return Err(broken(rule, format!("revision {revision}"), "no newer snapshot"));
            };
            contents.check(rule, &actual)?;
            if found != revision {
                return Err(broken(rule, format!("revision {revision}"), found));
            }
        }
    }
    Ok(())
}

pub(super) async fn a_commit_survives_reopening<S: LedgerStore>(fixture: &StoreFixture<'_, S>) -> CaseResult {
    let mut contents = LedgerContents::default();
    let mut last = None;
    for number in 0..6 {
        // Each process opens the store, checks its contents, writes once and ends.
        let store = fixture.open().await;
        let rule = "committed changes survive reopening";
        let revision = check_contents(&store, rule, &contents).await?;
        if last.as_ref().is_some_and(|last| *last != revision) {
            return Err(broken(
                "the revision survives reopening",
                last.map_or_else(String::new, |last: Revision| last.to_string()),
                revision,
            ));
        }
        let mut changes = vec![put_attempt("a", number), put(&format!("b{number}"))];
        if number > 1 {
            changes.push(remove(&format!("b{}", number - 2)));
        }
        last = Some(commit(&store, &revision, &changes).await?);
        contents.apply(&changes);
    }
    check_contents(
        &fixture.open().await,
        "committed changes survive reopening",
        &contents,
    )
    .await?;
    Ok(())
}

pub(super) async fn readers_see_atomic_commits_in_order<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (writer, revision) = fixture.open_with(&pair(0)).await?;
    let written = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let written = Arc::clone(&written);
        async move {
            let outcome = write_pairs(&writer, revision).await;
            written.store(true, Ordering::SeqCst);
            outcome
        }
    });
    for reader in fixture.open_all(READERS).await {
        let written = Arc::clone(&written);
        tasks.spawn(async move {
            let mut last = 0;
            loop {
                let over = written.load(Ordering::SeqCst);
                let now = check_pair(&load(&reader).await?.1)?;
                if now < last {
                    return Err(broken(
                        "a reader never sees an older ledger after a newer one",
                        format!("write {last} or later"),
                        format!("write {now}"),
                    ));
                }
                if over {
                    return check_eq("a load after the last commit returns it", &now, &WRITES);
                }
                last = now;
                yield_now().await;
            }
        });
    }
    join_all(tasks).await?;
    Ok(())
}

async fn write_pairs(writer: &impl LedgerStore, mut revision: Revision) -> CaseResult {
    for number in 1..=WRITES {
        revision = writer.commit(&revision, &pair(number)).await.map_err(|error| {
            let rule = "a single writer is not rejected while others read";
            broken(rule, "a revision", error_text(&error))
        })?;
        // Varies the interleaving with readers, independent of the task order.
        for _ in 0..=number % 3 {
            yield_now().await;
        }
    }
    Ok(())
}

/// Two entries with the same attempt in every commit.
fn pair(number: u32) -> [ipu_core::Change; 2] {
    [put_attempt("left", number), put_attempt("right", number)]
}

/// Returns the write number of the pair in `contents`.
fn check_pair(contents: &LedgerContents) -> CaseResult<u32> {
    let attempt = |name| contents.get(&entry(name).id).map(|entry| entry.attempt);
    match (attempt("left"), attempt("right")) {
        (Some(left), Some(right)) if left == right => Ok(left),
        (left, right) => Err(broken(
            "a snapshot contains all changes of a commit or none",
            "two entries of one write",
            format!("writes {left:?} and {right:?}"),
        )),
    }
}
