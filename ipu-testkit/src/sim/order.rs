//! Order of equal requests: an invariant of the queue, and the queue decisions that it compares.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipu_core::{
    ControllerName, ControllerView, Entry, EntryState, InventoryCapacity, LedgerState, Listing, Operation,
    PartitionId, QueueDecision, ServiceState,
};

use super::invariants::{BrokenInvariant, broken};
use super::store::{Entries, by_primary};
use super::world::SimWorld;

impl SimWorld {
    /// Returns the sets of controllers that a driver may have reached, the set of all first: any of them may
    /// not have replied. Empty if the order of equal requests depends on the policy.
    pub(super) fn reachable_sets(&self, before: &Entries) -> Vec<BTreeSet<ControllerName>> {
        if !self.profile.is_placement_complete || self.profile.refuses_ipus {
            // A policy that declines a request may place an equal one elsewhere. A controller that refuses
            // named IPUs may take those that suit the request ahead, and a new process learns of that late.
            return Vec::new();
        }
        if self.has_partition_of_assumed_location(before) {
            return Vec::new();
        }
        let mut reachable_sets = vec![BTreeSet::new()];
        for (name, _) in &self.controllers {
            let with = |reachable: &BTreeSet<ControllerName>| {
                reachable.iter().cloned().chain([name.clone()]).collect()
            };
            let with: Vec<_> = reachable_sets.iter().map(with).collect();
            reachable_sets.splice(..0, with);
        }
        reachable_sets
    }

    /// Returns whether a held partition has no recorded IPUs and no controller lists it. The policy then
    /// assumes a location for it, and may assume another one after the start of a request.
    fn has_partition_of_assumed_location(&self, entries: &Entries) -> bool {
        let is_unlisted = |id: &PartitionId| {
            let mut controllers = self.controllers.iter();
            controllers.all(|(_, controller)| controller.held().iter().all(|held| held.id != *id))
        };
        entries
            .values()
            .any(|entry| entry.state.holds() && entry.places.is_empty() && is_unlisted(&entry.id))
    }

    /// Returns the queue decisions for `entries` if all controllers reply.
    pub(super) fn evaluate_queue(&self, entries: &Entries) -> Vec<(PartitionId, QueueDecision)> {
        let all = self.controllers.iter().map(|(name, _)| name.clone());
        self.evaluate_queue_with(entries, &all.collect())
    }

    /// Returns the queue decisions for `entries` given the controllers in `reachable`.
    pub(super) fn evaluate_queue_with(
        &self,
        entries: &Entries,
        reachable: &BTreeSet<ControllerName>,
    ) -> Vec<(PartitionId, QueueDecision)> {
        let answering = self
            .controllers
            .iter()
            .filter(|(name, _)| reachable.contains(name));
        let views = answering.map(|(name, controller)| {
            let (listed, inventory) = controller.snapshot();
            let capacity = InventoryCapacity::new(inventory).with_placement(self.profile.placement().clone());
            let listing = Listing::new(listed, Box::new(capacity));
            ControllerView {
                name: name.clone(),
                service: ServiceState::Open,
                listing: Ok(Arc::new(if self.profile.refuses_ipus {
                    listing.delegated()
                } else {
                    listing
                })),
            }
        });
        let world = ipu_core::ControllersSnapshot::new(views.collect());
        let state = LedgerState::from_entries(by_primary(entries).values().map(|entry| Entry::clone(entry)))
            .with_cordons(self.store.cordons());
        state.evaluate_queue(&world, self.profile.queue_policy(), self.now())
    }
}

/// Checks that a starting request takes nothing from an earlier one of the same priority, size, place and
/// account that could have started: that one must still be able to. Both are evaluated with the same
/// reachable controllers: a driver that could not reach all controllers may have seen capacity or quota that
/// others could not use. So the invariant is violated only if it is for every such set that includes the
/// controller of the start.
pub(super) fn invariant_equal_requests_start_in_order(
    id: &PartitionId,
    before: &Entries,
    after: &Entries,
    reachable_sets: &[BTreeSet<ControllerName>],
    evaluate: impl Fn(&Entries, &BTreeSet<ControllerName>) -> Vec<(PartitionId, QueueDecision)>,
) -> Result<(), BrokenInvariant> {
    let waits = |entry: &Entry| matches!(entry.state, EntryState::Waiting { .. });
    let Some(starting) = after.get(id) else {
        return Ok(());
    };
    // An owner takes over a found partition whenever it requests it.
    let EntryState::Intent {
        operation: Operation::Create,
        ..
    } = starting.state
    else {
        return Ok(());
    };
    if before.get(id).is_some_and(|entry| !waits(entry)) {
        return Ok(());
    }
    let namespace = |entry: &Entry| entry.owner.as_ref().map(|owner| owner.job.namespace.clone());
    let left_behind = before.values().filter(|other| {
        waits(other)
            && after.get(&other.id).is_some_and(|other| waits(other))
            && other.id != *id
            && other.ticket < starting.ticket
            && other.priority == starting.priority
            && other.spec.size == starting.spec.size
            && other.spec.allocation == starting.spec.allocation
            && other.pin == starting.pin
            && other.account == starting.account
            && namespace(other) == namespace(starting)
    });
    let left_behind: Vec<&PartitionId> = left_behind.map(|other| &other.id).collect();
    if left_behind.is_empty() {
        return Ok(());
    }
    let overtaken_by = |reachable: &BTreeSet<ControllerName>| {
        let startable: Vec<PartitionId> = evaluate(before, reachable)
            .into_iter()
            .filter(|(other, verdict)| {
                left_behind.contains(&other) && matches!(verdict, QueueDecision::Start { .. })
            })
            .map(|(other, _)| other)
            .collect();
        if startable.is_empty() {
            return None;
        }
        let overtaken = |(other, verdict): &(PartitionId, QueueDecision)| {
            startable.contains(other) && matches!(verdict, QueueDecision::Wait(_))
        };
        evaluate(after, reachable)
            .into_iter()
            .find(overtaken)
            .map(|(other, _)| other)
    };
    let may_be = |reachable: &&BTreeSet<ControllerName>| {
        let controller = starting.controller.as_ref();
        controller.is_none_or(|controller| reachable.contains(controller))
    };
    // Stops at the first set without an overtaken request: mostly the set of all controllers.
    let overtaken: Option<Vec<PartitionId>> =
        reachable_sets.iter().filter(may_be).map(overtaken_by).collect();
    match overtaken.and_then(|overtaken| overtaken.into_iter().next()) {
        None => Ok(()),
        Some(other) => broken(
            "equal_requests_start_in_order",
            format!("{id} took the place of {other}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use ipu_core::{
        CallWindow, Change, ControllersSnapshot, JobKey, Owner, PartitionSpec, QueuePolicy, Request,
        Timestamp,
    };

    use super::*;
    use crate::fake::FakeController;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    /// Returns the requests of two equal instances for all IPUs of the only controller.
    fn two_equal_requests() -> Entries {
        let owner = Owner {
            kind: "Test".into(),
            job: JobKey::new("ns", "job", "1").expect("a valid key"),
        };
        let size = 16.try_into().expect("a valid size");
        let window = CallWindow {
            now: NOW,
            settle: std::time::Duration::ZERO,
        };
        let mut entries = Entries::new();
        for instance in 0..2 {
            let request = Request::of_instance(owner.clone(), instance, PartitionSpec::of_size(size));
            let state = LedgerState::from_entries(entries.values().map(|entry| Entry::clone(entry)));
            let step = state.request(
                &request,
                &ControllersSnapshot::default(),
                &QueuePolicy::default(),
                window,
            );
            let Ok([Change::Put(entry)]) = step.as_ref().map(|step| &step.changes[..]) else {
                panic!("{step:?}");
            };
            entries.insert(entry.id.clone(), entry.clone());
        }
        entries
    }

    fn controller() -> (ControllerName, FakeController) {
        let topology = "pod16".parse().expect("a valid topology");
        let name = "c0:8090".parse().expect("a valid name");
        (name, FakeController::new(&topology, 0))
    }

    fn check_start_of(ticket: usize) -> Result<(), BrokenInvariant> {
        let (name, fake) = controller();
        let evaluate = |entries: &Entries, _: &BTreeSet<ControllerName>| {
            let (listed, inventory) = fake.snapshot();
            let view = ControllerView {
                name: name.clone(),
                service: ServiceState::Open,
                listing: Ok(Arc::new(Listing::new(
                    listed,
                    Box::new(InventoryCapacity::new(inventory)),
                ))),
            };
            LedgerState::from_entries(entries.values().map(|entry| Entry::clone(entry))).evaluate_queue(
                &ipu_core::ControllersSnapshot::new(vec![view]),
                &QueuePolicy::default(),
                NOW,
            )
        };
        let before = two_equal_requests();
        let mut in_order: Vec<&Arc<Entry>> = before.values().collect();
        in_order.sort_by_key(|entry| entry.ticket);
        let mut starting = Entry::clone(in_order[ticket]);
        starting.state = EntryState::Intent {
            operation: Operation::Create,
            fence: NOW,
        };
        starting.controller = Some(name.clone());
        let mut after = before.clone();
        let id = starting.id.clone();
        after.insert(id.clone(), Arc::new(starting));
        let reachable = [BTreeSet::from([name.clone()])];
        invariant_equal_requests_start_in_order(&id, &before, &after, &reachable, evaluate)
    }

    #[test]
    fn the_earlier_of_two_equal_requests_may_start() {
        assert_eq!(check_start_of(0), Ok(()));
    }

    #[test]
    fn the_later_of_two_equal_requests_may_not_start_first() {
        let broken = check_start_of(1).expect_err("the start is out of order");
        assert_eq!(broken.invariant, "equal_requests_start_in_order");
    }
}
