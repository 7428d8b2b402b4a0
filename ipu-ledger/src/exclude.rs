//! Exclusions (cordons): hardware that gets nothing new until whoever said so lifts it.

use std::sync::Arc;

use ipu_core::{Excluded, Exclusion, ExclusionId, ExclusionOwner};
use ipu_vipu_client::VipuController;
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Has the hardware of `exclusion` get nothing new from now on, in every process that shares the store. Who holds
    /// something there keeps it, and is answered. To say the same again is safe.
    ///
    /// While IPUs of a controller are excluded, the ledger chooses the IPUs of what is made there, because the controller
    /// does not know of it. Of a controller that does not tell its hardware only the whole can be excluded.
    ///
    /// # Errors
    ///
    /// [`ipu_core::Illegal::CannotExclude`], [`ipu_core::Illegal::OtherExclusion`] if the id is taken, and errors of the store.
    pub async fn exclude(&self, exclusion: Exclusion) -> Result<Excluded, LedgerError> {
        let world = self.driver.world(Instant::now()).await;
        let driver = Arc::clone(&self.driver);
        self.driver
            .apply(move |state| state.exclude(exclusion.clone(), &world, driver.options.now()))
            .await
    }

    /// Lifts the exclusion `id` of `owner`. Answers what it was; none if there is none, so that to repeat it is safe.
    ///
    /// # Errors
    ///
    /// [`ipu_core::Illegal::OtherExclusion`] if it is somebody else's, and errors of the store.
    pub async fn lift(
        &self,
        id: &ExclusionId,
        owner: &ExclusionOwner,
    ) -> Result<Option<Exclusion>, LedgerError> {
        let (id, owner) = (id.clone(), owner.clone());
        self.driver.apply(move |state| state.lift(&id, &owner)).await
    }

    /// All exclusions, by id.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn exclusions(&self) -> Result<Vec<Exclusion>, LedgerError> {
        let all = self
            .driver
            .commit
            .read(|state| state.exclusions().cloned().collect())
            .await?;
        Ok(all)
    }
}
