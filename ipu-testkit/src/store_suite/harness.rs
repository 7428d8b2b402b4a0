//! What cases work with: the store of one home, opened as often as needed, and calls whose answers are judged.

use std::future::Future;
use std::pin::Pin;

use ipu_ledger::{Change, LedgerStore, Revision, StoreError};
use tokio::task::{JoinError, JoinSet};

use super::contents_diff::LedgerContents;
use super::store_factory::StoreFactory;
use crate::conformance::{Stop, broken};

/// What a case comes to.
pub(super) type CaseResult<T = ()> = Result<T, Stop>;

/// Opens the store of a home.
pub(super) trait StoreOpener<S> {
    fn open<'a>(&'a self, home: &'a StoreFactory) -> Pin<Box<dyn Future<Output = S> + 'a>>;
}

impl<S, F: AsyncFn(&StoreFactory) -> S> StoreOpener<S> for F {
    fn open<'a>(&'a self, home: &'a StoreFactory) -> Pin<Box<dyn Future<Output = S> + 'a>> {
        Box::pin(self(home))
    }
}

/// The ledger of one case.
pub(super) struct Bench<'a, S> {
    home: StoreFactory,
    opener: &'a dyn StoreOpener<S>,
}

impl<'a, S: LedgerStore> Bench<'a, S> {
    pub(super) fn new(opener: &'a dyn StoreOpener<S>) -> Self {
        Self {
            home: StoreFactory::new(),
            opener,
        }
    }

    /// The store as one more process sees it.
    pub(super) async fn open(&self) -> S {
        self.opener.open(&self.home).await
    }

    /// As `count` processes see it.
    pub(super) async fn open_all(&self, count: usize) -> Vec<S> {
        let mut stores = Vec::new();
        for _ in 0..count {
            stores.push(self.open().await);
        }
        stores
    }

    /// The store, holding `changes`, and its revision.
    pub(super) async fn open_with(&self, changes: &[Change]) -> CaseResult<(S, Revision)> {
        let store = self.open().await;
        let empty = load(&store).await?.0;
        let revision = commit(&store, &empty, changes).await?;
        Ok((store, revision))
    }
}

/// Says the rule of a step that is about more than the call that failed.
pub(super) fn under(rule: &str) -> impl Fn(Stop) -> Stop + '_ {
    move |stop| match stop {
        Stop::Broken { expected, seen, .. } => broken(rule, expected, seen),
        unable @ Stop::Unable(_) => unable,
    }
}

/// All of the ledger.
pub(super) async fn load(store: &impl LedgerStore) -> CaseResult<(Revision, LedgerContents)> {
    match load_if_newer(store, None).await? {
        Some(found) => Ok(found),
        None => Err(broken(
            "load without a revision to compare with answers the ledger",
            "a snapshot",
            "none",
        )),
    }
}

/// The ledger if it is not at `known` any more.
pub(super) async fn load_if_newer(
    store: &impl LedgerStore,
    known: Option<&Revision>,
) -> CaseResult<Option<(Revision, LedgerContents)>> {
    match store.load(known).await {
        Ok(None) => Ok(None),
        Ok(Some(snapshot)) => {
            let book = LedgerContents::of(snapshot.entries, snapshot.cordons)?;
            Ok(Some((snapshot.revision, book)))
        }
        Err(error) => Err(broken(
            "load answers what is stored",
            "a snapshot",
            error_text(&error),
        )),
    }
}

/// A commit that has to be taken.
pub(super) async fn commit(
    store: &impl LedgerStore,
    basis: &Revision,
    changes: &[Change],
) -> CaseResult<Revision> {
    let revision = store.commit(basis, changes).await.map_err(|error| {
        broken(
            "a commit on the newest revision is taken",
            format!("a revision newer than {basis}"),
            error_text(&error),
        )
    })?;
    if revision == *basis {
        return Err(broken(
            "a commit makes a new revision",
            format!("another revision than {basis}"),
            revision,
        ));
    }
    Ok(revision)
}

/// A commit that has to be refused because `basis` is old.
pub(super) async fn conflict(store: &impl LedgerStore, basis: &Revision, changes: &[Change]) -> CaseResult {
    match store.commit(basis, changes).await {
        Err(StoreError::Conflict { .. }) => Ok(()),
        Ok(revision) => Err(broken(
            "a commit on a revision that is not the newest is refused",
            format!("Conflict, because the ledger is not at {basis} any more"),
            format!("it was taken, as revision {revision}"),
        )),
        Err(error) => Err(broken(
            "a commit on a revision that is not the newest is refused as a conflict, so that it is tried again",
            "Conflict",
            error_text(&error),
        )),
    }
}

/// The ledger has to hold `expected`. Answers its revision.
pub(super) async fn holds(
    store: &impl LedgerStore,
    rule: &str,
    expected: &LedgerContents,
) -> CaseResult<Revision> {
    let (revision, seen) = load(store).await?;
    expected.check(rule, &seen)?;
    Ok(revision)
}

/// What all tasks came to; the first breach, if there was one.
pub(super) async fn all<T: 'static>(mut tasks: JoinSet<CaseResult<T>>) -> CaseResult<Vec<T>> {
    let mut outcomes = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        outcomes.push(joined(outcome)?);
    }
    Ok(outcomes)
}

/// What a task came to.
pub(super) fn joined<T>(outcome: Result<CaseResult<T>, JoinError>) -> CaseResult<T> {
    outcome.unwrap_or_else(|error| Err(broken("nothing panics", "an answer or an error", error)))
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
