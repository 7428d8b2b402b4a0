//! Orphaned partitions whose owner is alive after all.

use alloc::string::String;
use alloc::vec::Vec;

use crate::ids::ControllerName;
use crate::ledger::LedgerState;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::entry::{Entry, EntryState};
use crate::partition::IpuPlace;
use crate::units::Timestamp;

impl LedgerState {
    /// Returns an orphaned entry in the state for its owner: active only if the owner can use the recorded
    /// IPUs alone. Without an answer of the controller nothing shows that, because the entry may have failed
    /// before it was orphaned.
    pub(super) fn reclaimed(&self, entry: &Entry, snapshot: &ControllersSnapshot, now: Timestamp) -> Entry {
        let listing = |name| Some((name, snapshot.listing(name)?));
        let listing = entry.controller.as_ref().and_then(listing);
        let listed = listing.map(|(controller, listing)| (controller, listing.partitions().get(&entry.id)));
        let error = match listed {
            None => Some(String::from(
                "its controller does not answer, so its IPUs are not known",
            )),
            Some((controller, None)) => Some(lost_partition_error(controller)),
            // Its workers may still use the recorded IPUs.
            Some((controller, Some(partition))) if !is_on_recorded_ipus(&entry.places, &partition.ipus) => {
                Some(relocation_error(controller))
            }
            // It was not usable before its owner was reported dead, and still is not.
            _ if entry.unsettled_reset.is_some_and(|until| until > now) => {
                Some(String::from("a reset without a response may still take effect"))
            }
            _ => self
                .user_of(entry, &entry.location())
                .map(|user| alloc::format!("partition {} may still use its IPUs", user.id)),
        };
        let state = match error {
            Some(error) => EntryState::Failed {
                errors: Vec::from([error]),
            },
            None => EntryState::Active,
        };
        entry.with_state(state, now)
    }
}

/// Returns the error of a partition that its controller no longer lists.
#[must_use]
pub fn lost_partition_error(controller: &ControllerName) -> String {
    alloc::format!("controller {controller} no longer lists the partition")
}

/// Returns the error of a partition that its controller lists on other IPUs than recorded.
pub(super) fn relocation_error(controller: &ControllerName) -> String {
    alloc::format!("controller {controller} has created it again on other IPUs")
}

/// Returns whether a partition is on its recorded IPUs; true if its controller lists no IPUs.
pub(super) fn is_on_recorded_ipus(recorded: &[IpuPlace], listed: &[IpuPlace]) -> bool {
    let all = |one: &[IpuPlace], other: &[IpuPlace]| one.iter().all(|place| other.contains(place));
    listed.is_empty() || (recorded.len() == listed.len() && all(recorded, listed))
}
