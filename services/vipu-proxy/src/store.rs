//! The store of the ledger, whichever was configured.

use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::Change;
use ipu_ledger::{LedgerStore, Revision, Snapshot, StoreError, Turn};

/// Any store: which one is a matter of configuration.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn LedgerStore>);

impl AnyStore {
    /// The store `store`.
    pub fn new(store: impl LedgerStore) -> Self {
        Self(Arc::new(store))
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
        self.0.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        self.0.commit(basis, changes).await
    }

    async fn turn(&self) -> Result<Turn, StoreError> {
        self.0.turn().await
    }
}
