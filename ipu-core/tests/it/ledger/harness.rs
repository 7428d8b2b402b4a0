//! A ledger with one controller, or several, for tests of the transitions.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    Admission, BestFit, CallWindow, ControllerName, ControllerRejection, ControllerView, ControllersSnapshot,
    Entry, EntryState, Inventory, InventoryCapacity, JobKey, LedgerState, Listing, Location, Owner,
    Partition, PartitionSpec, PartitionState, Pinned, Placement, PlacementMode, PlacementPolicy,
    PlacementRequest, QueuePolicy, QueueStatus, Request, ServiceState, Timestamp, Topology, Transition,
    TransitionError, place,
};

pub(super) const LIMIT: u32 = 3;

pub(super) fn controller() -> ControllerName {
    ControllerName::new("c").unwrap()
}

pub(super) fn request(namespace: &str, name: &str, size: u32) -> Request {
    let owner = Owner {
        kind: "Test".into(),
        job: JobKey::new(namespace, name, "1").unwrap(),
    };
    Request::of_instance(owner, 0, PartitionSpec::of_size(size.try_into().unwrap()))
}

/// A ledger, its controllers and the time.
#[derive(Clone)]
pub(super) struct LedgerHarness {
    pub(super) state: LedgerState,
    /// The first controller, [`controller`].
    pub(super) inventory: Inventory,
    /// Further controllers.
    pub(super) others: Vec<(ControllerName, Inventory)>,
    pub(super) policy: QueuePolicy,
    pub(super) placement: PlacementMode,
    pub(super) now: u64,
}

impl LedgerHarness {
    pub(super) fn new(topology: &Topology) -> Self {
        let mut policy = QueuePolicy::default();
        policy.overtake_limit = LIMIT;
        Self {
            state: LedgerState::default(),
            inventory: Inventory::new(topology),
            others: Vec::new(),
            policy,
            placement: PlacementMode::default(),
            now: 0,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    pub(super) fn window(&self) -> CallWindow {
        CallWindow {
            now: self.now(),
            settle: Duration::from_secs(30),
        }
    }

    pub(super) fn snapshot(&self) -> ControllersSnapshot {
        let others = self
            .others
            .iter()
            .map(|(name, inventory)| (name.clone(), inventory));
        let controllers = [(controller(), &self.inventory)].into_iter().chain(others);
        let view = |(name, inventory): (ControllerName, &Inventory)| ControllerView {
            name,
            service: ServiceState::Open,
            listing: Ok(Arc::new(self.listing(inventory))),
        };
        ControllersSnapshot::new(controllers.map(view).collect())
    }

    fn listing(&self, inventory: &Inventory) -> Listing {
        let listed = inventory.holders().map(|(id, block)| Partition {
            id: id.clone(),
            spec: PartitionSpec::of_size(block.size().unwrap()),
            cluster: None,
            ipus: Vec::new(),
            state: PartitionState::Active,
        });
        let capacity = InventoryCapacity::new(inventory.clone()).with_placement(self.placement.clone());
        Listing::new(listed, Box::new(capacity))
    }

    fn inventory_at(&mut self, name: Option<&ControllerName>) -> &mut Inventory {
        let mut others = self.others.iter_mut();
        let other = others.find(|(other, _)| Some(other) == name);
        other.map_or(&mut self.inventory, |(_, inventory)| inventory)
    }

    pub(super) fn commit<T>(&mut self, step: Transition<T>) -> T {
        for change in &self.state.with_ended_demands(step.changes) {
            self.state.apply(change);
        }
        step.outcome
    }

    pub(super) fn request(&mut self, request: &Request) -> Result<Admission, TransitionError> {
        let step = self
            .state
            .request(request, &self.snapshot(), &self.policy, self.window())?;
        Ok(self.commit(step))
    }

    /// Requests a partition and, if it is granted, creates it at the controller.
    pub(super) fn submit(&mut self, request: &Request) -> Admission {
        let admission = self.request(request).unwrap();
        if let Admission::Drive(entry) = &admission {
            let wanted =
                PlacementRequest::of_size(entry.spec.size).in_allocation(entry.spec.allocation.clone());
            let EntryState::Intent { fence, .. } = entry.state else {
                panic!("{entry:?}");
            };
            let inventory = self.inventory_at(entry.controller.as_ref());
            if inventory.block_of(&entry.id).is_none() {
                let pinned = pinned(inventory.topology(), entry);
                let policy: &dyn PlacementPolicy = match &pinned {
                    Some(pinned) => pinned,
                    None => &BestFit,
                };
                match place(inventory, &wanted, policy) {
                    Placement::Fits(block) => inventory.occupy(entry.id.clone(), block).unwrap(),
                    other => panic!("a granted request does not fit: {other:?}"),
                }
            }
            let step = self
                .state
                .mark_active(
                    &entry.id,
                    entry.attempt,
                    &Location::default(),
                    Some(fence),
                    self.now(),
                )
                .unwrap();
            self.commit(step);
        }
        admission
    }

    /// Requests a partition; if it is granted, the controller refuses to create it.
    pub(super) fn submit_refused(&mut self, request: &Request) -> Admission {
        let admission = self.request(request).unwrap();
        if let Admission::Drive(entry) = &admission
            && let EntryState::Intent { fence, .. } = entry.state
        {
            let name = entry.controller.clone().unwrap();
            let inventory = self.inventory_at(Some(&name)).clone();
            let refused = ControllerRejection {
                controller: name,
                message: String::from("no"),
                fingerprint: self.listing(&inventory).fingerprint(),
                at: self.now(),
            };
            let step = self.state.reject_create(&entry.id, fence, refused, self.now());
            self.commit(step.unwrap());
        }
        admission
    }

    pub(super) fn release(&mut self, request: &Request) {
        self.start_release(request);
        self.finish_release(request);
    }

    /// Releases a partition; its controller has not removed it yet.
    pub(super) fn start_release(&mut self, request: &Request) {
        let step = self
            .state
            .release(
                &request.id,
                &request.owner,
                Some(request.attempt),
                None,
                self.window(),
            )
            .unwrap();
        self.commit(step);
    }

    /// Removes the partition from its controller, if it is being released.
    pub(super) fn finish_release(&mut self, request: &Request) {
        let Some(entry) = self.state.get(&request.id).cloned() else {
            return;
        };
        if let EntryState::Releasing { fence } = entry.state {
            self.inventory_at(entry.controller.as_ref())
                .vacate(&entry.id)
                .unwrap();
            let step = self
                .state
                .remove_released(&entry.id, Some(fence), self.now())
                .unwrap();
            self.commit(step);
        }
    }

    pub(super) fn expect_queued(&mut self, request: &Request) -> QueueStatus {
        match self.submit(request) {
            Admission::Queued(status) => status,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn holds(&self, request: &Request) -> bool {
        self.state
            .get(&request.id)
            .is_some_and(|entry| entry.state.holds())
    }
}

/// Returns the policy that places on the IPUs chosen by the ledger; none if it has chosen none.
fn pinned(topology: &Topology, entry: &Entry) -> Option<Pinned> {
    let cluster = &topology.clusters()[0].id;
    let ipus = entry
        .places
        .iter()
        .map(|place| topology.address(cluster, *place).unwrap());
    Pinned::new(ipus).ok()
}
