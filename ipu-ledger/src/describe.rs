//! Derived facts about an entry: why its partition is not ready, and where it is placed.

use ipu_core::{Entry, EntryState, IpuPlace, Operation, Reason};
use ipu_vipu_client::VipuController;

use crate::ledger::Ledger;
use crate::listings::unavailable;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Returns the reason why the partition of `entry` is not ready, without calling a controller. `None` if
    /// the partition is ready or the request is queued; [`queue`](Self::queue) explains queued requests.
    #[must_use]
    pub fn reason(&self, entry: &Entry) -> Option<Reason> {
        if let Some(reason) = entry.removal_reason() {
            return Some(reason);
        }
        let (code, participle) = match &entry.state {
            EntryState::Active | EntryState::Waiting { .. } => return None,
            EntryState::Failed { errors } => {
                return Some(Reason::new("PartitionFailed", errors.join("; ")));
            }
            EntryState::Orphaned => {
                return Some(Reason::new(
                    "OwnerGone",
                    "the owner no longer exists, and the partition will be released",
                ));
            }
            EntryState::Quarantined => {
                return Some(Reason::new(
                    "Quarantined",
                    "the partition was found and has no known owner",
                ));
            }
            EntryState::Intent {
                operation: Operation::Reset,
                ..
            } => ("Resetting", "reset"),
            EntryState::Intent { .. } => ("Creating", "created"),
            EntryState::Releasing { .. } => ("Releasing", "removed"),
        };
        let Some(name) = &entry.controller else {
            return Some(Reason::new(code, format!("the partition is being {participle}")));
        };
        let Some(member) = self.pool().member(name) else {
            let message = format!("controller {name} is no longer configured");
            return Some(Reason::new("UnknownController", message));
        };
        if member.health.consecutive_failures > 0 {
            return Some(unavailable(name, member.health.last_error.as_ref()));
        }
        let message = format!("controller {name} has not confirmed that the partition is {participle}");
        Some(Reason::new(code, message))
    }

    /// Returns the IPUs of the partition of `entry`: the recorded ones, or those of the controller's latest
    /// listing. Empty if neither contains them.
    #[must_use]
    pub fn cached_places(&self, entry: &Entry) -> Vec<IpuPlace> {
        if !entry.places.is_empty() || !entry.state.holds() {
            return entry.places.clone();
        }
        let Some(name) = &entry.controller else {
            return Vec::new();
        };
        let listing = self.driver.listings.newest(name);
        let listed = listing.and_then(|listing| listing.partitions().get(&entry.id).cloned());
        listed
            .filter(|partition| entry.matches(&partition.spec))
            .map(|partition| partition.ipus.clone())
            .unwrap_or_default()
    }

    /// Returns the IPUs of the partition of `entry`, and queries its controller if they are unknown. Empty if
    /// the controller does not list them within [`list_timeout`](crate::LedgerOptions::list_timeout).
    pub async fn places(&self, entry: &Entry) -> Vec<IpuPlace> {
        let places = self.cached_places(entry);
        let Some(name) = entry.controller.as_ref().filter(|_| places.is_empty()) else {
            return places;
        };
        if matches!(entry.state, EntryState::Active) {
            self.driver.listings.refresh(name, &self.driver.options).await;
        }
        self.cached_places(entry)
    }
}
