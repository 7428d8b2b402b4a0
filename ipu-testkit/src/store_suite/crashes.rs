//! Cases about processes that crash between any two steps of a write.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use ipu_core::Change;
use ipu_ledger::{LedgerStore, Revision, StoreError};

use super::contents_diff::LedgerContents;
use super::harness::{CaseResult, StoreFixture, check_contents, commit, error_text, load, several_yields};

use super::fixtures::{cordon, put, put_attempt, remove};
use crate::conformance::broken;

/// Maximum number of polls before a crash: later steps of a longer commit are alike.
const MAX_POLLS: u32 = 64;

/// Returns the output of `work`, or none if it is not ready after `polls` polls: it is dropped then, as in a
/// crash.
pub(super) async fn poll_at_most<T>(work: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut work = pin!(work);
    let mut poll_at_most = 0;
    poll_fn(|context| {
        if poll_at_most == polls {
            return Poll::Ready(None);
        }
        poll_at_most += 1;
        match work.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            // Do not wait for a wake-up that no poll would follow.
            Poll::Pending if poll_at_most == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(super) async fn an_interrupted_commit_is_atomic<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let mut contents = LedgerContents::default();
    for polls in 0..=MAX_POLLS {
        let store = fixture.open().await;
        let rule = "an interrupted commit does not apply to a newer ledger";
        let mut basis = check_contents(&store, rule, &contents).await?;
        let ready = [put("replaced"), put("removed"), remove("new")];
        basis = commit(&store, &basis, &ready).await?;
        contents.apply(&ready);

        let mut changes = vec![put_attempt("replaced", polls + 1), remove("removed"), put("new")];
        changes.push(cordon("new", &polls.to_string()));
        changes.extend((0..8).map(|number| put_attempt(&format!("bulk{number}"), polls)));
        let mut after = contents.clone();
        after.apply(&changes);
        let answer = poll_at_most(store.commit(&basis, &changes), polls).await;
        drop(store);

        let store = fixture.open().await;
        let (found, actual) = load(&store).await?;
        match &answer {
            Some(Ok(_)) => after.check("a completed commit survives a crash", &actual)?,
            Some(Err(error)) => {
                return Err(broken(
                    "a commit on the newest revision is accepted",
                    "a revision",
                    error_text(error),
                ));
            }
            None => check_atomic(&contents, &after, &actual, polls)?,
        }
        // The interrupted commit may still be in flight. It must not harm the next writer.
        let marker = [put_attempt("marker", polls)];
        contents = mark(&store, found, &marker, actual, &after).await?;
        // Let background work run before the ledger is checked again.
        several_yields().await;
        if answer.is_some() {
            break;
        }
    }
    check_contents(
        &fixture.open().await,
        "an interrupted commit does not apply to a newer ledger",
        &contents,
    )
    .await?;
    Ok(())
}

fn check_atomic(
    before: &LedgerContents,
    after: &LedgerContents,
    actual: &LedgerContents,
    polls: u32,
) -> CaseResult {
    let (Some(of_none), Some(of_all)) = (before.difference(actual), after.difference(actual)) else {
        return Ok(());
    };
    Err(broken(
        &format!("a commit that was dropped after {polls} polls is applied as a whole or not at all"),
        format!("{}, or else {}", of_none.0, of_all.0),
        format!("{}, and {}", of_none.1, of_all.1),
    ))
}

/// Commits `marker` on the current contents and returns the expected contents.
async fn mark(
    store: &impl LedgerStore,
    mut basis: Revision,
    marker: &[Change],
    mut actual: LedgerContents,
    after: &LedgerContents,
) -> CaseResult<LedgerContents> {
    loop {
        match store.commit(&basis, marker).await {
            Ok(_) => {
                actual.apply(marker);
                return Ok(actual);
            }
            Err(StoreError::Conflict { .. }) => {
                let (newest, found) = load(store).await?;
                if newest == basis {
                    return Err(broken(
                        "a commit on the newest revision is accepted",
                        "a revision",
                        format!("Conflict at {basis}, which is still the newest"),
                    ));
                }
                // Only the interrupted commit can have come in between.
                after.check("an interrupted commit applies as a whole", &found)?;
                (basis, actual) = (newest, found);
            }
            Err(error) => {
                return Err(broken(
                    "a store that is opened after a crash accepts commits",
                    "a revision or Conflict",
                    error_text(&error),
                ));
            }
        }
    }
}
