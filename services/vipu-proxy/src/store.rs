//! The store of the ledger, whichever was configured.

use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::Change;
use ipu_ledger::{LedgerStore, Revision, Snapshot, StoreError, WriteLock};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Any store: which one is a matter of configuration.
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn LedgerStore>,
    metrics: Option<Arc<Metrics>>,
}

impl AnyStore {
    /// The store `store`.
    pub fn new(store: impl LedgerStore) -> Self {
        Self::shared(Arc::new(store))
    }

    /// The same, of a store that somebody else uses too.
    pub(crate) fn shared(store: Arc<dyn LedgerStore>) -> Self {
        Self { store, metrics: None }
    }

    /// The same, whose writes are timed.
    pub(crate) fn measured(mut self, metrics: &Arc<Metrics>) -> Self {
        self.metrics = Some(Arc::clone(metrics));
        self
    }
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyStore").finish_non_exhaustive()
    }
}

#[async_trait]
impl LedgerStore for AnyStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let began = Instant::now();
        let revision = self.store.commit(basis, changes).await;
        if let Some(metrics) = &self.metrics {
            metrics.write(changes.len(), began.elapsed());
        }
        revision
    }

    async fn turn(&self) -> Result<WriteLock, StoreError> {
        self.store.turn().await
    }
}
