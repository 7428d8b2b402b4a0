//! The waiting line and the transitions, by random lives and by cases.

mod attempts;
mod cordons;
mod dry_run;
mod inflight_calls;
mod lost;
mod namespaces;
mod queue;
mod reference;
mod request_updates;
mod stale_information;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    Admission, BestFit, CallWindow, Change, ControllerName, ControllerRejection, ControllerView,
    ControllersSnapshot, Entry, EntryState, FirstFit, Inventory, InventoryCapacity, JobKey, LedgerState,
    Listing, Location, Namespace, OnNoCapacity, Owner, Partition, PartitionSpec, PartitionState, Pinned,
    PlacedBy, Placement, PlacementPolicy, PlacementRequest, QueueDecision, QueuePolicy, QueueStatus, Quota,
    QuotaSubject, Release, Request, ServiceState, Timestamp, Topology, Transition, TransitionError, place,
};
use proptest::prelude::*;

const LIMIT: u32 = 3;

fn controller() -> ControllerName {
    ControllerName::new("c").unwrap()
}

fn request(namespace: &str, name: &str, size: u32) -> Request {
    let owner = Owner {
        kind: "Test".into(),
        job: JobKey::new(namespace, name, "1").unwrap(),
    };
    Request::of_instance(owner, 0, PartitionSpec::of_size(size.try_into().unwrap()))
}

/// A ledger, its one controller and the time.
struct Bench {
    state: LedgerState,
    inventory: Inventory,
    rules: QueuePolicy,
    now: u64,
}

impl Bench {
    fn new(topology: &Topology) -> Self {
        let mut rules = QueuePolicy::default();
        rules.overtake_limit = LIMIT;
        Self {
            state: LedgerState::default(),
            inventory: Inventory::new(topology),
            rules,
            now: 0,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn window(&self) -> CallWindow {
        CallWindow {
            now: self.now(),
            settle: Duration::from_secs(30),
        }
    }

    fn world(&self) -> ControllersSnapshot {
        let listed = self.inventory.holders().map(|(id, block)| Partition {
            id: id.clone(),
            spec: PartitionSpec::of_size(block.size().unwrap()),
            cluster: None,
            ipus: Vec::new(),
            state: PartitionState::Active,
        });
        ControllersSnapshot::of(vec![ControllerView {
            name: controller(),
            service: ServiceState::Open,
            listing: Ok(Arc::new(Listing::new(
                listed,
                Box::new(InventoryCapacity::new(self.inventory.clone())),
            ))),
        }])
    }

    fn take<T>(&mut self, step: Transition<T>) -> T {
        for change in &step.changes {
            self.state.apply(change);
        }
        step.outcome
    }

    fn request(&mut self, request: &Request) -> Result<Admission, TransitionError> {
        let step = self
            .state
            .request(request, &self.world(), &self.rules, self.window())?;
        Ok(self.take(step))
    }

    /// Asks, and does at the controller what is to be done.
    fn drive(&mut self, request: &Request) -> Admission {
        let admission = self.request(request).unwrap();
        if let Admission::Drive(entry) = &admission {
            let wanted = PlacementRequest::of_size(entry.spec.size);
            let EntryState::Intent { fence, .. } = entry.state else {
                panic!("{entry:?}");
            };
            if self.inventory.block_of(&entry.id).is_none() {
                let pinned = pinned(self.inventory.topology(), entry);
                let policy: &dyn PlacementPolicy = match &pinned {
                    Some(pinned) => pinned,
                    None => &BestFit,
                };
                match place(&self.inventory, &wanted, policy) {
                    Placement::Fits(block) => self.inventory.occupy(entry.id.clone(), block).unwrap(),
                    why => panic!("it was let go and does not fit: {why:?}"),
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
            self.take(step);
        }
        admission
    }

    fn release(&mut self, request: &Request) {
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
        if let Release::Drive(entry) = self.take(step) {
            let EntryState::Releasing { fence } = entry.state else {
                panic!("{entry:?}");
            };
            self.inventory.vacate(&entry.id).unwrap();
            let step = self
                .state
                .remove_released(&entry.id, Some(fence), self.now())
                .unwrap();
            self.take(step);
        }
    }

    fn waiting(&mut self, request: &Request) -> QueueStatus {
        match self.drive(request) {
            Admission::Stay(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    fn holds(&self, request: &Request) -> bool {
        self.state
            .get(&request.id)
            .is_some_and(|entry| entry.state.holds())
    }
}

/// The policy that takes the IPUs which the ledger has chosen; none if it has chosen none.
fn pinned(topology: &Topology, entry: &Entry) -> Option<Pinned> {
    let cluster = &topology.clusters()[0].id;
    let ipus = entry
        .places
        .iter()
        .map(|place| topology.address(cluster, *place).unwrap());
    Pinned::to(ipus).ok()
}

/// Size, priority and a flag of each job; which of them asks, or gives back if it can, in each step.
type Lives = (Vec<(u32, i32, bool)>, Vec<(usize, bool)>);

fn lives() -> impl Strategy<Value = Lives> {
    let jobs = proptest::collection::vec(
        ((0_u32..5).prop_map(|order| 1 << order), 0..2_i32, any::<bool>()),
        2..12,
    );
    (
        jobs,
        proptest::collection::vec((0..12_usize, any::<bool>()), 1..120),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nobody_is_overtaken_by_a_larger_or_equal_request_nor_too_often_by_smaller_ones((jobs, steps) in lives()) {
        let mut bench = Bench::new(&Topology::pod16());
        let requests: Vec<Request> = jobs.iter().enumerate().map(|(number, (size, priority, _))| {
            let mut request = request("ns", &format!("j{number}"), *size);
            request.priority = *priority;
            request
        }).collect();
        for (job, gives_back) in steps {
            let request = &requests[job % requests.len()];
            bench.now += 1;
            if gives_back && bench.holds(request) {
                bench.release(request);
                continue;
            }
            let line: Vec<_> = bench.state.queue().into_iter().cloned().collect();
            let went = matches!(bench.drive(request), Admission::Drive(_));
            // Those of the same size or smaller who came first can still go: their room was kept.
            let kept: Vec<_> = line.iter().take_while(|other| other.id != request.id)
                .filter(|other| went && other.priority >= request.priority && other.spec.size <= request.spec.size)
                .map(|other| &other.id).collect();
            for (id, verdict) in bench.state.evaluate_queue(&bench.world(), &bench.rules, bench.now()) {
                let goes = matches!(verdict, QueueDecision::Start { .. });
                prop_assert!(goes || !kept.contains(&&id), "{} overtook {id}", request.id);
            }
            for entry in bench.state.entries() {
                prop_assert!(entry.overtaken <= LIMIT, "{entry:?}");
            }
        }
    }

    #[test]
    fn quotas_are_never_exceeded((jobs, steps) in lives(), max_ipus in 0_u32..20, max_partitions in 0_u32..5) {
        let mut bench = Bench::new(&Topology::pod16());
        let quota = Quota { max_ipus: Some(max_ipus), max_partitions: Some(max_partitions) };
        let subject = QuotaSubject::Namespace(Namespace::new("limited").unwrap());
        bench.rules.quotas.insert(subject, quota);
        let requests: Vec<Request> = jobs.iter().enumerate().map(|(number, (size, _, limited))| {
            request(if *limited { "limited" } else { "free" }, &format!("j{number}"), *size)
        }).collect();
        for (job, gives_back) in steps {
            let request = &requests[job % requests.len()];
            if gives_back && bench.holds(request) { bench.release(request) } else { bench.drive(request); }
            let holders: Vec<_> = bench.state.entries().filter(|entry| {
                entry.state.holds() && entry.owner.as_ref().unwrap().job.namespace.as_str() == "limited"
            }).collect();
            prop_assert!(holders.iter().map(|entry| entry.spec.size.get()).sum::<u32>() <= max_ipus);
            prop_assert!(holders.len() <= max_partitions as usize);
        }
    }

    #[test]
    fn whoever_waits_is_served_once_others_give_back((jobs, steps) in lives()) {
        let mut bench = Bench::new(&Topology::pod16());
        let requests: Vec<Request> =
            jobs.iter().enumerate().map(|(number, (size, ..))| request("ns", &format!("j{number}"), *size)).collect();
        for (job, _) in steps {
            bench.drive(&requests[job % requests.len()]);
        }
        let mut served = 0;
        // A round may only let somebody go, and the next one only give back.
        for _ in 0..2 * requests.len() + 2 {
            let waiting: Vec<_> = bench.state.queue().into_iter().map(|entry| entry.id.clone()).collect();
            for request in &requests {
                if bench.holds(request) {
                    bench.release(request);
                    served += 1;
                } else if waiting.contains(&request.id) {
                    bench.drive(request);
                }
            }
        }
        prop_assert!(bench.state.queue().is_empty() && bench.state.entries().count() == 0, "{served} served");
    }
}

#[test]
fn the_reason_carries_the_numbers_position_blockers_and_the_earliest_time() {
    let mut bench = Bench::new(&Topology::pod16());
    let (mut long, mut short) = (request("ns", "long", 8), request("ns", "short", 8));
    long.max_runtime = Some(Duration::from_millis(500));
    short.max_runtime = Some(Duration::from_millis(300));
    bench.drive(&long);
    bench.drive(&short);
    let (mut first, second) = (request("ns", "first", 8), request("ns", "second", 8));
    first.max_runtime = Some(Duration::from_millis(100));
    bench.now = 10;
    let waiting = bench.waiting(&first);
    assert_eq!((waiting.position, &*waiting.reason.code), (1, "NotEnoughFree"));
    for (name, number) in [("free", 0), ("largestBlock", 0), ("size", 8), ("position", 1)] {
        assert_eq!(waiting.reason.numbers[name], number, "{name}");
    }
    assert_eq!(waiting.blockers.len(), 1);
    assert_eq!(waiting.earliest_fit, Some(Timestamp::from_millis(300)));
    let waiting = bench.waiting(&second);
    assert_eq!(
        (waiting.position, waiting.earliest_fit),
        (2, Some(Timestamp::from_millis(400)))
    );
}

#[test]
fn nobody_is_told_a_time_that_does_not_follow_from_what_is_declared() {
    let mut bench = Bench::new(&Topology::pod16());
    bench.drive(&request("ns", "silent", 16));
    assert_eq!(bench.waiting(&request("ns", "next", 1)).earliest_fit, None);
}

#[test]
fn room_that_is_kept_for_somebody_ahead_is_said_to_be() {
    let mut bench = Bench::new(&Topology::pod16());
    let holder = request("ns", "holder", 16);
    bench.drive(&holder);
    let (first, second) = (request("ns", "first", 16), request("ns", "second", 16));
    bench.waiting(&first);
    bench.waiting(&second);
    bench.release(&holder);
    let waiting = bench.waiting(&second);
    assert_eq!(&*waiting.reason.code, "HeldBackForEarlier");
    assert!(
        waiting.reason.message.contains("ns/first (16 IPUs)"),
        "{}",
        waiting.reason
    );
    assert_eq!(waiting.blockers[0].id, first.id);
    assert!(matches!(bench.drive(&first), Admission::Drive(_)));
}

#[test]
fn a_request_that_its_own_namespace_blocks_holds_back_that_namespace_alone() {
    let mut bench = Bench::new(&Topology::pod16());
    let holder = request("greedy", "holder", 1);
    bench.drive(&holder);
    let big = request("greedy", "big", 16);
    bench.waiting(&big);
    for number in 0..=LIMIT {
        let other = request("other", &format!("job{number}"), 1);
        assert!(matches!(bench.drive(&other), Admission::Drive(_)));
    }
    let own = |number: u32| request("greedy", &format!("small{number}"), 1);
    for number in 0..LIMIT {
        assert!(matches!(bench.drive(&own(number)), Admission::Drive(_)));
    }
    let waiting = bench.waiting(&own(LIMIT));
    assert_eq!(&*waiting.reason.code, "HeldBackForEarlier");
    let other = request("other", "late", 1);
    assert!(matches!(bench.drive(&other), Admission::Drive(_)));

    // Once other namespaces alone block it, it holds back all.
    bench.release(&holder);
    (0..LIMIT).for_each(|number| bench.release(&own(number)));
    let waiting = bench.waiting(&request("other", "last", 1));
    assert_eq!(&*waiting.reason.code, "HeldBackForEarlier");
}

#[test]
fn after_the_limit_a_big_request_holds_back_those_behind_it() {
    let mut bench = Bench::new(&Topology::pod16());
    bench.drive(&request("ns", "holder", 8));
    bench.waiting(&request("ns", "big", 16));
    for number in 0..LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        assert!(matches!(bench.drive(&small), Admission::Drive(_)));
    }
    let waiting = bench.waiting(&request("ns", "late", 1));
    assert_eq!(&*waiting.reason.code, "HeldBackForEarlier");
    assert!(
        waiting
            .reason
            .message
            .contains("ns/big (16 IPUs) was passed 3 times"),
        "{}",
        waiting.reason
    );
}

#[test]
fn what_can_never_fit_holds_nobody_back() {
    let mut bench = Bench::new(&Topology::pod16());
    assert_eq!(
        &*bench.waiting(&request("ns", "huge", 64)).reason.code,
        "TooLarge"
    );
    // A foreign partition that may stay for ever counts like that too.
    let block = place(
        &bench.inventory,
        &PlacementRequest::of_size(1.try_into().unwrap()),
        &FirstFit,
    );
    let Placement::Fits(block) = block else {
        panic!("it is empty")
    };
    bench.inventory.occupy("slurm_1".parse().unwrap(), block).unwrap();
    bench.waiting(&request("ns", "whole", 16));
    for number in 0..2 * LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        assert!(matches!(bench.drive(&small), Admission::Drive(_)), "{number}");
    }
}

#[test]
fn an_exceeded_quota_is_named_and_does_not_hold_others_back() {
    let mut bench = Bench::new(&Topology::pod16());
    let quota = Quota {
        max_ipus: Some(4),
        max_partitions: None,
    };
    bench
        .rules
        .quotas
        .insert(QuotaSubject::Account("lab".into()), quota);
    let charged = |name: &str| {
        let mut request = request("ns", name, 4);
        request.account = Some("lab".into());
        request
    };
    bench.drive(&charged("one"));
    let waiting = bench.waiting(&charged("two"));
    assert_eq!(&*waiting.reason.code, "QuotaExceeded");
    assert_eq!(
        waiting.reason.message,
        "account lab holds 4 of 4 IPUs and asks for 4 more"
    );
    assert_eq!(waiting.blockers.len(), 1);
    for number in 0..=LIMIT {
        assert!(matches!(
            bench.drive(&request("ns", &format!("o{number}"), 1)),
            Admission::Drive(_)
        ));
    }
}

#[test]
fn whoever_waits_and_has_a_partition_at_a_controller_already_keeps_his_share_of_the_quota() {
    let mut bench = Bench::new(&Topology::pod16());
    let quota = Quota {
        max_ipus: Some(4),
        max_partitions: None,
    };
    let subject = QuotaSubject::Namespace(Namespace::new("ns").unwrap());
    bench.rules.quotas.insert(subject, quota);
    let (first, second) = (request("ns", "first", 4), request("ns", "second", 4));
    let foreign = "slurm_1".parse().unwrap();
    let whole = PlacementRequest::of_size(16.try_into().unwrap());
    let Placement::Fits(block) = place(&bench.inventory, &whole, &FirstFit) else {
        panic!("it is empty")
    };
    bench.inventory.occupy(foreign, block).unwrap();
    bench.waiting(&first);
    bench.inventory.vacate(&"slurm_1".parse().unwrap()).unwrap();
    // An old copy of the ledger was restored, or a call came late.
    let wanted = PlacementRequest::of_size(first.spec.size);
    let Placement::Fits(block) = place(&bench.inventory, &wanted, &FirstFit) else {
        panic!("it is empty")
    };
    bench.inventory.occupy(first.id.clone(), block).unwrap();
    let waiting = bench.waiting(&second);
    assert_eq!(&*waiting.reason.code, "QuotaExceeded");
    assert!(matches!(bench.drive(&first), Admission::Drive(_)));
}

#[test]
fn whoever_waits_for_an_id_that_is_somebody_elses_at_a_controller_holds_nobody_back() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut foreign = request("ns", "whole", 16);
    foreign.id = "p64".parse().unwrap();
    let one = request("ns", "one", 1);
    bench.drive(&one);
    bench.waiting(&foreign);
    bench.release(&one);
    let eight = PlacementRequest::of_size(8.try_into().unwrap());
    let Placement::Fits(block) = place(&bench.inventory, &eight, &FirstFit) else {
        panic!("it is empty")
    };
    bench.inventory.occupy(foreign.id.clone(), block).unwrap();
    for number in 0..=2 * LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        assert!(matches!(bench.drive(&small), Admission::Drive(_)), "{number}");
    }
    let line = bench
        .state
        .evaluate_queue(&bench.world(), &bench.rules, bench.now());
    let [(_, QueueDecision::Wait(waiting))] = &line[..] else {
        panic!("{line:?}")
    };
    assert_eq!(&*waiting.reason.code, "ForeignPartition");
}

#[test]
fn whoever_was_refused_keeps_his_place_and_is_not_overtaken_by_his_equals() {
    let mut bench = Bench::new(&Topology::pod16());
    let (first, second) = (request("ns", "first", 4), request("ns", "second", 4));
    bench.drive(&request("ns", "other", 1));
    let Admission::Drive(entry) = bench.request(&first).unwrap() else {
        panic!("it fits");
    };
    let EntryState::Intent { fence, .. } = entry.state else {
        panic!("{entry:?}");
    };
    let refused = ControllerRejection {
        controller: controller(),
        message: "agents are busy".into(),
        fingerprint: bench.world().listing(&controller()).unwrap().fingerprint(),
        at: bench.now(),
    };
    let late = bench
        .state
        .reject_create(&first.id, Timestamp::from_millis(1), refused.clone(), bench.now());
    assert!(
        matches!(late, Err(TransitionError::Moved { .. })),
        "only the call of this intent counts"
    );
    let step = bench
        .state
        .reject_create(&first.id, fence, refused, bench.now())
        .unwrap();
    bench.take(step);
    let waiting = bench.waiting(&second);
    assert_eq!(
        (waiting.position, &*waiting.reason.code),
        (2, "ControllerRefused")
    );
    assert!(
        waiting.reason.message.contains("agents are busy"),
        "{}",
        waiting.reason
    );
    assert!(matches!(
        bench.drive(&request("ns", "smaller", 2)),
        Admission::Drive(_)
    ));
    assert!(
        matches!(bench.drive(&first), Admission::Drive(_)),
        "the controller shows a change"
    );
}

#[test]
fn the_ledger_chooses_the_ipus_of_every_partition_whose_hardware_is_known() {
    let mut bench = Bench::new(&Topology::pod16());
    let holder = request("ns", "holder", 16);
    bench.drive(&holder);
    let (large, small) = (request("ns", "large", 8), request("ns", "small", 4));
    bench.waiting(&large);
    bench.waiting(&small);
    bench.release(&holder);
    let judged = bench
        .state
        .evaluate_queue(&bench.world(), &bench.rules, bench.now());
    let chosen: Vec<_> = judged
        .iter()
        .map(|(_, verdict)| match verdict {
            QueueDecision::Start { places, placed, .. } => (*placed, places.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((chosen[0].0, chosen[1].0), (PlacedBy::Ledger, PlacedBy::Ledger));
    assert_eq!((chosen[0].1.len(), chosen[1].1.len()), (8, 4));
    assert!(chosen[1].1.iter().all(|place| !chosen[0].1.contains(place)));
    let Admission::Drive(entry) = bench.request(&large).unwrap() else {
        panic!("there is room");
    };
    assert_eq!(entry.places, chosen[0].1, "the intent and its IPUs are one write");
}

#[test]
fn a_full_line_refuses_and_a_refusing_request_leaves_no_trace() {
    let mut bench = Bench::new(&Topology::pod16());
    bench.rules.length_limit = 1;
    bench.drive(&request("ns", "holder", 16));
    let mut impatient = request("ns", "impatient", 4);
    impatient.line = OnNoCapacity::Reject;
    assert!(matches!(
        bench.request(&impatient).unwrap(),
        Admission::Rejected(_)
    ));
    assert!(bench.state.get(&impatient.id).is_none());
    bench.waiting(&request("ns", "first", 4));
    assert_eq!(
        bench.request(&request("ns", "second", 4)),
        Err(TransitionError::LineFull { limit: 1 })
    );
    let judged = bench
        .state
        .evaluate_queue(&bench.world(), &bench.rules, bench.now());
    assert!(matches!(&judged[..], [(_, QueueDecision::Wait(_))]));
}
