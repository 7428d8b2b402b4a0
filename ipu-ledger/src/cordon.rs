//! Cordons (cordons): hardware that gets nothing new until whoever said so lifts it.

use std::sync::Arc;

use ipu_core::{Cordon, CordonEffect, CordonId, CordonOwner};
use ipu_vipu_client::VipuController;
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Has the hardware of `cordon` get nothing new from now on, in every process that shares the store. Who holds
    /// something there keeps it, and is answered. To say the same again is safe.
    ///
    /// While IPUs of a controller are cordoned, the ledger chooses the IPUs of what is made there, because the controller
    /// does not know of it. Of a controller that does not tell its hardware only the whole can be cordoned.
    ///
    /// # Errors
    ///
    /// [`ipu_core::TransitionError::CannotCordon`], [`ipu_core::TransitionError::OtherCordon`] if the id is taken, and errors of the store.
    pub async fn cordon(&self, cordon: Cordon) -> Result<CordonEffect, LedgerError> {
        let world = self.driver.world(Instant::now()).await;
        let driver = Arc::clone(&self.driver);
        self.driver
            .apply(move |state| state.cordon(cordon.clone(), &world, driver.options.now()))
            .await
    }

    /// Lifts the cordon `id` of `owner`. Answers what it was; none if there is none, so that to repeat it is safe.
    ///
    /// # Errors
    ///
    /// [`ipu_core::TransitionError::OtherCordon`] if it is somebody else's, and errors of the store.
    pub async fn uncordon(&self, id: &CordonId, owner: &CordonOwner) -> Result<Option<Cordon>, LedgerError> {
        let (id, owner) = (id.clone(), owner.clone());
        self.driver.apply(move |state| state.uncordon(&id, &owner)).await
    }

    /// All cordons, by id.
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
