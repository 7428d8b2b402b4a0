//! Cases about the write lock. A store without a lock returns immediately and passes them all.

use std::sync::Arc;

use ipu_ledger::{LedgerStore, WriteLock};
use tokio::sync::oneshot;

use super::contents_diff::LedgerContents;
use super::crashes::poll_at_most;
use super::fixtures::put;
use super::harness::{
    CaseResult, StoreFixture, check_contents, commit, error_text, join_result, load, several_yields,
};
use crate::conformance::broken;

/// Maximum number of polls after which a wait for the lock is cancelled, from zero.
const MAX_CANCELLED_POLLS: u32 = 3;

/// Acquires the write lock, without a time limit.
pub(super) async fn acquire(store: &impl LedgerStore) -> CaseResult<WriteLock> {
    store.lock().await.map_err(|error| {
        broken(
            "every waiter acquires the write lock",
            "the write lock",
            error_text(&error),
        )
    })
}

pub(super) async fn the_write_lock_is_released_on_drop<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (store, other) = (fixture.open().await, Arc::new(fixture.open().await));
    for _ in 0..3 {
        let held = acquire(&store).await?;
        let waiter = tokio::spawn({
            let other = Arc::clone(&other);
            async move { acquire(&*other).await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(held);
        join_result(waiter.await)?;
    }
    drop(acquire(&store).await?);
    Ok(())
}

pub(super) async fn the_write_lock_is_released_when_its_task_ends<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let holder = fixture.open().await;
    let (ready, is_ready) = oneshot::channel();
    let holding = tokio::spawn(async move {
        let (held, broken) = match acquire(&holder).await {
            Ok(held) => (Some(held), None),
            Err(error) => (None, Some(error)),
        };
        // A closed channel means that the case is over.
        let _ = ready.send(broken);
        std::future::pending::<()>().await;
        drop(held);
    });
    if let Ok(Some(error)) = is_ready.await {
        return Err(error);
    }
    holding.abort();
    // The task was aborted on purpose.
    let _ = holding.await;
    let other = fixture.open().await;
    drop(acquire(&other).await?);
    Ok(())
}

pub(super) async fn a_cancelled_wait_leaves_no_write_lock<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (store, impatient, other) = (fixture.open().await, fixture.open().await, fixture.open().await);
    for polls in 0..MAX_CANCELLED_POLLS {
        let held = acquire(&store).await?;
        // Waits until the lock is free, unless the store needs none: then it returns at once.
        let wait = poll_at_most(impatient.lock(), polls);
        drop(tokio::select! {
            biased;
            lock = wait => lock,
            () = several_yields() => None,
        });
        drop(held);
        drop(acquire(&other).await?);
    }
    Ok(())
}

pub(super) async fn a_commit_needs_no_write_lock<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let held = acquire(&store).await?;
    // A process without the lock must succeed: safety rests on compare-and-swap alone.
    let empty = load(&other).await?.0;
    let first = commit(&other, &empty, &[put("a")]).await?;
    commit(&store, &first, &[put("b")]).await?;
    drop(held);
    let contents = LedgerContents::after(&[put("a"), put("b")]);
    check_contents(
        &other,
        "commits with and without the write lock are accepted",
        &contents,
    )
    .await?;
    Ok(())
}
