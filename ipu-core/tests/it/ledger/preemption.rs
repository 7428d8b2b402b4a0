//! Preemption: which holders a request of higher priority asks to release their partitions.

use std::collections::BTreeSet;

use ipu_core::{Admission, Entry, EntryState, PartitionId, Request, Topology};
use ipu_testkit::placement_mode;
use proptest::prelude::*;

use super::{LedgerHarness, request};

/// Size as a power of two, priority, and whether it is preemptible.
type JobParams = (u32, i32, bool);

fn job_params() -> impl Strategy<Value = JobParams> {
    (0_u32..5, 0_i32..4, prop::bool::weighted(0.7))
}

/// Returns numbers of placement modes whose policies place every request that fits. With other policies
/// nobody can promise that a request starts.
fn complete_modes() -> impl Strategy<Value = u64> {
    let kinds = prop::sample::select(vec![0_u64, 1, 2, 3, 4, 7]);
    (kinds, 0..100_u64).prop_map(|(kind, seed)| 8 * seed + kind)
}

fn topologies() -> impl Strategy<Value = Topology> {
    prop::sample::select(vec!["pod4", "pod16", "2x2", "pod64"]).prop_map(|text| text.parse().unwrap())
}

fn job(name: &str, (order, priority, preemptible): JobParams) -> Request {
    let mut request = request("ns", name, 1 << order);
    request.priority = priority;
    request.preemptible = preemptible;
    request
}

/// Returns a harness with preemption after `jobs` were submitted, one per millisecond, and their requests.
fn harness(topology: &Topology, mode: u64, jobs: &[JobParams]) -> (LedgerHarness, Vec<Request>) {
    let mut harness = LedgerHarness::new(topology);
    harness.policy.preemption = true;
    harness.placement = placement_mode(mode);
    let requests: Vec<Request> = jobs
        .iter()
        .enumerate()
        .map(|(number, params)| job(&format!("j{number}"), *params))
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
    copy.policy.preemption = false;
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
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        let before = preempted(&harness);
        let next = job("next", next);
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
        let next = job("next", (next.0, next.1, false));
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
        order in 0_u32..5,
        mode in complete_modes(),
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        let next = job("next", (order, 9, false));
        harness.submit(&next);
        let victims = preempted(&harness);
        let by_next = |id: &PartitionId| harness.state.preemption_of(id).is_some_and(|demand| demand.by == next.id);
        let is_preempting = victims.iter().any(by_next);
        for request in requests.iter().filter(|request| victims.contains(&request.id)) {
            harness.now += 1;
            harness.release(request);
            let demands = preempted(&harness);
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
        order in 0_u32..5,
        mode in complete_modes(),
        cancels in any::<bool>(),
    ) {
        let (mut harness, requests) = harness(&topology, mode, &jobs);
        let before = preempted(&harness);
        let next = job("next", (order, 9, false));
        harness.submit(&next);
        if cancels {
            harness.release(&next);
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
            prop_assert!(preempted(&harness).is_subset(&before));
            let by_next = |entry: &Entry| entry.preemption.as_ref().is_some_and(|demand| demand.by == next.id);
            prop_assert!(!harness.state.entries().any(by_next));
        }
    }
}

fn job_of(requests: &[Request], entry: &Entry) -> Request {
    let of_entry = |request: &&Request| request.id == entry.id;
    requests
        .iter()
        .find(of_entry)
        .cloned()
        .unwrap_or_else(|| job("none", (0, 0, false)))
}

#[test]
fn the_partition_that_is_held_longest_is_preempted_first() {
    let (mut harness, requests) = harness(&Topology::pod4(), 0, &[(1, 0, true), (1, 0, true)]);
    let urgent = job("urgent", (1, 1, false));
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
fn nothing_is_preempted_by_default() {
    let (mut harness, _) = harness(&Topology::pod4(), 0, &[(2, 0, true)]);
    harness.policy.preemption = false;
    harness.submit(&job("urgent", (2, 9, false)));
    assert!(preempted(&harness).is_empty());
}

#[test]
fn an_owner_that_ignores_a_demand_holds_back_others_for_a_bounded_time_only() {
    // One machine is free, and the urgent request needs both.
    let (mut harness, _) = harness(&"1x2".parse().unwrap(), 0, &[(2, 0, true)]);
    harness.submit(&job("urgent", (3, 9, false)));
    let small = job("small", (0, 0, false));
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
