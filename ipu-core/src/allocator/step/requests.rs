//! Commands of owners: request, reset, release, renew.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Outcome, Release, Step, check_not_after, failed, locate, lost_partition_error, start};
use crate::allocator::capacity::Hardware;
use crate::allocator::entry::{Entry, Phase, satisfies};
use crate::allocator::error::{RequestError, check_attempt, check_owner, moved};
use crate::allocator::namespaces::check_queued;
use crate::allocator::policy::Policy;
use crate::allocator::queue::{QueueDecision, QueueScan, may_take_over};
use crate::allocator::request::{OnNoCapacity, Request};
use crate::allocator::state::{Change, State};
use crate::hardware::partition::{Partition, PartitionState};
use crate::ids::{ControllerName, Owner, PartitionId};
use crate::units::Timestamp;

/// Records a request. It starts by [`Event::Schedule`](super::Event::Schedule), or at once if it is not to be
/// queued.
pub(super) fn ensure(
    state: &State,
    hardware: &Hardware,
    policy: &Policy,
    now: Timestamp,
    request: &Request,
) -> Result<Step, RequestError> {
    check_not_after(&request.id, request.not_after, now)?;
    let Some(recorded) = state.get(&request.id) else {
        return first_request(state, hardware, policy, now, request);
    };
    check_owner(recorded, &request.owner, request.instance)?;
    if !satisfies(&request.spec, &recorded.spec) {
        return Err(RequestError::OtherSpec {
            id: request.id.clone(),
            recorded: Box::new(recorded.spec.clone()),
        });
    }
    check_attempt(recorded, request.attempt)?;
    if matches!(recorded.phase, Phase::Queued) {
        policy.namespaces.check(request, Some(recorded))?;
    }
    Ok(Step::put(
        Some(recorded),
        repeated_request(recorded, hardware, now, request),
    ))
}

/// Records a request for an id without an entry.
fn first_request(
    state: &State,
    hardware: &Hardware,
    policy: &Policy,
    now: Timestamp,
    request: &Request,
) -> Result<Step, RequestError> {
    // Otherwise a client could take the id of a job in another namespace before that job requests it.
    if request.id.is_derived() && !request.is_derived() {
        return Err(RequestError::NotDerived {
            id: request.id.clone(),
            owner: Box::new(request.owner.clone()),
            instance: request.instance,
        });
    }
    policy.namespaces.check(request, None)?;
    let entry = Entry::new_queued(request, state.next_ticket(), now);
    if let Some((controller, found)) = hardware.find(&request.id) {
        if !may_take_over(&entry, found) {
            return Err(RequestError::Foreign {
                id: request.id.clone(),
                controller: controller.clone(),
                found: found.spec.size.get(),
            });
        }
        // Its previous use is unknown, so it is reset.
        let mut reset = entry.started(Phase::Resetting, controller, now);
        locate(&mut reset, hardware, controller, found);
        return Ok(Step::put(None, reset));
    }
    if state.queue().len() >= policy.length_limit {
        return Err(RequestError::QueueFull {
            limit: policy.length_limit,
        });
    }
    check_queued(state, &entry, request, &policy.namespaces)?;
    match request.on_no_capacity {
        OnNoCapacity::Queue => Ok(Step::put(None, entry)),
        OnNoCapacity::QueueUnlessImpossible | OnNoCapacity::Reject => Ok(start_or_reject(
            state,
            hardware,
            policy,
            now,
            entry,
            request.on_no_capacity,
        )),
    }
}

fn start_or_reject(
    state: &State,
    hardware: &Hardware,
    policy: &Policy,
    now: Timestamp,
    entry: Entry,
    on_no_capacity: OnNoCapacity,
) -> Step {
    let mut scan = QueueScan::new(state, hardware, policy, now);
    for ahead in state.ahead_of(&entry) {
        scan.start(ahead);
    }
    match scan.evaluate(&entry) {
        QueueDecision::Wait(status)
            if on_no_capacity == OnNoCapacity::QueueUnlessImpossible
                && !status.reason.code.is_permanent() =>
        {
            Step::put(None, entry)
        }
        QueueDecision::Wait(status) => Step {
            outcome: Outcome::Rejected(status),
            ..Step::default()
        },
        QueueDecision::Start { controller, places } => {
            let overtaken = scan.overtaken_by(&entry).map(|other| {
                let mut other = other.clone();
                other.overtaken = other.overtaken.saturating_add(1);
                Change::Put(Arc::new(other))
            });
            let mut changes: Vec<Change> = overtaken.collect();
            let started = start(&entry, hardware, &controller, places, now);
            changes.push(Change::Put(Arc::new(started)));
            Step {
                changes,
                outcome: Outcome::Recorded,
                ..Step::default()
            }
        }
    }
}

/// Returns the entry after its owner has requested it again.
fn repeated_request(recorded: &Entry, hardware: &Hardware, now: Timestamp, request: &Request) -> Entry {
    let mut entry = confirmed(recorded, hardware, now);
    // An old copy does not show the attempt that uses the partition now.
    let is_known = !recorded.unconfirmed || !matches!(entry.phase, Phase::Active);
    let is_newer = request.attempt > recorded.attempt && is_known && !entry.unconfirmed;
    match &entry.phase {
        Phase::Releasing { .. } => return entry,
        Phase::Queued => entry.update(request),
        Phase::Creating | Phase::Resetting => {}
        Phase::Active | Phase::Failed { .. } if !is_newer => {}
        Phase::Active | Phase::Failed { .. } | Phase::Quarantined => {
            if let Some(controller) = recorded.controller.clone() {
                entry = entry.started(Phase::Resetting, &controller, now);
            }
        }
    }
    // It may be quarantined, or an old copy of a time at which it had no owner.
    entry.owner = Some(request.owner.clone());
    entry.instance = request.instance;
    entry.attempt = request.attempt;
    // A request without a holder keeps the recorded one: it does not revoke the evidence that the owner is
    // alive. A process that repeats the request must not end, with itself, a partition that outlives its
    // processes.
    let is_kept = recorded.holder == Request::UNOBSERVED && recorded.phase.holds();
    if !request.holder.is_empty() && (!is_kept || request.attempt > recorded.attempt) {
        entry.holder.clone_from(&request.holder);
    }
    entry
}

/// Returns the entry after its owner was heard. An entry of an old copy of the record is what its owner may
/// use, if the partition exists and no operation on it is under way. It stays unconfirmed while its
/// controller, or any for a queued request, does not respond.
pub(super) fn confirmed(recorded: &Entry, hardware: &Hardware, now: Timestamp) -> Entry {
    let mut entry = recorded.clone();
    if !entry.unconfirmed {
        return entry;
    }
    if matches!(entry.phase, Phase::Queued) {
        return confirmed_request(entry, hardware, now);
    }
    let listing = entry.controller.as_ref().and_then(|name| hardware.listing(name));
    if listing.is_none() {
        return entry;
    }
    entry.unconfirmed = false;
    let listed = listing.and_then(|listing| listing.partitions().get(&entry.id));
    let listed = listed.filter(|listed| entry.matches(&listed.spec));
    match (&entry.phase, listed, entry.controller.clone()) {
        (Phase::Active, None, Some(controller)) => failed(&entry, lost_partition_error(&controller), now),
        (Phase::Active | Phase::Failed { .. }, Some(listed), Some(controller))
            if listed.state.is_in_progress() =>
        {
            entry.started(Phase::Resetting, &controller, now)
        }
        (Phase::Failed { .. }, Some(listed), _) if listed.state == PartitionState::Active => {
            entry.with_phase(Phase::Active, now)
        }
        (phase, Some(listed), _) if phase.needs_calls() && !listed.state.is_in_progress() => {
            entry.with_phase(Phase::Active, now)
        }
        _ => entry,
    }
}

/// Returns the queued request of an old copy after its owner was heard: it may have been granted since.
fn confirmed_request(mut entry: Entry, hardware: &Hardware, now: Timestamp) -> Entry {
    let found = hardware.find(&entry.id);
    if found.is_none() && !hardware.is_complete() {
        return entry;
    }
    if let Some((controller, found)) = found.filter(|(_, found)| may_take_over(&entry, found)) {
        let phase = if found.state.is_in_progress() {
            Phase::Resetting
        } else {
            Phase::Active
        };
        entry = entry.started(phase, controller, now);
        locate(&mut entry, hardware, controller, found);
    }
    entry.unconfirmed = false;
    entry
}

/// Resets a partition for `attempt`. A partition that is being created or reset is fresh anyway.
pub(super) fn reset(
    state: &State,
    hardware: &Hardware,
    now: Timestamp,
    id: &PartitionId,
    owner: &Owner,
    attempt: u32,
) -> Result<Step, RequestError> {
    let recorded = expect(state, id, "reset")?;
    check_owner(recorded, owner, recorded.instance)?;
    if recorded.owner.is_none() {
        // Its owner requests it first, which shows the instance.
        return Err(moved(recorded, "reset"));
    }
    check_attempt(recorded, attempt)?;
    let mut entry = confirmed(recorded, hardware, now);
    entry.unconfirmed = false;
    match (&entry.phase, entry.controller.clone()) {
        (Phase::Creating | Phase::Resetting, _) => {}
        (Phase::Active | Phase::Failed { .. }, Some(controller)) => {
            entry = entry.started(Phase::Resetting, &controller, now);
        }
        _ => return Err(moved(recorded, "reset")),
    }
    if recorded.holder == Request::UNOBSERVED && attempt > recorded.attempt {
        entry.holder.clear();
    }
    entry.attempt = attempt;
    Ok(Step::put(Some(recorded), entry))
}

/// Releases a partition, or removes a request from the queue. A release under way goes on, whatever the
/// attempt, and may use force from now on if this one may.
pub(super) fn release(
    state: &State,
    hardware: &Hardware,
    now: Timestamp,
    release: &Release,
) -> Result<Step, RequestError> {
    let Some(recorded) = state.get(&release.id) else {
        return Ok(Step {
            outcome: Outcome::NotHeld,
            ..Step::default()
        });
    };
    let is_releasing = matches!(recorded.phase, Phase::Releasing { .. });
    match &release.owner {
        Some(owner) => check_owner(recorded, owner, recorded.instance)?,
        None if is_releasing || matches!(recorded.phase, Phase::Quarantined) => {}
        None => return Err(moved(recorded, "released")),
    }
    if let (Some(attempt), false) = (release.attempt, is_releasing) {
        check_attempt(recorded, attempt)?;
    }
    let mut entry = match recorded.phase {
        Phase::Queued => confirmed(recorded, hardware, now),
        _ => Entry::clone(recorded),
    };
    if matches!(entry.phase, Phase::Queued) {
        return Ok(Step {
            outcome: Outcome::Dequeued,
            ..Step::remove(&release.id)
        });
    }
    entry.unconfirmed = false;
    if is_releasing {
        // Force that was allowed once stays allowed. A repeated release calls the controller again.
        entry.unforced &= !release.force;
        if recorded.removal_refusal().is_some() {
            entry = entry.with_phase(Phase::Releasing { refusal: None }, recorded.since);
        }
    } else {
        entry = entry.with_phase(Phase::Releasing { refusal: None }, now);
        entry.unforced = !release.force;
    }
    Ok(Step {
        outcome: Outcome::Releasing,
        ..Step::put(Some(recorded), entry)
    })
}

/// Releases a partition that the state does not record. A recorded one is left alone: it belongs to a request
/// by now.
pub(super) fn remove_foreign(
    state: &State,
    now: Timestamp,
    partition: &Partition,
    controller: &ControllerName,
) -> Step {
    if state.get(&partition.id).is_some() {
        return Step {
            outcome: Outcome::NotHeld,
            ..Step::default()
        };
    }
    let entry = Entry::unowned(partition, controller, state.next_ticket(), now);
    Step {
        outcome: Outcome::Releasing,
        ..Step::put(None, entry.with_phase(Phase::Releasing { refusal: None }, now))
    }
}

/// Records that the owner is alive. A heartbeat renews evidence and never creates it.
pub(super) fn renew(
    state: &State,
    hardware: &Hardware,
    now: Timestamp,
    id: &PartitionId,
    owner: &Owner,
    holder: &str,
) -> Result<Step, RequestError> {
    let recorded = expect(state, id, "renewed")?;
    check_owner(recorded, owner, recorded.instance)?;
    let mut entry = confirmed(recorded, hardware, now);
    if matches!(entry.phase, Phase::Releasing { .. } | Phase::Quarantined) {
        return Err(moved(recorded, "renewed"));
    }
    if recorded.holder.is_empty() {
        return Err(RequestError::NoLease { id: id.clone() });
    }
    entry.holder = holder.into();
    Ok(Step::put(Some(recorded), entry))
}

fn expect<'s>(
    state: &'s State,
    id: &PartitionId,
    wanted: &'static str,
) -> Result<&'s Arc<Entry>, RequestError> {
    state.get(id).ok_or_else(|| RequestError::Moved {
        id: id.clone(),
        state: "gone",
        wanted,
    })
}
