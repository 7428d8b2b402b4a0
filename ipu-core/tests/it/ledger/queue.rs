//! The walk of the queue: it decides and explains like the model, and its work does not grow with the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipu_core::{
    Admission, Allocation, AllocationId, CallWindow, Capacity, Change, ControllerName, ControllerRejection,
    ControllerView, ControllersSnapshot, CordonOwner, CordonTarget, Entry, EntryState, FirstFit, Inventory,
    InventoryCapacity, IpuCounts, IpuPlace, LedgerState, Listing, Namespace, Partition, PartitionId,
    PartitionSpec, PartitionState, Placement, PlacementRequest, QueueDecision, QueuePolicy, Quota,
    QuotaSubject, Reason, Request, SelectionOrder, ServiceState, Timestamp, Topology, Unbounded, place,
};
use proptest::prelude::*;

use super::reference::{self, Walk};
use super::request;

const NOW: Timestamp = Timestamp::from_millis(100_000);

fn window() -> CallWindow {
    CallWindow {
        now: NOW,
        settle: Duration::from_secs(30),
    }
}

/// Small numbers that a test entry is made of.
#[derive(Clone, Debug)]
struct Dice {
    order: u32,
    allocation: usize,
    controller: usize,
    pinned: bool,
    runtime: Option<u64>,
    priority: i32,
    limited: (bool, bool),
    passed_over: u32,
    refused: Option<(usize, bool, u64)>,
    listed: usize,
}

fn dice() -> impl Strategy<Value = Dice> {
    let place = (0..6_u32, 0..8_usize, 0..8_usize, prop::bool::weighted(0.1));
    let terms = (
        prop::option::weighted(0.7, 1..8_u64),
        0..2_i32,
        any::<(bool, bool)>(),
        prop_oneof![4 => Just(0_u32), 1 => 1..5_u32],
    );
    let refused = prop::option::weighted(0.15, (0..3_usize, any::<bool>(), 0..40_u64));
    let all = (place, terms, refused, 0..30_usize);
    all.prop_map(
        |((order, allocation, controller, pinned), terms, refused, listed)| Dice {
            order,
            allocation,
            controller,
            pinned,
            runtime: terms.0,
            priority: terms.1,
            limited: terms.2,
            passed_over: terms.3,
            refused,
            listed,
        },
    )
}

fn name(number: usize) -> ControllerName {
    ControllerName::new(format!("c{number}")).unwrap()
}

/// Six machines in an allocation of four and one of two.
fn divided() -> Topology {
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

fn asks(number: usize, dice: &Dice) -> Request {
    let namespace = if dice.limited.0 { "limited" } else { "free" };
    let mut request = request(namespace, &format!("j{number}"), 1 << dice.order);
    request.spec.allocation = match dice.allocation {
        0 => Some(AllocationId::new("four").unwrap()),
        1 => Some(AllocationId::new("two").unwrap()),
        2 => Some(AllocationId::new("unknown").unwrap()),
        _ => None,
    };
    request.pin.controller = (dice.controller < 4).then(|| name(dice.controller));
    if dice.pinned {
        let ipus = (0..1_u32 << dice.order).map(|ipu| IpuPlace { link_domain: 0, ipu });
        request.pin.ipus = ipus.collect();
    }
    request.max_runtime = dice.runtime.map(|runtime| Duration::from_millis(runtime * 100));
    request.priority = dice.priority;
    request.account = dice.limited.1.then(|| "limited".into());
    request
}

/// The entry that a request becomes in an empty ledger.
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

/// A ledger with these holders and this queue, and what its three controllers list; the last one does not tell its
/// hardware, drains, or is silent.
fn scene(holders: &[Dice], queue: &[Dice], last: usize) -> (LedgerState, ControllersSnapshot) {
    let mut inventories = [Inventory::new(&divided()), Inventory::new(&Topology::pod16())];
    let mut partitions: [Vec<Partition>; 2] = [Vec::new(), Vec::new()];
    let mut entries = Vec::new();
    let listed = |id: &PartitionId, spec: &PartitionSpec| Partition {
        id: id.clone(),
        spec: spec.clone(),
        cluster: None,
        ipus: Vec::new(),
        state: PartitionState::Active,
    };
    for (number, dice) in holders.iter().enumerate() {
        let at = dice.controller % 2;
        let mut dice = dice.clone();
        (dice.allocation, dice.order) = (3, dice.order.min(3));
        let mut entry = entry_of(&asks(number, &dice), number);
        entry.controller = Some(name(at));
        entry.held_since = Some(Timestamp::from_millis(NOW.as_millis() - 50 * dice.listed as u64));
        let wanted = PlacementRequest::of_size(entry.spec.size);
        if let Placement::Fits(block) = place(&inventories[at], &wanted, &FirstFit) {
            inventories[at].occupy(entry.id.clone(), block).unwrap();
            partitions[at].push(listed(&entry.id, &entry.spec));
            entry.state = match dice.passed_over {
                1 => EntryState::Quarantined,
                _ => EntryState::Active,
            };
            // One in ten owns nothing that the ledger knows of.
            if dice.listed > 2 {
                entries.push(entry);
            }
        }
    }
    let mut waiting = Vec::new();
    for (number, dice) in queue.iter().enumerate() {
        let mut entry = entry_of(&asks(100 + number, dice), 100 + number);
        entry.overtaken = dice.passed_over;
        // Another partition, or its own, is there under its id.
        let size = entry.spec.size.get();
        let found = if dice.listed == 0 { size } else { 2 * size };
        let wanted = PlacementRequest::of_size(found.try_into().unwrap());
        if dice.listed < 2
            && let Placement::Fits(block) = place(&inventories[1], &wanted, &FirstFit)
        {
            inventories[1].occupy(entry.id.clone(), block).unwrap();
            let mut spec = entry.spec.clone();
            spec.size = wanted.size;
            partitions[1].push(listed(&entry.id, &spec));
        }
        waiting.push((entry, dice.refused));
    }
    let [first, second] = partitions;
    let [one, two] = inventories;
    let known = [
        Listing::new(first, Box::new(InventoryCapacity::new(one))),
        Listing::new(second, Box::new(InventoryCapacity::new(two))),
        Listing::new(Vec::new(), Box::new(Unbounded::default())),
    ];
    let prints: Vec<_> = known.iter().map(Listing::fingerprint).collect();
    for (mut entry, refused) in waiting {
        if let Some((controller, stands, ago)) = refused {
            entry.state = EntryState::Waiting {
                refused: Some(ControllerRejection {
                    controller: name(controller),
                    message: format!("no room for {}", entry.id),
                    fingerprint: if stands { prints[controller] } else { 7 },
                    at: Timestamp::from_millis(NOW.as_millis() - ago * 1_000),
                }),
            };
        }
        entries.push(entry);
    }
    let mut controllers = Vec::new();
    for (number, listing) in known.into_iter().enumerate() {
        let (listing, service) = match (number, last) {
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
    (LedgerState::of(entries), ControllersSnapshot::of(controllers))
}

/// A verdict in the form of the model.
fn plain(verdict: QueueDecision) -> reference::Verdict {
    match verdict {
        QueueDecision::Start {
            controller,
            places,
            placed,
        } => reference::Verdict::Go {
            controller,
            places,
            placed,
        },
        QueueDecision::Wait(waiting) => stay(waiting),
        other => panic!("{other:?}"),
    }
}

fn stay(waiting: ipu_core::QueueStatus) -> reference::Verdict {
    reference::Verdict::Stay(reference::Waiting {
        position: waiting.position,
        reason: waiting.reason,
        blockers: waiting.blockers.into_iter().map(|blocker| blocker.id).collect(),
        earliest_fit: waiting.earliest_fit,
    })
}

fn rules(limit: u32, order: usize, quota: Option<(u32, u32)>) -> QueuePolicy {
    let mut rules = QueuePolicy::default();
    rules.overtake_limit = limit;
    rules.order = [
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
        rules.quotas.insert(namespace, quota(Some(max_ipus), None));
        let account = QuotaSubject::Account("limited".into());
        rules.quotas.insert(account, quota(None, Some(max_partitions)));
    }
    rules
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_queue_is_decided_and_explained_like_by_the_model(
        holders in prop::collection::vec(dice(), 0..14),
        queue in prop::collection::vec(dice(), 0..40),
        next in dice(),
        (limit, order, last) in (0..6_u32, 0..3_usize, 0..10_usize),
        quota in prop::option::of((0..48_u32, 0..8_u32)),
    ) {
        let (state, world) = scene(&holders, &queue, last);
        let rules = rules(limit, order, quota);
        let mut model = Walk::new(&state, &world, &rules, NOW);
        let expected: Vec<_> = state.queue().into_iter().map(|entry| (entry.id.clone(), model.step(entry))).collect();
        let judged: Vec<_> = state.evaluate_queue(&world, &rules, NOW).into_iter().map(|(id, verdict)| (id, plain(verdict))).collect();
        prop_assert_eq!(&judged, &expected);
        for (id, verdict) in expected {
            prop_assert_eq!(state.judge(&id, &world, &rules, NOW).map(plain), Some(verdict));
        }
        // A new request, and those that it passes.
        let next = asks(1_000, &next);
        let entry = entry_of(&next, 1_000);
        let mut model = Walk::new(&state, &world, &rules, NOW);
        for ahead in state.queue().into_iter().filter(|ahead| ahead.priority >= next.priority) {
            model.step(ahead);
        }
        let expected = model.step(&entry);
        let passed: Vec<_> = model.passed_by(&entry).into_iter().map(|other| (other.id.clone(), other.overtaken + 1)).collect();
        let step = state.request(&next, &world, &rules, window()).unwrap();
        match (step.outcome, expected) {
            (Admission::Stay(waiting), expected) => prop_assert_eq!(stay(waiting), expected),
            (Admission::Drive(going), reference::Verdict::Go { controller, places, .. }) => {
                prop_assert_eq!(going.controller, Some(controller));
                prop_assert_eq!(going.places, places);
                let puts: Vec<_> = step.changes.iter().filter_map(|change| match change {
                    Change::Put(other) if other.id != entry.id => Some((other.id.clone(), other.overtaken)),
                    _ => None,
                }).collect();
                prop_assert_eq!(puts, passed);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

/// Capacity that counts how often it is copied and taken from.
struct Counting {
    room: Box<dyn Capacity>,
    calls: Arc<AtomicUsize>,
}

impl Counting {
    fn count(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

impl Capacity for Counting {
    fn fork(&self) -> Box<dyn Capacity> {
        self.count();
        Box::new(Self {
            room: self.room.fork(),
            calls: Arc::clone(&self.calls),
        })
    }

    fn free(&self) -> u32 {
        self.room.free()
    }

    fn largest_block(&self) -> u32 {
        self.room.largest_block()
    }

    fn has(&self, id: &PartitionId) -> bool {
        self.room.has(id)
    }

    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        places: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason> {
        self.count();
        self.room.reserve(id, spec, places)
    }

    fn release(&mut self, id: &PartitionId) {
        self.room.release(id);
    }

    fn withhold(&mut self, places: &[IpuPlace]) {
        self.room.withhold(places);
    }

    fn cordon(&mut self, owner: &CordonOwner, what: &CordonTarget) -> Result<Vec<PartitionId>, Reason> {
        self.room.cordon(owner, what)
    }

    fn counts(&self) -> Option<IpuCounts> {
        self.room.counts()
    }

    fn fit_count(&self, spec: &PartitionSpec) -> u32 {
        self.room.fit_count(spec)
    }

    fn blockers(&self, spec: &PartitionSpec) -> Vec<PartitionId> {
        self.room.blockers(spec)
    }
}

/// How many copies and placements one request takes while `queued` others wait, all with declared run times.
fn work_of_a_request(queued: usize) -> usize {
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
    let waiting =
        (0..queued).map(|number| entry_of(&with_runtime(&format!("j{number}"), ipus(number)), number + 1));
    let state = LedgerState::of(waiting.chain([holder]));
    let calls = Arc::new(AtomicUsize::new(0));
    let room = Counting {
        room: Box::new(InventoryCapacity::new(inventory)),
        calls: Arc::clone(&calls),
    };
    let world = ControllersSnapshot::of(vec![ControllerView {
        name: name(0),
        service: ServiceState::Open,
        listing: Ok(Arc::new(Listing::new([partition], Box::new(room)))),
    }]);
    let step = state
        .request(
            &with_runtime("next", 4),
            &world,
            &QueuePolicy::default(),
            window(),
        )
        .unwrap();
    assert!(matches!(step.outcome, Admission::Stay(_)), "{step:?}");
    calls.load(Ordering::Relaxed)
}

#[test]
fn the_work_of_a_request_does_not_grow_with_the_queue() {
    // 64 moments of the expected start: a copy, and a placement for each of four sizes and for each start.
    let bound = 1_000;
    for queued in [10, 100, 400] {
        let calls = work_of_a_request(queued);
        assert!(
            calls < bound,
            "{calls} copies and placements with {queued} queued"
        );
    }
}
