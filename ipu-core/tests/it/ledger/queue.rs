//! The evaluation of the queue: its decisions and reasons match the model, and its cost does not grow with
//! the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipu_core::{
    Admission, Allocation, AllocationId, CallWindow, Capacity, Change, ControllerName, ControllerRejection,
    ControllerView, ControllersSnapshot, CordonOwner, CordonTarget, Entry, EntryState, FirstFit, Inventory,
    InventoryCapacity, IpuCounts, IpuPlace, LedgerState, Listing, Namespace, Partition, PartitionId,
    PartitionSpec, PartitionState, Placement, PlacementMode, PlacementRequest, QueueDecision, QueuePolicy,
    Quota, QuotaSubject, Reason, Request, SelectionOrder, ServiceState, Timestamp, Topology, Unbounded,
    place,
};
use ipu_testkit::placement_mode;
use proptest::prelude::*;

use super::reference::{self, QueueModel};
use super::request;

const NOW: Timestamp = Timestamp::from_millis(100_000);

fn window() -> CallWindow {
    CallWindow {
        now: NOW,
        settle: Duration::from_secs(30),
    }
}

/// Random parameters of a test entry.
#[derive(Clone, Debug)]
struct EntryParams {
    order: u32,
    allocation: usize,
    controller: usize,
    pinned: u8,
    runtime: Option<u64>,
    priority: i32,
    limited: (bool, bool),
    overtaken: u32,
    rejected: Option<(usize, bool, u64)>,
    listed: usize,
}

fn entry_params() -> impl Strategy<Value = EntryParams> {
    let place = (
        0..6_u32,
        0..8_usize,
        0..8_usize,
        prop_oneof![9 => Just(0_u8), 1 => 1..4_u8],
    );
    let terms = (
        prop::option::weighted(0.7, 1..8_u64),
        0..2_i32,
        any::<(bool, bool)>(),
        prop_oneof![4 => Just(0_u32), 1 => 1..5_u32],
    );
    let rejected = prop::option::weighted(0.15, (0..3_usize, any::<bool>(), 0..40_u64));
    let all = (place, terms, rejected, 0..30_usize);
    all.prop_map(
        |((order, allocation, controller, pinned), terms, rejected, listed)| EntryParams {
            order,
            allocation,
            controller,
            pinned,
            runtime: terms.0,
            priority: terms.1,
            limited: terms.2,
            overtaken: terms.3,
            rejected,
            listed,
        },
    )
}

fn name(number: usize) -> ControllerName {
    ControllerName::new(format!("c{number}")).unwrap()
}

/// Returns six machines in an allocation of four and one of two.
fn divided_topology() -> Topology {
    let topology: Topology = "1x6".parse().unwrap();
    let agents: Vec<_> = topology.agents().map(|(agent, _)| agent.clone()).collect();
    let allocation = |id: &str, range: std::ops::Range<usize>| Allocation {
        id: AllocationId::new(id).unwrap(),
        cluster: topology.clusters()[0].id.clone(),
        agents: agents[range].iter().cloned().collect(),
    };
    let allocations = vec![allocation("four", 0..4), allocation("two", 4..6)];
    Topology::new(topology.clusters().to_vec(), Some(allocations)).unwrap()
}

fn request_for(number: usize, params: &EntryParams) -> Request {
    let namespace = if params.limited.0 { "limited" } else { "free" };
    let mut request = request(namespace, &format!("j{number}"), 1 << params.order);
    request.spec.allocation = match params.allocation {
        0 => Some(AllocationId::new("four").unwrap()),
        1 => Some(AllocationId::new("two").unwrap()),
        2 => Some(AllocationId::new("unknown").unwrap()),
        _ => None,
    };
    request.pin.controller = (params.controller < 4).then(|| name(params.controller));
    if params.pinned > 0 {
        // With more IPUs than its size, it may use any block among them.
        let count = (1_u32 << params.order) * u32::from(params.pinned);
        let ipus = (0..count).map(|ipu| IpuPlace { link_domain: 0, ipu });
        request.pin.ipus = ipus.collect();
    }
    request.max_runtime = params.runtime.map(|runtime| Duration::from_millis(runtime * 100));
    request.priority = params.priority;
    request.account = params.limited.1.then(|| "limited".into());
    request
}

/// Returns the entry of a request in an empty ledger.
fn entry_of(request: &Request, ticket: usize) -> Entry {
    let (empty, none) = (LedgerState::default(), ControllersSnapshot::default());
    let step = empty
        .request(request, &none, &QueuePolicy::default(), window())
        .unwrap();
    let Some(Change::Put(entry)) = step.changes.first() else {
        panic!("{step:?}");
    };
    let mut entry = Entry::clone(entry);
    entry.ticket = ticket as u64;
    entry
}

/// Returns a ledger with these holders and this queue, and the listings of up to three controllers. `variant`
/// selects whether a controller is of unknown hardware, draining, unavailable or absent.
fn fixture(
    holders: &[EntryParams],
    queue: &[EntryParams],
    variant: usize,
    placement: &PlacementMode,
    refuses_ipus: bool,
) -> (LedgerState, ControllersSnapshot) {
    let mut inventories = [
        Inventory::new(&divided_topology()),
        Inventory::new(&Topology::pod16()),
    ];
    let mut partitions: [Vec<Partition>; 2] = [Vec::new(), Vec::new()];
    let mut entries = Vec::new();
    let listed = |id: &PartitionId, spec: &PartitionSpec| Partition {
        id: id.clone(),
        spec: spec.clone(),
        cluster: None,
        ipus: Vec::new(),
        state: PartitionState::Active,
    };
    for (number, params) in holders.iter().enumerate() {
        let at = params.controller % 2;
        let mut params = params.clone();
        (params.allocation, params.order) = (3, params.order.min(3));
        let mut entry = entry_of(&request_for(number, &params), number);
        entry.controller = Some(name(at));
        entry.held_since = Some(Timestamp::from_millis(
            NOW.as_millis() - 50 * params.listed as u64,
        ));
        let placement_request = PlacementRequest::of_size(entry.spec.size);
        if let Placement::Fits(block) = place(&inventories[at], &placement_request, &FirstFit) {
            inventories[at].occupy(entry.id.clone(), block).unwrap();
            partitions[at].push(listed(&entry.id, &entry.spec));
            entry.state = match params.overtaken {
                1 => EntryState::Quarantined,
                _ => EntryState::Active,
            };
            // One in ten partitions has no ledger entry.
            if params.listed > 2 {
                entries.push(entry);
            }
        }
    }
    let mut queued_entries = Vec::new();
    for (number, params) in queue.iter().enumerate() {
        let mut entry = entry_of(&request_for(100 + number, params), 100 + number);
        entry.overtaken = params.overtaken;
        // The controller has another partition, or its own, under its id.
        let size = entry.spec.size.get();
        let found = if params.listed == 0 { size } else { 2 * size };
        let placement_request = PlacementRequest::of_size(found.try_into().unwrap());
        if params.listed < 2
            && let Placement::Fits(block) = place(&inventories[1], &placement_request, &FirstFit)
        {
            inventories[1].occupy(entry.id.clone(), block).unwrap();
            let mut spec = entry.spec.clone();
            spec.size = placement_request.size;
            partitions[1].push(listed(&entry.id, &spec));
        }
        queued_entries.push((entry, params.rejected));
    }
    let [first, second] = partitions;
    let [one, two] = inventories;
    let capacity = |inventory| {
        let mut capacity = InventoryCapacity::new(inventory).with_placement(placement.clone());
        if refuses_ipus {
            capacity.delegate();
        }
        capacity
    };
    let listings = [
        Listing::new(first, Box::new(capacity(one))),
        Listing::new(second, Box::new(capacity(two))),
        Listing::new(Vec::new(), Box::new(Unbounded::default())),
    ];
    let fingerprints: Vec<_> = listings.iter().map(Listing::fingerprint).collect();
    for (mut entry, rejected) in queued_entries {
        if let Some((controller, is_current, age_seconds)) = rejected {
            entry.state = EntryState::Waiting {
                refused: Some(ControllerRejection {
                    controller: name(controller),
                    message: format!("no room for {}", entry.id),
                    fingerprint: if is_current { fingerprints[controller] } else { 7 },
                    at: Timestamp::from_millis(NOW.as_millis() - age_seconds * 1_000),
                }),
            };
        }
        entries.push(entry);
    }
    let mut controllers = Vec::new();
    for (number, listing) in listings.into_iter().enumerate() {
        let (listing, service) = match (number, variant) {
            (2, 0) => break,
            (2, 1) => (
                Err(Reason::new("ControllerUnavailable", "it does not answer")),
                ServiceState::Open,
            ),
            (1, 2) => (Ok(Arc::new(listing)), ServiceState::Draining),
            (2, 2..=7) => break,
            _ => (Ok(Arc::new(listing)), ServiceState::Open),
        };
        let name = name(number);
        controllers.push(ControllerView {
            name,
            service,
            listing,
        });
    }
    (
        LedgerState::from_entries(entries),
        ControllersSnapshot::new(controllers),
    )
}

/// Converts a decision to the form of the model.
fn to_model(decision: QueueDecision) -> reference::Decision {
    match decision {
        QueueDecision::Start {
            controller,
            places,
            placed,
        } => reference::Decision::Start {
            controller,
            places,
            placed,
        },
        QueueDecision::Wait(status) => to_model_wait(status),
    }
}

fn to_model_wait(status: ipu_core::QueueStatus) -> reference::Decision {
    reference::Decision::Wait(reference::Waiting {
        position: status.position,
        reason: status.reason,
        blockers: status.blockers.into_iter().map(|blocker| blocker.id).collect(),
        earliest_fit: status.earliest_fit,
    })
}

/// Returns modes that place every request that fits. The expected start assumes such a policy.
fn complete_placement_modes() -> impl Strategy<Value = PlacementMode> {
    let kinds = prop::sample::select(vec![0_u64, 1, 2, 3, 4, 7]);
    (kinds, 0..1_000_u64).prop_map(|(kind, seed)| placement_mode(8 * seed + kind))
}

fn policy(limit: u32, order: usize, quota: Option<(u32, u32)>) -> QueuePolicy {
    let mut policy = QueuePolicy::default();
    policy.overtake_limit = limit;
    policy.order = [
        SelectionOrder::Serial,
        SelectionOrder::Tightest,
        SelectionOrder::MostFree,
    ][order];
    if let Some((max_ipus, max_partitions)) = quota {
        let quota = |max_ipus, max_partitions| Quota {
            max_ipus,
            max_partitions,
        };
        let namespace = QuotaSubject::Namespace(Namespace::new("limited").unwrap());
        policy.quotas.insert(namespace, quota(Some(max_ipus), None));
        let account = QuotaSubject::Account("limited".into());
        policy.quotas.insert(account, quota(None, Some(max_partitions)));
    }
    policy
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn queue_decisions_and_reasons_match_the_model(
        holders in prop::collection::vec(entry_params(), 0..14),
        queue in prop::collection::vec(entry_params(), 0..40),
        next in entry_params(),
        (limit, order, variant) in (0..6_u32, 0..3_usize, 0..10_usize),
        quota in prop::option::of((0..48_u32, 0..8_u32)),
        (placement, refuses_ipus) in (complete_placement_modes(), prop::bool::weighted(0.2)),
    ) {
        let (state, snapshot) = fixture(&holders, &queue, variant, &placement, refuses_ipus);
        let policy = policy(limit, order, quota);
        let mut model = QueueModel::new(&state, &snapshot, &policy, NOW);
        let expected: Vec<_> = state.queue().into_iter().map(|entry| (entry.id.clone(), model.decide(entry))).collect();
        let actual: Vec<_> = state.evaluate_queue(&snapshot, &policy, NOW).into_iter().map(|(id, decision)| (id, to_model(decision))).collect();
        prop_assert_eq!(&actual, &expected);
        for (id, decision) in expected {
            prop_assert_eq!(state.evaluate(&id, &snapshot, &policy, NOW).map(to_model), Some(decision));
        }
        // A new request, and the requests that it overtakes.
        let next = request_for(1_000, &next);
        let entry = entry_of(&next, 1_000);
        let mut model = QueueModel::new(&state, &snapshot, &policy, NOW);
        for ahead in state.queue().into_iter().filter(|ahead| ahead.priority >= next.priority) {
            model.decide(ahead);
        }
        let expected = model.decide(&entry);
        let overtaken_entries: Vec<_> = model.overtaken_by(&entry).into_iter().map(|other| (other.id.clone(), other.overtaken + 1)).collect();
        let step = state.request(&next, &snapshot, &policy, window()).unwrap();
        match (step.outcome, expected) {
            (Admission::Queued(status), expected) => prop_assert_eq!(to_model_wait(status), expected),
            (Admission::Drive(started), reference::Decision::Start { controller, places, .. }) => {
                prop_assert_eq!(started.controller, Some(controller));
                prop_assert_eq!(started.places, places);
                let puts: Vec<_> = step.changes.iter().filter_map(|change| match change {
                    Change::Put(other) if other.id != entry.id => Some((other.id.clone(), other.overtaken)),
                    _ => None,
                }).collect();
                prop_assert_eq!(puts, overtaken_entries);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

/// A capacity that counts its copies and reservations.
struct CountingCapacity {
    inner: Box<dyn Capacity>,
    calls: Arc<AtomicUsize>,
}

impl CountingCapacity {
    fn count(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

impl Capacity for CountingCapacity {
    fn fork(&self) -> Box<dyn Capacity> {
        self.count();
        Box::new(Self {
            inner: self.inner.fork(),
            calls: Arc::clone(&self.calls),
        })
    }

    fn free(&self) -> u32 {
        self.inner.free()
    }

    fn largest_block(&self) -> u32 {
        self.inner.largest_block()
    }

    fn has(&self, id: &PartitionId) -> bool {
        self.inner.has(id)
    }

    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        places: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason> {
        self.count();
        self.inner.reserve(id, spec, places)
    }

    fn release(&mut self, id: &PartitionId) {
        self.inner.release(id);
    }

    fn withhold(&mut self, places: &[IpuPlace]) {
        self.inner.withhold(places);
    }

    fn cordon(&mut self, owner: &CordonOwner, what: &CordonTarget) -> Result<Vec<PartitionId>, Reason> {
        self.inner.cordon(owner, what)
    }

    fn counts(&self) -> Option<IpuCounts> {
        self.inner.counts()
    }

    fn fit_count(&self, spec: &PartitionSpec) -> u32 {
        self.inner.fit_count(spec)
    }

    fn blockers(&self, spec: &PartitionSpec) -> Vec<PartitionId> {
        self.inner.blockers(spec)
    }
}

/// Returns the number of copies and placements for one request with `queued` others, all with declared run
/// times.
fn cost_of_request(queued: usize) -> usize {
    let ipus = |number: usize| 1_u32 << (number % 4);
    let with_runtime = |name: &str, size: u32| {
        let mut request = request("ns", name, size);
        request.max_runtime = Some(Duration::from_secs(60));
        request
    };
    let mut inventory = Inventory::new(&Topology::pod16());
    let mut holder = entry_of(&with_runtime("holder", 16), 0);
    let Placement::Fits(block) = place(
        &inventory,
        &PlacementRequest::of_size(holder.spec.size),
        &FirstFit,
    ) else {
        panic!("it is empty");
    };
    inventory.occupy(holder.id.clone(), block).unwrap();
    (holder.state, holder.controller, holder.held_since) = (EntryState::Active, Some(name(0)), Some(NOW));
    let partition = Partition {
        id: holder.id.clone(),
        spec: holder.spec.clone(),
        cluster: None,
        ipus: Vec::new(),
        state: PartitionState::Active,
    };
    let queued_entries =
        (0..queued).map(|number| entry_of(&with_runtime(&format!("j{number}"), ipus(number)), number + 1));
    let state = LedgerState::from_entries(queued_entries.chain([holder]));
    let calls = Arc::new(AtomicUsize::new(0));
    let capacity = CountingCapacity {
        inner: Box::new(InventoryCapacity::new(inventory)),
        calls: Arc::clone(&calls),
    };
    let snapshot = ControllersSnapshot::new(vec![ControllerView {
        name: name(0),
        service: ServiceState::Open,
        listing: Ok(Arc::new(Listing::new([partition], Box::new(capacity)))),
    }]);
    let step = state
        .request(
            &with_runtime("next", 4),
            &snapshot,
            &QueuePolicy::default(),
            window(),
        )
        .unwrap();
    assert!(matches!(step.outcome, Admission::Queued(_)), "{step:?}");
    calls.load(Ordering::Relaxed)
}

#[test]
fn the_cost_of_a_request_does_not_grow_with_the_queue() {
    // The earliest start simulates up to 64 ends: a copy, and a placement for each of four sizes and for each
    // start.
    let bound = 1_000;
    for queued in [10, 100, 400] {
        let calls = cost_of_request(queued);
        assert!(
            calls < bound,
            "{calls} copies and placements with {queued} queued"
        );
    }
}
