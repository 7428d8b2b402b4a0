//! Cases about the turn to write. A store that needs no turns answers at once and passes them all.

use std::sync::Arc;

use ipu_ledger::{LedgerStore, WriteLock};
use tokio::sync::oneshot;

use super::contents_diff::LedgerContents;
use super::crashes::polled;
use super::fixtures::put;
use super::harness::{Bench, CaseResult, commit, error_text, holds, joined, load, several_yields};
use crate::conformance::broken;

/// After how many polls a wait for a turn is given up, from not at all.
const GIVEN_UP_AFTER: u32 = 3;

/// A turn, waited for as long as it takes.
pub(super) async fn turn(store: &impl LedgerStore) -> CaseResult<WriteLock> {
    store
        .turn()
        .await
        .map_err(|error| broken("whoever waits for a turn gets it", "a turn", error_text(&error)))
}

pub(super) async fn a_turn_ends_when_it_is_dropped<S: LedgerStore>(bench: &Bench<'_, S>) -> CaseResult {
    let (store, other) = (bench.open().await, Arc::new(bench.open().await));
    for _ in 0..3 {
        let held = turn(&store).await?;
        let waiter = tokio::spawn({
            let other = Arc::clone(&other);
            async move { turn(&*other).await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(held);
        joined(waiter.await)?;
    }
    drop(turn(&store).await?);
    Ok(())
}

pub(super) async fn a_turn_ends_with_the_task_that_has_it<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let holder = bench.open().await;
    let (told, hears) = oneshot::channel();
    let holding = tokio::spawn(async move {
        let (held, broken) = match turn(&holder).await {
            Ok(held) => (Some(held), None),
            Err(stop) => (None, Some(stop)),
        };
        // If nobody hears, the case is over.
        let _ = told.send(broken);
        std::future::pending::<()>().await;
        drop(held);
    });
    if let Ok(Some(stop)) = hears.await {
        return Err(stop);
    }
    holding.abort();
    // It was aborted, which is the point.
    let _ = holding.await;
    let other = bench.open().await;
    drop(turn(&other).await?);
    Ok(())
}

pub(super) async fn whoever_gives_up_waiting_for_a_turn_leaves_none_behind<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let (store, impatient, other) = (bench.open().await, bench.open().await, bench.open().await);
    for polls in 0..GIVEN_UP_AFTER {
        let held = turn(&store).await?;
        // It waits until the turn is free, unless the store needs none: then it is over at once.
        let wait = polled(impatient.turn(), polls);
        drop(tokio::select! {
            biased;
            given = wait => given,
            () = several_yields() => None,
        });
        drop(held);
        drop(turn(&other).await?);
    }
    Ok(())
}

pub(super) async fn a_commit_needs_no_turn<S: LedgerStore>(bench: &Bench<'_, S>) -> CaseResult {
    let (store, other) = (bench.open().await, bench.open().await);
    let held = turn(&store).await?;
    // A process that does not take turns must get through: safety rests on the compare-and-swap, and turns on nothing.
    let empty = load(&other).await?.0;
    let first = commit(&other, &empty, &[put("a")]).await?;
    commit(&store, &first, &[put("b")]).await?;
    drop(held);
    let book = LedgerContents::after(&[put("a"), put("b")]);
    holds(&other, "commits with and without a turn are taken", &book).await?;
    Ok(())
}
