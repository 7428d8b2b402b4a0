//! Cases about a process that ends between any two steps of a write.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use ipu_core::Change;
use ipu_ledger::{LedgerStore, Revision, StoreError};

use super::contents_diff::LedgerContents;
use super::harness::{Bench, CaseResult, commit, error_text, holds, load, several_yields};

use super::fixtures::{cordon, put, put_attempt, remove};
use crate::conformance::broken;

/// How far into a commit crashes are tried: a commit that is polled more often than that has many steps alike.
const MAX_POLLS: u32 = 64;

/// The answer of `work`, or none if it is not there after `polls` polls: then it is dropped, as in a crash.
pub(super) async fn polled<T>(work: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut work = pin!(work);
    let mut polled = 0;
    poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match work.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            // Nothing more is to be waited for when the next poll is not made any more.
            Poll::Pending if polled == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(super) async fn a_commit_that_is_given_up_is_whole_or_absent<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let mut book = LedgerContents::default();
    for polls in 0..=MAX_POLLS {
        let store = bench.open().await;
        let rule = "a commit that was given up does not land on a newer ledger";
        let mut basis = holds(&store, rule, &book).await?;
        let ready = [put("replaced"), put("removed"), remove("new")];
        basis = commit(&store, &basis, &ready).await?;
        book.apply(&ready);

        let mut changes = vec![put_attempt("replaced", polls + 1), remove("removed"), put("new")];
        changes.push(cordon("new", &polls.to_string()));
        changes.extend((0..8).map(|number| put_attempt(&format!("bulk{number}"), polls)));
        let mut after = book.clone();
        after.apply(&changes);
        let answer = polled(store.commit(&basis, &changes), polls).await;
        drop(store);

        let store = bench.open().await;
        let (found, seen) = load(&store).await?;
        match &answer {
            Some(Ok(_)) => after.check("what is committed survives a crash", &seen)?,
            Some(Err(error)) => {
                return Err(broken(
                    "a commit on the newest revision is taken",
                    "a revision",
                    error_text(error),
                ));
            }
            None => whole_or_absent(&book, &after, &seen, polls)?,
        }
        // Whatever was given up may still be under way. The next writer is not harmed by it.
        let marker = [put_attempt("marker", polls)];
        book = mark(&store, found, &marker, seen, &after).await?;
        // What goes on in the background gets to run before the ledger is looked at again.
        several_yields().await;
        if answer.is_some() {
            break;
        }
    }
    holds(
        &bench.open().await,
        "a commit that was given up does not land on a newer ledger",
        &book,
    )
    .await?;
    Ok(())
}

fn whole_or_absent(
    before: &LedgerContents,
    after: &LedgerContents,
    seen: &LedgerContents,
    polls: u32,
) -> CaseResult {
    let (Some(of_none), Some(of_all)) = (before.difference(seen), after.difference(seen)) else {
        return Ok(());
    };
    Err(broken(
        &format!("a commit that was dropped after {polls} polls is there as a whole or not at all"),
        format!("{}, or else {}", of_none.0, of_all.0),
        format!("{}, and {}", of_none.1, of_all.1),
    ))
}

/// Commits `marker` on what is there, and answers what the ledger has to hold from then on.
async fn mark(
    store: &impl LedgerStore,
    mut basis: Revision,
    marker: &[Change],
    mut seen: LedgerContents,
    after: &LedgerContents,
) -> CaseResult<LedgerContents> {
    loop {
        match store.commit(&basis, marker).await {
            Ok(_) => {
                seen.apply(marker);
                return Ok(seen);
            }
            Err(StoreError::Conflict { .. }) => {
                let (newest, found) = load(store).await?;
                if newest == basis {
                    return Err(broken(
                        "a commit on the newest revision is taken",
                        "a revision",
                        format!("Conflict at {basis}, which is still the newest"),
                    ));
                }
                // Only the commit that was given up can have come in between.
                after.check("a commit that was given up lands as a whole", &found)?;
                (basis, seen) = (newest, found);
            }
            Err(error) => {
                return Err(broken(
                    "a store that is opened after a crash takes commits",
                    "a revision or Conflict",
                    error_text(&error),
                ));
            }
        }
    }
}
