//! Answers and placements of the ledger agree, with every placement policy.

use std::time::Duration;

use ipu_core::{
    Admission, EntryState, IpuCount, OnNoCapacity, PartitionId, PartitionSpec, PlacedBy, PlacementMode,
    Reason, Request, Timestamp, Topology,
};
use ipu_testkit::placement_mode;
use proptest::prelude::*;

use super::{LedgerHarness, controller, request};

const TOPOLOGIES: [&str; 5] = ["pod4", "pod16", "2x2", "pod64", "pod128"];

fn topologies() -> impl Strategy<Value = Topology> {
    prop::sample::select(TOPOLOGIES.to_vec()).prop_map(|text| text.parse().unwrap())
}

/// Sizes, as powers of two, of requests that are submitted in turn; every third granted partition ends again.
fn history() -> impl Strategy<Value = Vec<(u32, bool)>> {
    prop::collection::vec((0_u32..8, prop::bool::weighted(0.3)), 0..16)
}

/// Returns a harness after `history`.
fn harness(topology: &Topology, placement: &PlacementMode, history: &[(u32, bool)]) -> LedgerHarness {
    let mut harness = LedgerHarness::new(topology);
    harness.placement = placement.clone();
    for (number, (order, ends)) in history.iter().enumerate() {
        let mut request = request("history", &format!("h{number}"), 1 << order);
        request.on_no_capacity = OnNoCapacity::Reject;
        harness.submit(&request);
        if *ends && harness.holds(&request) {
            harness.release(&request);
        }
    }
    harness
}

fn fit_count(harness: &LedgerHarness, size: IpuCount) -> u32 {
    let spec = PartitionSpec::of_size(size);
    let snapshot = harness.snapshot();
    let mut free = harness.state.free_capacity(&snapshot, &spec).into_iter();
    let (_, capacity) = free.next().unwrap();
    capacity.unwrap().fit_count
}

/// Submits requests of one size until one does not start; returns the number of grants and the last reason.
fn grants(harness: &mut LedgerHarness, size: IpuCount) -> (u32, Reason) {
    let mut granted = 0;
    loop {
        let mut next = request("ns", &format!("n{granted}"), size.get());
        next.on_no_capacity = OnNoCapacity::Reject;
        match harness.submit(&next) {
            Admission::Drive(entry) => {
                assert!(matches!(entry.state, EntryState::Intent { .. }), "{entry:?}");
                granted += 1;
            }
            Admission::Rejected(status) => return (granted, status.reason),
            other => panic!("{other:?}"),
        }
    }
}

fn find<'r>(requests: &'r [Request], id: &PartitionId) -> &'r Request {
    requests.iter().find(|request| request.id == *id).unwrap()
}

/// Waits for the end of partitions in the order of their declared ends, and returns the time at which
/// `target` starts.
fn actual_start(harness: &mut LedgerHarness, requests: &[Request], target: &Request) -> Option<Timestamp> {
    loop {
        let holders = harness.state.entries().filter(|entry| entry.state.holds());
        let (end, id) = holders
            .filter_map(|entry| Some((entry.held_since?.plus(entry.max_runtime?), entry.id.clone())))
            .min()?;
        harness.now = end.as_millis();
        harness.release(find(requests, &id));
        let queued: Vec<_> = harness
            .state
            .queue()
            .iter()
            .map(|entry| entry.id.clone())
            .collect();
        for id in queued {
            harness.submit(find(requests, &id));
        }
        if harness.holds(target) {
            return Some(harness.now());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn as_many_partitions_are_placed_as_the_answer_promises(
        topology in topologies(),
        history in history(),
        mode in 0_u64..800,
        order in 0_u32..8,
    ) {
        let placement = placement_mode(mode);
        let mut harness = harness(&topology, &placement, &history);
        let size = IpuCount::try_from(1_u32 << order).unwrap();
        let promised = fit_count(&harness, size);
        let (granted, reason) = grants(&mut harness, size);
        prop_assert_eq!(granted, promised, "{} of {} IPUs: {}", placement, size, reason);
        if matches!(&*reason.code, "Declined" | "Illegal") {
            prop_assert!(reason.message.contains(placement.name()), "{}", reason);
        }
    }

    #[test]
    fn a_grant_names_the_ipus_that_the_policy_chose(
        topology in topologies(),
        history in history(),
        mode in 0_u64..800,
        order in 0_u32..8,
    ) {
        let placement = placement_mode(mode);
        let mut harness = harness(&topology, &placement, &history);
        let next = request("ns", "next", 1 << order);
        let snapshot = harness.snapshot();
        let mut capacity = snapshot.listing(&controller()).unwrap().capacity().fork();
        let chosen = capacity.reserve(&next.id, &next.spec, &[]);
        match (harness.request(&next).unwrap(), chosen) {
            (Admission::Drive(entry), Ok(_)) if placement == PlacementMode::Delegated => {
                prop_assert_eq!(entry.placed, PlacedBy::Controller);
                prop_assert!(entry.places.is_empty());
            }
            (Admission::Drive(entry), Ok(places)) => {
                prop_assert_eq!(entry.placed, PlacedBy::Ledger);
                prop_assert_eq!(entry.places, places);
            }
            (Admission::Queued(status), Err(reason)) => prop_assert_eq!(status.reason.code, reason.code),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_request_starts_when_it_is_expected_to(
        topology in topologies(),
        jobs in prop::collection::vec((0_u32..5, 1_u64..20), 1..24),
        kind in prop::sample::select(vec![0_u64, 1, 2, 3, 7]),
        seed in 0_u64..100,
    ) {
        let mut harness = LedgerHarness::new(&topology);
        harness.placement = placement_mode(8 * seed + kind);
        // Without the limit, every request starts as soon as it fits.
        harness.policy.overtake_limit = u32::MAX;
        let requests: Vec<Request> = jobs.iter().enumerate().map(|(number, (order, seconds))| {
            let mut request = request("ns", &format!("j{number}"), 1 << order);
            request.max_runtime = Some(Duration::from_secs(*seconds));
            request
        }).collect();
        let mut expected = None;
        for request in &requests {
            harness.now += 1;
            expected = match harness.submit(request) {
                Admission::Queued(status) => status.earliest_fit,
                _ => None,
            };
        }
        if let Some(expected) = expected {
            let target = requests.last().unwrap();
            prop_assert_eq!(actual_start(&mut harness, &requests, target), Some(expected));
        }
    }
}
