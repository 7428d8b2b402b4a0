//! The configured store of the ledger.

use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::Change;
use ipu_ledger::{LedgerStore, Revision, Snapshot, StoreError, WriteLock};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Ledger store of any backend.
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn LedgerStore>,
    metrics: Option<Arc<Metrics>>,
}

impl AnyStore {
    /// Wraps `store`.
    pub fn new(store: impl LedgerStore) -> Self {
        Self::shared(Arc::new(store))
    }

    /// Wraps a shared store.
    pub(crate) fn shared(store: Arc<dyn LedgerStore>) -> Self {
        Self { store, metrics: None }
    }

    /// Records the duration of writes in `metrics`.
    pub(crate) fn with_metrics(mut self, metrics: &Arc<Metrics>) -> Self {
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
        let started = Instant::now();
        let revision = self.store.commit(basis, changes).await;
        if let Some(metrics) = &self.metrics {
            metrics.record_write(changes.len(), started.elapsed());
        }
        revision
    }

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        self.store.lock().await
    }
}
