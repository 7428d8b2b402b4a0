//! The room of each controller during a walk of the line: what it listed, and what the ledger knows besides.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

use crate::ids::{ControllerName, Namespace, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{Capacity, ControllersSnapshot, ServiceState};
use crate::ledger::entry::{ControllerRejection, Entry, EntryState};
use crate::ledger::queue::{FreeCapacity, QueuePolicy};
use crate::partition::PartitionSpec;
use crate::reason::Reason;
use crate::units::Timestamp;

pub(crate) const REFUSED: &str = "ControllerRefused";

/// One controller's room during a walk.
pub(crate) struct CapacitySnapshot<'a> {
    pub(crate) name: ControllerName,
    /// With the holders and with those of the line who go.
    pub(crate) now: Box<dyn Capacity>,
    /// Those of the line who go.
    pub(crate) going: Vec<PartitionId>,
    /// The holders whom the ledger knows.
    holders: Vec<&'a Entry>,
    fingerprint: u64,
    /// Owners that may use IPUs which neither the controller nor the ledger can name: while there are any, nothing is
    /// placed here.
    unplaced: Vec<&'a Entry>,
    /// Owners whose recorded IPUs are not free although the controller does not list their partitions.
    pub(crate) conflicts: Vec<&'a Entry>,
    /// Refused sizes of the line so far: the first entry of each that no smaller one ahead of it covers.
    refusals: Vec<&'a Entry>,
}

/// The code of the reason that nothing is placed at a controller which no longer lists a partition in use.
pub(crate) const LOST_PARTITION: &str = "LostPartition";

impl<'a> CapacitySnapshot<'a> {
    /// Returns why nothing new is placed here; none if the controller takes new partitions.
    pub(crate) fn closed(&self) -> Option<Reason> {
        let first = self.unplaced.first()?;
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

    /// The partitions that would have to end for the controller to take new ones again.
    pub(crate) fn closed_by(&self) -> Vec<PartitionId> {
        self.unplaced.iter().map(|entry| entry.id.clone()).collect()
    }

    /// Whether nothing else than the partitions of `ended` keeps the controller closed.
    pub(crate) fn opens_without(&self, ended: &[PartitionId]) -> bool {
        self.unplaced.iter().all(|entry| ended.contains(&entry.id))
    }

    /// Why `entry` need not be tried: it, or one ahead that needs no more, was refused and nothing has changed since.
    pub(crate) fn refusal_of(&self, entry: &Entry, rules: &QueuePolicy, now: Timestamp) -> Option<Reason> {
        let refused = self.refused(entry, rules, now)?;
        Some(Reason::new(
            REFUSED,
            format!("controller {} says: {}", self.name, refused.message),
        ))
    }

    /// The refusal that stands against `entry` here.
    fn refused<'e>(
        &'e self,
        entry: &'e Entry,
        rules: &QueuePolicy,
        now: Timestamp,
    ) -> Option<&'e ControllerRejection> {
        self.own_refusal(entry, rules, now).or_else(|| {
            let covering = self.refusals.iter().find(|ahead| covers(ahead, entry))?;
            self.own_refusal(covering, rules, now)
        })
    }

    /// The refusal of `entry` itself, if it still stands here.
    pub(crate) fn own_refusal<'e>(
        &self,
        entry: &'e Entry,
        rules: &QueuePolicy,
        now: Timestamp,
    ) -> Option<&'e ControllerRejection> {
        match &entry.state {
            EntryState::Waiting {
                refused: Some(refused),
            } if refused.controller == self.name
                && refused.fingerprint == self.fingerprint
                && now.since(refused.at) < rules.retry_rejected_after =>
            {
                Some(refused)
            }
            _ => None,
        }
    }

    /// Has the refusal of `entry`, if it still stands, count for those behind. Returns whether that changes anything.
    pub(crate) fn add_refusal(&mut self, entry: &'a Entry, rules: &QueuePolicy, now: Timestamp) -> bool {
        let counts = self.own_refusal(entry, rules, now).is_some()
            && !self.refusals.iter().any(|ahead| covers(ahead, entry));
        if counts {
            self.refusals.push(entry);
        }
        counts
    }

    /// Whether `entry` would fit here without those of the line who go; not, if nobody does.
    pub(crate) fn would_fit_first(&self, entry: &Entry) -> bool {
        self.would_fit(entry, self.going.iter())
    }

    /// Whether `entry` would fit here without those of `without`; not, if those are none.
    fn would_fit<'i>(&self, entry: &Entry, without: impl Iterator<Item = &'i PartitionId>) -> bool {
        let mut without = without.peekable();
        if !allows(entry, &self.name) || without.peek().is_none() {
            return false;
        }
        let mut room = self.now.fork();
        without.for_each(|id| room.release(id));
        room.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok()
    }

    /// Returns whether `entry` would fit here after the end of all partitions in the ledger. Foreign and quarantined
    /// partitions may stay for ever. A partition that came after the refusal of `entry` was not its cause.
    pub(crate) fn can_help(&self, entry: &Entry, rules: &QueuePolicy, now: Timestamp) -> bool {
        self.fits_after(entry, rules, now, |_| true)
    }

    /// Like [`can_help`](Self::can_help), but the partitions of `namespace` stay.
    pub(crate) fn can_help_without(
        &self,
        namespace: &Namespace,
        entry: &Entry,
        rules: &QueuePolicy,
        now: Timestamp,
    ) -> bool {
        self.fits_after(entry, rules, now, |holder| !is_held_by(namespace, holder))
    }

    /// Returns whether `namespace` holds a partition here that is not being released.
    pub(crate) fn has_holder_of(&self, namespace: &Namespace) -> bool {
        self.holders.iter().any(|holder| is_held_by(namespace, holder))
    }

    fn fits_after(
        &self,
        entry: &Entry,
        rules: &QueuePolicy,
        now: Timestamp,
        ends: impl Fn(&Entry) -> bool,
    ) -> bool {
        let refused = self.refused(entry, rules, now).map(|refused| refused.at);
        let helps = |holder: &&&Entry| {
            let came_before = refused.is_none_or(|at| holder.held_since.is_none_or(|since| since < at));
            came_before && !matches!(holder.state, EntryState::Quarantined) && ends(holder)
        };
        let ending = self.holders.iter().filter(helps).map(|holder| &holder.id);
        let going = self.going.iter().filter(|_| refused.is_none());
        self.would_fit(entry, going.chain(ending))
    }
}

fn is_held_by(namespace: &Namespace, holder: &Entry) -> bool {
    let owner = holder.owner.as_ref();
    let is_releasing = matches!(holder.state, EntryState::Releasing { .. });
    !is_releasing && owner.is_some_and(|owner| owner.job.namespace == *namespace)
}

/// Whether a refusal of `ahead` counts for `entry`, which needs no less.
fn covers(ahead: &Entry, entry: &Entry) -> bool {
    ahead.spec.size <= entry.spec.size && ahead.spec.allocation == entry.spec.allocation
}

/// The room of each controller that answered, with everything that the ledger knows of and the controller does not show.
pub(crate) fn overlays<'a>(state: &'a LedgerState, world: &ControllersSnapshot) -> Vec<CapacitySnapshot<'a>> {
    overlays_without(state, world, None)
}

/// Like [`overlays`], without the entry `except`, which is about to be placed again.
pub(crate) fn overlays_without<'a>(
    state: &'a LedgerState,
    world: &ControllersSnapshot,
    except: Option<&PartitionId>,
) -> Vec<CapacitySnapshot<'a>> {
    let mut held: BTreeMap<&ControllerName, Vec<&Entry>> = BTreeMap::new();
    let holds = |entry: &&Entry| entry.state.holds() && Some(&entry.id) != except;
    for entry in state.entries().filter(holds) {
        if let Some(controller) = &entry.controller {
            held.entry(world.primary(controller)).or_default().push(entry);
        }
    }
    let mut overlays = Vec::new();
    for view in &world.controllers {
        let (Ok(listing), ServiceState::Open) = (&view.listing, view.service) else {
            continue;
        };
        let mut room = listing.capacity().fork();
        let holders = held.remove(&view.name).unwrap_or_default();
        // A controller of unknown hardware chooses IPUs by itself: to know those of a lost partition does not help.
        let chooses = room.counts().is_none();
        let (mut unplaced, mut conflicts) = (Vec::new(), Vec::new());
        // Owners with recorded IPUs first, so that the others are not assumed there.
        let unlisted = holders.iter().filter(|entry| !room.has(&entry.id));
        let (known, unknown): (Vec<&Entry>, Vec<&Entry>) =
            unlisted.copied().partition(|entry| !entry.places.is_empty());
        for entry in known {
            if chooses && entry.state.may_be_in_use() {
                unplaced.push(entry);
            } else if room.reserve(&entry.id, &entry.spec, &entry.places).is_err() {
                conflicts.push(entry);
                room.withhold(&entry.places);
            }
        }
        for entry in unknown {
            if entry.state.may_be_in_use() {
                unplaced.push(entry);
            } else {
                // A call is under way: the controller chooses free IPUs or refuses, so that any block counts.
                let _ = room.reserve(&entry.id, &entry.spec, &[]);
            }
        }
        // Last, so that holders keep their places.
        state.take_off_cordoned(world, &view.name, &mut *room);
        overlays.push(CapacitySnapshot {
            name: view.name.clone(),
            now: room,
            going: Vec::new(),
            holders,
            fingerprint: listing.fingerprint(),
            unplaced,
            conflicts,
            refusals: Vec::new(),
        });
    }
    overlays
}

/// A partition whose recorded IPUs are not free although its controller does not list it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PlacementConflict {
    /// The controller.
    pub controller: ControllerName,
    /// The partition, which its owner may still use.
    pub id: PartitionId,
}

impl LedgerState {
    /// Partitions that their controllers do not list and whose IPUs have been given to another partition, for example
    /// by hand after a controller restarted without its partitions.
    #[must_use]
    pub fn placement_conflicts(&self, world: &ControllersSnapshot) -> Vec<PlacementConflict> {
        let world = &*self.by_controller(world);
        let conflicts = overlays(self, world).into_iter().flat_map(|overlay| {
            let in_use = overlay.conflicts.into_iter();
            in_use
                .filter(|entry| entry.state.may_be_in_use())
                .map(move |entry| PlacementConflict {
                    controller: overlay.name.clone(),
                    id: entry.id.clone(),
                })
        });
        conflicts.collect()
    }
}

/// What is left at each controller for partitions of `spec`, without regard to the line.
pub(crate) fn room(
    state: &LedgerState,
    world: &ControllersSnapshot,
    spec: &PartitionSpec,
) -> Vec<(ControllerName, Result<FreeCapacity, Reason>)> {
    let world = &*state.by_controller(world);
    let left = overlays(state, world).into_iter().map(|overlay| {
        let room = match overlay.closed() {
            Some(reason) => Err(reason),
            None => Ok(FreeCapacity {
                free: overlay.now.free(),
                largest_block: overlay.now.largest_block(),
                fit_count: overlay.now.fit_count(spec),
            }),
        };
        (overlay.name, room)
    });
    let silent = world.controllers.iter().filter_map(|view| {
        let reason = view.listing.as_ref().err()?;
        Some((view.name.clone(), Err(reason.clone())))
    });
    left.chain(silent).collect()
}

/// Whether `entry` may go to the controller `name`.
pub(crate) fn allows(entry: &Entry, name: &ControllerName) -> bool {
    entry.pin.controller.as_ref().is_none_or(|pinned| pinned == name)
}
