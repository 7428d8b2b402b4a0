//! Capacity of each controller during a scan of the queue: its listing, and the holders that only the ledger
//! records.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

use crate::ids::{ControllerName, Namespace, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{Capacity, ControllersSnapshot, ServiceState};
use crate::ledger::cordon::Cordon;
use crate::ledger::entry::{ControllerRejection, Entry, EntryState};
use crate::ledger::queue_policy::QueuePolicy;
use crate::partition::IpuPlace;
use crate::reason::Reason;
use crate::units::Timestamp;

pub(crate) const REFUSED: &str = "ControllerRefused";

/// Capacity of one controller during a scan.
pub(crate) struct CapacitySnapshot<'a> {
    pub(crate) name: ControllerName,
    /// Capacity less the holders and the queued entries that start.
    pub(crate) current: Box<dyn Capacity>,
    /// Queued entries that start here.
    pub(crate) starting: Vec<PartitionId>,
    /// Holders that the ledger records.
    holders: Vec<&'a Entry>,
    fingerprint: u64,
    /// Entries in use whose IPUs neither the controller nor the ledger can name. While there are any, nothing
    /// is placed here.
    unplaced: Vec<&'a Entry>,
    /// Entries whose recorded IPUs are not free although the controller does not list their partitions.
    pub(crate) conflicts: Vec<&'a Entry>,
    /// Whether the ledger keeps IPUs that the controller may count as free: cordoned ones, and those of
    /// partitions that it does not list.
    keeps_ipus: bool,
    /// A cordon for which create calls would have to name IPUs, at a controller that refuses that. While
    /// there is one, nothing is placed here: the calls would be refused again and again.
    unusable_by: Option<&'a Cordon>,
    /// Refused entries of the queue so far: the first of each size that no smaller one ahead of it covers.
    refusals: Vec<&'a Entry>,
}

/// Reason code of a controller that takes no new partitions because it no longer lists a partition in use.
pub(crate) const LOST_PARTITION: &str = "LostPartition";

impl<'a> CapacitySnapshot<'a> {
    /// Returns the reason that no new partition is placed here; none if the controller takes new partitions.
    pub(crate) fn closed_reason(&self) -> Option<Reason> {
        let Some(first) = self.unplaced.first() else {
            let cordon = self.unusable_by?;
            let name = &self.name;
            let message = format!(
                "controller {name} does not accept named IPUs, and cordon {cordon} needs them; lift the cordon"
            );
            return Some(Reason::new(REFUSED, message));
        };
        let owner = first.owner.as_ref().map_or_else(
            || String::from("an unknown owner"),
            alloc::string::ToString::to_string,
        );
        let more = match self.unplaced.len() {
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

    /// Returns the partitions that would have to end for the controller to take new ones again.
    pub(crate) fn closed_by(&self) -> Vec<PartitionId> {
        self.unplaced.iter().map(|entry| entry.id.clone()).collect()
    }

    /// Returns whether only the partitions of `ended` keep the controller closed.
    pub(crate) fn opens_without(&self, ended: &[PartitionId]) -> bool {
        self.unusable_by.is_none() && self.unplaced.iter().all(|entry| ended.contains(&entry.id))
    }

    /// Returns the reason to skip this controller for `entry`: the controller refused it, or one ahead that
    /// needs no more, and nothing has changed since.
    pub(crate) fn refusal_of(&self, entry: &Entry, policy: &QueuePolicy, now: Timestamp) -> Option<Reason> {
        let refused = self.refused(entry, policy, now)?;
        Some(Reason::new(
            REFUSED,
            format!("controller {} refused it: {}", self.name, refused.message),
        ))
    }

    /// Returns the refusal that applies to `entry` here.
    fn refused<'e>(
        &'e self,
        entry: &'e Entry,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Option<&'e ControllerRejection> {
        self.own_refusal(entry, policy, now).or_else(|| {
            let covering = self.refusals.iter().find(|ahead| covers(ahead, entry))?;
            self.own_refusal(covering, policy, now)
        })
    }

    /// Returns the refusal of `entry` itself, if it still applies here.
    pub(crate) fn own_refusal<'e>(
        &self,
        entry: &'e Entry,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Option<&'e ControllerRejection> {
        match &entry.state {
            EntryState::Waiting {
                refused: Some(refused),
            } if refused.controller == self.name
                && refused.fingerprint == self.fingerprint
                && now.since(refused.at) < policy.retry_rejected_after =>
            {
                Some(refused)
            }
            _ => None,
        }
    }

    /// Applies the refusal of `entry`, if it is still valid, to later entries. Returns whether that changes
    /// anything.
    pub(crate) fn add_refusal(&mut self, entry: &'a Entry, policy: &QueuePolicy, now: Timestamp) -> bool {
        let counts = self.own_refusal(entry, policy, now).is_some()
            && !self.refusals.iter().any(|ahead| covers(ahead, entry));
        if counts {
            self.refusals.push(entry);
        }
        counts
    }

    /// Reserves capacity for `entry`. Returns the IPUs that the create call names; empty if the controller
    /// chooses.
    ///
    /// # Errors
    ///
    /// The reason that it does not fit.
    pub(crate) fn place(&mut self, entry: &Entry) -> Result<Vec<IpuPlace>, Reason> {
        let places = self.current.reserve(&entry.id, &entry.spec, &entry.pin.ipus)?;
        // A call with named IPUs fails at a controller that refuses them, and so keeps nothing for those
        // ahead.
        let keeps_for_ahead = !self.starting.is_empty() && !self.current.refuses_ipus();
        let controller_chooses =
            self.current.is_delegated() && entry.pin.ipus.is_empty() && !self.keeps_ipus && !keeps_for_ahead;
        Ok(if controller_chooses { Vec::new() } else { places })
    }

    /// Returns whether `entry` would fit here without the queued entries that start; false if none starts.
    pub(crate) fn would_fit_without_starting(&self, entry: &Entry) -> bool {
        self.would_fit(entry, self.starting.iter())
    }

    /// Returns whether `entry` would fit here without the partitions of `without`; false if there are none.
    fn would_fit<'i>(&self, entry: &Entry, without: impl Iterator<Item = &'i PartitionId>) -> bool {
        let mut without = without.peekable();
        if !allows(entry, &self.name) || without.peek().is_none() {
            return false;
        }
        let mut capacity = self.current.fork();
        without.for_each(|id| capacity.release(id));
        capacity.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok()
    }

    /// Returns whether `entry` would fit here after the end of all partitions in the ledger. Foreign and
    /// quarantined partitions may exist forever. A partition that came after the refusal of `entry` was not
    /// its cause.
    pub(crate) fn can_help(&self, entry: &Entry, policy: &QueuePolicy, now: Timestamp) -> bool {
        self.fits_after(entry, policy, now, |_| true)
    }

    /// Like [`can_help`](Self::can_help), but the partitions of `namespace` do not end.
    pub(crate) fn can_help_without(
        &self,
        namespace: &Namespace,
        entry: &Entry,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> bool {
        self.fits_after(entry, policy, now, |holder| !is_held_by(namespace, holder))
    }

    /// Returns whether `namespace` holds a partition here that is not being released.
    pub(crate) fn has_holder_of(&self, namespace: &Namespace) -> bool {
        self.holders.iter().any(|holder| is_held_by(namespace, holder))
    }

    fn fits_after(
        &self,
        entry: &Entry,
        policy: &QueuePolicy,
        now: Timestamp,
        ends: impl Fn(&Entry) -> bool,
    ) -> bool {
        let refused = self.refused(entry, policy, now).map(|refused| refused.at);
        let helps = |holder: &&&Entry| {
            let came_before = refused.is_none_or(|at| holder.held_since.is_none_or(|since| since < at));
            came_before && !matches!(holder.state, EntryState::Quarantined) && ends(holder)
        };
        let ending = self.holders.iter().filter(helps).map(|holder| &holder.id);
        let starting = self.starting.iter().filter(|_| refused.is_none());
        self.would_fit(entry, starting.chain(ending))
    }
}

fn is_held_by(namespace: &Namespace, holder: &Entry) -> bool {
    let owner = holder.owner.as_ref();
    let is_releasing = matches!(holder.state, EntryState::Releasing { .. });
    !is_releasing && owner.is_some_and(|owner| owner.job.namespace == *namespace)
}

/// Returns whether a refusal of `ahead` also applies to `entry`, which needs no less.
fn covers(ahead: &Entry, entry: &Entry) -> bool {
    ahead.spec.size <= entry.spec.size && ahead.spec.allocation == entry.spec.allocation
}

/// Returns the capacity of each controller that was queried, with the holders that only the ledger records.
pub(crate) fn capacity_snapshots<'a>(
    state: &'a LedgerState,
    snapshot: &ControllersSnapshot,
) -> Vec<CapacitySnapshot<'a>> {
    capacity_snapshots_without(state, snapshot, None)
}

/// Like [`capacity_snapshots`], without the entry `except`, which is about to be placed again.
pub(crate) fn capacity_snapshots_without<'a>(
    state: &'a LedgerState,
    snapshot: &ControllersSnapshot,
    except: Option<&PartitionId>,
) -> Vec<CapacitySnapshot<'a>> {
    let mut held: BTreeMap<&ControllerName, Vec<&Entry>> = BTreeMap::new();
    let holds = |entry: &&Entry| entry.state.holds() && Some(&entry.id) != except;
    for entry in state.entries().filter(holds) {
        if let Some(controller) = &entry.controller {
            held.entry(snapshot.primary(controller)).or_default().push(entry);
        }
    }
    let mut capacities = Vec::new();
    for view in &snapshot.controllers {
        let (Ok(listing), ServiceState::Open) = (&view.listing, view.service) else {
            continue;
        };
        let mut capacity = listing.capacity().fork();
        let holders = held.remove(&view.name).unwrap_or_default();
        // A controller of unknown hardware chooses IPUs by itself: the recorded IPUs of a lost partition are
        // of no use.
        let controller_chooses = capacity.counts().is_none();
        let (mut unplaced, mut conflicts) = (Vec::new(), Vec::new());
        // Entries with recorded IPUs first, so that the others are not assumed there.
        let unlisted = holders.iter().filter(|entry| !capacity.has(&entry.id));
        let (recorded, unrecorded): (Vec<&Entry>, Vec<&Entry>) =
            unlisted.copied().partition(|entry| !entry.places.is_empty());
        let refuses_ipus = capacity.refuses_ipus();
        let is_lost = |entry: &Entry| {
            // A controller that refuses named IPUs reported the partitions that its listing is too old for.
            let is_older = listing.requested().is_none_or(|at| entry.since < at);
            entry.state.may_be_in_use() && (controller_chooses || refuses_ipus && is_older)
        };
        let keeps_unlisted = !recorded.is_empty() && !refuses_ipus;
        for entry in recorded {
            if is_lost(entry) {
                unplaced.push(entry);
            } else if capacity.reserve(&entry.id, &entry.spec, &entry.places).is_err() {
                conflicts.push(entry);
                capacity.withhold(&entry.places);
            }
        }
        for entry in unrecorded {
            if entry.state.may_be_in_use() {
                unplaced.push(entry);
            } else {
                // A call is under way: the controller chooses free IPUs or refuses, so that any block counts.
                let _ = capacity.reserve(&entry.id, &entry.spec, &[]);
            }
        }
        // Last, so that holders keep their IPUs.
        let cordon = state.cordon_capacity(snapshot, &view.name, &mut *capacity);
        capacities.push(CapacitySnapshot {
            name: view.name.clone(),
            current: capacity,
            starting: Vec::new(),
            holders,
            fingerprint: state.fingerprint_at(snapshot, &view.name, listing),
            unplaced,
            conflicts,
            keeps_ipus: cordon.is_some() || keeps_unlisted,
            unusable_by: cordon.filter(|_| refuses_ipus),
            refusals: Vec::new(),
        });
    }
    capacities
}

/// A partition whose recorded IPUs are not free although its controller does not list it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PlacementConflict {
    /// Name of the controller.
    pub controller: ControllerName,
    /// The partition, which its owner may still use.
    pub id: PartitionId,
}

impl LedgerState {
    /// Returns the partitions that their controllers do not list and whose IPUs another partition has, for
    /// example one created by hand after a controller restarted without its partitions.
    #[must_use]
    pub fn placement_conflicts(&self, snapshot: &ControllersSnapshot) -> Vec<PlacementConflict> {
        let snapshot = &*self.by_controller(snapshot);
        let conflicts = capacity_snapshots(self, snapshot)
            .into_iter()
            .flat_map(|capacity| {
                let in_use = capacity.conflicts.into_iter();
                in_use
                    .filter(|entry| entry.state.may_be_in_use())
                    .map(move |entry| PlacementConflict {
                        controller: capacity.name.clone(),
                        id: entry.id.clone(),
                    })
            });
        conflicts.collect()
    }
}

/// Returns `measure` of the capacity of each controller that takes new partitions, without regard to the
/// queue, and the reason of each other one.
pub(crate) fn measure_capacities<T>(
    state: &LedgerState,
    snapshot: &ControllersSnapshot,
    measure: impl Fn(&dyn Capacity) -> T,
) -> Vec<(ControllerName, Result<T, Reason>)> {
    let snapshot = &*state.by_controller(snapshot);
    let queried = capacity_snapshots(state, snapshot).into_iter().map(|capacity| {
        let measured = match capacity.closed_reason() {
            Some(reason) => Err(reason),
            None => Ok(measure(&*capacity.current)),
        };
        (capacity.name, measured)
    });
    let unavailable = snapshot.controllers.iter().filter_map(|view| {
        let reason = view.listing.as_ref().err()?;
        Some((view.name.clone(), Err(reason.clone())))
    });
    queried.chain(unavailable).collect()
}

/// Returns whether `entry` may use the controller `name`.
pub(crate) fn allows(entry: &Entry, name: &ControllerName) -> bool {
    entry.pin.controller.as_ref().is_none_or(|pinned| pinned == name)
}
