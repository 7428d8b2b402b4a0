//! The room of each controller during a walk.

use std::collections::BTreeMap;

use ipu_core::{
    Capacity, ControllerName, ControllerRejection, ControllersSnapshot, Entry, EntryState, LedgerState,
    Namespace, PartitionId, QueuePolicy, Reason, ServiceState, Timestamp,
};

pub(super) const REFUSED: &str = "ControllerRefused";

/// One controller's room during a walk.
pub(super) struct Overlay<'a> {
    pub(super) name: ControllerName,
    /// With the holders and with those of the line who go.
    pub(super) now: Box<dyn Capacity>,
    /// Those of the line who go.
    pub(super) going: Vec<PartitionId>,
    /// The holders whom the ledger knows.
    holders: Vec<&'a Entry>,
    fingerprint: u64,
    /// Owners that may use IPUs which neither the controller nor the ledger can name: while there are any, nothing is
    /// placed here.
    unplaced: Vec<&'a Entry>,
    /// Refused sizes of the line so far.
    pub(super) refusals: Vec<Entry>,
}

/// The code of the reason that nothing is placed at a controller which no longer lists a partition in use.
pub(super) const LOST_PARTITION: &str = "LostPartition";

impl Overlay<'_> {
    /// Returns why nothing new is placed here; none if the controller takes new partitions.
    pub(super) fn closed(&self) -> Option<Reason> {
        let first = self.unplaced.first()?;
        let owner = first.owner.as_ref().map_or_else(
            || String::from("an unknown owner"),
            std::string::ToString::to_string,
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
    pub(super) fn closed_by(&self) -> Vec<PartitionId> {
        self.unplaced.iter().map(|entry| entry.id.clone()).collect()
    }

    /// Why `entry` need not be tried: it, or one ahead that needs no more, was refused and nothing has changed since.
    pub(super) fn refusal_of(&self, entry: &Entry, rules: &QueuePolicy, now: Timestamp) -> Option<Reason> {
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
        let of = |waiting: &'e Entry| match &waiting.state {
            EntryState::Waiting {
                refused: Some(refused),
            } if refused.controller == self.name
                && refused.fingerprint == self.fingerprint
                && now.since(refused.at) < rules.retry_rejected_after =>
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
    pub(super) fn would_fit_first(&self, entry: &Entry) -> bool {
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

    /// Whether `entry` would fit here if everybody whom the ledger knows had ended. Foreign partitions may stay for ever, and
    /// who came after it was refused was not why: without him it would be refused again.
    pub(super) fn can_help(&self, entry: &Entry, rules: &QueuePolicy, now: Timestamp) -> bool {
        self.fits_after(entry, rules, now, None)
    }

    /// Like `can_help`, but what `spared` holds stays.
    pub(super) fn fits_after(
        &self,
        entry: &Entry,
        rules: &QueuePolicy,
        now: Timestamp,
        spared: Option<&Namespace>,
    ) -> bool {
        let refused = self.refused(entry, rules, now).map(|refused| refused.at);
        let helps = |holder: &&&Entry| {
            let came_before = refused.is_none_or(|at| holder.held_since.is_none_or(|since| since < at));
            let namespace = holder.owner.as_ref().map(|owner| &owner.job.namespace);
            let is_spared = spared.is_some()
                && namespace == spared
                && !matches!(holder.state, EntryState::Releasing { .. });
            came_before && !matches!(holder.state, EntryState::Quarantined) && !is_spared
        };
        let ending = self.holders.iter().filter(helps).map(|holder| &holder.id);
        let going = self.going.iter().filter(|_| refused.is_none());
        self.would_fit(entry, going.chain(ending))
    }
}

/// The room of each controller that answered, with everything that the ledger knows of and the controller does not show.
pub(super) fn overlays<'a>(state: &'a LedgerState, world: &ControllersSnapshot) -> Vec<Overlay<'a>> {
    overlays_without(state, world, None)
}

/// Like [`overlays`], without the entry `except`, which is about to be placed again.
pub(super) fn overlays_without<'a>(
    state: &'a LedgerState,
    world: &ControllersSnapshot,
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
    for view in &world.controllers {
        let (Ok(listing), ServiceState::Open) = (&view.listing, view.service) else {
            continue;
        };
        let mut room = listing.capacity().fork();
        let holders = held.remove(&view.name).unwrap_or_default();
        // A controller of unknown hardware chooses IPUs by itself: to know those of a lost partition does not help.
        let chooses = room.counts().is_none();
        let mut unplaced = Vec::new();
        // Owners with recorded IPUs first, so that the others are not assumed there.
        let unlisted = holders.iter().filter(|entry| !room.has(&entry.id));
        let (known, unknown): (Vec<&Entry>, Vec<&Entry>) =
            unlisted.copied().partition(|entry| !entry.places.is_empty());
        for entry in known {
            if chooses && may_be_in_use(entry) {
                unplaced.push(entry);
            } else if room.reserve(&entry.id, &entry.spec, &entry.places).is_err() {
                room.withhold(&entry.places);
            }
        }
        for entry in unknown {
            if may_be_in_use(entry) {
                unplaced.push(entry);
            } else {
                // A call is under way: the controller chooses free IPUs or refuses, so that any block counts.
                let _ = room.reserve(&entry.id, &entry.spec, &[]);
            }
        }
        // Last, so that holders keep their places.
        for cordon in state.cordons().filter(|other| other.controller == view.name) {
            let _ = room.cordon(&cordon.owner, &cordon.what);
        }
        overlays.push(Overlay {
            name: view.name.clone(),
            now: room,
            going: Vec::new(),
            holders,
            fingerprint: listing.fingerprint(),
            unplaced,
            refusals: Vec::new(),
        });
    }
    overlays
}

/// Whether the owner of `entry` may use its partition, listed or not. One that became active after the controller was
/// asked counts too: a newer listing shows it.
const fn may_be_in_use(entry: &Entry) -> bool {
    matches!(
        entry.state,
        EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned | EntryState::Quarantined
    )
}

/// Whether `entry` may go to the controller `name`.
pub(super) fn allows(entry: &Entry, name: &ControllerName) -> bool {
    entry.pin.controller.as_ref().is_none_or(|pinned| pinned == name)
}
