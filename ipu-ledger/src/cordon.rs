//! Cordons: hardware that gets no new partitions until the owner of the cordon lifts it.

use std::sync::Arc;

use ipu_core::{Cordon, CordonEffect, CordonId, CordonOwner};
use ipu_vipu_client::VipuController;
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Excludes the hardware of `cordon` from new placements, in every process that shares the store. Owners
    /// of partitions there keep them and are listed in the result. The call is idempotent.
    ///
    /// While IPUs of a controller are cordoned, the ledger selects the IPUs of new partitions there, because
    /// the controller does not know the cordon. A controller that does not report its hardware can only be
    /// cordoned as a whole.
    ///
    /// # Errors
    ///
    /// [`ipu_core::TransitionError::CannotCordon`], [`ipu_core::TransitionError::OtherCordon`] if another
    /// owner uses the id, and errors of the store.
    pub async fn cordon(&self, cordon: Cordon) -> Result<CordonEffect, LedgerError> {
        let snapshot = self.driver.snapshot(Instant::now()).await;
        let driver = Arc::clone(&self.driver);
        self.driver
            .apply(move |state| state.cordon(cordon.clone(), &snapshot, driver.options.now()))
            .await
    }

    /// Lifts the cordon `id` of `owner` and returns it. Returns `None` if there is no such cordon, so the
    /// call is idempotent.
    ///
    /// # Errors
    ///
    /// [`ipu_core::TransitionError::OtherCordon`] if the cordon has another owner, and errors of the store.
    pub async fn uncordon(&self, id: &CordonId, owner: &CordonOwner) -> Result<Option<Cordon>, LedgerError> {
        let (id, owner) = (id.clone(), owner.clone());
        self.driver.apply(move |state| state.uncordon(&id, &owner)).await
    }

    /// Returns all cordons, by id.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn cordons(&self) -> Result<Vec<Cordon>, LedgerError> {
        let all = self
            .driver
            .commit
            .read(|state| state.cordons().cloned().collect())
            .await?;
        Ok(all)
    }
}
