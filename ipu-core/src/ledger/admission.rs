//! Requests: into the line, and out of it when their turn has come.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::ledger::LedgerState;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState, OnNoCapacity, Operation, PlacedBy, Request, same_make};
use crate::ledger::queue::{QueueDecision, QueuePolicy, QueueScan, may_take_over};
use crate::ledger::transition_error::{TransitionError, check_attempt, check_owner};
use crate::ledger::transitions::{Admission, CallWindow, Transition, changed};

impl LedgerState {
    /// A request: records it, and lets it go if its turn has come.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] if the id is another's, the properties differ, the attempt is old, the queue is full, the namespace of
    /// the owner may not ask for it, or the request is read too late.
    pub fn request(
        &self,
        request: &Request,
        world: &ControllersSnapshot,
        rules: &QueuePolicy,
        window: CallWindow,
    ) -> Result<Transition<Admission>, TransitionError> {
        window.check_not_after(&request.id, request.not_after)?;
        let world = &*self.by_controller(world);
        let Some(entry) = self.get(&request.id) else {
            return self.first_request(request, world, rules, window);
        };
        check_owner(entry, &request.owner, request.instance)?;
        if !same_make(&request.spec, &entry.spec) {
            return Err(TransitionError::OtherSpec {
                id: request.id.clone(),
                recorded: Box::new(entry.spec.clone()),
            });
        }
        check_attempt(entry, request.attempt)?;
        self.repeated_request(entry, request, world, rules, window)
    }

    /// A request for an id without an entry.
    fn first_request(
        &self,
        request: &Request,
        world: &ControllersSnapshot,
        rules: &QueuePolicy,
        window: CallWindow,
    ) -> Result<Transition<Admission>, TransitionError> {
        // Otherwise a client could take the id of a job of another namespace before that job asks.
        if request.id.is_derived() && !request.is_derived() {
            return Err(TransitionError::NotDerived {
                id: request.id.clone(),
                owner: Box::new(request.owner.clone()),
                instance: request.instance,
            });
        }
        rules.namespaces.check(request, None)?;
        let entry = Entry::waiting(request, self.next_ticket(), window.now);
        if let Some(step) = take_over_found(&entry, request, world, window)? {
            return Ok(step);
        }
        if self.line.len() >= rules.length_limit {
            return Err(TransitionError::LineFull {
                limit: rules.length_limit,
            });
        }
        self.check_queued(&entry, request, &rules.namespaces)?;
        Ok(self.admit(entry, request.line, world, rules, window))
    }

    /// A request of the owner for an id that has an entry.
    fn repeated_request(
        &self,
        recorded: &Entry,
        request: &Request,
        world: &ControllersSnapshot,
        rules: &QueuePolicy,
        window: CallWindow,
    ) -> Result<Transition<Admission>, TransitionError> {
        let mut entry = recorded.clone();
        entry.attempt = request.attempt;
        // Who says nothing of it has not said that he is alive in no way any more.
        if !request.holder.is_empty() {
            entry.holder.clone_from(&request.holder);
        }
        let newer = request.attempt > recorded.attempt;
        Ok(match &recorded.state {
            // An old copy of the ledger may not know that the entry's turn had come.
            EntryState::Waiting { .. } => {
                rules.namespaces.check(request, Some(recorded))?;
                entry.update_request(request);
                match take_over_found(&entry, request, world, window)? {
                    Some(step) => step,
                    None => self.admit(entry, request.line, world, rules, window),
                }
            }
            EntryState::Releasing { .. } => Transition::unchanged(Admission::Leaving(recorded.clone())),
            EntryState::Intent { .. } => changed(recorded, entry, Admission::Drive),
            EntryState::Active | EntryState::Failed { .. } if !newer => {
                changed(recorded, entry, Admission::Held)
            }
            EntryState::Orphaned if !newer => {
                let entry = entry.reclaimed(world, window.now);
                Transition::put(&entry, Admission::Held(entry.clone()))
            }
            EntryState::Active
            | EntryState::Failed { .. }
            | EntryState::Orphaned
            | EntryState::Quarantined => {
                entry.owner = Some(request.owner.clone());
                entry.instance = request.instance;
                let Some(controller) = recorded.controller.clone() else {
                    // Only a damaged ledger holds something nowhere.
                    return Ok(self.admit(entry, request.line, world, rules, window));
                };
                let entry = entry.with_intent(&controller, Operation::Reset, window);
                Transition::put(&entry, Admission::Drive(entry.clone()))
            }
        })
    }

    /// Walks the line up to `entry`, which may be new, and lets it go if its turn has come.
    fn admit(
        &self,
        entry: Entry,
        policy: OnNoCapacity,
        world: &ControllersSnapshot,
        rules: &QueuePolicy,
        window: CallWindow,
    ) -> Transition<Admission> {
        let mut walk = QueueScan::new(self, world, rules, window.now);
        for ahead in self.ahead_of(&entry) {
            walk.pass_over(ahead);
        }
        match walk.step(&entry) {
            QueueDecision::Start {
                controller,
                places,
                placed,
            } => {
                let passed = walk.passed_by(&entry);
                let mut changes: Vec<Change> = passed
                    .map(|other| Change::Put(Arc::new(other.with_overtaken())))
                    .collect();
                let mut going = entry.clone();
                going.placed = placed;
                going.places = if placed == PlacedBy::Ledger {
                    places
                } else {
                    Vec::new()
                };
                let going = going.with_intent(&controller, Operation::Create, window);
                changes.push(Change::Put(Arc::new(going.clone())));
                Transition {
                    outcome: Admission::Drive(going),
                    changes,
                }
            }
            QueueDecision::Wait(waiting) => match (self.get(&entry.id), policy) {
                (None, OnNoCapacity::Reject) => Transition::unchanged(Admission::Rejected(waiting)),
                (Some(recorded), _) if *recorded == entry => Transition::unchanged(Admission::Stay(waiting)),
                (Some(_), _) | (None, OnNoCapacity::Queue) => {
                    Transition::put(&entry, Admission::Stay(waiting))
                }
            },
        }
    }
}

/// Takes over a partition of the id that is asked for, which a controller has and the ledger does not know of: nobody
/// knows what it was used for, so it is reset.
fn take_over_found(
    entry: &Entry,
    request: &Request,
    world: &ControllersSnapshot,
    window: CallWindow,
) -> Result<Option<Transition<Admission>>, TransitionError> {
    let Some((controller, partition)) = world.find(&request.id) else {
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
    entry.set_location(world.locate(controller, partition));
    let entry = entry.with_intent(controller, Operation::Reset, window);
    Ok(Some(Transition::put(&entry, Admission::Drive(entry.clone()))))
}
