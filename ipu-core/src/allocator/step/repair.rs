//! Comparison of the record with the listings of the controllers and with the owners.
//!
//! | record | controller | owner | action |
//! |---|---|---|---|
//! | queued | – | dead | drop |
//! | creating, resetting, active, failed | any | dead | release |
//! | active | does not list it, or lists other IPUs | not dead | query its status, which decides |
//! | active, failed without IPUs | lists its IPUs | any | record them |
//! | of a controller off the list | another one lists it, derived id | any | record that one |
//! | of a second name of a controller | any | any | record the first name |
//! | missing, queued, quarantined | lists it, derived id | claims it | adopt |
//! | missing, queued, quarantined | another one than the claim's lists it | claims it | quarantine: the owner uses another one |
//! | missing | listed by two | claims it without a controller | quarantine: the one in use is unknown |
//! | any that holds | lists it, derived id | claims a newer attempt | adopt: the record is an old copy |
//! | missing | lists it, derived id | no claim | quarantine |
//! | missing | lists it, other id | – | none: it is foreign |
//! | quarantined | does not list it | no claim | query its status; removed once it is absent |
//! | unconfirmed | lists it | no claim | none: its owner has to be heard first |
//! | unconfirmed, queued or in progress | does not list it | not dead | none: its owner may not wait any more |
//! | unconfirmed, otherwise | does not list it | any | confirm: nothing is there to protect |
//! | any | cannot be queried | not dead | none: kept |
//!
//! *Guarantees*: an unknown answer never releases anything; a partition that the allocator did not create is
//! never removed. *Assumptions*: an owner that is reported dead has no worker left that uses the partition.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use super::requests::confirmed;
use super::{Step, is_on_recorded_ipus, locate, user_of};
use crate::allocator::capacity::{Hardware, Listing};
use crate::allocator::entry::{Entry, Phase, satisfies};
use crate::allocator::queue::may_take_over;
use crate::allocator::request::Request;
use crate::allocator::state::{Change, State};
use crate::hardware::partition::Partition;
use crate::ids::{ControllerName, PartitionId};
use crate::units::Timestamp;

/// A repair of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairAction {
    /// A live owner's partition is recorded as its own.
    Adopt,
    /// An entry of an old copy of the record is confirmed.
    Confirm,
    /// A queued request of a dead owner leaves the queue.
    Drop,
    /// A partition is marked as failed, because its controller has moved it to IPUs of another one.
    Fail,
    /// A partition without a known owner is recorded, and kept.
    Quarantine,
    /// The controller or the IPUs of a partition are recorded.
    Record,
    /// The partition of a dead owner is released.
    Release,
}

impl RepairAction {
    /// Returns the text, a verb.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Adopt => "adopt",
            Self::Confirm => "confirm",
            Self::Drop => "drop",
            Self::Fail => "fail",
            Self::Quarantine => "quarantine",
            Self::Record => "record",
            Self::Release => "release",
        }
    }
}

/// Liveness of the owner of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OwnerLiveness {
    /// Alive.
    Live,
    /// Certainly dead, and no process of it uses the partition.
    Dead,
    /// Not known. Never a reason to release anything.
    #[default]
    Unknown,
}

/// A live owner's own record of the partition that it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The request, with the attempt that uses the partition now.
    pub request: Request,
    /// The controller that has it, if the owner recorded it. If the record was lost while a controller did
    /// not respond, the partition may have been created a second time elsewhere. Only this field identifies
    /// the one in use.
    pub controller: Option<ControllerName>,
}

impl Claim {
    /// Creates a claim to the partition of `request` at `controller`.
    #[must_use]
    pub const fn at(request: Request, controller: ControllerName) -> Self {
        Self {
            request,
            controller: Some(controller),
        }
    }
}

impl From<Request> for Claim {
    /// Creates a claim without a controller.
    fn from(request: Request) -> Self {
        Self {
            request,
            controller: None,
        }
    }
}

/// The observed owners.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    liveness: BTreeMap<PartitionId, (Arc<Entry>, OwnerLiveness)>,
    claims: BTreeMap<PartitionId, Claim>,
}

impl Owners {
    /// Records the liveness of the owner of `entry`. It does not apply if the owner has requested the
    /// partition again since, or has renewed its evidence.
    pub fn set_liveness(&mut self, entry: &Arc<Entry>, liveness: OwnerLiveness) {
        self.liveness
            .insert(entry.id.clone(), (Arc::clone(entry), liveness));
    }

    /// Forgets the liveness of the owner of `id`, who has sent a command since it was judged.
    pub fn forget_liveness(&mut self, id: &PartitionId) {
        self.liveness.remove(id);
    }

    /// Records what a live owner claims.
    pub fn claim(&mut self, claim: Claim) {
        self.claims.insert(claim.request.id.clone(), claim);
    }

    fn is_dead(&self, entry: &Entry) -> bool {
        let evidence = |entry: &Entry| (entry.ticket, entry.attempt, entry.holder.clone());
        self.liveness.get(&entry.id).is_some_and(|(judged, liveness)| {
            *liveness == OwnerLiveness::Dead && evidence(judged) == evidence(entry)
        })
    }
}

/// Compares the state with `hardware` and `owners`.
pub(super) fn repair(state: &State, hardware: &Hardware, owners: &Owners, now: Timestamp) -> Step {
    let mut step = Step::default();
    for entry in state.entries() {
        let (action, changed) = match compare(state, entry, hardware, owners, now) {
            Comparison::Same => continue,
            Comparison::Doubted => {
                step.doubted.push(entry.id.clone());
                continue;
            }
            Comparison::Put(action, changed) => (action, Change::Put(Arc::new(*changed))),
            Comparison::Drop => (RepairAction::Drop, Change::Remove(entry.id.clone())),
        };
        step.actions.push((action, entry.id.clone()));
        step.changes.push(changed);
    }
    let mut ticket = state.next_ticket();
    for view in &hardware.controllers {
        let Ok(listing) = &view.listing else { continue };
        let derived = listing
            .partitions()
            .values()
            .filter(|listed| listed.id.is_derived());
        for listed in derived.filter(|listed| state.get(&listed.id).is_none()) {
            let claimed = find_claimed(&listed.id, hardware, owners);
            let (action, entry) = match claimed.filter(|claimed| *claimed.controller == view.name) {
                Some(claimed) => (RepairAction::Adopt, claimed.adopted(hardware, ticket, now)),
                None => {
                    let mut entry = Entry::unowned(listed, &view.name, ticket, now);
                    locate(&mut entry, hardware, &view.name, listed);
                    (RepairAction::Quarantine, entry)
                }
            };
            let is_new = !step.actions.iter().any(|(_, id)| *id == listed.id);
            if is_new {
                ticket = ticket.saturating_add(1);
                step.actions.push((action, listed.id.clone()));
                step.changes.push(Change::Put(Arc::new(entry)));
            }
        }
    }
    step
}

enum Comparison {
    Same,
    Doubted,
    Put(RepairAction, alloc::boxed::Box<Entry>),
    Drop,
}

fn put(action: RepairAction, entry: Entry) -> Comparison {
    Comparison::Put(action, entry.into())
}

fn compare(
    state: &State,
    entry: &Arc<Entry>,
    hardware: &Hardware,
    owners: &Owners,
    now: Timestamp,
) -> Comparison {
    if let Some(claimed) = find_claimed(&entry.id, hardware, owners)
        && claimed.replaces(entry)
    {
        let mut adopted = claimed.adopted(hardware, entry.ticket, now);
        adopted.operations = entry.operations.saturating_add(1);
        adopted.held_since = entry.held_since.or(adopted.held_since);
        return put(RepairAction::Adopt, adopted);
    }
    let alias = entry.controller.as_ref();
    if let Some(canonical) = alias.and_then(|name| hardware.first_name_of(name)) {
        let mut moved = Entry::clone(entry);
        moved.controller = Some(canonical.clone());
        return put(RepairAction::Record, moved);
    }
    let listing = entry.controller.as_ref().and_then(|name| hardware.listing(name));
    if entry.unconfirmed {
        let is_gone = match entry.phase {
            Phase::Queued => hardware.is_complete(),
            _ => listing.is_some_and(|listing| is_newer(listing, entry, now)),
        };
        if !is_gone || hardware.find(&entry.id).is_some() {
            return Comparison::Same;
        }
        let would_start = matches!(entry.phase, Phase::Queued | Phase::Creating | Phase::Resetting);
        match (would_start, owners.is_dead(entry)) {
            (false, _) => return put(RepairAction::Confirm, confirmed(entry, hardware, now)),
            // Its owner may no longer wait for it.
            (true, false) => return Comparison::Same,
            (true, true) => {}
        }
    }
    if owners.is_dead(entry) {
        match entry.phase {
            Phase::Queued => return Comparison::Drop,
            Phase::Creating | Phase::Resetting | Phase::Active | Phase::Failed { .. } => {
                let mut released = entry.with_phase(Phase::Releasing { refusal: None }, now);
                released.unconfirmed = false;
                return put(RepairAction::Release, released);
            }
            Phase::Releasing { .. } | Phase::Quarantined => {}
        }
    }
    let Some(name) = &entry.controller else {
        return Comparison::Same;
    };
    if !hardware.controllers.iter().any(|view| view.name == *name) {
        return match hardware.find(&entry.id) {
            Some((other, listed)) if may_take_over(entry, listed) => {
                let mut moved = Entry::clone(entry);
                moved.controller = Some(other.clone());
                locate(&mut moved, hardware, other, listed);
                put(RepairAction::Record, moved)
            }
            _ => Comparison::Same,
        };
    }
    let Some(listing) = listing.filter(|listing| is_newer(listing, entry, now)) else {
        return Comparison::Same;
    };
    compare_listed(state, entry, hardware, owners, now, listing)
}

fn compare_listed(
    state: &State,
    entry: &Arc<Entry>,
    hardware: &Hardware,
    owners: &Owners,
    now: Timestamp,
    listing: &Listing,
) -> Comparison {
    let listed = listing.partitions().get(&entry.id);
    match (&entry.phase, listed) {
        (Phase::Active, None) => Comparison::Doubted,
        (Phase::Quarantined, None) if !owners.claims.contains_key(&entry.id) => Comparison::Doubted,
        (Phase::Active | Phase::Failed { .. }, Some(listed))
            if entry.places.is_empty() && !listed.ipus.is_empty() =>
        {
            let mut located = Entry::clone(entry);
            if let Some(name) = &entry.controller {
                locate(&mut located, hardware, name, listed);
            }
            match user_of(state, hardware, &located) {
                None => put(RepairAction::Record, located),
                Some(user) if matches!(entry.phase, Phase::Active) => {
                    let error = alloc::format!(
                        "its controller has placed it on IPUs that partition {} may still use",
                        user.id
                    );
                    let errors = alloc::vec::Vec::from([error]);
                    put(
                        RepairAction::Fail,
                        entry.with_phase(Phase::Failed { errors }, now),
                    )
                }
                Some(_) => Comparison::Same,
            }
        }
        (Phase::Active, Some(listed)) if !is_on_recorded_ipus(entry, listed) => Comparison::Doubted,
        _ => Comparison::Same,
    }
}

/// Returns whether the listing was requested after the entry came into its phase. A time in the future is of
/// a clock that has stepped back since.
fn is_newer(listing: &Listing, entry: &Entry, now: Timestamp) -> bool {
    let requested = listing.requested();
    requested.is_some_and(|requested| requested > entry.since || entry.since > now)
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
    hardware: &'a Hardware,
    owners: &'a Owners,
) -> Option<ClaimedPartition<'a>> {
    let claim = owners.claims.get(id)?;
    let (controller, partition) = match &claim.controller {
        Some(controller) => {
            let listing = hardware.listing(controller)?;
            (controller, &**listing.partitions().get(id)?)
        }
        None => {
            let mut listing = hardware.controllers.iter().filter_map(|view| {
                let listing = view.listing.as_ref().ok()?;
                Some((&view.name, &**listing.partitions().get(id)?))
            });
            let first = listing.next()?;
            if listing.next().is_some() {
                return None;
            }
            first
        }
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
    /// Returns whether the claim is newer evidence than `entry`.
    fn replaces(&self, entry: &Entry) -> bool {
        let is_owner = entry.owner.as_ref() == Some(&self.request.owner);
        match entry.phase {
            Phase::Queued | Phase::Quarantined => true,
            _ => is_owner && (entry.unconfirmed || self.request.attempt > entry.attempt),
        }
    }

    /// Builds the entry of the adopted partition.
    fn adopted(&self, hardware: &Hardware, ticket: u64, now: Timestamp) -> Entry {
        let mut entry = Entry::new_queued(self.request, ticket, now).with_phase(Phase::Active, now);
        entry.controller = Some(self.controller.clone());
        entry.held_since = Some(now);
        locate(&mut entry, hardware, self.controller, self.partition);
        entry
    }
}

impl State {
    /// Returns the changes that mark the state as an old copy of the record: nothing that it alone claims is
    /// released or reset before the owner was heard.
    #[must_use]
    pub fn as_copy(&self) -> alloc::vec::Vec<Change> {
        let unconfirmed = |entry: &Arc<Entry>| {
            let mut entry = Entry::clone(entry);
            entry.unconfirmed = true;
            Change::Put(Arc::new(entry))
        };
        self.entries().map(unconfirmed).collect()
    }
}
