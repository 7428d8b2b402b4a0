//! The queue and the ledger transitions, in random scenarios and in cases.

mod attempts;
mod cordons;
mod dry_run;
mod harness;
mod inflight_calls;
mod lost;
mod machines;
mod namespaces;
mod policies;
mod preemption;
mod queue;
mod reference;
mod refused_ipus;
mod request_updates;
mod stale_information;
mod stats;
mod unforced_removal;

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    Admission, BestFit, Change, ControllerRejection, ControllerView, ControllersSnapshot, EntryState,
    FirstFit, InventoryCapacity, Listing, Location, Namespace, OnNoCapacity, PartitionSpec, PartitionState,
    PlacedBy, Placement, PlacementRequest, QueueDecision, Quota, QuotaSubject, Release, Request,
    ServiceState, Timestamp, Topology, TransitionError, place,
};
use proptest::prelude::*;

use harness::{LIMIT, LedgerHarness, controller, request};

/// Size, priority and a flag of each job, and the steps: the job index, and whether it releases (if it holds)
/// or requests.
type Steps = (Vec<(u32, i32, bool)>, Vec<(usize, bool)>);

fn random_steps() -> impl Strategy<Value = Steps> {
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
    fn a_request_is_never_overtaken_by_a_larger_or_equal_one_nor_too_often_by_smaller_ones((jobs, steps) in random_steps()) {
        let mut harness = LedgerHarness::new(&Topology::pod16());
        let requests: Vec<Request> = jobs.iter().enumerate().map(|(number, (size, priority, _))| {
            let mut request = request("ns", &format!("j{number}"), *size);
            request.priority = *priority;
            request
        }).collect();
        for (job, releases) in steps {
            let request = &requests[job % requests.len()];
            harness.now += 1;
            if releases && harness.holds(request) {
                harness.release(request);
                continue;
            }
            let queue: Vec<_> = harness.state.queue().into_iter().cloned().collect();
            let started = matches!(harness.submit(request), Admission::Drive(_));
            // Earlier requests of the same size or smaller can still start: their capacity is reserved.
            let protected: Vec<_> = queue.iter().take_while(|other| other.id != request.id)
                .filter(|other| started && other.priority >= request.priority && other.spec.size <= request.spec.size)
                .map(|other| &other.id).collect();
            for (id, decision) in harness.state.evaluate_queue(&harness.snapshot(), &harness.policy, harness.now()) {
                let starts = matches!(decision, QueueDecision::Start { .. });
                prop_assert!(starts || !protected.contains(&&id), "{} overtook {id}", request.id);
            }
            for entry in harness.state.entries() {
                prop_assert!(entry.overtaken <= LIMIT, "{entry:?}");
            }
        }
    }

    #[test]
    fn quotas_are_never_exceeded((jobs, steps) in random_steps(), max_ipus in 0_u32..20, max_partitions in 0_u32..5) {
        let mut harness = LedgerHarness::new(&Topology::pod16());
        let quota = Quota { max_ipus: Some(max_ipus), max_partitions: Some(max_partitions) };
        let subject = QuotaSubject::Namespace(Namespace::new("limited").unwrap());
        harness.policy.quotas.insert(subject, quota);
        let requests: Vec<Request> = jobs.iter().enumerate().map(|(number, (size, _, limited))| {
            request(if *limited { "limited" } else { "free" }, &format!("j{number}"), *size)
        }).collect();
        for (job, releases) in steps {
            let request = &requests[job % requests.len()];
            if releases && harness.holds(request) { harness.release(request) } else { harness.submit(request); }
            let holders: Vec<_> = harness.state.entries().filter(|entry| {
                entry.state.holds() && entry.owner.as_ref().unwrap().job.namespace.as_str() == "limited"
            }).collect();
            prop_assert!(holders.iter().map(|entry| entry.spec.size.get()).sum::<u32>() <= max_ipus);
            prop_assert!(holders.len() <= max_partitions as usize);
        }
    }

    #[test]
    fn a_queued_request_starts_once_capacity_is_released((jobs, steps) in random_steps()) {
        let mut harness = LedgerHarness::new(&Topology::pod16());
        let requests: Vec<Request> =
            jobs.iter().enumerate().map(|(number, (size, ..))| request("ns", &format!("j{number}"), *size)).collect();
        for (job, _) in steps {
            harness.submit(&requests[job % requests.len()]);
        }
        let mut released = 0;
        // One round may only grant requests, and the next one only release them.
        for _ in 0..2 * requests.len() + 2 {
            let queued: Vec<_> = harness.state.queue().into_iter().map(|entry| entry.id.clone()).collect();
            for request in &requests {
                if harness.holds(request) {
                    harness.release(request);
                    released += 1;
                } else if queued.contains(&request.id) {
                    harness.submit(request);
                }
            }
        }
        prop_assert!(harness.state.queue().is_empty() && harness.state.entries().count() == 0, "{released} released");
    }
}

#[test]
fn a_queued_request_reports_counts_position_blockers_and_the_earliest_start() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let (mut long, mut short) = (request("ns", "long", 8), request("ns", "short", 8));
    long.max_runtime = Some(Duration::from_millis(500));
    short.max_runtime = Some(Duration::from_millis(300));
    harness.submit(&long);
    harness.submit(&short);
    let (mut first, second) = (request("ns", "first", 8), request("ns", "second", 8));
    first.max_runtime = Some(Duration::from_millis(100));
    harness.now = 10;
    let status = harness.expect_queued(&first);
    assert_eq!((status.position, &*status.reason.code), (1, "NotEnoughFree"));
    for (name, number) in [("free", 0), ("largestBlock", 0), ("size", 8), ("position", 1)] {
        assert_eq!(status.reason.numbers[name], number, "{name}");
    }
    assert_eq!(status.blockers.len(), 1);
    assert_eq!(status.earliest_fit, Some(Timestamp::from_millis(300)));
    let status = harness.expect_queued(&second);
    assert_eq!(
        (status.position, status.earliest_fit),
        (2, Some(Timestamp::from_millis(400)))
    );
}

#[test]
fn the_earliest_start_is_unknown_without_declared_run_times() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.submit(&request("ns", "silent", 16));
    let status = harness.expect_queued(&request("ns", "next", 1));
    assert_eq!(status.earliest_fit, None);
}

#[test]
fn the_reason_names_the_earlier_request_for_which_capacity_is_reserved() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let holder = request("ns", "holder", 16);
    harness.submit(&holder);
    let (first, second) = (request("ns", "first", 16), request("ns", "second", 16));
    harness.expect_queued(&first);
    harness.expect_queued(&second);
    harness.release(&holder);
    let status = harness.expect_queued(&second);
    assert_eq!(&*status.reason.code, "HeldBackForEarlier");
    assert!(
        status.reason.message.contains("ns/first (16 IPUs)"),
        "{}",
        status.reason
    );
    assert_eq!(status.blockers[0].id, first.id);
    assert!(matches!(harness.submit(&first), Admission::Drive(_)));
}

#[test]
fn a_request_blocked_by_its_own_namespace_holds_back_only_that_namespace() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let holder = request("greedy", "holder", 1);
    harness.submit(&holder);
    let big = request("greedy", "big", 16);
    harness.expect_queued(&big);
    for number in 0..=LIMIT {
        let other = request("other", &format!("job{number}"), 1);
        assert!(matches!(harness.submit(&other), Admission::Drive(_)));
    }
    let own = |number: u32| request("greedy", &format!("small{number}"), 1);
    for number in 0..LIMIT {
        assert!(matches!(harness.submit(&own(number)), Admission::Drive(_)));
    }
    let status = harness.expect_queued(&own(LIMIT));
    assert_eq!(&*status.reason.code, "HeldBackForEarlier");
    let other = request("other", "late", 1);
    assert!(matches!(harness.submit(&other), Admission::Drive(_)));

    // Once only other namespaces block it, it holds back all namespaces.
    harness.release(&holder);
    (0..LIMIT).for_each(|number| harness.release(&own(number)));
    let status = harness.expect_queued(&request("other", "last", 1));
    assert_eq!(&*status.reason.code, "HeldBackForEarlier");
}

#[test]
fn a_large_request_holds_back_later_ones_at_the_overtake_limit() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.submit(&request("ns", "holder", 8));
    harness.expect_queued(&request("ns", "big", 16));
    for number in 0..LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        assert!(matches!(harness.submit(&small), Admission::Drive(_)));
    }
    let status = harness.expect_queued(&request("ns", "late", 1));
    assert_eq!(&*status.reason.code, "HeldBackForEarlier");
    assert!(
        status
            .reason
            .message
            .contains("ns/big (16 IPUs) was overtaken 3 times"),
        "{}",
        status.reason
    );
}

#[test]
fn a_request_that_can_never_fit_holds_back_no_other() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    assert_eq!(
        &*harness.expect_queued(&request("ns", "huge", 64)).reason.code,
        "TooLarge"
    );
    // Nor does a request that a foreign partition blocks, which may never end.
    let block = place(
        &harness.inventory,
        &PlacementRequest::of_size(1.try_into().unwrap()),
        &FirstFit,
    );
    let Placement::Fits(block) = block else {
        panic!("the controller is empty")
    };
    harness
        .inventory
        .occupy("slurm_1".parse().unwrap(), block)
        .unwrap();
    harness.expect_queued(&request("ns", "whole", 16));
    for number in 0..2 * LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        assert!(matches!(harness.submit(&small), Admission::Drive(_)), "{number}");
    }
}

#[test]
fn an_exceeded_quota_is_reported_and_does_not_hold_back_others() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let quota = Quota {
        max_ipus: Some(4),
        max_partitions: None,
    };
    harness
        .policy
        .quotas
        .insert(QuotaSubject::Account("lab".into()), quota);
    let charged = |name: &str| {
        let mut request = request("ns", name, 4);
        request.account = Some("lab".into());
        request
    };
    harness.submit(&charged("one"));
    let status = harness.expect_queued(&charged("two"));
    assert_eq!(&*status.reason.code, "QuotaExceeded");
    assert_eq!(
        status.reason.message,
        "account lab holds 4 of 4 IPUs and requests 4 more"
    );
    assert_eq!(status.blockers.len(), 1);
    for number in 0..=LIMIT {
        assert!(matches!(
            harness.submit(&request("ns", &format!("o{number}"), 1)),
            Admission::Drive(_)
        ));
    }
}

#[test]
fn a_queued_request_with_an_existing_partition_keeps_its_share_of_the_quota() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let quota = Quota {
        max_ipus: Some(4),
        max_partitions: None,
    };
    let subject = QuotaSubject::Namespace(Namespace::new("ns").unwrap());
    harness.policy.quotas.insert(subject, quota);
    let (first, second) = (request("ns", "first", 4), request("ns", "second", 4));
    let foreign = "slurm_1".parse().unwrap();
    let whole = PlacementRequest::of_size(16.try_into().unwrap());
    let Placement::Fits(block) = place(&harness.inventory, &whole, &FirstFit) else {
        panic!("the controller is empty")
    };
    harness.inventory.occupy(foreign, block).unwrap();
    harness.expect_queued(&first);
    harness.inventory.vacate(&"slurm_1".parse().unwrap()).unwrap();
    // The partition exists because an old ledger was restored or a call arrived late.
    let wanted = PlacementRequest::of_size(first.spec.size);
    let Placement::Fits(block) = place(&harness.inventory, &wanted, &FirstFit) else {
        panic!("the controller is empty")
    };
    harness.inventory.occupy(first.id.clone(), block).unwrap();
    let status = harness.expect_queued(&second);
    assert_eq!(&*status.reason.code, "QuotaExceeded");
    assert!(matches!(harness.submit(&first), Admission::Drive(_)));
}

#[test]
fn a_request_for_the_id_of_a_foreign_partition_holds_back_no_other() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut foreign = request("ns", "whole", 16);
    foreign.id = "p64".parse().unwrap();
    let one = request("ns", "one", 1);
    harness.submit(&one);
    harness.expect_queued(&foreign);
    harness.release(&one);
    let eight = PlacementRequest::of_size(8.try_into().unwrap());
    let Placement::Fits(block) = place(&harness.inventory, &eight, &FirstFit) else {
        panic!("the controller is empty")
    };
    harness.inventory.occupy(foreign.id.clone(), block).unwrap();
    for number in 0..=2 * LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        assert!(matches!(harness.submit(&small), Admission::Drive(_)), "{number}");
    }
    let decisions = harness
        .state
        .evaluate_queue(&harness.snapshot(), &harness.policy, harness.now());
    let [(_, QueueDecision::Wait(status))] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert_eq!(&*status.reason.code, "ForeignPartition");
}

#[test]
fn a_rejected_request_keeps_its_position_and_is_not_overtaken_by_equal_ones() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let (first, second) = (request("ns", "first", 4), request("ns", "second", 4));
    harness.submit(&request("ns", "other", 1));
    let Admission::Drive(entry) = harness.request(&first).unwrap() else {
        panic!("the request fits");
    };
    let EntryState::Intent { fence, .. } = entry.state else {
        panic!("{entry:?}");
    };
    let refused = ControllerRejection {
        controller: controller(),
        message: "agents are busy".into(),
        fingerprint: harness.snapshot().listing(&controller()).unwrap().fingerprint(),
        at: harness.now(),
    };
    let late = harness.state.reject_create(
        &first.id,
        Timestamp::from_millis(1),
        refused.clone(),
        harness.now(),
    );
    assert!(
        matches!(late, Err(TransitionError::Moved { .. })),
        "only the call of the current intent counts"
    );
    let step = harness
        .state
        .reject_create(&first.id, fence, refused, harness.now())
        .unwrap();
    harness.commit(step);
    let status = harness.expect_queued(&second);
    assert_eq!((status.position, &*status.reason.code), (2, "ControllerRefused"));
    assert!(
        status.reason.message.contains("agents are busy"),
        "{}",
        status.reason
    );
    assert!(matches!(
        harness.submit(&request("ns", "smaller", 2)),
        Admission::Drive(_)
    ));
    assert!(
        matches!(harness.submit(&first), Admission::Drive(_)),
        "the controller listing has changed"
    );
}

#[test]
fn the_ledger_chooses_the_ipus_at_every_controller_of_known_hardware() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let holder = request("ns", "holder", 16);
    harness.submit(&holder);
    let (large, small) = (request("ns", "large", 8), request("ns", "small", 4));
    harness.expect_queued(&large);
    harness.expect_queued(&small);
    harness.release(&holder);
    let decisions = harness
        .state
        .evaluate_queue(&harness.snapshot(), &harness.policy, harness.now());
    let chosen: Vec<_> = decisions
        .iter()
        .map(|(_, decision)| match decision {
            QueueDecision::Start { places, placed, .. } => (*placed, places.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((chosen[0].0, chosen[1].0), (PlacedBy::Ledger, PlacedBy::Ledger));
    assert_eq!((chosen[0].1.len(), chosen[1].1.len()), (8, 4));
    assert!(chosen[1].1.iter().all(|place| !chosen[0].1.contains(place)));
    let Admission::Drive(entry) = harness.request(&large).unwrap() else {
        panic!("the request fits");
    };
    assert_eq!(entry.places, chosen[0].1, "the intent records its IPUs");
}

#[test]
fn a_full_queue_rejects_and_a_rejected_request_leaves_no_entry() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.policy.length_limit = 1;
    harness.submit(&request("ns", "holder", 16));
    let mut rejected = request("ns", "impatient", 4);
    rejected.on_no_capacity = OnNoCapacity::Reject;
    assert!(matches!(
        harness.request(&rejected).unwrap(),
        Admission::Rejected(_)
    ));
    assert!(harness.state.get(&rejected.id).is_none());
    harness.expect_queued(&request("ns", "first", 4));
    assert_eq!(
        harness.request(&request("ns", "second", 4)),
        Err(TransitionError::QueueFull { limit: 1 })
    );
    let decisions = harness
        .state
        .evaluate_queue(&harness.snapshot(), &harness.policy, harness.now());
    assert!(matches!(&decisions[..], [(_, QueueDecision::Wait(_))]));
}
