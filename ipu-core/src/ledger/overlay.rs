//! The room of each controller during a walk of the line: what it listed, and what the ledger knows besides.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{Capacity, Service, World};
use crate::ledger::entry::{Entry, EntryState, Refused};
use crate::ledger::line::{LineRules, Room};
use crate::partition::PartitionSpec;
use crate::reason::Reason;
use crate::units::Timestamp;

pub(crate) const REFUSED: &str = "ControllerRefused";

/// One controller's room during a walk.
pub(crate) struct Overlay<'a> {
    pub(crate) name: ControllerName,
    /// With the holders and with those of the line who go.
    pub(crate) now: Box<dyn Capacity>,
    /// Those of the line who go.
    pub(crate) going: Vec<PartitionId>,
    /// The holders whom the ledger knows.
    holders: Vec<&'a Entry>,
    fingerprint: u64,
    /// Whether the controller has lost a partition that somebody may still be using.
    pub(crate) lost_some: bool,
    /// Whether IPUs are excluded that the controller does not know of.
    pub(crate) has_excluded: bool,
    /// Refused sizes of the line so far.
    pub(crate) refusals: Vec<Entry>,
}

impl Overlay<'_> {
    /// Why `entry` need not be tried: it, or one ahead that needs no more, was refused and nothing has changed since.
    pub(crate) fn refusal_of(&self, entry: &Entry, rules: &LineRules, now: Timestamp) -> Option<Reason> {
        let refused = self.refused(entry, rules, now)?;
        Some(Reason::new(
            REFUSED,
            format!("controller {} says: {}", self.name, refused.words),
        ))
    }

    /// The refusal that stands against `entry` here.
    fn refused<'e>(&'e self, entry: &'e Entry, rules: &LineRules, now: Timestamp) -> Option<&'e Refused> {
        let of = |waiting: &'e Entry| match &waiting.state {
            EntryState::Waiting {
                refused: Some(refused),
            } if refused.controller == self.name
                && refused.fingerprint == self.fingerprint
                && now.since(refused.at) < rules.ask_again =>
            {
                Some(refused)
            }
            _ => None,
        };
        of(entry).or_else(|| {
            let covers = |ahead: &&Entry| {
                ahead.spec.size <= entry.spec.size && ahead.spec.allocation == entry.spec.allocation
            };
            self.refusals.iter().filter(covers).find_map(of)
        })
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
        without.for_each(|id| room.give(id));
        room.take(&entry.id, &entry.spec, &entry.pin.ipus).is_ok()
    }

    /// Whether `entry` would fit here if everybody whom the ledger knows had ended. Foreign partitions may stay for ever, and
    /// who came after it was refused was not why: without him it would be refused again.
    pub(crate) fn can_help(&self, entry: &Entry, rules: &LineRules, now: Timestamp) -> bool {
        let refused = self.refused(entry, rules, now).map(|refused| refused.at);
        let helps = |holder: &&&Entry| {
            let came_before = refused.is_none_or(|at| holder.held_since.is_none_or(|since| since < at));
            came_before && !matches!(holder.state, EntryState::Quarantined)
        };
        let ending = self.holders.iter().filter(helps).map(|holder| &holder.id);
        let going = self.going.iter().filter(|_| refused.is_none());
        self.would_fit(entry, going.chain(ending))
    }
}

/// The room of each controller that answered, with everything that the ledger knows of and the controller does not show.
pub(crate) fn overlays<'a>(state: &'a LedgerState, world: &World) -> Vec<Overlay<'a>> {
    let mut held: BTreeMap<&ControllerName, Vec<&Entry>> = BTreeMap::new();
    for entry in state.entries().filter(|entry| entry.state.holds()) {
        if let Some(controller) = &entry.controller {
            held.entry(controller).or_default().push(entry);
        }
    }
    let mut overlays = Vec::new();
    for view in &world.controllers {
        let (Ok(listing), Service::Open) = (&view.listing, view.service) else {
            continue;
        };
        let mut room = listing.capacity().fork();
        let mut lost_some = false;
        let holders = held.remove(&view.name).unwrap_or_default();
        // Those whose places are known first, so that the others are not put there.
        let unlisted = holders.iter().filter(|entry| !room.has(&entry.id));
        let (known, unknown): (Vec<&Entry>, Vec<&Entry>) =
            unlisted.copied().partition(|entry| !entry.places.is_empty());
        for entry in known.into_iter().chain(unknown) {
            lost_some |= match entry.state {
                // What became active since is not lost, only not seen yet.
                EntryState::Active => listing.asked().is_none_or(|asked| entry.since < asked),
                EntryState::Orphaned | EntryState::Failed { .. } => true,
                _ => false,
            };
            if room.take(&entry.id, &entry.spec, &entry.places).is_err() {
                // What the ledger believes of the place is out of date; any place counts then.
                let _ = room.take(&entry.id, &entry.spec, &[]);
            }
        }
        // Last, so that holders keep their places.
        let has_excluded = state.take_off_excluded(&view.name, &mut *room);
        overlays.push(Overlay {
            name: view.name.clone(),
            now: room,
            going: Vec::new(),
            holders,
            fingerprint: listing.fingerprint(),
            lost_some,
            has_excluded,
            refusals: Vec::new(),
        });
    }
    overlays
}

/// What is left at each controller for partitions of `spec`, without regard to the line.
pub(crate) fn room(
    state: &LedgerState,
    world: &World,
    spec: &PartitionSpec,
) -> Vec<(ControllerName, Result<Room, Reason>)> {
    let left = overlays(state, world).into_iter().map(|overlay| {
        let room = Room {
            free: overlay.now.free(),
            largest_block: overlay.now.largest_block(),
            fits: overlay.now.fit_count(spec),
        };
        (overlay.name, Ok(room))
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
