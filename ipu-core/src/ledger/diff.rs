//! The three-way diff of the ledger, the listings of the controllers and the liveness of owners, with the
//! resulting actions.
//!
//! | ledger | controller | owner | action |
//! |---|---|---|---|
//! | waiting | – | dead | drop |
//! | intent | any | unknown | finish |
//! | releasing | any | any | finish |
//! | intent | any | live | none: its owner repeats the request; finish once a minute and the fence have passed |
//! | intent | any | dead | release |
//! | active, failed | any | dead | orphan, then release after the grace period |
//! | orphaned | any | live | reclaim |
//! | active | does not list it | live, unknown | lost |
//! | active | lists it on other IPUs | live, unknown | relocated |
//! | active, failed, orphaned without IPUs | lists its IPUs | any | note |
//! | missing, waiting | lists it, derived id | claims it | adopt |
//! | missing, waiting | listed by another one than the claim names | claims it | quarantine: the owner uses another one |
//! | missing, waiting | listed by two | claims it without a controller | quarantine: the one in use is unknown |
//! | any that holds | lists it, derived id | claims a newer attempt | adopt: the ledger is an old copy |
//! | missing, waiting | lists it, derived id | no claim | quarantine |
//! | missing | lists it, other id | – | none: it is foreign |
//! | quarantined | does not list it | claims it there, or without a controller | none: it may use the recorded IPUs |
//! | quarantined | does not list it | no claim there | forget |
//! | any | cannot be queried | not dead | none: kept |
//!
//! *Guarantees*: an unknown answer never releases anything; a partition that the ledger did not create is
//! never removed. *Assumptions*: an owner that is reported dead has no worker left that uses the partition,
//! or the partition is reset before it is granted again (a new partition always is fresh). *Caveats*: the
//! listing may be older than the ledger. The caller queries the status of a partition before it acts on
//! `lost`, `quarantine` or `forget`.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{ControllerView, ControllersSnapshot};
use crate::ledger::change::Change;
use crate::ledger::claims::{OwnerLiveness, Owners};
use crate::ledger::entry::{Entry, EntryState, Request, satisfies};
use crate::ledger::location::Location;
use crate::ledger::reclaim::{is_on_recorded_ipus, lost_partition_error, relocation_error};
use crate::ledger::transitions::CallWindow;
use crate::partition::{IpuPlace, Partition};
use crate::units::Timestamp;

/// One action that follows from the diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "action")]
pub enum Action {
    /// Record a partition that a live owner claims by its derived id.
    Adopt {
        /// The partition id.
        id: PartitionId,
        /// The controller.
        controller: ControllerName,
    },
    /// Continue an intent or a release.
    Finish {
        /// The partition id.
        id: PartitionId,
    },
    /// Record that the owner is dead; release later.
    Orphan {
        /// The partition id.
        id: PartitionId,
    },
    /// Return an orphaned partition to its owner, which is alive after all.
    Reclaim {
        /// The partition id.
        id: PartitionId,
    },
    /// Release the partition of a dead owner.
    Release {
        /// The partition id.
        id: PartitionId,
    },
    /// Remove the request of a dead owner from the queue.
    Drop {
        /// The partition id.
        id: PartitionId,
    },
    /// Record an unowned partition with a derived id, and leave it untouched.
    Quarantine {
        /// The partition id.
        id: PartitionId,
        /// The controller.
        controller: ControllerName,
    },
    /// Remove the entry of a quarantined partition that no longer exists.
    Forget {
        /// The partition id.
        id: PartitionId,
    },
    /// Record that the controller no longer lists a partition that its owner holds.
    Lost {
        /// The partition id.
        id: PartitionId,
        /// The controller that lost it.
        controller: ControllerName,
    },
    /// Record the placement of the partition.
    #[serde(rename = "note")]
    RecordPlacement {
        /// The partition id.
        id: PartitionId,
        /// The controller.
        controller: ControllerName,
        /// The cluster, if the controller has several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<ClusterId>,
        /// The IPUs.
        places: Vec<IpuPlace>,
    },
    /// The controller lists an active partition on other IPUs than recorded: a late call has created it
    /// again, and the owner may still use the recorded IPUs. The partition fails, and keeps those IPUs until
    /// it is reset or released.
    Relocated {
        /// The partition id.
        id: PartitionId,
        /// The controller.
        controller: ControllerName,
    },
}

impl Action {
    /// Returns the label used in metrics and tables.
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

    /// Returns the partition id.
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

    /// Returns whether the action rests on the listing alone, so that the status must be queried before it is
    /// taken.
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

impl LedgerState {
    /// Compares the ledger with `snapshot` and `owners`. Returns the resulting actions in the order of the
    /// ids.
    #[must_use]
    pub fn diff(
        &self,
        snapshot: &ControllersSnapshot,
        owners: &Owners,
        orphan_grace: Duration,
        now: Timestamp,
    ) -> Vec<Action> {
        let snapshot = &*self.with_primaries(snapshot);
        let mut actions: Vec<Action> = Vec::new();
        for entry in self.entries() {
            let liveness = owners.liveness.get(&entry.id).copied().unwrap_or_default();
            let is_listed = || {
                let controller = entry.controller.as_ref();
                controller.is_some_and(|name| snapshot.listing(name).is_some())
            };
            // A reclaim waits for the answer of the controller.
            let is_possible = |action: &Action| !matches!(action, Action::Reclaim { .. }) || is_listed();
            actions.extend(
                action_for_newer_claim(entry, snapshot, owners)
                    .or_else(|| action_for_liveness(entry, liveness, orphan_grace, now).filter(is_possible))
                    .or_else(|| self.action_for_listing(entry, snapshot, owners)),
            );
        }
        for view in &snapshot.controllers {
            let Ok(listing) = &view.listing else { continue };
            for partition in listing.partitions().values().filter(|p| p.id.is_derived()) {
                if self.get(&partition.id).is_none() {
                    actions.push(action_for_unrecorded(partition, &view.name, snapshot, owners));
                }
            }
        }
        actions
    }

    fn action_for_listing(
        &self,
        entry: &Entry,
        snapshot: &ControllersSnapshot,
        owners: &Owners,
    ) -> Option<Action> {
        let id = entry.id.clone();
        if matches!(entry.state, EntryState::Waiting { .. }) {
            // An old copy of the ledger does not record that the entry has started.
            let (controller, partition) = snapshot.find(&id).filter(|_| id.is_derived())?;
            return Some(action_for_unrecorded(partition, controller, snapshot, owners));
        }
        let controller = entry.controller.clone()?;
        let configured = snapshot.controllers.iter().any(|view| view.name == controller);
        if !configured {
            let (other, partition) = snapshot.find(&id)?;
            return Some(record_placement(id, other, &snapshot.locate(other, partition)));
        }
        let listed = snapshot.listing(&controller)?.partitions().get(&id);
        match (&entry.state, listed) {
            (EntryState::Quarantined, Some(partition)) => {
                match action_for_unrecorded(partition, &controller, snapshot, owners) {
                    adopt @ Action::Adopt { .. } => Some(adopt),
                    _ => None,
                }
            }
            // Its owner may still use the recorded IPUs.
            (EntryState::Quarantined, None) if is_claimed_at(&controller, &id, snapshot, owners) => None,
            (EntryState::Quarantined, None) => Some(Action::Forget { id }),
            (EntryState::Active, None) => Some(Action::Lost { id, controller }),
            (EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned, Some(partition))
                if entry.places.is_empty() && !partition.ipus.is_empty() =>
            {
                Some(record_placement(
                    id,
                    &controller,
                    &snapshot.locate(&controller, partition),
                ))
            }
            (EntryState::Active, Some(partition)) if !is_on_recorded_ipus(&entry.places, &partition.ipus) => {
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

    /// Returns the changes of `action`; none if the entry has changed since the diff. Finish and release are
    /// driven like those that an owner requests.
    #[must_use]
    pub fn changes_for(
        &self,
        action: &Action,
        snapshot: &ControllersSnapshot,
        owners: &Owners,
        window: CallWindow,
    ) -> Vec<Change> {
        let now = window.now;
        let snapshot = &*self.with_primaries(snapshot);
        let Some(entry) = self.get(action.id()) else {
            return self.record_unrecorded(action, snapshot, owners, now);
        };
        let put = |entry: Entry| Vec::from([Change::Put(Arc::new(entry))]);
        match (action, &entry.state) {
            (Action::Quarantine { controller, .. }, EntryState::Waiting { .. }) => snapshot
                .find(&entry.id)
                .map(|(at, partition)| {
                    let location = snapshot.locate(at, partition);
                    Entry::unowned(partition, location, controller, entry.ticket, now)
                })
                .map_or_else(Vec::new, put),
            (Action::Adopt { .. }, EntryState::Quarantined | EntryState::Waiting { .. }) => {
                find_claimed(&entry.id, snapshot, owners)
                    .map(|claimed| claimed.adopted(snapshot, entry.ticket, now))
                    .map_or_else(Vec::new, put)
            }
            (Action::Adopt { .. }, _) => find_newer_claim(entry, snapshot, owners)
                .map(|claimed| claimed.adopted(snapshot, entry.ticket, now).inherit_from(entry))
                .map_or_else(Vec::new, put),
            (Action::Orphan { .. }, EntryState::Active | EntryState::Failed { .. }) => {
                put(entry.with_state(EntryState::Orphaned, now))
            }
            (Action::Reclaim { .. }, EntryState::Orphaned) => put(self.reclaimed(entry, snapshot, now)),
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
                let errors = Vec::from([lost_partition_error(controller)]);
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
                let mut placed = entry.clone();
                placed.controller = Some(controller.clone());
                placed.set_location(Location {
                    cluster: cluster.clone(),
                    ipus: places.clone(),
                });
                match (self.user_of(&placed, &placed.location()), &entry.state) {
                    (None, _) => put(placed),
                    (Some(user), EntryState::Active) => {
                        let used = alloc::format!(
                            "controller {controller} has placed it on IPUs that partition {} may still use",
                            user.id
                        );
                        let errors = Vec::from([used]);
                        put(entry.with_state(EntryState::Failed { errors }, now))
                    }
                    (Some(_), _) => Vec::new(),
                }
            }
            (Action::Relocated { controller, .. }, EntryState::Active) => {
                let errors = Vec::from([relocation_error(controller)]);
                put(entry.with_state(EntryState::Failed { errors }, now))
            }
            _ => Vec::new(),
        }
    }

    fn record_unrecorded(
        &self,
        action: &Action,
        snapshot: &ControllersSnapshot,
        owners: &Owners,
        now: Timestamp,
    ) -> Vec<Change> {
        let ticket = self.next_ticket();
        let entry = match action {
            Action::Adopt { id, .. } => {
                find_claimed(id, snapshot, owners).map(|claimed| claimed.adopted(snapshot, ticket, now))
            }
            Action::Quarantine { id, controller } => snapshot.listing(controller).and_then(|listing| {
                let partition = listing.partitions().get(id)?;
                let location = listing.locate(partition);
                Some(Entry::unowned(partition, location, controller, ticket, now))
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
    /// Returns the entry with the state that `old`, an outdated record of the same partition, has in
    /// addition.
    fn inherit_from(mut self, old: &Self) -> Self {
        let mut updated = old.clone();
        updated.carry_unsettled_calls(None);
        self.unsettled = updated.unsettled;
        self.unsettled_reset = updated.unsettled_reset;
        self.held_since = old.held_since.or(self.held_since);
        self
    }
}

/// Time for which a live owner drives its intent alone: twice the default settle time of a call.
const INTENT_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// Adopts a partition of which a live owner was granted a newer attempt than recorded. The ledger is an old
/// copy then, and its operation must not continue under the current workers.
fn action_for_newer_claim(entry: &Entry, snapshot: &ControllersSnapshot, owners: &Owners) -> Option<Action> {
    find_newer_claim(entry, snapshot, owners).map(|claimed| Action::Adopt {
        id: entry.id.clone(),
        controller: claimed.controller.clone(),
    })
}

fn find_newer_claim<'a>(
    entry: &Entry,
    snapshot: &'a ControllersSnapshot,
    owners: &'a Owners,
) -> Option<ClaimedPartition<'a>> {
    let claimed = find_claimed(&entry.id, snapshot, owners)?;
    let is_newer =
        claimed.request.attempt > entry.attempt && entry.owner.as_ref() == Some(&claimed.request.owner);
    (is_newer && entry.state.holds()).then_some(claimed)
}

/// Returns the action that follows from the liveness of the owner alone.
fn action_for_liveness(
    entry: &Entry,
    liveness: OwnerLiveness,
    orphan_grace: Duration,
    now: Timestamp,
) -> Option<Action> {
    let id = entry.id.clone();
    match (&entry.state, liveness) {
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
        // Two drivers of one intent only delay each other.
        (EntryState::Intent { fence, .. }, OwnerLiveness::Live) => {
            let is_overdue = *fence <= now && now.since(entry.since) >= INTENT_GRACE_PERIOD;
            is_overdue.then_some(Action::Finish { id })
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

/// Decides on a listed partition with a derived id that has no owner in the ledger.
fn action_for_unrecorded(
    partition: &Partition,
    controller: &ControllerName,
    snapshot: &ControllersSnapshot,
    owners: &Owners,
) -> Action {
    let (id, controller) = (partition.id.clone(), controller.clone());
    match find_claimed(&id, snapshot, owners) {
        Some(claimed) if snapshot.is_same(claimed.controller, &controller) => Action::Adopt {
            id,
            controller: claimed.controller.clone(),
        },
        _ => Action::Quarantine { id, controller },
    }
}

/// Returns whether a live owner claims the partition and may use it at `controller`.
fn is_claimed_at(
    controller: &ControllerName,
    id: &PartitionId,
    snapshot: &ControllersSnapshot,
    owners: &Owners,
) -> bool {
    let claim = owners.claims.get(id);
    let is_there = |name: &ControllerName| snapshot.is_same(name, controller);
    claim.is_some_and(|claim| claim.controller.as_ref().is_none_or(is_there))
}

/// A listed partition that a live owner uses.
struct ClaimedPartition<'a> {
    controller: &'a ControllerName,
    partition: &'a Partition,
    request: &'a Request,
}

/// Returns the listed partition of this id that a live owner uses, if it is certain.
fn find_claimed<'a>(
    id: &PartitionId,
    snapshot: &'a ControllersSnapshot,
    owners: &'a Owners,
) -> Option<ClaimedPartition<'a>> {
    let claim = owners.claims.get(id)?;
    let (controller, partition) = match &claim.controller {
        Some(controller) => (
            controller,
            snapshot.listing(controller)?.partitions().get(id)?.as_ref(),
        ),
        None => snapshot.find(id).filter(|_| is_unique(id, snapshot))?,
    };
    let request = &claim.request;
    let is_satisfied = request.is_derived() && satisfies(&request.spec, &partition.spec);
    is_satisfied.then_some(ClaimedPartition {
        controller,
        partition,
        request,
    })
}

impl ClaimedPartition<'_> {
    /// Builds the entry of the adopted partition.
    fn adopted(&self, snapshot: &ControllersSnapshot, ticket: u64, now: Timestamp) -> Entry {
        let mut entry = Entry::waiting(self.request, ticket, now).with_state(EntryState::Active, now);
        entry.controller = Some(self.controller.clone());
        entry.set_location(snapshot.locate(self.controller, self.partition));
        entry.held_since = Some(now);
        entry
    }
}

/// Returns whether only one controller lists the partition.
fn is_unique(id: &PartitionId, snapshot: &ControllersSnapshot) -> bool {
    let lists = |view: &&ControllerView| {
        view.listing
            .as_ref()
            .is_ok_and(|listing| listing.partitions().contains_key(id))
    };
    let listing = snapshot.controllers.iter().filter(lists);
    let controllers: BTreeSet<_> = listing.map(|view| snapshot.primary(&view.name)).collect();
    controllers.len() < 2
}

fn record_placement(id: PartitionId, controller: &ControllerName, location: &Location) -> Action {
    Action::RecordPlacement {
        id,
        controller: controller.clone(),
        cluster: location.cluster.clone(),
        places: location.ipus.clone(),
    }
}
