//! Harness for store cases: the store of one factory, opened as often as needed, and calls with checked
//! results.

use std::future::Future;
use std::pin::Pin;

use ipu_ledger::{Change, LedgerStore, Revision, StoreError};
use tokio::task::{JoinError, JoinSet};

use super::contents_diff::LedgerContents;
use super::store_factory::StoreFactory;
use crate::conformance::{CaseError, broken};

/// Result of a case.
pub(super) type CaseResult<T = ()> = Result<T, CaseError>;

/// Opens the store of a factory.
pub(super) trait StoreOpener<S> {
    fn open<'a>(&'a self, factory: &'a StoreFactory) -> Pin<Box<dyn Future<Output = S> + 'a>>;
}

impl<S, F: AsyncFn(&StoreFactory) -> S> StoreOpener<S> for F {
    fn open<'a>(&'a self, factory: &'a StoreFactory) -> Pin<Box<dyn Future<Output = S> + 'a>> {
        Box::pin(self(factory))
    }
}

/// Ledger of one case.
pub(super) struct StoreFixture<'a, S> {
    factory: StoreFactory,
    opener: &'a dyn StoreOpener<S>,
}

impl<'a, S: LedgerStore> StoreFixture<'a, S> {
    pub(super) fn new(opener: &'a dyn StoreOpener<S>) -> Self {
        Self {
            factory: StoreFactory::new(),
            opener,
        }
    }

    /// Opens the store as another process.
    pub(super) async fn open(&self) -> S {
        self.opener.open(&self.factory).await
    }

    /// Opens the store as `count` processes.
    pub(super) async fn open_all(&self, count: usize) -> Vec<S> {
        let mut stores = Vec::new();
        for _ in 0..count {
            stores.push(self.open().await);
        }
        stores
    }

    /// Opens the store with `changes` committed, and returns its revision.
    pub(super) async fn open_with(&self, changes: &[Change]) -> CaseResult<(S, Revision)> {
        let store = self.open().await;
        let empty = load(&store).await?.0;
        let revision = commit(&store, &empty, changes).await?;
        Ok((store, revision))
    }
}

/// Replaces the rule of a failed step by the rule that the step tests.
pub(super) fn with_rule(rule: &str) -> impl Fn(CaseError) -> CaseError + '_ {
    move |stop| match stop {
        CaseError::Broken { expected, actual, .. } => broken(rule, expected, actual),
        unable @ CaseError::Unsupported(_) => unable,
    }
}

/// Loads the whole ledger.
pub(super) async fn load(store: &impl LedgerStore) -> CaseResult<(Revision, LedgerContents)> {
    match load_if_newer(store, None).await? {
        Some(found) => Ok(found),
        None => Err(broken(
            "load without a known revision returns the ledger",
            "a snapshot",
            "none",
        )),
    }
}

/// Loads the ledger if its revision differs from `known`.
pub(super) async fn load_if_newer(
    store: &impl LedgerStore,
    known: Option<&Revision>,
) -> CaseResult<Option<(Revision, LedgerContents)>> {
    match store.load(known).await {
        Ok(None) => Ok(None),
        Ok(Some(snapshot)) => {
            let contents = LedgerContents::of(snapshot.entries, snapshot.cordons)?;
            Ok(Some((snapshot.revision, contents)))
        }
        Err(error) => Err(broken(
            "load returns the stored ledger",
            "a snapshot",
            error_text(&error),
        )),
    }
}

/// Commits changes that the store must accept.
pub(super) async fn commit(
    store: &impl LedgerStore,
    basis: &Revision,
    changes: &[Change],
) -> CaseResult<Revision> {
    let revision = store.commit(basis, changes).await.map_err(|error| {
        broken(
            "a commit on the newest revision is accepted",
            format!("a revision newer than {basis}"),
            error_text(&error),
        )
    })?;
    if revision == *basis {
        return Err(broken(
            "a commit creates a new revision",
            format!("another revision than {basis}"),
            revision,
        ));
    }
    Ok(revision)
}

/// Commits changes on the outdated `basis`, which the store must reject as a conflict.
pub(super) async fn expect_conflict(
    store: &impl LedgerStore,
    basis: &Revision,
    changes: &[Change],
) -> CaseResult {
    match store.commit(basis, changes).await {
        Err(StoreError::Conflict { .. }) => Ok(()),
        Ok(revision) => Err(broken(
            "a commit on an outdated revision is rejected",
            format!("Conflict, because the ledger is no longer at {basis}"),
            format!("accepted as revision {revision}"),
        )),
        Err(error) => Err(broken(
            "a commit on an outdated revision is rejected as a conflict, so that the caller retries",
            "Conflict",
            error_text(&error),
        )),
    }
}

/// Checks that the ledger contains `expected` and returns its revision.
pub(super) async fn check_contents(
    store: &impl LedgerStore,
    rule: &str,
    expected: &LedgerContents,
) -> CaseResult<Revision> {
    let (revision, actual) = load(store).await?;
    expected.check(rule, &actual)?;
    Ok(revision)
}

/// Returns the results of all tasks, or the first failure.
pub(super) async fn join_all<T: 'static>(mut tasks: JoinSet<CaseResult<T>>) -> CaseResult<Vec<T>> {
    let mut outcomes = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        outcomes.push(join_result(outcome)?);
    }
    Ok(outcomes)
}

/// Returns the result of a task.
pub(super) fn join_result<T>(outcome: Result<CaseResult<T>, JoinError>) -> CaseResult<T> {
    outcome.unwrap_or_else(|error| Err(broken("nothing panics", "a result", error)))
}

pub(super) fn error_text(error: &StoreError) -> String {
    format!("the error \"{error}\"")
}

/// Lets the other tasks of this runtime run.
pub(super) async fn several_yields() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}
