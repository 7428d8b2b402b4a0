//! Requests for partitions that lie on given machines.

use ipu_core::{AgentId, Entry, LedgerState, MachinesError, PlacementConstraint, Request};
use ipu_vipu_client::VipuController;
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Returns the constraint of `request` with which its partition lies on `machines`, of the controller of
    /// the request if it names one. Set it as [`Request::pin`]. The ledger places the partition on the
    /// machines when it starts, on any of their IPUs.
    ///
    /// A repeated request keeps the recorded constraint, also while the controller is unavailable.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Machines`] with the rule that the machines break, or if a controller that may have them
    /// is unavailable. [`LedgerError::OtherMachines`] if the owner requested the partition elsewhere before.
    /// Errors of the store.
    pub async fn pin_to_machines(
        &self,
        request: &Request,
        machines: &[AgentId],
    ) -> Result<PlacementConstraint, LedgerError> {
        let recorded = self.get(&request.id).await?.filter(|entry| {
            let owner = entry.owner.as_ref();
            owner.is_none_or(|owner| *owner == request.owner)
        });
        let named = recorded.as_ref().and_then(|entry| entry.pin.controller.as_ref());
        let controller = request.pin.controller.as_ref().or(named);
        let now = Instant::now();
        let age = self.driver.options.listing_age;
        let mut not_before = now.checked_sub(age).unwrap_or(now);
        if request.spec.allocation.is_some() && recorded.is_none() {
            // The allocation may be newer than the hardware that is known.
            self.driver.listings.refresh_hardware(controller, now);
            not_before = now;
        }
        let snapshot = self.driver.snapshot(not_before).await;
        let resolve =
            |state: &LedgerState| state.pin_to_machines(machines, controller, &request.spec, &snapshot);
        let pin = match (self.driver.commit.read(resolve).await?, &recorded) {
            (Ok(pin), _) => pin,
            (Err(MachinesError::Unavailable { .. }), Some(entry)) if !entry.pin.ipus.is_empty() => {
                return Ok(entry.pin.clone());
            }
            (Err(error), _) => return Err(error.into()),
        };
        match recorded {
            Some(entry) if !is_within(&entry, &pin) => Err(LedgerError::OtherMachines { id: entry.id }),
            _ => Ok(pin),
        }
    }
}

/// Returns whether the recorded request has the constraint `pin`. A partition without an owner, which another
/// ledger recorded, has no constraint of its own: its IPUs decide.
fn is_within(entry: &Entry, pin: &PlacementConstraint) -> bool {
    if entry.owner.is_some() {
        return entry.pin == *pin;
    }
    entry.controller == pin.controller && entry.places.iter().all(|place| pin.ipus.contains(place))
}
