//! Preemption: which holders a request of higher priority asks to release their partitions.

use std::collections::BTreeSet;

use ipu_core::{
    Admission, Allocation, AllocationId, ControllerName, Cordon, CordonTarget, Entry, EntryState, Inventory,
    Namespace, PartitionId, Quota, QuotaSubject, Request, Topology,
};
use ipu_testkit::placement_mode;
use proptest::prelude::*;

use super::{LedgerHarness, controller, request};

/// Size as a power of two, priority, whether it is preemptible, and number of the allocation or controller.
type JobParams = (u32, i32, bool, usize);

fn job_params() -> impl Strategy<Value = JobParams> {
    (0_u32..5, 0_i32..4, prop::bool::weighted(0.7), 0_usize..12)
}

/// Returns numbers of placement modes whose policies place every request that fits. With other policies
/// nobody can promise that a request starts.
fn complete_modes() -> impl Strategy<Value = u64> {
    let kinds = prop::sample::select(vec![0_u64, 1, 2, 3, 4, 7]);
    (kinds, 0..100_u64).prop_map(|(kind, seed)| 8 * seed + kind)
}

fn topologies() -> impl Strategy<Value = Topology> {
    let divided = Just(divided_topology());
    let plain = prop::sample::select(vec!["pod4", "pod16", "2x2", "pod64"]);
    prop_oneof![4 => plain.prop_map(|text| text.parse().unwrap()), 1 => divided]
}

/// Returns six machines: the allocations of the first four and of the last four share two.
fn divided_topology() -> Topology {
    let topology: Topology = "1x6".parse().unwrap();
    let agents: Vec<_> = topology.agents().map(|(agent, _)| agent.clone()).collect();
    let allocation = |id: &str, range: std::ops::Range<usize>| Allocation {
        id: AllocationId::new(id).unwrap(),
        cluster: topology.clusters()[0].id.clone(),
        agents: agents[range].iter().cloned().collect(),
    };
    let allocations = vec![
        allocation("all", 0..6),
        allocation("first", 0..4),
        allocation("last", 2..6),
    ];
    Topology::new(topology.clusters().to_vec(), Some(allocations)).unwrap()
}

fn other_controller() -> ControllerName {
    ControllerName::new("d").unwrap()
}

fn job(name: &str, (order, priority, preemptible, _): JobParams) -> Request {
    let mut request = request("ns", name, 1 << order);
    request.priority = priority;
    request.preemptible = preemptible;
    request
}

/// Returns a job that may name an allocation of `topology` or, if there are no several ones, a controller.
fn job_at(topology: &Topology, name: &str, params: JobParams) -> Request {
    let mut request = job(name, params);
    let allocations = topology.allocations();
    if allocations.len() > 1 {
        request.spec.allocation = Some(allocations[params.3 % allocations.len()].id.clone());
    } else if params.3 < 4 {
        let name = if params.3 == 0 {
            other_controller()
        } else {
            controller()
        };
        request.pin.controller = Some(name);
    }
    request
}

/// Returns a harness with preemption after `jobs` were submitted, one per millisecond, and their requests.
fn harness(topology: &Topology, mode: u64, jobs: &[JobParams]) -> (LedgerHarness, Vec<Request>) {
    let mut harness = LedgerHarness::new(topology);
    if mode / 8 % 3 == 1 && topology.allocations().len() == 1 {
        harness.others = vec![(other_controller(), Inventory::new(&Topology::pod4()))];
    }
    harness.policy.preemption = true;
    harness.placement = placement_mode(mode);
    let requests: Vec<Request> = jobs
        .iter()
        .enumerate()
        .map(|(number, params)| job_at(topology, &format!("j{number}"), *params))
        .collect();
    for request in &requests {
        harness.now += 1;
        harness.submit(request);
    }
    (harness, requests)
}

fn preempted(harness: &LedgerHarness) -> BTreeSet<PartitionId> {
    let entries = harness.state.entries();
    let preempted = entries.filter(|entry| harness.state.preemption_of(&entry.id).is_some());
    preempted.map(|entry| entry.id.clone()).collect()
}

fn is_queued(harness: &LedgerHarness, request: &Request) -> bool {
    let entry = harness.state.get(&request.id);
    entry.is_some_and(|entry| matches!(entry.state, EntryState::Waiting { .. }))
}

/// Returns whether `request` starts in a copy of `harness` in which the owners of `released` obey.
fn starts_without(
    harness: &LedgerHarness,
    requests: &[Request],
    released: &BTreeSet<PartitionId>,
    request: &Request,
) -> bool {
    let mut copy = harness.clone();
    requests.iter().for_each(|other| copy.finish_release(other));
    let released = requests.iter().filter(|other| released.contains(&other.id));
    released.for_each(|other| copy.release(other));
    matches!(copy.submit(request), Admission::Drive(_))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_preempting_request_starts_once_the_owners_obey_and_needs_each_of_them(
        topology in topologies(),
        jobs in prop::collection::vec(job_params(), 0..20),
        next in job_params(),
        mode in complete_modes(),
        releasing in prop::collection::vec(prop::bool::weighted(0.1), 20),
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        for (request, is_releasing) in requests.iter().zip(releasing) {
            if is_releasing && harness.holds(request) {
                harness.start_release(request);
            }
        }
        let before = preempted(&harness);
        let next = job_at(&topology, "next", next);
        harness.now += 1;
        harness.submit(&next);
        let after = preempted(&harness);
        let added: Vec<_> = after.difference(&before).collect();
        for id in &added {
            let entry = harness.state.get(id).unwrap();
            prop_assert!(entry.preemptible && entry.priority < next.priority && !next.preemptible, "{:?}", entry);
            // Those of requests behind it are no use to it.
            let for_it = |other: &&PartitionId| {
                let demand = harness.state.preemption_of(other).unwrap();
                other != id && demand.priority >= next.priority
            };
            let others = after.iter().filter(for_it).cloned().collect();
            prop_assert!(!starts_without(&harness, &requests, &others, &next), "{} is not needed", id);
        }
        if !added.is_empty() {
            prop_assert!(starts_without(&harness, &requests, &after, &next));
        }
    }

    #[test]
    fn a_request_preempts_if_the_end_of_all_holders_that_it_may_preempt_helps(
        topology in topologies(),
        jobs in prop::collection::vec(job_params(), 0..20),
        next in job_params(),
        mode in complete_modes(),
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        let next = job_at(&topology, "next", (next.0, next.1, false, next.3));
        harness.now += 1;
        harness.submit(&next);
        let entries = harness.state.entries();
        let victims = entries.filter(|entry| entry.preemptible && entry.priority < next.priority && harness.holds(&job_of(&requests, entry)));
        let victims: BTreeSet<PartitionId> = victims.map(|entry| entry.id.clone()).collect();
        let all: BTreeSet<PartitionId> = victims.union(&preempted(&harness)).cloned().collect();
        if is_queued(&harness, &next) && starts_without(&harness, &requests, &all, &next) {
            prop_assert!(starts_without(&harness, &requests, &preempted(&harness), &next));
        }
    }

    #[test]
    fn preempted_jobs_request_again_preempt_nothing_and_leave_the_room_to_the_request(
        topology in topologies(),
        jobs in prop::collection::vec(job_params(), 0..20),
        (order, at) in (0_u32..5, 0_usize..12),
        mode in complete_modes(),
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        let next = job_at(&topology, "next", (order, 9, false, at));
        harness.submit(&next);
        let victims = preempted(&harness);
        let by_next = |id: &PartitionId| harness.state.preemption_of(id).is_some_and(|demand| demand.by == next.id);
        let is_preempting = victims.iter().any(by_next);
        for request in requests.iter().filter(|request| victims.contains(&request.id)) {
            harness.now += 1;
            let demands = preempted(&harness);
            harness.start_release(request);
            harness.submit(&next);
            prop_assert!(preempted(&harness).is_subset(&demands), "while the controller removes it");
            harness.finish_release(request);
            let mut again = request.clone();
            again.attempt += 1;
            harness.request(&again).unwrap();
            prop_assert!(preempted(&harness).is_subset(&demands));
        }
        if is_preempting {
            harness.submit(&next);
            prop_assert!(harness.holds(&next));
        }
    }

    #[test]
    fn a_demand_ends_with_its_request(
        topology in topologies(),
        jobs in prop::collection::vec(job_params(), 0..20),
        (order, at) in (0_u32..5, 0_usize..12),
        mode in complete_modes(),
        end in 0..3,
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        let before = preempted(&harness);
        let mut next = job_at(&topology, "next", (order, 9, false, at));
        harness.submit(&next);
        let is_ended = |harness: &LedgerHarness| {
            let by_next = |entry: &Entry| entry.preemption.as_ref().is_some_and(|demand| demand.by == next.id);
            preempted(harness).is_subset(&before) && !harness.state.entries().any(by_next)
        };
        if end == 0 {
            harness.release(&next);
            prop_assert!(is_ended(&harness));
        } else if end == 1 {
            next.preemptible = true;
            harness.submit(&next);
            prop_assert!(is_ended(&harness));
        } else {
            // Partitions that nobody demands end first, and the request starts.
            let victims = preempted(&harness);
            for request in &requests {
                if !victims.contains(&request.id) && harness.holds(request) {
                    harness.release(request);
                }
            }
            harness.submit(&next);
        }
        if !is_queued(&harness, &next) {
            prop_assert!(is_ended(&harness));
        }
    }

    #[test]
    fn a_request_that_the_controller_refuses_preempts_nothing_there(
        topology in prop::sample::select(vec!["pod4", "pod16", "2x2"]),
        jobs in prop::collection::vec((0_u32..2, 0_u64..50), 0..20),
        order in 2_u32..4,
        mode in complete_modes(),
    ) {
        let (mut harness, _) = harness(&topology.parse().unwrap(), mode, &[]);
        harness.others.clear();
        let next = job("next", (order, 9, false, 9));
        for (number, (order, seconds)) in jobs.into_iter().enumerate() {
            harness.submit_refused(&next);
            prop_assert!(preempted(&harness).is_empty());
            harness.now += 1_000 * seconds;
            harness.submit(&job(&format!("j{number}"), (order, 0, true, 9)));
        }
    }

    #[test]
    fn an_owner_that_ignores_a_demand_does_not_protect_others(
        topology in topologies(),
        jobs in prop::collection::vec(job_params(), 0..20),
        (order, at) in (0_u32..5, 0_usize..12),
        mode in complete_modes(),
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        let next = job_at(&topology, "next", (order, 9, false, at));
        harness.submit(&next);
        let ignoring = preempted(&harness);
        harness.now += 601_000;
        harness.submit(&next);
        let demands = preempted(&harness);
        prop_assert!(ignoring.is_subset(&demands));
        let is_victim = |entry: &&Entry| {
            entry.preemptible && entry.priority < 9 && harness.holds(&job_of(&requests, entry)) && !ignoring.contains(&entry.id)
        };
        let others: BTreeSet<PartitionId> = harness.state.entries().filter(is_victim).map(|entry| entry.id.clone()).collect();
        if is_queued(&harness, &next) && starts_without(&harness, &requests, &others, &next) {
            let demanded = demands.difference(&ignoring).cloned().collect();
            prop_assert!(starts_without(&harness, &requests, &demanded, &next));
        }
    }
}

fn preempted_by(harness: &LedgerHarness, request: &Request) -> BTreeSet<PartitionId> {
    let is_by = |id: &PartitionId| {
        harness
            .state
            .preemption_of(id)
            .is_some_and(|demand| demand.by == request.id)
    };
    preempted(harness).into_iter().filter(is_by).collect()
}

fn job_of(requests: &[Request], entry: &Entry) -> Request {
    let of_entry = |request: &&Request| request.id == entry.id;
    requests
        .iter()
        .find(of_entry)
        .cloned()
        .unwrap_or_else(|| job("none", (0, 0, false, 0)))
}

#[test]
fn the_partition_that_is_held_longest_is_preempted_first() {
    let (mut harness, requests) = harness(&Topology::pod4(), 0, &[(1, 0, true, 9), (1, 0, true, 9)]);
    let urgent = job("urgent", (1, 1, false, 9));
    harness.submit(&urgent);
    assert_eq!(preempted(&harness), BTreeSet::from([requests[0].id.clone()]));
    let demand = harness.state.preemption_of(&requests[0].id).unwrap();
    assert_eq!((&demand.by, demand.priority), (&urgent.id, 1));
    assert_eq!(
        demand.reason().to_string(),
        "Preempted: Test ns/urgent preempts it with priority 1; it releases its partition and queues again"
    );
}

#[test]
fn the_lowest_priority_is_preempted_first_and_the_request_names_it() {
    let (mut harness, requests) = harness(&Topology::pod4(), 0, &[(1, 3, true, 9), (1, 0, true, 9)]);
    let urgent = job("urgent", (1, 5, false, 9));
    for _ in 0..2 {
        let status = harness.expect_queued(&urgent);
        assert_eq!(preempted(&harness), BTreeSet::from([requests[1].id.clone()]));
        let blockers: Vec<&PartitionId> = status.blockers.iter().map(|blocker| &blocker.id).collect();
        assert_eq!(blockers, [&requests[1].id]);
        assert_eq!(
            status.reason.message,
            "cannot fit 2 IPUs: none is free; it preempts Test ns/j1 (2 IPUs), and starts once the partitions \
             are released"
        );
    }
}

#[test]
fn nothing_is_preempted_by_default() {
    let (mut harness, _) = harness(&Topology::pod4(), 0, &[(2, 0, true, 9)]);
    harness.policy.preemption = false;
    harness.submit(&job("urgent", (2, 9, false, 9)));
    assert!(preempted(&harness).is_empty());
}

#[test]
fn an_owner_that_ignores_a_demand_holds_back_others_for_a_bounded_time_only() {
    // One machine is free, and the urgent request needs both.
    let (mut harness, _) = harness(&"1x2".parse().unwrap(), 0, &[(2, 0, true, 9)]);
    harness.submit(&job("urgent", (3, 9, false, 9)));
    let small = job("small", (0, 0, false, 9));
    let status = harness.expect_queued(&small);
    assert_eq!(status.reason.code, "HeldBackForEarlier");
    assert!(
        status
            .reason
            .message
            .contains("Test ns/urgent (8 IPUs) preempts partitions"),
        "{}",
        status.reason
    );
    harness.now += 600_000;
    assert!(matches!(harness.submit(&small), Admission::Drive(_)));
}

#[test]
fn a_request_preempts_where_it_can_start_and_holds_back_nobody_elsewhere() {
    // The 64 partitions of the first controller are held longer.
    let jobs = [(0, 0, true, 1); 64];
    let (mut harness, _) = harness(&Topology::pod64(), 8, &jobs);
    assert_eq!(harness.others.len(), 1);
    harness.submit(&job_at(&Topology::pod64(), "spare", (1, 0, true, 0)));
    let urgent = job_at(&Topology::pod64(), "urgent", (2, 9, false, 0));
    harness.submit(&urgent);
    let demanded = preempted_by(&harness, &urgent);
    let names: Vec<&str> = demanded.iter().map(PartitionId::as_str).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    harness.release(&job("j7", (0, 0, true, 1)));
    assert_eq!(
        harness
            .expect_queued(&job_at(&Topology::pod64(), "same", (0, 0, false, 0)))
            .reason
            .code,
        "HeldBackForEarlier"
    );
    assert!(matches!(
        harness.submit(&job("free", (0, 0, false, 9))),
        Admission::Drive(_)
    ));
}

#[test]
fn a_demand_is_not_renewed_by_a_request_with_a_higher_priority() {
    let (mut harness, requests) = harness(&"1x2".parse().unwrap(), 0, &[(2, 0, true, 9)]);
    let mut urgent = job("urgent", (3, 8, false, 9));
    harness.submit(&urgent);
    let first = harness.state.preemption_of(&requests[0].id).unwrap().at;
    harness.now += 300_000;
    urgent.priority = 9;
    harness.submit(&urgent);
    harness.submit(&job("other", (3, 10, false, 9)));
    let demand = harness.state.preemption_of(&requests[0].id).unwrap();
    assert_eq!((demand.priority, demand.at), (10, first));
}

#[test]
fn a_preempting_request_over_its_quota_gets_the_share_and_the_ipus_of_its_victims() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.policy.preemption = true;
    let (max_ipus, max_partitions) = (Some(16), None);
    let quota = Quota {
        max_ipus,
        max_partitions,
    };
    let namespace = QuotaSubject::Namespace(Namespace::new("ns").unwrap());
    harness.policy.quotas.insert(namespace, quota);
    let victims = [job("v1", (3, 0, true, 9)), job("v2", (3, 0, true, 9))];
    for victim in &victims {
        assert!(matches!(harness.submit(victim), Admission::Drive(_)));
    }
    let urgent = job("urgent", (4, 9, false, 9));
    harness.submit(&urgent);
    assert_eq!(preempted_by(&harness, &urgent).len(), 2);
    harness.release(&victims[0]);
    let mut again = victims[0].clone();
    again.attempt += 1;
    harness.expect_queued(&again);
    let mut other = request("other", "low", 8);
    other.priority = -5;
    assert_eq!(harness.expect_queued(&other).reason.code, "HeldBackForEarlier");
    harness.release(&victims[1]);
    assert!(matches!(harness.submit(&urgent), Admission::Drive(_)));
}

#[test]
fn a_demand_ends_if_its_request_would_not_start_any_more() {
    let (mut harness, _) = harness(&Topology::pod16(), 0, &[(3, 0, true, 9), (3, 0, true, 9)]);
    let urgent = job("urgent", (4, 9, false, 9));
    harness.submit(&urgent);
    assert_eq!(preempted_by(&harness, &urgent).len(), 2);
    let target = CordonTarget::Machine("a4".parse().unwrap());
    let (id, owner) = ("fan".parse().unwrap(), "admin".parse().unwrap());
    let cordon = Cordon::new(id, controller(), target, owner, "a fan is broken");
    let step = harness.state.cordon(cordon, &harness.snapshot(), harness.now());
    harness.commit(step.unwrap());
    let status = harness.expect_queued(&urgent);
    assert!(preempted(&harness).is_empty());
    assert!(!status.reason.message.contains("preempts"), "{}", status.reason);
}
