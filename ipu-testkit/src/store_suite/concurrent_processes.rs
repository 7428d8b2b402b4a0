//! Cases about what other processes see, and what is left after one ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipu_ledger::{LedgerStore, Revision};
use tokio::task::{JoinSet, yield_now};

use super::contents_diff::LedgerContents;
use super::fixtures::{entry, put, put_attempt, remove};
use super::harness::{Bench, CaseResult, all, commit, error_text, holds, load, load_if_newer};
use crate::conformance::{broken, same};

/// How many times a pair of entries is written while others read it.
const WRITES: u32 = 24;

/// How many processes read meanwhile.
const READERS: usize = 3;

pub(super) async fn what_is_committed_is_seen_by_others_at_once<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let stores = bench.open_all(3).await;
    let (mut revision, mut book) = load(&stores[0]).await?;
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
        book.apply(&changes);
        for reader in stores.iter().chain([&bench.open().await]) {
            let rule = "what is committed is seen by every process as soon as commit answers";
            let Some((found, seen)) = load_if_newer(reader, Some(&before)).await? else {
                return Err(broken(rule, format!("revision {revision}"), "nothing new"));
            };
            book.check(rule, &seen)?;
            if found != revision {
                return Err(broken(rule, format!("revision {revision}"), found));
            }
        }
    }
    Ok(())
}

pub(super) async fn what_is_committed_is_there_after_reopening<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let mut book = LedgerContents::default();
    let mut known = None;
    for number in 0..6 {
        // Each process opens, looks whether all is there, writes once and is gone.
        let store = bench.open().await;
        let rule = "what was committed is there when the store is opened again";
        let revision = holds(&store, rule, &book).await?;
        if known.as_ref().is_some_and(|known| *known != revision) {
            return Err(broken(
                "the revision is the same when the store is opened again",
                known.map_or_else(String::new, |known: Revision| known.to_string()),
                revision,
            ));
        }
        let mut changes = vec![put_attempt("a", number), put(&format!("b{number}"))];
        if number > 1 {
            changes.push(remove(&format!("b{}", number - 2)));
        }
        known = Some(commit(&store, &revision, &changes).await?);
        book.apply(&changes);
    }
    holds(
        &bench.open().await,
        "what was committed is there when the store is opened again",
        &book,
    )
    .await?;
    Ok(())
}

pub(super) async fn readers_see_whole_commits_and_never_go_back<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let (writer, revision) = bench.open_with(&pair(0)).await?;
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
    for reader in bench.open_all(READERS).await {
        let written = Arc::clone(&written);
        tasks.spawn(async move {
            let mut last = 0;
            loop {
                let over = written.load(Ordering::SeqCst);
                let now = whole(&load(&reader).await?.1)?;
                if now < last {
                    return Err(broken(
                        "no reader sees an older ledger after a newer one",
                        format!("write {last} or later"),
                        format!("write {now}"),
                    ));
                }
                if over {
                    return same("whoever loads after the last commit sees it", &now, &WRITES);
                }
                last = now;
                yield_now().await;
            }
        });
    }
    all(tasks).await?;
    Ok(())
}

async fn write_pairs(writer: &impl LedgerStore, mut revision: Revision) -> CaseResult {
    for number in 1..=WRITES {
        revision = writer.commit(&revision, &pair(number)).await.map_err(|error| {
            let rule = "whoever writes alone is not refused while others read";
            broken(rule, "a revision", error_text(&error))
        })?;
        // Readers come in at other places of a commit from time to time, whatever the order of the tasks is.
        for _ in 0..=number % 3 {
            yield_now().await;
        }
    }
    Ok(())
}

/// Two entries that say the same in every commit.
fn pair(number: u32) -> [ipu_core::Change; 2] {
    [put_attempt("left", number), put_attempt("right", number)]
}

/// Which write of the pair `book` shows.
fn whole(book: &LedgerContents) -> CaseResult<u32> {
    let attempt = |name| book.get(&entry(name).id).map(|entry| entry.attempt);
    match (attempt("left"), attempt("right")) {
        (Some(left), Some(right)) if left == right => Ok(left),
        (left, right) => Err(broken(
            "a snapshot shows all changes of a commit or none",
            "two entries of one write",
            format!("writes {left:?} and {right:?}"),
        )),
    }
}
