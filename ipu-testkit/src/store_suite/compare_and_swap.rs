//! Cases about the compare-and-swap.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipu_core::Change;
use ipu_ledger::{LedgerStore, Revision, StoreError};
use tokio::task::{JoinSet, yield_now};

use super::contents_diff::LedgerContents;
use super::fixtures::{entry, put, put_attempt, remove};
use super::harness::{Bench, CaseResult, all, commit, conflict, error_text, holds, load};
use crate::conformance::broken;

/// How many processes write at the same time.
const WRITERS: usize = 4;

/// How many times each of them reads, changes and writes.
const UPDATES: u32 = 10;

/// How often one of them is refused at most: each conflict means that another one got on.
const TRIES: usize = 100 * WRITERS * UPDATES as usize;

/// How often several commits race.
const RACES: u32 = 6;

pub(super) async fn a_commit_on_an_old_revision_is_refused_and_changes_nothing<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let (store, other) = (bench.open().await, bench.open().await);
    let empty = load(&store).await?.0;
    let first = commit(&store, &empty, &[put("a"), put("b")]).await?;
    let second = commit(&other, &first, &[put_attempt("a", 1)]).await?;
    let mut book = LedgerContents::after(&[put("b"), put_attempt("a", 1)]);
    let unknown = Revision::new("a revision that no store made");
    for old in [&empty, &first, &unknown] {
        // Something else, the same again, and what does not touch anything that changed since.
        for changes in [
            vec![put_attempt("a", 7), remove("b"), put("c")],
            vec![put_attempt("a", 1)],
            vec![put("d")],
        ] {
            for writer in [&store, &other] {
                conflict(writer, old, &changes).await?;
                for reader in [&store, &other] {
                    let rule = "a commit that is refused as a conflict changes nothing";
                    let revision = holds(reader, rule, &book).await?;
                    if revision != second {
                        return Err(broken(rule, format!("revision {second}"), revision));
                    }
                }
            }
        }
    }
    commit(&store, &second, &[put("c")]).await?;
    book.apply(&[put("c")]);
    holds(&other, "a commit after refused ones is taken", &book).await?;
    Ok(())
}

pub(super) async fn a_revision_never_comes_back<S: LedgerStore>(bench: &Bench<'_, S>) -> CaseResult {
    let mut store = bench.open().await;
    let mut revision = load(&store).await?.0;
    let mut seen = BTreeSet::from([revision.to_string()]);
    let mut old = vec![revision.clone()];
    for number in 0..24 {
        // The content comes back every second time, and the store is opened again every fifth.
        let change = if number % 2 == 0 { put("a") } else { remove("a") };
        revision = commit(&store, &revision, &[change]).await?;
        if !seen.insert(revision.to_string()) {
            return Err(broken(
                "every commit makes a revision that never was, also when the content was there before",
                "a new one",
                format!("{revision} again, in commit {number}"),
            ));
        }
        old.push(revision.clone());
        if number % 5 == 4 {
            drop(store);
            store = bench.open().await;
        }
    }
    old.pop();
    for old in &old {
        conflict(&store, old, &[put("b")]).await?;
    }
    Ok(())
}

pub(super) async fn a_commit_that_is_sent_twice_is_taken_once<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let (store, basis) = bench.open_with(&[put("a")]).await?;
    let changes = [put_attempt("a", 1), put("b")];
    let taken = commit(&store, &basis, &changes).await?;
    // The reply was lost and the caller sends it again, here and through another process.
    conflict(&store, &basis, &changes).await?;
    conflict(&bench.open().await, &basis, &changes).await?;
    let rule = "after a lost reply, load tells what became of the commit";
    let found = holds(&store, rule, &LedgerContents::after(&changes)).await?;
    if found != taken {
        return Err(broken(rule, format!("revision {taken}"), found));
    }
    // Somebody undid it meanwhile: the late duplicate must not do it again.
    let undone = commit(&store, &taken, &[put("a"), remove("b")]).await?;
    conflict(&store, &basis, &changes).await?;
    conflict(&store, &taken, &changes).await?;
    let found = holds(
        &store,
        "a duplicate that comes late changes nothing",
        &LedgerContents::after(&[put("a")]),
    )
    .await?;
    if found != undone {
        return Err(broken(
            "a duplicate that comes late changes nothing",
            undone,
            found,
        ));
    }
    Ok(())
}

pub(super) async fn exactly_one_of_several_commits_on_one_revision_wins<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let stores: Vec<_> = bench.open_all(WRITERS).await.into_iter().map(Arc::new).collect();
    for race in 0..RACES {
        let (basis, mut book) = load(&*stores[0]).await?;
        let mut writers = JoinSet::new();
        for (number, store) in stores.iter().enumerate() {
            let (store, basis) = (Arc::clone(store), basis.clone());
            writers.spawn(async move {
                let changes = [
                    put_attempt("winner", number_of(number)),
                    put(&format!("r{race}w{number}")),
                ];
                match store.commit(&basis, &changes).await {
                    Ok(_) => Ok(Some(changes)),
                    Err(StoreError::Conflict { .. }) => Ok(None),
                    Err(error) => Err(broken(
                        "of several commits on one revision one is taken and the others conflict",
                        "a revision or Conflict",
                        error_text(&error),
                    )),
                }
            });
        }
        let won: Vec<_> = all(writers).await?.into_iter().flatten().collect();
        let [changes] = won.as_slice() else {
            return Err(broken(
                "exactly one of several commits on one revision is taken",
                format!("1 of {WRITERS}"),
                format!("{} of {WRITERS}", won.len()),
            ));
        };
        book.apply(changes);
        for store in &stores {
            let rule = "the ledger holds what the winner of a race wrote, and nothing of the others";
            holds(&**store, rule, &book).await?;
        }
    }
    Ok(())
}

pub(super) async fn writers_at_the_same_time_lose_no_update<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let (first, _) = bench.open_with(&[put("counted")]).await?;
    let mut writers = JoinSet::new();
    for (number, store) in bench.open_all(WRITERS).await.into_iter().enumerate() {
        writers.spawn(async move {
            let own = format!("writer{number}");
            for update in 1..=UPDATES {
                // Half of them take turns; the others make do with the compare-and-swap.
                count(&store, &own, update, number % 2 == 0).await?;
            }
            Ok(())
        });
    }
    all(writers).await?;
    let counted = number_of(WRITERS) * UPDATES;
    let mut book = LedgerContents::after(&[put_attempt("counted", counted)]);
    for number in 0..WRITERS {
        book.apply(&[put_attempt(&format!("writer{number}"), UPDATES)]);
    }
    holds(
        &first,
        "of read-modify-write with retries no update is lost",
        &book,
    )
    .await?;
    Ok(())
}

/// Counts the shared entry up by one, and writes how often in an entry of its own.
async fn count<S: LedgerStore>(store: &S, own: &str, update: u32, takes_turns: bool) -> CaseResult {
    for _ in 0..TRIES {
        let turn = match takes_turns {
            true => Some(super::write_lock::turn(store).await?),
            false => None,
        };
        let (basis, book) = load(store).await?;
        yield_now().await;
        let Some(counted) = book.get(&entry("counted").id) else {
            return Err(broken("an entry stays until it is removed", "it", "none"));
        };
        let mut counted = counted.clone();
        counted.attempt += 1;
        let changes = [Change::Put(Arc::new(counted)), put_attempt(own, update)];
        let answer = store.commit(&basis, &changes).await;
        drop(turn);
        match answer {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => yield_now().await,
            Err(error) => {
                return Err(broken(
                    "a commit among others is taken or conflicts",
                    "a revision or Conflict",
                    error_text(&error),
                ));
            }
        }
    }
    Err(broken(
        "whoever tries again after each conflict gets through",
        "a revision",
        format!("{TRIES} conflicts"),
    ))
}

fn number_of(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
