//! Cases about compare-and-swap.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipu_core::Change;
use ipu_ledger::{LedgerStore, Revision, StoreError};
use tokio::task::{JoinSet, yield_now};

use super::contents_diff::LedgerContents;
use super::fixtures::{entry, put, put_attempt, remove};
use super::harness::{
    CaseResult, StoreFixture, check_contents, commit, error_text, expect_conflict, join_all, load,
};
use crate::conformance::broken;

/// Number of concurrent writers.
const WRITERS: usize = 4;

/// Number of read-modify-write updates of each writer.
const UPDATES: u32 = 10;

/// Limit on conflicts per update: each conflict means that another writer progressed.
const MAX_CONFLICTS: usize = 100 * WRITERS * UPDATES as usize;

/// Number of races between commits.
const RACES: u32 = 6;

pub(super) async fn a_commit_on_an_old_revision_conflicts_without_effect<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let empty = load(&store).await?.0;
    let first = commit(&store, &empty, &[put("a"), put("b")]).await?;
    let second = commit(&other, &first, &[put_attempt("a", 1)]).await?;
    let mut contents = LedgerContents::after(&[put("b"), put_attempt("a", 1)]);
    let unknown = Revision::new("a revision that no store created");
    for old in [&empty, &first, &unknown] {
        // Different changes, the same changes, and changes of unmodified entries.
        for changes in [
            vec![put_attempt("a", 7), remove("b"), put("c")],
            vec![put_attempt("a", 1)],
            vec![put("d")],
        ] {
            for writer in [&store, &other] {
                expect_conflict(writer, old, &changes).await?;
                for reader in [&store, &other] {
                    let rule = "a conflicting commit has no effect";
                    let revision = check_contents(reader, rule, &contents).await?;
                    if revision != second {
                        return Err(broken(rule, format!("revision {second}"), revision));
                    }
                }
            }
        }
    }
    commit(&store, &second, &[put("c")]).await?;
    contents.apply(&[put("c")]);
    check_contents(&other, "a commit after rejected ones is accepted", &contents).await?;
    Ok(())
}

pub(super) async fn a_revision_is_never_reused<S: LedgerStore>(fixture: &StoreFixture<'_, S>) -> CaseResult {
    let mut store = fixture.open().await;
    let mut revision = load(&store).await?.0;
    let mut actual = BTreeSet::from([revision.to_string()]);
    let mut old = vec![revision.clone()];
    for number in 0..24 {
        // The content repeats every second commit; the store is reopened after every fifth.
        let change = if number % 2 == 0 { put("a") } else { remove("a") };
        revision = commit(&store, &revision, &[change]).await?;
        if !actual.insert(revision.to_string()) {
            return Err(broken(
                "every commit creates a new revision, even if the contents repeat",
                "a new revision",
                format!("{revision} again, in commit {number}"),
            ));
        }
        old.push(revision.clone());
        if number % 5 == 4 {
            drop(store);
            store = fixture.open().await;
        }
    }
    old.pop();
    for old in &old {
        expect_conflict(&store, old, &[put("b")]).await?;
    }
    Ok(())
}

pub(super) async fn a_duplicate_commit_is_applied_once<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (store, basis) = fixture.open_with(&[put("a")]).await?;
    let changes = [put_attempt("a", 1), put("b")];
    let committed = commit(&store, &basis, &changes).await?;
    // The reply was lost and the caller retries, from the same and from another process.
    expect_conflict(&store, &basis, &changes).await?;
    expect_conflict(&fixture.open().await, &basis, &changes).await?;
    let rule = "after a lost reply, load shows the result of the commit";
    let found = check_contents(&store, rule, &LedgerContents::after(&changes)).await?;
    if found != committed {
        return Err(broken(rule, format!("revision {committed}"), found));
    }
    // The change was reverted meanwhile: the late duplicate must not apply it again.
    let undone = commit(&store, &committed, &[put("a"), remove("b")]).await?;
    expect_conflict(&store, &basis, &changes).await?;
    expect_conflict(&store, &committed, &changes).await?;
    let found = check_contents(
        &store,
        "a late duplicate has no effect",
        &LedgerContents::after(&[put("a")]),
    )
    .await?;
    if found != undone {
        return Err(broken("a late duplicate has no effect", undone, found));
    }
    Ok(())
}

pub(super) async fn exactly_one_of_several_commits_on_one_revision_wins<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let stores: Vec<_> = fixture
        .open_all(WRITERS)
        .await
        .into_iter()
        .map(Arc::new)
        .collect();
    for race in 0..RACES {
        let (basis, mut contents) = load(&*stores[0]).await?;
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
                        "of several commits on one revision, one is accepted and the others conflict",
                        "a revision or Conflict",
                        error_text(&error),
                    )),
                }
            });
        }
        let won: Vec<_> = join_all(writers).await?.into_iter().flatten().collect();
        let [changes] = won.as_slice() else {
            return Err(broken(
                "exactly one of several commits on one revision is accepted",
                format!("1 of {WRITERS}"),
                format!("{} of {WRITERS}", won.len()),
            ));
        };
        contents.apply(changes);
        for store in &stores {
            let rule = "the ledger contains the changes of the winning commit only";
            check_contents(&**store, rule, &contents).await?;
        }
    }
    Ok(())
}

pub(super) async fn concurrent_writers_lose_no_update<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (first, _) = fixture.open_with(&[put("counted")]).await?;
    let mut writers = JoinSet::new();
    for (number, store) in fixture.open_all(WRITERS).await.into_iter().enumerate() {
        writers.spawn(async move {
            let own = format!("writer{number}");
            for update in 1..=UPDATES {
                // Half of the writers take the write lock; the others rely on compare-and-swap.
                count(&store, &own, update, number % 2 == 0).await?;
            }
            Ok(())
        });
    }
    join_all(writers).await?;
    let counted = number_of(WRITERS) * UPDATES;
    let mut contents = LedgerContents::after(&[put_attempt("counted", counted)]);
    for number in 0..WRITERS {
        contents.apply(&[put_attempt(&format!("writer{number}"), UPDATES)]);
    }
    check_contents(
        &first,
        "read-modify-write with retries loses no update",
        &contents,
    )
    .await?;
    Ok(())
}

/// Increments the shared entry, and stores the count in the writer's own entry.
async fn count<S: LedgerStore>(store: &S, own: &str, update: u32, takes_lock: bool) -> CaseResult {
    for _ in 0..MAX_CONFLICTS {
        let lock = match takes_lock {
            true => Some(super::write_lock::acquire(store).await?),
            false => None,
        };
        let (basis, contents) = load(store).await?;
        yield_now().await;
        let Some(counted) = contents.get(&entry("counted").id) else {
            return Err(broken("an entry exists until it is removed", "the entry", "none"));
        };
        let mut counted = counted.clone();
        counted.attempt += 1;
        let changes = [Change::Put(Arc::new(counted)), put_attempt(own, update)];
        let answer = store.commit(&basis, &changes).await;
        drop(lock);
        match answer {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => yield_now().await,
            Err(error) => {
                return Err(broken(
                    "a concurrent commit is accepted or conflicts",
                    "a revision or Conflict",
                    error_text(&error),
                ));
            }
        }
    }
    Err(broken(
        "a writer that retries after each conflict succeeds",
        "a revision",
        format!("{MAX_CONFLICTS} conflicts"),
    ))
}

fn number_of(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
