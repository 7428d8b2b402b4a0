//! The transitions: the only place where the state changes.
//!
//! ```text
//!            does not fit           fits: committed, then the controller is called
//! request ──► Queued ────────────────────────► Creating ──► Active ◄──► Failed
//!                ▲    the controller refuses       │         │ ▲           │
//!                ├─────────────────────────────────┘         ▼ │           │
//!                └──────────── it is gone ◄────────────  Resetting ◄───────┤
//!                                                      (newer attempt)     │
//!                                                            │             │
//!       release, by the owner or because it is dead          ▼             ▼
//!                     removed entry ◄──────────────────── Releasing ◄──────┘
//!
//! Quarantined: listed by a controller under a derived id, without an owner; claimed by its owner or left
//! untouched.
//! ```

mod cordon;
mod repair;
mod requests;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::allocator::calls::{Answer, OperationKey, Reply};
use crate::allocator::capacity::Hardware;
use crate::allocator::cordon::Cordon;
use crate::allocator::entry::{Entry, Phase, Refusal, RemovalRefusal};
use crate::allocator::error::RequestError;
use crate::allocator::holders::capacities;
use crate::allocator::policy::Policy;
use crate::allocator::preemption::preempt;
use crate::allocator::queue::{QueueDecision, QueueScan, QueueStatus, find_existing, may_take_over};
use crate::allocator::request::Request;
use crate::allocator::state::{Change, State};
use crate::hardware::partition::{Partition, PartitionState};
use crate::ids::{ControllerName, CordonId, CordonOwner, Owner, PartitionId};
use crate::units::Timestamp;

pub use cordon::CordonEffect;
pub use repair::{Claim, OwnerLiveness, Owners, RepairAction};

/// Something that happened. Commands come from clients, all others from the loop around [`step`].
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Event {
    /// A client requests a partition.
    Ensure(Request),
    /// The owner requests a reset of its partition, even if it is fresh for the attempt already.
    Reset {
        /// The partition.
        id: PartitionId,
        /// The owner.
        owner: Owner,
        /// The attempt.
        attempt: u32,
        /// See [`Request::not_after`].
        not_after: Option<Timestamp>,
    },
    /// The owner releases its partition, or leaves the queue.
    Release(Release),
    /// The owner is alive; `holder` is the evidence from now on.
    Renew {
        /// The partition.
        id: PartitionId,
        /// The owner.
        owner: Owner,
        /// See [`Request::holder`].
        holder: String,
    },
    /// An administrator cordons hardware.
    Cordon(Cordon),
    /// The owner of a cordon lifts it.
    Uncordon {
        /// The cordon.
        id: CordonId,
        /// Its owner.
        owner: CordonOwner,
    },
    /// An administrator removes a partition that the state does not record, such as one made by hand.
    RemoveForeign {
        /// The partition as listed.
        partition: Partition,
        /// The controller.
        controller: ControllerName,
    },
    /// A controller answered a call.
    Answered(Answer),
    /// Record, controllers and owners are compared. Listings and owners must be observed after the start of
    /// the process. It has no serialised form.
    #[serde(skip)]
    Compare(Owners),
    /// Queued requests start if they fit, and holders are asked to release if that helps. The loop adds this
    /// event at the end of every batch.
    Schedule,
}

/// A release.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Release {
    /// The partition.
    pub id: PartitionId,
    /// The owner; none if an administrator releases a quarantined partition.
    pub owner: Option<Owner>,
    /// The newest attempt that the caller knows of: a caller with an old record cannot release the partition
    /// of a newer attempt. None releases whatever the attempt is.
    pub attempt: Option<u32>,
    /// Whether the controller may be forced to remove a partition that is in error.
    #[serde(default)]
    pub force: bool,
    /// See [`Request::not_after`].
    pub not_after: Option<Timestamp>,
}

impl Release {
    /// Creates the release of the partition of `request` by its owner, whatever its attempt. The controller
    /// may be forced.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        Self {
            id: request.id.clone(),
            owner: Some(request.owner.clone()),
            attempt: None,
            force: true,
            not_after: None,
        }
    }
}

/// The changes to commit, and the result for the sender of the event.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Step {
    /// Changes to commit in one write, before the result is true.
    pub changes: Vec<Change>,
    /// The result.
    pub outcome: Outcome,
    /// Partitions whose status has to be queried, because the listing contradicts the record.
    pub doubted: Vec<PartitionId>,
    /// Repairs of a comparison, each with its partition.
    pub actions: Vec<(RepairAction, PartitionId)>,
    /// Requests that ended by this event, with the reason.
    pub ended: BTreeMap<PartitionId, Ended>,
}

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The event is not a command.
    #[default]
    None,
    /// The entry of the partition shows the result.
    Recorded,
    /// The request does not fit and was not to be queued; nothing is recorded.
    Rejected(QueueStatus),
    /// There was nothing to release.
    NotHeld,
    /// The request has left the queue.
    Dequeued,
    /// The release is recorded.
    Releasing,
    /// The cordon is recorded.
    Cordoned(alloc::boxed::Box<CordonEffect>),
    /// The cordon was lifted; none if there was none.
    Uncordoned(Option<alloc::boxed::Box<Cordon>>),
}

/// The end of a request without a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was not to be queued, and the controller refused it.
    Refused(Refusal),
    /// Another partition has its id.
    Foreign(RequestError),
}

/// Returns the changes that follow from `event`.
///
/// # Errors
///
/// [`RequestError`] if a command is refused. Other events never fail.
pub fn step(
    state: &State,
    hardware: &Hardware,
    policy: &Policy,
    now: Timestamp,
    event: &Event,
) -> Result<Step, RequestError> {
    let step = match event {
        Event::Ensure(request) => requests::ensure(state, hardware, policy, now, request)?,
        Event::Reset {
            id,
            owner,
            attempt,
            not_after,
        } => {
            check_not_after(id, *not_after, now)?;
            requests::reset(state, hardware, now, id, owner, *attempt)?
        }
        Event::Release(release) => {
            check_not_after(&release.id, release.not_after, now)?;
            requests::release(state, hardware, now, release)?
        }
        Event::Renew { id, owner, holder } => requests::renew(state, hardware, now, id, owner, holder)?,
        Event::Cordon(cordon) => {
            let (effect, changes) = cordon::cordon(state, hardware, cordon, now)?;
            Step {
                changes,
                outcome: Outcome::Cordoned(effect.into()),
                ..Step::default()
            }
        }
        Event::Uncordon { id, owner } => {
            let (lifted, changes) = cordon::uncordon(state, id, owner)?;
            Step {
                changes,
                outcome: Outcome::Uncordoned(lifted.map(Into::into)),
                ..Step::default()
            }
        }
        Event::RemoveForeign {
            partition,
            controller,
        } => requests::remove_foreign(state, now, partition, controller),
        Event::Answered(answer) => answered(state, hardware, now, answer),
        Event::Compare(owners) => repair::repair(state, hardware, owners, now),
        Event::Schedule => Step {
            changes: schedule(state, hardware, policy, now),
            ..Step::default()
        },
    };
    Ok(step)
}

fn check_not_after(
    id: &PartitionId,
    not_after: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), RequestError> {
    match not_after.filter(|latest| *latest < now) {
        None => Ok(()),
        Some(not_after) => Err(RequestError::TooLate {
            id: id.clone(),
            not_after,
            now,
        }),
    }
}

impl Step {
    /// Creates the step that replaces an entry, if it differs from the recorded one.
    fn put(recorded: Option<&Arc<Entry>>, entry: Entry) -> Self {
        let is_same = recorded.is_some_and(|recorded| **recorded == entry);
        let changes = (!is_same).then(|| Change::Put(Arc::new(entry)));
        Self {
            changes: changes.into_iter().collect(),
            outcome: Outcome::Recorded,
            ..Self::default()
        }
    }

    fn remove(id: &PartitionId) -> Self {
        Self {
            changes: Vec::from([Change::Remove(id.clone())]),
            ..Self::default()
        }
    }
}

/// Returns the changes that follow from an answer of a controller.
fn answered(state: &State, hardware: &Hardware, now: Timestamp, answer: &Answer) -> Step {
    let recorded = state.get(&answer.id);
    if let Some(entry) = recorded
        && let (Phase::Releasing { .. }, Reply::Exists(_)) = (&entry.phase, &answer.reply)
        && (answer.is_settled && !entry.is_derived() && answer.operation.is_followed_by(entry))
    {
        // Released while the controller refused to create it: another partition has the id, and stays.
        return Step::remove(&entry.id);
    }
    let Some(entry) = recorded.filter(|entry| OperationKey::of(entry) == answer.operation) else {
        // The entry has moved on since the call.
        return Step::default();
    };
    let moved = match (&entry.phase, &answer.reply) {
        (Phase::Creating, Reply::Exists(found)) => {
            return found_existing(hardware, now, entry, found.as_ref(), answer.is_settled);
        }
        (Phase::Creating, Reply::Refused { message }) if answer.is_settled => {
            return refused(state, hardware, now, entry, message);
        }
        (
            Phase::Creating | Phase::Resetting | Phase::Active | Phase::Failed { .. },
            Reply::Status {
                state: status,
                listed,
            },
        ) => observed(state, hardware, now, entry, status, listed.as_ref()).map(|mut moved| {
            moved.unsettled = !answer.is_settled;
            moved
        }),
        (Phase::Active | Phase::Failed { .. }, Reply::Absent) => entry
            .controller
            .as_ref()
            .map(|name| failed(entry, lost_partition_error(name), now)),
        // It is created again if quotas, cordons and the queue allow it.
        (Phase::Resetting, Reply::Absent) if answer.is_settled => Some(entry.requeued(now)),
        (Phase::Quarantined, Reply::Absent) => return Step::remove(&entry.id),
        (Phase::Releasing { .. }, Reply::Absent) if answer.is_settled => return Step::remove(&entry.id),
        (Phase::Releasing { .. }, Reply::NeedsForce { message }) => {
            let refusal = Some(RemovalRefusal::new(message, now));
            let mut entry = Entry::clone(entry);
            entry.phase = Phase::Releasing { refusal };
            Some(entry)
        }
        _ => None,
    };
    moved.map_or_else(Step::default, |moved| Step::put(recorded, moved))
}

/// Takes over a partition that existed before it was created: its previous use is unknown, so it is reset. An
/// id that the owner chose does not show that the partition is the owner's; a create that may have been
/// executed does.
fn found_existing(
    hardware: &Hardware,
    now: Timestamp,
    entry: &Arc<Entry>,
    found: Option<&Partition>,
    is_settled: bool,
) -> Step {
    let Some(controller) = &entry.controller else {
        return Step::default();
    };
    let is_foreign = is_settled && !entry.is_derived();
    if is_foreign && found.is_none() {
        return Step::default();
    }
    if let Some(found) = found.filter(|found| is_foreign || !entry.matches(&found.spec)) {
        let mut step = Step::remove(&entry.id);
        let error = RequestError::Foreign {
            id: entry.id.clone(),
            controller: controller.clone(),
            found: found.spec.size.get(),
        };
        step.ended.insert(entry.id.clone(), Ended::Foreign(error));
        return step;
    }
    let mut reset = entry.started(Phase::Resetting, controller, now);
    if let Some(found) = found {
        locate(&mut reset, hardware, controller, found);
    }
    Step::put(Some(entry), reset)
}

/// Puts an entry that its controller refuses back into the queue, or ends it if it was not to be queued.
fn refused(state: &State, hardware: &Hardware, now: Timestamp, entry: &Arc<Entry>, message: &str) -> Step {
    let Some(controller) = &entry.controller else {
        return Step::default();
    };
    let mut refusal = Refusal {
        controller: controller.clone(),
        message: message.into(),
        fingerprint: 0,
        at: now,
    };
    if entry.rejects {
        let mut step = Step::remove(&entry.id);
        step.ended.insert(entry.id.clone(), Ended::Refused(refusal));
        return step;
    }
    let mut without = state.clone();
    without.apply(&Change::Remove(entry.id.clone()));
    let capacities = capacities(&without, hardware);
    let capacity = capacities.iter().find(|capacity| capacity.name == *controller);
    refusal.fingerprint = capacity.map_or(0, |capacity| capacity.fingerprint());
    let mut queued = entry.requeued(now);
    queued.refusals.retain(|known| known.controller != *controller);
    queued.refusals.push(refusal);
    Step::put(Some(entry), queued)
}

/// Returns the entry after its controller reported the status `status`; none if that changes nothing.
fn observed(
    state: &State,
    hardware: &Hardware,
    now: Timestamp,
    entry: &Entry,
    status: &PartitionState,
    listed: Option<&Partition>,
) -> Option<Entry> {
    let controller = entry.controller.as_ref()?;
    match status {
        PartitionState::Failed { errors } if !matches!(entry.phase, Phase::Failed { .. }) => {
            let errors = errors.clone();
            Some(entry.with_phase(Phase::Failed { errors }, now))
        }
        PartitionState::Active => {
            let mut ready = entry.clone();
            if let Some(listed) = listed.filter(|listed| !listed.ipus.is_empty()) {
                if entry.phase.may_be_in_use() && !is_on_recorded_ipus(entry, listed) {
                    let error = relocation_error(controller);
                    return matches!(entry.phase, Phase::Active).then(|| failed(entry, error, now));
                }
                locate(&mut ready, hardware, controller, listed);
            } else if entry.places.is_empty() && listed.is_none() && !entry.phase.may_be_in_use() {
                // It is listed a moment later.
                return None;
            }
            if let Some(user) = user_of(state, hardware, &ready) {
                let id = &user.id;
                let error = alloc::format!(
                    "its IPUs may still be in use by partition {id}, which its controller does not list"
                );
                return (!matches!(entry.phase, Phase::Failed { .. })).then(|| failed(&ready, error, now));
            }
            if matches!(entry.phase, Phase::Active) {
                return Some(ready);
            }
            Some(ready.with_phase(Phase::Active, now))
        }
        PartitionState::Failed { .. }
        | PartitionState::Creating
        | PartitionState::Resetting
        | PartitionState::Removing => None,
    }
}

fn failed(entry: &Entry, error: String, now: Timestamp) -> Entry {
    let errors = Vec::from([error]);
    if matches!(&entry.phase, Phase::Failed { errors: recorded } if *recorded == errors) {
        return entry.clone();
    }
    entry.with_phase(Phase::Failed { errors }, now)
}

/// Records the IPUs of `listed`, the partition of `entry` at `controller`.
fn locate(entry: &mut Entry, hardware: &Hardware, controller: &ControllerName, listed: &Partition) {
    if listed.ipus.is_empty() {
        return;
    }
    let listing = hardware.listing(controller);
    entry.places.clone_from(&listed.ipus);
    entry.cluster = listing.and_then(|listing| listing.cluster_of(listed));
}

/// Returns whether a partition is on the recorded IPUs of `entry`, if any are recorded and listed.
fn is_on_recorded_ipus(entry: &Entry, listed: &Partition) -> bool {
    let (recorded, listed) = (&entry.places, &listed.ipus);
    let all = |one: &[_], other: &[_]| one.iter().all(|place| other.contains(place));
    recorded.is_empty() || listed.is_empty() || recorded.len() == listed.len() && all(recorded, listed)
}

/// Returns the error of a partition that its controller no longer lists.
fn lost_partition_error(controller: &ControllerName) -> String {
    alloc::format!("controller {controller} no longer lists the partition")
}

/// Returns the error of a partition that its controller lists on other IPUs than recorded.
fn relocation_error(controller: &ControllerName) -> String {
    alloc::format!("controller {controller} has created it again on other IPUs")
}

/// Returns another entry whose owner may be using some IPUs of `entry`.
fn user_of<'a>(state: &'a State, hardware: &Hardware, entry: &Entry) -> Option<&'a Arc<Entry>> {
    let same_cluster = |other: &Entry| match (&other.cluster, &entry.cluster) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    let controller_of = |entry: &'_ Entry| {
        let name = entry.controller.as_ref();
        name.map(|name| hardware.canonical(name).clone())
    };
    state.entries().find(|other| {
        other.id != entry.id
            && other.phase.may_be_in_use()
            && controller_of(other) == controller_of(entry)
            && same_cluster(other)
            && other.places.iter().any(|place| entry.places.contains(place))
    })
}

/// Starts the queued requests that fit, in queue order, and asks holders to release if that helps.
fn schedule(state: &State, hardware: &Hardware, policy: &Policy, now: Timestamp) -> Vec<Change> {
    if state.queue().len() == 0 {
        return preempt(state, hardware, policy, now);
    }
    let mut changes = Vec::new();
    let mut scan = QueueScan::new(state, hardware, policy, now);
    let mut overtaken: BTreeMap<PartitionId, u32> = BTreeMap::new();
    for entry in state.queue() {
        let Some(QueueDecision::Start { controller, places }) = scan.start(entry) else {
            continue;
        };
        for other in scan.overtaken_by(entry) {
            *overtaken.entry(other.id.clone()).or_default() += 1;
        }
        let started = start(entry, hardware, &controller, places, now);
        changes.push(Change::Put(Arc::new(started)));
    }
    for (id, times) in overtaken {
        if let Some(other) = state.get(&id) {
            let mut other = Entry::clone(other);
            other.overtaken = other.overtaken.saturating_add(times);
            changes.push(Change::Put(Arc::new(other)));
        }
    }
    if changes.is_empty() {
        return preempt(state, hardware, policy, now);
    }
    let mut after = state.clone();
    changes.iter().for_each(|change| after.apply(change));
    changes.extend(preempt(&after, hardware, policy, now));
    changes
}

/// Returns `entry` as it starts at `controller`: it is created, or reset if it exists there already.
fn start(
    entry: &Entry,
    hardware: &Hardware,
    controller: &ControllerName,
    places: Vec<crate::hardware::IpuPlace>,
    now: Timestamp,
) -> Entry {
    if let Some((at, found)) =
        find_existing(hardware, entry, now).filter(|(_, found)| may_take_over(entry, found))
    {
        let mut reset = entry.started(Phase::Resetting, at, now);
        locate(&mut reset, hardware, at, found);
        return reset;
    }
    let mut created = entry.started(Phase::Creating, controller, now);
    created.names_ipus = !places.is_empty();
    created.places = places;
    created
}
