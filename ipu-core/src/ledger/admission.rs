//! Admission of requests: enqueue them, and start them once they are first in the queue and fit.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::ledger::LedgerState;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState, OnNoCapacity, Operation, PlacedBy, Request, satisfies};
use crate::ledger::queue::{QueueDecision, QueueScan, may_take_over};
use crate::ledger::queue_policy::QueuePolicy;
use crate::ledger::transition_error::{TransitionError, check_attempt, check_owner};
use crate::ledger::transitions::{Admission, CallWindow, Transition, put_if_changed};
use crate::units::Timestamp;

impl LedgerState {
    /// Records a request, and starts it if it is its turn and it fits.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] if another owner has the id, the properties differ, the attempt is stale, the
    /// queue is full, the limits of the namespace reject the request, or it is read too late.
    pub fn request(
        &self,
        request: &Request,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        window: CallWindow,
    ) -> Result<Transition<Admission>, TransitionError> {
        window.check_not_after(&request.id, request.not_after)?;
        let snapshot = &*self.by_controller(snapshot);
        let Some(entry) = self.get(&request.id) else {
            return self.first_request(request, snapshot, policy, window);
        };
        check_owner(entry, &request.owner, request.instance)?;
        if !satisfies(&request.spec, &entry.spec) {
            return Err(TransitionError::OtherSpec {
                id: request.id.clone(),
                recorded: Box::new(entry.spec.clone()),
            });
        }
        check_attempt(entry, request.attempt)?;
        self.repeated_request(entry, request, snapshot, policy, window)
    }

    /// Admits a request for an id without an entry.
    fn first_request(
        &self,
        request: &Request,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        window: CallWindow,
    ) -> Result<Transition<Admission>, TransitionError> {
        // Otherwise a client could take the id of a job in another namespace before that job requests it.
        if request.id.is_derived() && !request.is_derived() {
            return Err(TransitionError::NotDerived {
                id: request.id.clone(),
                owner: Box::new(request.owner.clone()),
                instance: request.instance,
            });
        }
        policy.namespaces.check(request, None)?;
        let entry = Entry::waiting(request, self.next_ticket(), window.now);
        if let Some(transition) = take_over_found(&entry, request, snapshot, window)? {
            return Ok(transition);
        }
        if self.queue.len() >= policy.length_limit {
            return Err(TransitionError::QueueFull {
                limit: policy.length_limit,
            });
        }
        self.check_queued(&entry, request, &policy.namespaces)?;
        Ok(self.admit(entry, request.on_no_capacity, snapshot, policy, window))
    }

    /// Admits a request of the owner for an id that has an entry.
    fn repeated_request(
        &self,
        recorded: &Entry,
        request: &Request,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        window: CallWindow,
    ) -> Result<Transition<Admission>, TransitionError> {
        let mut entry = recorded.clone();
        entry.attempt = request.attempt;
        // A request without a holder keeps the recorded one: it does not revoke the evidence that the owner
        // is alive.
        if !request.holder.is_empty() {
            entry.holder.clone_from(&request.holder);
        }
        let is_newer = request.attempt > recorded.attempt;
        Ok(match &recorded.state {
            // An old copy of the ledger may not record that the entry has started.
            EntryState::Waiting { .. } => {
                policy.namespaces.check(request, Some(recorded))?;
                entry.update_request(request);
                match take_over_found(&entry, request, snapshot, window)? {
                    Some(transition) => transition,
                    None => self.admit(entry, request.on_no_capacity, snapshot, policy, window),
                }
            }
            EntryState::Releasing { .. } => Transition::unchanged(Admission::Releasing(recorded.clone())),
            EntryState::Intent { .. } => put_if_changed(recorded, entry, Admission::Drive),
            EntryState::Active | EntryState::Failed { .. } if !is_newer => {
                put_if_changed(recorded, entry, Admission::Held)
            }
            EntryState::Orphaned if !is_newer => {
                let entry = self.reclaimed(&entry, snapshot, window.now);
                Transition::put(&entry, Admission::Held(entry.clone()))
            }
            EntryState::Active
            | EntryState::Failed { .. }
            | EntryState::Orphaned
            | EntryState::Quarantined => {
                entry.owner = Some(request.owner.clone());
                entry.instance = request.instance;
                let Some(controller) = recorded.controller.clone() else {
                    // Only a damaged ledger has a holder without a controller.
                    return Ok(self.admit(entry, request.on_no_capacity, snapshot, policy, window));
                };
                let entry = entry.with_intent(&controller, Operation::Reset, window);
                Transition::put(&entry, Admission::Drive(entry.clone()))
            }
        })
    }

    /// Scans the queue up to `entry`, which need not be recorded, and starts it if it is its turn and it
    /// fits.
    fn admit(
        &self,
        entry: Entry,
        on_no_capacity: OnNoCapacity,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        window: CallWindow,
    ) -> Transition<Admission> {
        let mut scan = QueueScan::new(self, snapshot, policy, window.now);
        for ahead in self.ahead_of(&entry) {
            scan.advance(ahead);
        }
        match scan.evaluate(&entry) {
            QueueDecision::Start {
                controller,
                places,
                placed,
            } => {
                let overtaken = scan.overtaken_by(&entry);
                let mut changes: Vec<Change> = overtaken
                    .map(|other| Change::Put(Arc::new(other.with_overtaken())))
                    .collect();
                let mut started = entry.clone();
                started.placed = placed;
                started.places = if placed == PlacedBy::Ledger {
                    places
                } else {
                    Vec::new()
                };
                let started = started.with_intent(&controller, Operation::Create, window);
                changes.push(Change::Put(Arc::new(started.clone())));
                Transition {
                    outcome: Admission::Drive(started),
                    changes,
                }
            }
            QueueDecision::Wait(status) => {
                let recorded = self.get(&entry.id);
                if recorded.is_none() && on_no_capacity == OnNoCapacity::Reject {
                    return Transition::unchanged(Admission::Rejected(status));
                }
                let mut changes = self.preempt_for(&entry, snapshot, policy, window.now);
                let status = match self.evaluate_after(&changes, &entry, snapshot, policy, window.now) {
                    Some(QueueDecision::Wait(status)) => status,
                    _ => status,
                };
                if recorded != Some(&entry) {
                    changes.push(Change::Put(Arc::new(entry)));
                }
                Transition {
                    outcome: Admission::Queued(status),
                    changes,
                }
            }
        }
    }
}

impl LedgerState {
    /// Returns the decision on `entry` after `changes`; none without changes.
    fn evaluate_after(
        &self,
        changes: &[Change],
        entry: &Entry,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Option<QueueDecision> {
        if changes.is_empty() {
            return None;
        }
        let mut after = self.clone();
        changes.iter().for_each(|change| after.apply(change));
        let mut scan = QueueScan::new(&after, snapshot, policy, now);
        after.ahead_of(entry).for_each(|ahead| scan.advance(ahead));
        Some(scan.evaluate(entry))
    }
}

/// Takes over a partition of the requested id that a controller lists and the ledger does not record. Its
/// previous use is unknown, so it is reset.
fn take_over_found(
    entry: &Entry,
    request: &Request,
    snapshot: &ControllersSnapshot,
    window: CallWindow,
) -> Result<Option<Transition<Admission>>, TransitionError> {
    let Some((controller, partition)) = snapshot.find(&request.id) else {
        return Ok(None);
    };
    if !may_take_over(entry, partition) {
        return Err(TransitionError::Foreign {
            id: request.id.clone(),
            controller: controller.clone(),
            found: partition.spec.size.get(),
        });
    }
    let mut entry = entry.clone();
    entry.set_location(snapshot.locate(controller, partition));
    let entry = entry.with_intent(controller, Operation::Reset, window);
    Ok(Some(Transition::put(&entry, Admission::Drive(entry.clone()))))
}
