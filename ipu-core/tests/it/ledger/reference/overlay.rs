//! The capacity of each controller during an evaluation of the queue.

use std::collections::BTreeMap;

use ipu_core::{
    Capacity, ControllerName, ControllerRejection, ControllersSnapshot, Entry, EntryState, LedgerState,
    Namespace, PartitionId, QueuePolicy, Reason, ServiceState, Timestamp,
};

pub(super) const CONTROLLER_REJECTED: &str = "ControllerRefused";

/// The capacity of one controller during an evaluation of the queue.
pub(super) struct Overlay<'a> {
    pub(super) name: ControllerName,
    /// Remaining capacity after the holders and the starting entries.
    pub(super) now: Box<dyn Capacity>,
    /// Queued entries that start.
    pub(super) starting: Vec<PartitionId>,
    /// Holders with a ledger entry.
    holders: Vec<&'a Entry>,
    fingerprint: u64,
    /// Owners that may use IPUs unknown to the controller and the ledger. Unless empty, no partition is
    /// placed here.
    unlisted_owners: Vec<&'a Entry>,
    /// Whether the ledger keeps IPUs that the controller may count as free.
    pub(super) keeps_ipus: bool,
    /// Queued entries with a rejection, so far.
    pub(super) rejected_entries: Vec<Entry>,
}

/// The reason code of a controller that takes no partitions because it no longer lists one in use.
pub(super) const LOST_PARTITION: &str = "LostPartition";

impl Overlay<'_> {
    /// Returns the reason if the controller takes no new partitions.
    pub(super) fn closed_reason(&self) -> Option<Reason> {
        let first = self.unlisted_owners.first()?;
        let owner = first.owner.as_ref().map_or_else(
            || String::from("an unknown owner"),
            std::string::ToString::to_string,
        );
        let more = match self.unlisted_owners.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        Some(Reason::new(
            LOST_PARTITION,
            format!(
                "controller {} does not list partition {} of {owner}{more}, which may still use its IPUs; \
                 release or reset it",
                self.name, first.id
            ),
        ))
    }

    /// Returns the partitions that must end before the controller takes new ones.
    pub(super) fn closed_by(&self) -> Vec<PartitionId> {
        self.unlisted_owners
            .iter()
            .map(|entry| entry.id.clone())
            .collect()
    }

    /// Returns the reason to skip `entry`: it, or an earlier entry of at most its size, was rejected, and
    /// nothing has changed since.
    pub(super) fn rejection_reason(
        &self,
        entry: &Entry,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Option<Reason> {
        let rejection = self.rejection(entry, policy, now)?;
        Some(Reason::new(
            CONTROLLER_REJECTED,
            format!("controller {} refused it: {}", self.name, rejection.message),
        ))
    }

    /// Returns the current rejection that applies to `entry`.
    fn rejection<'e>(
        &'e self,
        entry: &'e Entry,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Option<&'e ControllerRejection> {
        let current_rejection = |entry: &'e Entry| match &entry.state {
            EntryState::Waiting {
                refused: Some(rejection),
            } if rejection.controller == self.name
                && rejection.fingerprint == self.fingerprint
                && now.since(rejection.at) < policy.retry_rejected_after =>
            {
                Some(rejection)
            }
            _ => None,
        };
        current_rejection(entry).or_else(|| {
            let implies_rejection = |ahead: &&Entry| {
                ahead.spec.size <= entry.spec.size && ahead.spec.allocation == entry.spec.allocation
            };
            self.rejected_entries
                .iter()
                .filter(implies_rejection)
                .find_map(current_rejection)
        })
    }

    /// Returns whether `entry` would fit without the starting entries; false if there are none.
    pub(super) fn would_fit_first(&self, entry: &Entry) -> bool {
        self.would_fit(entry, self.starting.iter())
    }

    /// Returns whether `entry` would fit without the partitions `without`; false if there are none.
    fn would_fit<'i>(&self, entry: &Entry, without: impl Iterator<Item = &'i PartitionId>) -> bool {
        let mut without = without.peekable();
        if !allows(entry, &self.name) || without.peek().is_none() {
            return false;
        }
        let mut capacity = self.now.fork();
        without.for_each(|id| capacity.release(id));
        capacity.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok()
    }

    /// Returns whether `entry` would fit here once all holders with a ledger entry have ended. Foreign
    /// partitions may never end. Holders that came after its rejection did not cause it, so their end does
    /// not help.
    pub(super) fn fits_after_all_end(&self, entry: &Entry, policy: &QueuePolicy, now: Timestamp) -> bool {
        self.fits_after(entry, policy, now, None)
    }

    /// Like `fits_after_all_end`, but the holders of namespace `spared` remain.
    pub(super) fn fits_after(
        &self,
        entry: &Entry,
        policy: &QueuePolicy,
        now: Timestamp,
        spared: Option<&Namespace>,
    ) -> bool {
        let rejection = self.rejection(entry, policy, now).map(|rejection| rejection.at);
        let ends_for_entry = |holder: &&&Entry| {
            let preceded_rejection =
                rejection.is_none_or(|at| holder.held_since.is_none_or(|since| since < at));
            let namespace = holder.owner.as_ref().map(|owner| &owner.job.namespace);
            let is_spared = spared.is_some()
                && namespace == spared
                && !matches!(holder.state, EntryState::Releasing { .. });
            preceded_rejection && !matches!(holder.state, EntryState::Quarantined) && !is_spared
        };
        let ending = self
            .holders
            .iter()
            .filter(ends_for_entry)
            .map(|holder| &holder.id);
        let starting = self.starting.iter().filter(|_| rejection.is_none());
        self.would_fit(entry, starting.chain(ending))
    }
}

/// Returns the capacity of each available controller, including ledger entries that the controller does not
/// list.
pub(super) fn overlays<'a>(state: &'a LedgerState, snapshot: &ControllersSnapshot) -> Vec<Overlay<'a>> {
    overlays_without(state, snapshot, None)
}

/// Like [`overlays`], without the entry `except`, which is being placed again.
pub(super) fn overlays_without<'a>(
    state: &'a LedgerState,
    snapshot: &ControllersSnapshot,
    except: Option<&PartitionId>,
) -> Vec<Overlay<'a>> {
    let mut held: BTreeMap<&ControllerName, Vec<&Entry>> = BTreeMap::new();
    let holds = |entry: &&Entry| entry.state.holds() && Some(&entry.id) != except;
    for entry in state.entries().filter(holds) {
        if let Some(controller) = &entry.controller {
            held.entry(controller).or_default().push(entry);
        }
    }
    let mut overlays = Vec::new();
    for view in &snapshot.controllers {
        let (Ok(listing), ServiceState::Open) = (&view.listing, view.service) else {
            continue;
        };
        let mut capacity = listing.capacity().fork();
        let holders = held.remove(&view.name).unwrap_or_default();
        // A controller of unknown hardware, or one that refuses named IPUs, chooses IPUs itself, so the
        // recorded IPUs of a lost partition do not help.
        let chooses_ipus = capacity.counts().is_none() || capacity.refuses_ipus();
        let mut unlisted_owners = Vec::new();
        // Owners with recorded IPUs come first, so that others are not assumed there.
        let unlisted = holders.iter().filter(|entry| !capacity.has(&entry.id));
        let (recorded, unrecorded): (Vec<&Entry>, Vec<&Entry>) =
            unlisted.copied().partition(|entry| !entry.places.is_empty());
        let mut keeps_ipus = !recorded.is_empty() && !capacity.refuses_ipus();
        for entry in recorded {
            if chooses_ipus && may_be_in_use(entry) {
                unlisted_owners.push(entry);
            } else if capacity.reserve(&entry.id, &entry.spec, &entry.places).is_err() {
                capacity.withhold(&entry.places);
            }
        }
        for entry in unrecorded {
            if may_be_in_use(entry) {
                unlisted_owners.push(entry);
            } else {
                // A call is in flight: the controller chooses free IPUs or rejects, so any block counts.
                let _ = capacity.reserve(&entry.id, &entry.spec, &[]);
            }
        }
        // Cordons come last, so that holders keep their IPUs.
        for cordon in state.cordons().filter(|other| other.controller == view.name) {
            let _ = capacity.cordon(&cordon.owner, &cordon.target);
            keeps_ipus = true;
        }
        overlays.push(Overlay {
            name: view.name.clone(),
            now: capacity,
            starting: Vec::new(),
            holders,
            fingerprint: listing.fingerprint(),
            unlisted_owners,
            keeps_ipus,
            rejected_entries: Vec::new(),
        });
    }
    overlays
}

/// Returns whether the owner of `entry` may use its partition, listed or not. A partition that became active
/// after the listing was requested counts too: a newer listing contains it.
const fn may_be_in_use(entry: &Entry) -> bool {
    matches!(
        entry.state,
        EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned | EntryState::Quarantined
    )
}

/// Returns whether `entry` may be placed at the controller `name`.
pub(super) fn allows(entry: &Entry, name: &ControllerName) -> bool {
    entry.pin.controller.as_ref().is_none_or(|pinned| pinned == name)
}
