//! Cases about what is stored, seen by one process.

use std::sync::Arc;

use ipu_core::{Change, EntryState, Timestamp};
use ipu_ledger::{LedgerStore, StoreError};

use super::contents_diff::LedgerContents;
use super::fixtures::{cordon, entry, lift, of_every_kind, put, put_attempt, put_many, remove};
use super::harness::{Bench, CaseResult, commit, conflict, error_text, holds, load, load_if_newer, under};
use crate::conformance::broken;

/// More than the partitions of the largest installation: 1,024 IPUs, each a partition, and as many that wait.
const MANY: usize = 2_000;

/// How many entries of a large ledger one commit puts.
const BATCH: usize = 250;

pub(super) async fn an_empty_ledger_has_a_revision_and_no_entries<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let store = bench.open().await;
    let empty = holds(
        &store,
        "a ledger that was never written is empty",
        &LedgerContents::default(),
    )
    .await?;
    let again = holds(
        &bench.open().await,
        "a ledger that was only looked at is empty",
        &LedgerContents::default(),
    )
    .await?;
    if again != empty {
        return Err(broken(
            "a ledger that nobody wrote to keeps its revision",
            empty,
            again,
        ));
    }
    let first = commit(&store, &empty, &[put("a")]).await?;
    let found = holds(
        &store,
        "the first commit is taken",
        &LedgerContents::after(&[put("a")]),
    )
    .await?;
    if found != first {
        return Err(broken(
            "commit answers the revision that load tells then",
            first,
            found,
        ));
    }
    Ok(())
}

pub(super) async fn every_field_of_every_entry_comes_back<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let mut changes: Vec<_> = of_every_kind()
        .into_iter()
        .map(|entry| Change::Put(Arc::new(entry)))
        .collect();
    let (store, first) = bench.open_with(&changes).await?;
    let rule = "an entry comes back exactly as it was put";
    holds(&store, rule, &LedgerContents::after(&changes)).await?;
    let other = bench.open().await;
    holds(&other, rule, &LedgerContents::after(&changes)).await?;

    // Replaced by another kind each: nothing of what was there before may stay.
    let ids: Vec<_> = changes.iter().filter_map(Change::partition).cloned().collect();
    for (change, id) in changes.iter_mut().zip(ids.into_iter().rev()) {
        if let Change::Put(entry) = change {
            Arc::make_mut(entry).id = id;
        }
    }
    commit(&store, &first, &changes).await?;
    let rule = "an entry that is put again replaces the one of its id in every field";
    holds(&store, rule, &LedgerContents::after(&changes)).await?;
    holds(&bench.open().await, rule, &LedgerContents::after(&changes)).await?;
    Ok(())
}

pub(super) async fn cordons_come_back_until_they_are_lifted<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let changes = [put("a"), cordon("a", "first"), cordon("b", "text"), put("b")];
    let (store, mut revision) = bench.open_with(&changes).await?;
    let mut book = LedgerContents::after(&changes);
    let rule = "an exclusion comes back exactly as it was put, beside the entries";
    holds(&store, rule, &book).await?;
    holds(&bench.open().await, rule, &book).await?;
    let steps: [(&str, Vec<Change>); 5] = [
        (
            "an exclusion that is put again replaces the one of its id",
            vec![cordon("a", "second")],
        ),
        ("an exclusion that is lifted is gone", vec![lift("a")]),
        (
            "to lift what is not there is harmless",
            vec![lift("a"), lift("nobody")],
        ),
        (
            "exclusions are put, replaced and lifted in one commit with entries",
            vec![
                cordon("c", "c"),
                remove("a"),
                lift("b"),
                cordon("d", "1"),
                cordon("d", "2"),
            ],
        ),
        (
            "what is put and then lifted is gone, and the reverse is there",
            vec![cordon("e", "e"), lift("e"), lift("c"), cordon("c", "again")],
        ),
    ];
    for (rule, changes) in steps {
        let old = revision;
        revision = commit(&store, &old, &changes).await?;
        conflict(&store, &old, &[cordon("late", "late")]).await?;
        conflict(&store, &old, &[lift("d"), put("late")]).await?;
        book.apply(&changes);
        holds(&store, rule, &book).await?;
        holds(&bench.open().await, rule, &book).await?;
    }
    Ok(())
}

pub(super) async fn load_answers_none_exactly_if_nothing_was_committed<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let (store, other) = (bench.open().await, bench.open().await);
    let mut known = load(&store).await?.0;
    load(&other).await?;
    for number in 0..8 {
        for reader in [&store, &other] {
            if load_if_newer(reader, Some(&known)).await?.is_some() {
                return Err(broken(
                    "load answers none if the ledger is still at the revision it is compared with",
                    format!("none at {known}"),
                    "a snapshot",
                ));
            }
        }
        let (writer, changes) = match number % 4 {
            0 => (&store, [put("a")]),
            1 => (&other, [put_attempt("a", number)]),
            2 => (&store, [remove("a")]),
            // What changes nothing may have been written by somebody whose reply was lost.
            _ => (&other, [remove("a")]),
        };
        let now = commit(writer, &known, &changes).await?;
        for reader in [&store, &other] {
            match load_if_newer(reader, Some(&known)).await? {
                Some((revision, _)) if revision == now => {}
                seen => {
                    let seen = seen.map_or_else(|| "none".into(), |(revision, _)| revision.to_string());
                    return Err(broken(
                        "load answers the newest snapshot after a commit",
                        format!("a snapshot at {now}, compared with {known}"),
                        seen,
                    ));
                }
            }
        }
        known = now;
    }
    Ok(())
}

pub(super) async fn changes_are_taken_in_their_order<S: LedgerStore>(bench: &Bench<'_, S>) -> CaseResult {
    let store = bench.open().await;
    let mut revision = load(&store).await?.0;
    let mut book = LedgerContents::default();
    let steps: [(&str, Vec<Change>); 7] = [
        (
            "several entries are put in one commit",
            vec![put("a"), put("b"), put("c")],
        ),
        ("an entry that is removed is gone", vec![remove("a")]),
        (
            "to remove what is not there is harmless",
            vec![remove("a"), remove("nobody")],
        ),
        (
            "entries are put, replaced and removed in one commit",
            vec![put("d"), put_attempt("b", 1), remove("c"), put("e")],
        ),
        (
            "what is put and then removed is gone",
            vec![put("f"), remove("f"), remove("b")],
        ),
        (
            "what is removed and then put is there",
            vec![remove("d"), put_attempt("d", 3), put("b")],
        ),
        (
            "what is put twice is as it was put last",
            vec![put_attempt("g", 1), put_attempt("g", 2)],
        ),
    ];
    for (rule, changes) in steps {
        revision = commit(&store, &revision, &changes).await?;
        book.apply(&changes);
        holds(&store, rule, &book).await?;
        holds(&bench.open().await, rule, &book).await?;
    }
    Ok(())
}

pub(super) async fn a_large_ledger_is_kept_or_refused_whole<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let store = bench.open().await;
    let mut revision = load(&store).await?.0;
    let mut book = LedgerContents::default();
    for from in (0..MANY).step_by(BATCH) {
        let changes = put_many(from..from + BATCH);
        match store.commit(&revision, &changes).await {
            Ok(next) => {
                revision = next;
                book.apply(&changes);
            }
            Err(StoreError::Full { .. }) => {
                holds(
                    &store,
                    "a commit that is refused because the ledger is full changes nothing",
                    &book,
                )
                .await?;
                break;
            }
            Err(error) => {
                return Err(broken(
                    "a large commit is taken, or refused because the ledger is full",
                    format!("a revision or Full for {} entries", book.len() + changes.len()),
                    error_text(&error),
                ));
            }
        }
    }
    holds(&bench.open().await, "a large ledger is whole", &book).await?;

    // Whatever holds has to be given back, also when nothing more fits.
    let held: Vec<_> = book.entries().step_by(2).cloned().collect();
    let mut releasing = Vec::new();
    for mut entry in held.clone() {
        entry.state = EntryState::Releasing {
            fence: Timestamp::from_millis(1),
        };
        releasing.push(Change::Put(Arc::new(entry)));
    }
    let removing: Vec<_> = held.into_iter().map(|entry| Change::Remove(entry.id)).collect();
    for (rule, changes) in [
        (
            "what is to be released is taken although the ledger is full",
            releasing,
        ),
        ("removals are taken although the ledger is full", removing),
        (
            "there is room after removals",
            vec![Change::Put(Arc::new(entry("again")))],
        ),
    ] {
        revision = commit(&store, &revision, &changes).await.map_err(under(rule))?;
        book.apply(&changes);
        holds(&store, rule, &book).await?;
    }
    Ok(())
}
