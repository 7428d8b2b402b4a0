//! What there is to say of an entry beside what is recorded: why it is not ready, and where it is.

use ipu_core::{Entry, EntryState, IpuPlace, Operation, Reason};
use ipu_vipu_client::VipuController;

use crate::ledger::Ledger;
use crate::listings::unavailable;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Why the partition of `entry` is not ready, as far as that is known without asking anybody. None if it is ready, and
    /// while it waits in the line: what is told there is up to [`line`](Self::line).
    #[must_use]
    pub fn reason(&self, entry: &Entry) -> Option<Reason> {
        let (code, what) = match &entry.state {
            EntryState::Active | EntryState::Waiting { .. } => return None,
            EntryState::Failed { errors } => {
                return Some(Reason::new("PartitionFailed", errors.join("; ")));
            }
            EntryState::Orphaned => {
                return Some(Reason::new(
                    "OwnerGone",
                    "its owner is gone, and it is released soon",
                ));
            }
            EntryState::Quarantined => {
                return Some(Reason::new(
                    "Quarantined",
                    "it was found and nobody is known to own it",
                ));
            }
            EntryState::Intent {
                operation: Operation::Reset,
                ..
            } => ("Resetting", "reset"),
            EntryState::Intent { .. } => ("Creating", "made"),
            EntryState::Releasing { .. } => ("Releasing", "removed"),
            _ => return None,
        };
        let Some(name) = &entry.controller else {
            return Some(Reason::new(code, format!("it is being {what}")));
        };
        let Some(member) = self.pool().member(name) else {
            let message = format!("controller {name} is not configured any more");
            return Some(Reason::new("UnknownController", message));
        };
        if member.health.failures_in_a_row > 0 {
            return Some(unavailable(name, member.health.last_error.as_ref()));
        }
        let message = format!("controller {name} has not said yet that it is {what}");
        Some(Reason::new(code, message))
    }

    /// The IPUs of the partition of `entry`: those that are recorded, or those that its controller listed last. Empty if it has
    /// not shown them yet.
    #[must_use]
    pub fn known_places(&self, entry: &Entry) -> Vec<IpuPlace> {
        if !entry.places.is_empty() || !entry.state.holds() {
            return entry.places.clone();
        }
        let Some(name) = &entry.controller else {
            return Vec::new();
        };
        let listing = self.driver.views.newest(name);
        let shown = listing.and_then(|listing| listing.partitions().get(&entry.id).cloned());
        shown
            .filter(|partition| entry.matches(&partition.spec))
            .map(|partition| partition.ipus.clone())
            .unwrap_or_default()
    }

    /// The IPUs of the partition of `entry`, of which its controller is asked if they are not known. Empty if it does not
    /// tell within [`list_patience`](crate::LedgerOptions::list_timeout).
    pub async fn places(&self, entry: &Entry) -> Vec<IpuPlace> {
        let known = self.known_places(entry);
        let Some(name) = entry.controller.as_ref().filter(|_| known.is_empty()) else {
            return known;
        };
        if matches!(entry.state, EntryState::Active) {
            self.driver.views.look_at(name, &self.driver.options).await;
        }
        self.known_places(entry)
    }
}
