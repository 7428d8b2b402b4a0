//! The three-way diff: what the ledger says, what the controllers list and who is alive, and what follows by rule.
//!
//! | ledger | controller | owner | action |
//! |---|---|---|---|
//! | waiting | – | dead | drop |
//! | intent | any | unknown | finish |
//! | releasing | any | any | finish |
//! | intent | any | live | none: its owner asks again; finish once a minute and the fence have passed |
//! | intent | any | dead | release |
//! | active, failed | any | dead | orphan, then release once the grace is over |
//! | orphaned | any | live | reclaim |
//! | active | lists it not | live, unknown | lost |
//! | active | lists it on other IPUs | live, unknown | relocated |
//! | active, failed, orphaned without IPUs | lists its IPUs | any | note |
//! | nothing, waiting | lists it, of our form | claims it | adopt |
//! | nothing, waiting | another one than the claim names lists it | claims it | quarantine: it is not what he uses |
//! | nothing, waiting | two list it | claims it, and not where | quarantine: nobody knows which of them he uses |
//! | any that holds | lists it, of our form | claims a newer attempt | adopt: the ledger is an old copy |
//! | nothing, waiting | lists it, of our form | nobody claims it | quarantine |
//! | nothing | lists it, of another form | – | none: it is foreign |
//! | quarantined | lists it not | claims it there, or claims it and not where | none: it may use the recorded IPUs |
//! | quarantined | lists it not | nobody claims it there | forget |
//! | any | cannot be asked | not dead | none: kept |
//!
//! *Guarantees*: nothing is released because of an unknown answer; nothing that the ledger did not make is removed.
//! *Assumptions*: an owner that is reported dead has no worker left that uses the partition, or the partition is reset
//! before it is handed on (a new partition always is fresh). *Caveats*: the listing may be older than the ledger, so the
//! shell asks for the status of a partition before it believes `lost`, `quarantine` or `forget`.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{ControllerView, ControllersSnapshot};
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState, Request, same_make};
use crate::ledger::location::Location;
use crate::ledger::transitions::CallWindow;
use crate::partition::{IpuPlace, Partition};
use crate::units::Timestamp;

/// Whether the owner of an entry is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum OwnerLiveness {
    /// It is.
    Live,
    /// It certainly is not, and nothing of it uses the partition.
    Dead,
    /// Nobody can tell. Nothing is ever released on that.
    #[default]
    Unknown,
}

/// One thing that follows from the diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "action")]
#[non_exhaustive]
pub enum Action {
    /// Record a partition that a live owner claims by its derived id.
    Adopt {
        /// Which.
        id: PartitionId,
        /// Where.
        controller: ControllerName,
    },
    /// Go on with what was begun: an intent or a release.
    Finish {
        /// Which.
        id: PartitionId,
    },
    /// Remember that the owner is gone; release later.
    Orphan {
        /// Which.
        id: PartitionId,
    },
    /// The owner of an orphaned partition is there after all.
    Reclaim {
        /// Which.
        id: PartitionId,
    },
    /// Give it back: its owner is gone.
    Release {
        /// Which.
        id: PartitionId,
    },
    /// Take it out of the line: its owner is gone.
    Drop {
        /// Which.
        id: PartitionId,
    },
    /// Record a partition of our form that nobody owns, and leave it alone.
    Quarantine {
        /// Which.
        id: PartitionId,
        /// Where.
        controller: ControllerName,
    },
    /// A quarantined partition is gone.
    Forget {
        /// Which.
        id: PartitionId,
    },
    /// The controller no longer knows a partition that its owner holds.
    Lost {
        /// Which.
        id: PartitionId,
        /// Who lost it.
        controller: ControllerName,
    },
    /// Record where the partition is.
    #[serde(rename = "note")]
    RecordPlacement {
        /// Which.
        id: PartitionId,
        /// At which controller.
        controller: ControllerName,
        /// In which cluster, if the controller has several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<ClusterId>,
        /// On which IPUs.
        places: Vec<IpuPlace>,
    },
    /// The controller lists an active partition on other IPUs than recorded: a late call has made it again, and the
    /// owner may still use the recorded IPUs. It fails, and keeps those until it is reset or released.
    Relocated {
        /// Which.
        id: PartitionId,
        /// At which controller.
        controller: ControllerName,
    },
}

impl Action {
    /// The word for metric labels and tables.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Adopt { .. } => "adopt",
            Self::Finish { .. } => "finish",
            Self::Orphan { .. } => "orphan",
            Self::Reclaim { .. } => "reclaim",
            Self::Release { .. } => "release",
            Self::Drop { .. } => "drop",
            Self::Quarantine { .. } => "quarantine",
            Self::Forget { .. } => "forget",
            Self::Lost { .. } => "lost",
            Self::RecordPlacement { .. } => "note",
            Self::Relocated { .. } => "relocated",
        }
    }

    /// Which partition it is about.
    #[must_use]
    pub const fn id(&self) -> &PartitionId {
        match self {
            Self::Adopt { id, .. }
            | Self::Finish { id }
            | Self::Orphan { id }
            | Self::Reclaim { id }
            | Self::Release { id }
            | Self::Drop { id }
            | Self::Quarantine { id, .. }
            | Self::Forget { id }
            | Self::Lost { id, .. }
            | Self::RecordPlacement { id, .. }
            | Self::Relocated { id, .. } => id,
        }
    }

    /// Whether the action rests on the listing alone, so that the status has to be asked before it is taken.
    #[must_use]
    pub const fn must_be_verified(&self) -> bool {
        match self {
            Self::Adopt { .. } | Self::Quarantine { .. } | Self::Forget { .. } | Self::Lost { .. } => true,
            Self::Finish { .. }
            | Self::Orphan { .. }
            | Self::Reclaim { .. }
            | Self::Release { .. }
            | Self::Drop { .. }
            | Self::RecordPlacement { .. }
            | Self::Relocated { .. } => false,
        }
    }
}

/// What a live owner was granted, by a record of his own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// What he had asked for, with the attempt that uses it now.
    pub request: Request,
    /// The controller that has it, if his record says so. A ledger that was lost while a controller was silent may have had the
    /// partition made a second time elsewhere: only this tells which of the two he uses.
    pub controller: Option<ControllerName>,
}

impl Claim {
    /// A claim to the partition of `request` at `controller`.
    #[must_use]
    pub const fn at(request: Request, controller: ControllerName) -> Self {
        Self {
            request,
            controller: Some(controller),
        }
    }
}

impl From<Request> for Claim {
    /// A claim that does not say where the partition is.
    fn from(request: Request) -> Self {
        Self {
            request,
            controller: None,
        }
    }
}

/// What is known of the owners.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// Whether the owner of each entry is alive; whoever is missing is unknown.
    pub liveness: BTreeMap<PartitionId, OwnerLiveness>,
    /// The partitions that live owners were granted by their own records.
    pub claims: BTreeMap<PartitionId, Claim>,
}

impl LedgerState {
    /// What follows from comparing the ledger with `world` and `owners`, in the order of the ids.
    #[must_use]
    pub fn diff(
        &self,
        world: &ControllersSnapshot,
        owners: &Owners,
        orphan_grace: Duration,
        now: Timestamp,
    ) -> Vec<Action> {
        let world = &*self.with_primaries(world);
        let mut actions: Vec<Action> = Vec::new();
        for entry in self.entries() {
            let life = owners.liveness.get(&entry.id).copied().unwrap_or_default();
            actions.extend(
                by_newer_claim(entry, world, owners)
                    .or_else(|| action_for_liveness(entry, life, orphan_grace, now))
                    .or_else(|| self.by_listing(entry, world, owners)),
            );
        }
        for view in &world.controllers {
            let Ok(listing) = &view.listing else { continue };
            for partition in listing.partitions().values().filter(|p| p.id.is_derived()) {
                if self.get(&partition.id).is_none() {
                    actions.push(unknown(partition, &view.name, world, owners));
                }
            }
        }
        actions
    }

    fn by_listing(&self, entry: &Entry, world: &ControllersSnapshot, owners: &Owners) -> Option<Action> {
        let id = entry.id.clone();
        if matches!(entry.state, EntryState::Waiting { .. }) {
            // An old copy of the ledger does not know that the entry's turn had come.
            let (controller, partition) = world.find(&id).filter(|_| id.is_derived())?;
            return Some(unknown(partition, controller, world, owners));
        }
        let controller = entry.controller.clone()?;
        let configured = world.controllers.iter().any(|view| view.name == controller);
        if !configured {
            let (other, partition) = world.find(&id)?;
            return Some(note(id, other, &world.locate(other, partition)));
        }
        let listed = world.listing(&controller)?.partitions().get(&id);
        match (&entry.state, listed) {
            (EntryState::Quarantined, Some(partition)) => {
                match unknown(partition, &controller, world, owners) {
                    adopt @ Action::Adopt { .. } => Some(adopt),
                    _ => None,
                }
            }
            // Its owner may still use the recorded IPUs.
            (EntryState::Quarantined, None) if is_claimed_at(&controller, &id, world, owners) => None,
            (EntryState::Quarantined, None) => Some(Action::Forget { id }),
            (EntryState::Active, None) => Some(Action::Lost { id, controller }),
            (EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned, Some(partition))
                if entry.places.is_empty() && !partition.ipus.is_empty() =>
            {
                Some(note(id, &controller, &world.locate(&controller, partition)))
            }
            (EntryState::Active, Some(partition)) if !same_ipus(&entry.places, &partition.ipus) => {
                Some(Action::Relocated { id, controller })
            }
            (
                EntryState::Waiting { .. }
                | EntryState::Intent { .. }
                | EntryState::Active
                | EntryState::Failed { .. }
                | EntryState::Releasing { .. }
                | EntryState::Orphaned,
                _,
            ) => None,
        }
    }

    /// The changes that `action` comes to; none if the entry has moved on since the diff. Finish and release are driven
    /// like those that an owner asks for.
    #[must_use]
    pub fn act(
        &self,
        action: &Action,
        world: &ControllersSnapshot,
        owners: &Owners,
        window: CallWindow,
    ) -> Vec<Change> {
        let now = window.now;
        let world = &*self.with_primaries(world);
        let Some(entry) = self.get(action.id()) else {
            return self.record_unknown(action, world, owners, now);
        };
        let put = |entry: Entry| Vec::from([Change::Put(Arc::new(entry))]);
        match (action, &entry.state) {
            (Action::Quarantine { controller, .. }, EntryState::Waiting { .. }) => world
                .find(&entry.id)
                .map(|(at, partition)| {
                    let location = world.locate(at, partition);
                    Entry::found(partition, location, controller, entry.ticket, now)
                })
                .map_or_else(Vec::new, put),
            (Action::Adopt { .. }, EntryState::Quarantined | EntryState::Waiting { .. }) => {
                claimed(&entry.id, world, owners)
                    .map(|claimed| claimed.adopted(world, entry.ticket, now))
                    .map_or_else(Vec::new, put)
            }
            (Action::Adopt { .. }, _) => newly_claimed(entry, world, owners)
                .map(|claimed| claimed.adopted(world, entry.ticket, now).inherit_from(entry))
                .map_or_else(Vec::new, put),
            (Action::Orphan { .. }, EntryState::Active | EntryState::Failed { .. }) => {
                put(entry.with_state(EntryState::Orphaned, now))
            }
            (Action::Reclaim { .. }, EntryState::Orphaned) => put(entry.reclaimed(world, now)),
            (
                Action::Release { .. },
                EntryState::Intent { .. }
                | EntryState::Active
                | EntryState::Failed { .. }
                | EntryState::Orphaned,
            )
            | (Action::Drop { .. }, EntryState::Waiting { .. }) => entry.released(None, window).changes,
            (Action::Forget { .. }, EntryState::Quarantined) => Vec::from([Change::Remove(entry.id.clone())]),
            (Action::Lost { controller, .. }, EntryState::Active) => {
                let errors = Vec::from([lost(controller)]);
                put(entry.with_state(EntryState::Failed { errors }, now))
            }
            (
                Action::RecordPlacement {
                    controller,
                    cluster,
                    places,
                    ..
                },
                EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned,
            ) => {
                let mut noted = entry.clone();
                noted.controller = Some(controller.clone());
                noted.set_location(Location {
                    cluster: cluster.clone(),
                    ipus: places.clone(),
                });
                match (self.user_of(&noted, &noted.location()), &entry.state) {
                    (None, _) => put(noted),
                    (Some(user), EntryState::Active) => {
                        let used = alloc::format!(
                            "controller {controller} has put it on IPUs that partition {} may still use",
                            user.id
                        );
                        let errors = Vec::from([used]);
                        put(entry.with_state(EntryState::Failed { errors }, now))
                    }
                    (Some(_), _) => Vec::new(),
                }
            }
            (Action::Relocated { controller, .. }, EntryState::Active) => {
                let moved = alloc::format!("controller {controller} has made it again on other IPUs");
                let errors = Vec::from([moved]);
                put(entry.with_state(EntryState::Failed { errors }, now))
            }
            _ => Vec::new(),
        }
    }

    fn record_unknown(
        &self,
        action: &Action,
        world: &ControllersSnapshot,
        owners: &Owners,
        now: Timestamp,
    ) -> Vec<Change> {
        let ticket = self.next_ticket();
        let entry = match action {
            Action::Adopt { id, .. } => {
                claimed(id, world, owners).map(|claimed| claimed.adopted(world, ticket, now))
            }
            Action::Quarantine { id, controller } => world.listing(controller).and_then(|listing| {
                let partition = listing.partitions().get(id)?;
                let location = listing.locate(partition);
                Some(Entry::found(partition, location, controller, ticket, now))
            }),
            _ => None,
        };
        entry
            .map(|entry| Change::Put(Arc::new(entry)))
            .into_iter()
            .collect()
    }
}

impl Entry {
    /// The same, with what `old`, an outdated record of the same partition, knows besides.
    fn inherit_from(mut self, old: &Self) -> Self {
        let mut left = old.clone();
        left.carry_unsettled_calls(None);
        self.unsettled = left.unsettled;
        self.unsettled_reset = left.unsettled_reset;
        self.held_since = old.held_since.or(self.held_since);
        self
    }

    /// The same, once the owner of an orphaned partition is there after all.
    pub(super) fn reclaimed(&self, world: &ControllersSnapshot, now: Timestamp) -> Self {
        let listing = |name| Some((name, world.listing(name)?));
        let state = match self.controller.as_ref().and_then(listing) {
            Some((controller, listing)) if !listing.partitions().contains_key(&self.id) => {
                EntryState::Failed {
                    errors: Vec::from([lost(controller)]),
                }
            }
            // It was not usable before its owner was taken for dead, and is not now.
            _ if self.unsettled_reset.is_some_and(|until| until > now) => EntryState::Failed {
                errors: Vec::from([String::from("a reset that was not answered may still come")]),
            },
            _ => EntryState::Active,
        };
        self.with_state(state, now)
    }
}

/// What is said of a partition that its controller no longer knows.
#[must_use]
pub fn lost(controller: &ControllerName) -> String {
    alloc::format!("controller {controller} no longer knows the partition")
}

/// How long an intent is left to its live owner: twice what a call takes to settle by default.
const LEFT_TO_OWNER: Duration = Duration::from_secs(60);

/// A live owner was granted a newer attempt than the ledger knows of: it is an old copy, and what it had begun then is
/// not to be gone on with under the workers of now.
fn by_newer_claim(entry: &Entry, world: &ControllersSnapshot, owners: &Owners) -> Option<Action> {
    newly_claimed(entry, world, owners).map(|claimed| Action::Adopt {
        id: entry.id.clone(),
        controller: claimed.controller.clone(),
    })
}

fn newly_claimed<'a>(
    entry: &Entry,
    world: &'a ControllersSnapshot,
    owners: &'a Owners,
) -> Option<ClaimedPartition<'a>> {
    let claimed = claimed(&entry.id, world, owners)?;
    let newer =
        claimed.request.attempt > entry.attempt && entry.owner.as_ref() == Some(&claimed.request.owner);
    (newer && entry.state.holds()).then_some(claimed)
}

/// What follows from the owner alone.
fn action_for_liveness(
    entry: &Entry,
    life: OwnerLiveness,
    orphan_grace: Duration,
    now: Timestamp,
) -> Option<Action> {
    let id = entry.id.clone();
    match (&entry.state, life) {
        (EntryState::Waiting { .. }, OwnerLiveness::Dead) => Some(Action::Drop { id }),
        (EntryState::Intent { .. }, OwnerLiveness::Dead) => Some(Action::Release { id }),
        (EntryState::Active | EntryState::Failed { .. }, OwnerLiveness::Dead) if orphan_grace.is_zero() => {
            Some(Action::Release { id })
        }
        (EntryState::Active | EntryState::Failed { .. }, OwnerLiveness::Dead) => Some(Action::Orphan { id }),
        (EntryState::Orphaned, OwnerLiveness::Dead) => {
            (now.since(entry.since) >= orphan_grace).then_some(Action::Release { id })
        }
        (EntryState::Orphaned, OwnerLiveness::Live) => Some(Action::Reclaim { id }),
        // Two drivers of one intent only keep each other waiting.
        (EntryState::Intent { fence, .. }, OwnerLiveness::Live) => {
            let left = *fence <= now && now.since(entry.since) >= LEFT_TO_OWNER;
            left.then_some(Action::Finish { id })
        }
        (EntryState::Intent { .. }, OwnerLiveness::Unknown) | (EntryState::Releasing { .. }, _) => {
            Some(Action::Finish { id })
        }
        (
            EntryState::Waiting { .. } | EntryState::Active | EntryState::Failed { .. },
            OwnerLiveness::Live | OwnerLiveness::Unknown,
        )
        | (EntryState::Orphaned, OwnerLiveness::Unknown)
        | (EntryState::Quarantined, _) => None,
    }
}

/// What to do with a listed partition of our form that nobody has recorded as his.
fn unknown(
    partition: &Partition,
    controller: &ControllerName,
    world: &ControllersSnapshot,
    owners: &Owners,
) -> Action {
    let (id, controller) = (partition.id.clone(), controller.clone());
    match claimed(&id, world, owners) {
        Some(claimed) if world.is_same(claimed.controller, &controller) => Action::Adopt {
            id,
            controller: claimed.controller.clone(),
        },
        _ => Action::Quarantine { id, controller },
    }
}

/// Whether a live owner claims the partition and may use it at `controller`.
fn is_claimed_at(
    controller: &ControllerName,
    id: &PartitionId,
    world: &ControllersSnapshot,
    owners: &Owners,
) -> bool {
    let claim = owners.claims.get(id);
    let is_there = |name: &ControllerName| world.is_same(name, controller);
    claim.is_some_and(|claim| claim.controller.as_ref().is_none_or(is_there))
}

/// A listed partition that a live owner uses.
struct ClaimedPartition<'a> {
    controller: &'a ControllerName,
    partition: &'a Partition,
    request: &'a Request,
}

/// What a live owner uses of what controllers list under this id, if that is certain.
fn claimed<'a>(
    id: &PartitionId,
    world: &'a ControllersSnapshot,
    owners: &'a Owners,
) -> Option<ClaimedPartition<'a>> {
    let claim = owners.claims.get(id)?;
    let (controller, partition) = match &claim.controller {
        Some(controller) => (
            controller,
            world.listing(controller)?.partitions().get(id)?.as_ref(),
        ),
        None => world.find(id).filter(|_| is_unique(id, world))?,
    };
    let request = &claim.request;
    let his = request.is_derived() && same_make(&request.spec, &partition.spec);
    his.then_some(ClaimedPartition {
        controller,
        partition,
        request,
    })
}

impl ClaimedPartition<'_> {
    /// The entry of it.
    fn adopted(&self, world: &ControllersSnapshot, ticket: u64, now: Timestamp) -> Entry {
        let mut entry = Entry::waiting(self.request, ticket, now).with_state(EntryState::Active, now);
        entry.controller = Some(self.controller.clone());
        entry.set_location(world.locate(self.controller, self.partition));
        entry.held_since = Some(now);
        entry
    }
}

/// Whether only one controller lists the partition.
fn is_unique(id: &PartitionId, world: &ControllersSnapshot) -> bool {
    let lists = |view: &&ControllerView| {
        view.listing
            .as_ref()
            .is_ok_and(|listing| listing.partitions().contains_key(id))
    };
    let listing = world.controllers.iter().filter(lists);
    let controllers: BTreeSet<_> = listing.map(|view| world.primary(&view.name)).collect();
    controllers.len() < 2
}

fn note(id: PartitionId, controller: &ControllerName, location: &Location) -> Action {
    Action::RecordPlacement {
        id,
        controller: controller.clone(),
        cluster: location.cluster.clone(),
        places: location.ipus.clone(),
    }
}

/// Whether a partition is where it is recorded; so is one of which its controller lists no IPUs.
fn same_ipus(recorded: &[IpuPlace], listed: &[IpuPlace]) -> bool {
    let all = |one: &[IpuPlace], other: &[IpuPlace]| one.iter().all(|place| other.contains(place));
    listed.is_empty() || (recorded.len() == listed.len() && all(recorded, listed))
}
