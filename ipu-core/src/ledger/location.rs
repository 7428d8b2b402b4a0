//! IPUs of a partition, and the check that no other owner uses them.

use alloc::vec::Vec;

use crate::ids::ClusterId;
use crate::ledger::LedgerState;
use crate::ledger::alias::AliasGroups;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::entry::{Entry, EntryState};
use crate::partition::IpuPlace;

/// The IPUs of a partition as its controller lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The cluster that the numbers belong to; none if the controller has only one.
    pub cluster: Option<ClusterId>,
    /// The IPUs; empty if they are not known.
    pub ipus: Vec<IpuPlace>,
}

impl EntryState {
    /// Returns whether processes of the owner may be using the partition, whatever its controller lists.
    pub(crate) const fn may_be_in_use(&self) -> bool {
        match self {
            Self::Active | Self::Failed { .. } | Self::Orphaned | Self::Quarantined => true,
            Self::Waiting { .. } | Self::Intent { .. } | Self::Releasing { .. } => false,
        }
    }
}

impl Entry {
    /// Returns the recorded IPUs.
    pub(crate) fn location(&self) -> Location {
        Location {
            cluster: self.cluster.clone(),
            ipus: self.places.clone(),
        }
    }

    /// Records these IPUs.
    pub(crate) fn set_location(&mut self, location: Location) {
        self.cluster = location.cluster;
        self.places = location.ipus;
    }
}

impl LedgerState {
    /// Returns another entry whose owner may be using some IPUs of `location` at the controller of `entry`,
    /// under any of its recorded names.
    pub(crate) fn user_of(&self, entry: &Entry, location: &Location) -> Option<&Entry> {
        if location.ipus.is_empty() {
            return None;
        }
        let names = AliasGroups::new(self, &ControllersSnapshot::default());
        let controller = entry.controller.as_ref().map(|name| names.leader(name));
        self.entries().find(|other| {
            let same_cluster = match (&other.cluster, &location.cluster) {
                (Some(one), Some(other)) => one == other,
                _ => true,
            };
            other.id != entry.id
                && other.state.may_be_in_use()
                && other.controller.as_ref().map(|name| names.leader(name)) == controller
                && same_cluster
                && other.places.iter().any(|place| location.ipus.contains(place))
        })
    }
}
