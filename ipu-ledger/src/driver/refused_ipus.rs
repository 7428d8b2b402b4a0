//! Create calls that name IPUs, at controllers that refuse them.

use ipu_core::{Cordon, Entry, EntryState, IpuPlace, LedgerState, Operation, PlacedBy, PlacementMode};
use ipu_vipu_client::{VipuController, VipuError};
use tokio::time::Instant;

use super::{ControllerHandle, Driver};
use crate::error::LedgerError;
use crate::store::LedgerStore;

/// Returns the IPUs that the create call of `entry` names: those that the ledger or the client chose, and
/// those of a partition that is created again.
pub(super) fn named_ipus(entry: &Entry) -> &[IpuPlace] {
    let is_reset = matches!(
        entry.state,
        EntryState::Intent {
            operation: Operation::Reset,
            ..
        }
    );
    if entry.placed == PlacedBy::Ledger || is_reset {
        &entry.places
    } else {
        &[]
    }
}

/// Returns whether the create call of `entry` names IPUs that the client did not request.
pub(super) fn are_ipus_chosen(entry: &Entry) -> bool {
    !named_ipus(entry).is_empty() && entry.pin.ipus.is_empty()
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Returns whether the placement of `entry` was decided before its controller refused named IPUs, and
    /// would name none now.
    pub(super) async fn is_outdated(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<bool, LedgerError> {
        Ok(are_ipus_chosen(entry)
            && self.listings.is_delegated(&at.name)
            && self.cordon_at(at).await?.is_none())
    }

    /// Handles a refusal of the IPUs that the ledger named. With the fallback, and in delegated mode, the
    /// controller chooses from now on. Returns the message of the refusal; none if the next call names no
    /// IPUs, so that the request need not wait.
    pub(super) async fn handle_refused_ipus(
        &self,
        at: &ControllerHandle<C>,
        error: &VipuError,
    ) -> Result<Option<String>, LedgerError> {
        let placement = self.options.placement_of(&at.name);
        if !self.options.placement_fallback && placement != PlacementMode::Delegated {
            return Ok(Some(format!(
                "it does not accept the IPUs that {placement} chose ({error}); with delegated placement the \
                 controller would choose"
            )));
        }
        if self.listings.delegate_placement(&at.name) {
            let controller = &at.name;
            tracing::warn!(%controller, %error, "the controller refuses named IPUs; it chooses them from now on");
        }
        let cordon = self.cordon_at(at).await?;
        Ok(cordon.map(|cordon| {
            format!(
                "it does not accept named IPUs ({error}), and cordon {cordon} needs them; lift the cordon"
            )
        }))
    }

    /// Returns a cordon for which the ledger names IPUs at a controller that chooses; none if it names none.
    async fn cordon_at(&self, at: &ControllerHandle<C>) -> Result<Option<Cordon>, LedgerError> {
        let now = Instant::now();
        let not_before = now.checked_sub(self.options.listing_age).unwrap_or(now);
        let snapshot = self.snapshot(not_before).await;
        let name = at.name.clone();
        let cordon_at = move |state: &LedgerState| state.cordon_at(&snapshot, &name).cloned();
        Ok(self.commit.read(cordon_at).await?)
    }
}
