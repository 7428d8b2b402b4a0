//! Cases about stored data, from one process.

use std::sync::Arc;

use ipu_core::{Change, EntryState, Timestamp};
use ipu_ledger::{LedgerStore, StoreError};

use super::contents_diff::LedgerContents;
use super::fixtures::{cordon, entries_of_every_kind, entry, lift, put, put_attempt, put_many, remove};
use super::harness::{
    CaseResult, StoreFixture, check_contents, commit, error_text, expect_conflict, load, load_if_newer,
    with_rule,
};
use crate::conformance::broken;

/// More than the largest installation needs: 1,024 IPUs, each a partition, and as many queued requests.
const LARGE_LEDGER: usize = 2_000;

/// Number of entries per commit of a large ledger.
const BATCH: usize = 250;

pub(super) async fn an_empty_ledger_has_a_revision_and_no_entries<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let store = fixture.open().await;
    let empty = check_contents(
        &store,
        "a ledger that was never written is empty",
        &LedgerContents::default(),
    )
    .await?;
    let again = check_contents(
        &fixture.open().await,
        "a ledger that was only read is empty",
        &LedgerContents::default(),
    )
    .await?;
    if again != empty {
        return Err(broken("an unchanged ledger keeps its revision", empty, again));
    }
    let first = commit(&store, &empty, &[put("a")]).await?;
    let found = check_contents(
        &store,
        "the first commit is accepted",
        &LedgerContents::after(&[put("a")]),
    )
    .await?;
    if found != first {
        return Err(broken(
            "commit returns the revision that load returns next",
            first,
            found,
        ));
    }
    Ok(())
}

pub(super) async fn every_field_of_every_entry_is_stored<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let mut changes: Vec<_> = entries_of_every_kind()
        .into_iter()
        .map(|entry| Change::Put(Arc::new(entry)))
        .collect();
    let (store, first) = fixture.open_with(&changes).await?;
    let rule = "an entry is stored exactly as it was put";
    check_contents(&store, rule, &LedgerContents::after(&changes)).await?;
    let other = fixture.open().await;
    check_contents(&other, rule, &LedgerContents::after(&changes)).await?;

    // Each entry is replaced by one of another kind: no earlier field may remain.
    let ids: Vec<_> = changes.iter().filter_map(Change::partition).cloned().collect();
    for (change, id) in changes.iter_mut().zip(ids.into_iter().rev()) {
        if let Change::Put(entry) = change {
            Arc::make_mut(entry).id = id;
        }
    }
    commit(&store, &first, &changes).await?;
    let rule = "a repeated put replaces the entry in every field";
    check_contents(&store, rule, &LedgerContents::after(&changes)).await?;
    check_contents(&fixture.open().await, rule, &LedgerContents::after(&changes)).await?;
    Ok(())
}

pub(super) async fn cordons_are_stored_until_lifted<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let changes = [put("a"), cordon("a", "first"), cordon("b", "text"), put("b")];
    let (store, mut revision) = fixture.open_with(&changes).await?;
    let mut contents = LedgerContents::after(&changes);
    let rule = "a cordon is stored exactly as it was put, beside the entries";
    check_contents(&store, rule, &contents).await?;
    check_contents(&fixture.open().await, rule, &contents).await?;
    let steps: [(&str, Vec<Change>); 5] = [
        ("a repeated put replaces the cordon", vec![cordon("a", "second")]),
        ("a lifted cordon is gone", vec![lift("a")]),
        (
            "lifting a missing cordon has no effect",
            vec![lift("a"), lift("missing")],
        ),
        (
            "cordons are put, replaced and lifted in one commit with entries",
            vec![
                cordon("c", "c"),
                remove("a"),
                lift("b"),
                cordon("d", "1"),
                cordon("d", "2"),
            ],
        ),
        (
            "the order of put and lift in one commit matters",
            vec![cordon("e", "e"), lift("e"), lift("c"), cordon("c", "again")],
        ),
    ];
    for (rule, changes) in steps {
        let old = revision;
        revision = commit(&store, &old, &changes).await?;
        expect_conflict(&store, &old, &[cordon("late", "late")]).await?;
        expect_conflict(&store, &old, &[lift("d"), put("late")]).await?;
        contents.apply(&changes);
        check_contents(&store, rule, &contents).await?;
        check_contents(&fixture.open().await, rule, &contents).await?;
    }
    Ok(())
}

pub(super) async fn load_returns_none_only_without_a_new_commit<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let mut known = load(&store).await?.0;
    load(&other).await?;
    for number in 0..8 {
        for reader in [&store, &other] {
            if load_if_newer(reader, Some(&known)).await?.is_some() {
                return Err(broken(
                    "load returns none if the ledger is still at the known revision",
                    format!("none at {known}"),
                    "a snapshot",
                ));
            }
        }
        let (writer, changes) = match number % 4 {
            0 => (&store, [put("a")]),
            1 => (&other, [put_attempt("a", number)]),
            2 => (&store, [remove("a")]),
            // A commit without a net change may be one whose reply was lost.
            _ => (&other, [remove("a")]),
        };
        let now = commit(writer, &known, &changes).await?;
        for reader in [&store, &other] {
            match load_if_newer(reader, Some(&known)).await? {
                Some((revision, _)) if revision == now => {}
                actual => {
                    let actual = actual.map_or_else(|| "none".into(), |(revision, _)| revision.to_string());
                    return Err(broken(
                        "load returns the newest snapshot after a commit",
                        format!("a snapshot at {now}, compared with {known}"),
                        actual,
                    ));
                }
            }
        }
        known = now;
    }
    Ok(())
}

pub(super) async fn changes_are_applied_in_order<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let store = fixture.open().await;
    let mut revision = load(&store).await?.0;
    let mut contents = LedgerContents::default();
    let steps: [(&str, Vec<Change>); 7] = [
        (
            "several entries are put in one commit",
            vec![put("a"), put("b"), put("c")],
        ),
        ("a removed entry is gone", vec![remove("a")]),
        (
            "removing a missing entry has no effect",
            vec![remove("a"), remove("missing")],
        ),
        (
            "entries are put, replaced and removed in one commit",
            vec![put("d"), put_attempt("b", 1), remove("c"), put("e")],
        ),
        (
            "an entry that is put and then removed is gone",
            vec![put("f"), remove("f"), remove("b")],
        ),
        (
            "an entry that is removed and then put exists",
            vec![remove("d"), put_attempt("d", 3), put("b")],
        ),
        (
            "the last put of an entry wins",
            vec![put_attempt("g", 1), put_attempt("g", 2)],
        ),
    ];
    for (rule, changes) in steps {
        revision = commit(&store, &revision, &changes).await?;
        contents.apply(&changes);
        check_contents(&store, rule, &contents).await?;
        check_contents(&fixture.open().await, rule, &contents).await?;
    }
    Ok(())
}

pub(super) async fn a_large_ledger_is_stored_or_rejected_as_a_whole<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let store = fixture.open().await;
    let mut revision = load(&store).await?.0;
    let mut contents = LedgerContents::default();
    for from in (0..LARGE_LEDGER).step_by(BATCH) {
        let changes = put_many(from..from + BATCH);
        match store.commit(&revision, &changes).await {
            Ok(next) => {
                revision = next;
                contents.apply(&changes);
            }
            Err(StoreError::Full { .. }) => {
                check_contents(
                    &store,
                    "a commit that is rejected because the ledger is full has no effect",
                    &contents,
                )
                .await?;
                break;
            }
            Err(error) => {
                return Err(broken(
                    "a large commit is accepted, or rejected because the ledger is full",
                    format!(
                        "a revision or Full for {} entries",
                        contents.len() + changes.len()
                    ),
                    error_text(&error),
                ));
            }
        }
    }
    check_contents(&fixture.open().await, "a large ledger is complete", &contents).await?;

    // Releases must be possible even when the ledger is full.
    let held: Vec<_> = contents.entries().step_by(2).cloned().collect();
    let mut releasing = Vec::new();
    for mut entry in held.clone() {
        entry.state = EntryState::Releasing {
            fence: Timestamp::from_millis(1),
        };
        releasing.push(Change::Put(Arc::new(entry)));
    }
    let removing: Vec<_> = held.into_iter().map(|entry| Change::Remove(entry.id)).collect();
    for (rule, changes) in [
        ("releases are accepted although the ledger is full", releasing),
        ("removals are accepted although the ledger is full", removing),
        (
            "the ledger has space after removals",
            vec![Change::Put(Arc::new(entry("again")))],
        ),
    ] {
        revision = commit(&store, &revision, &changes)
            .await
            .map_err(with_rule(rule))?;
        contents.apply(&changes);
        check_contents(&store, rule, &contents).await?;
    }
    Ok(())
}
