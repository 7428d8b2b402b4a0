//! The queue as tables: competition for capacity, refusals, and shares of namespaces.

use ipu_core::allocator::{Event, Policy, evaluate_queue};
use ipu_core::{ReasonCode, Timestamp};

use super::preemption::{Bed, Job};
use super::tables::queued_entry;

/// A job of `1 << order` IPUs.
const fn job(order: u32, namespace: usize, pin: Option<usize>) -> Job {
    Job {
        order,
        namespace,
        priority: 0,
        is_preemptible: false,
        pin,
    }
}

/// Returns the codes of the reasons in queue order.
fn codes(bed: &Bed, now: u64) -> Vec<ReasonCode> {
    let now = Timestamp::from_millis(now);
    let queue = evaluate_queue(&bed.state, &bed.hardware(), &bed.policy, now);
    queue.into_iter().map(|(_, status)| status.reason.code).collect()
}

/// Returns whether a request starts although an earlier one of 8 IPUs may not be overtaken. Two controllers
/// have 4 of 8 IPUs free; `holders` are the namespaces of the other partitions.
fn starts(holders: [usize; 2], earlier: Job, later: Job) -> bool {
    let mut policy = Policy::default();
    policy.overtake_limit = 0;
    let mut bed = Bed::new(&[8, 8], policy);
    for (number, namespace) in holders.into_iter().enumerate() {
        bed.submit(&bed.request(&format!("h{number}"), job(2, namespace, Some(number))));
    }
    let (earlier, later) = (bed.request("earlier", earlier), bed.request("later", later));
    bed.submit(&earlier);
    bed.submit(&later);
    assert!(!bed.holds(&earlier));
    bed.holds(&later)
}

#[test]
fn a_request_that_may_not_be_overtaken_holds_back_exactly_those_that_compete_with_it() {
    let pins = [None, Some(0), Some(1)];
    for (one, other) in pins.into_iter().flat_map(|one| pins.map(|other| (one, other))) {
        let is_apart = one.is_some() && other.is_some() && one != other;
        let starts = starts([2, 2], job(3, 0, one), job(0, 1, other));
        assert_eq!(starts, is_apart, "{one:?} {other:?}");
    }
    for (holders, later, expected) in [([0, 0], 0, false), ([0, 0], 1, true), ([0, 1], 1, false)] {
        let starts = starts(holders, job(3, 0, None), job(0, later, None));
        assert_eq!(starts, expected, "{holders:?} {later}");
    }
}

#[test]
fn a_refusal_applies_to_requests_that_need_no_less_until_something_changes() {
    use ReasonCode::{ControllerRefused as Refused, NextInLine};
    let mut bed = Bed::new(&[8], Policy::default());
    bed.controllers[0].refuses = true;
    let refused = bed.request("refused", job(2, 0, None));
    bed.submit(&refused);
    for order in [2, 3, 1] {
        let later = bed.request(&format!("later{order}"), job(order, 0, None));
        bed.apply(&Event::Ensure(later));
    }
    assert_eq!(codes(&bed, bed.now), [Refused, Refused, Refused, NextInLine]);
    assert_eq!(codes(&bed, bed.now + 30_000)[0], NextInLine);
    bed.controllers[0].refuses = false;
    // The smaller request starts first: the holders change.
    bed.settle();
    assert!(bed.holds(&refused));
}

#[test]
fn a_namespace_and_all_of_a_client_queue_no_more_than_their_share() {
    let one = Bed::new(&[], Policy::default()).request("j0", job(0, 0, None));
    let bytes = queued_entry(&one).record_bytes();
    for (queued, client, share, is_queued) in [
        (&[0, 0][..], &[][..], None, false),
        (&[1, 1], &[0, 1], None, false),
        (&[0], &[], Some(2 * bytes), true),
        (&[0], &[], Some(2 * bytes - 1), false),
    ] {
        let mut bed = Bed::new(&[8], Policy::default());
        let rules = &mut bed.policy.namespaces;
        (rules.max_queued, rules.max_queued_bytes) = (2, share);
        for (number, namespace) in queued.iter().enumerate() {
            let request = bed.request(&format!("j{number}"), job(0, *namespace, None));
            assert!(bed.apply(&Event::Ensure(request)));
        }
        let mut last = bed.request("j9", job(0, 0, None));
        let names = client.iter().map(|name| format!("n{name}").parse().unwrap());
        last.client_namespaces = names.collect();
        let has_queued = bed.apply(&Event::Ensure(last));
        assert_eq!(has_queued, is_queued, "{queued:?} {client:?}");
    }
}
