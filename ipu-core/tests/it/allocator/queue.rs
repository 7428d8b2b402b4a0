//! The queue as tables: competition for capacity, refusals, and shares of namespaces.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::allocator::{
    Change, Cordon, CordonTarget, Entry, Event, Hardware, InventoryCapacity, Phase, Policy, Quota,
    QuotaSubject, State, evaluate_queue, step,
};
use ipu_core::hardware::Inventory;
use ipu_core::{CordonId, CordonOwner, ReasonCode, Timestamp};
use proptest::prelude::*;

use super::capacity::{overlapping, view};
use super::controller::{Controller, places};
use super::preemption::{Bed, Job, beds, job, jobs};
use super::tables::{NOW, changed, entry, queued_entry};
use super::world::request;

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
    for entry in bed.state.entries().filter(|entry| entry.phase.holds()) {
        assert!(entry.pin.controller.is_none() || entry.pin.controller == entry.controller);
    }
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
fn requests_compete_if_their_allocations_have_common_ipus() {
    let capacity = InventoryCapacity::new(Inventory::new(&overlapping()));
    let hardware = Hardware::new(vec![view(0, capacity)]);
    let mut policy = Policy::default();
    policy.overtake_limit = 0;
    let queued = |number, size, priority, allocation: &str| {
        let mut wanted = request(number, size).with_priority(priority);
        wanted.spec.allocation = Some(allocation.parse().unwrap());
        queued_entry(&wanted)
    };
    for (allocation, starts) in [("left", false), ("middle", false), ("right", true)] {
        let (earlier, later) = (queued(1, 8, 1, "left"), queued(3, 4, 0, allocation));
        let state = State::new([entry(Phase::Active), earlier, later], []);
        let queue = evaluate_queue(&state, &hardware, &policy, NOW);
        assert_eq!(queue[1].1.reason.code == ReasonCode::NextInLine, starts);
    }
}

#[test]
fn a_request_holds_back_others_only_if_the_end_of_a_partition_lets_it_start() {
    use ReasonCode::{HeldBackForEarlier as HeldBack, NextInLine};
    // A partition that came after a refusal, or was requested again, is not its cause.
    for (order, phase, held_before_refusal, expected) in [
        (3, Phase::Active, 1, HeldBack),
        (3, Phase::Quarantined, 1, NextInLine),
        (2, Phase::Active, 1, HeldBack),
        (2, Phase::Active, 0, NextInLine),
    ] {
        let mut policy = Policy::default();
        policy.overtake_limit = 0;
        let mut bed = Bed::new(&[8], policy);
        let holder = bed.request("holder", job(2, 0, None));
        bed.submit(&holder);
        bed.controllers[0].refuses = true;
        bed.submit(&bed.request("earlier", job(order, 1, None)));
        let since = Timestamp::from_millis(bed.now - held_before_refusal);
        let held = changed(bed.state.get(&holder.id).unwrap(), |entry| {
            (entry.phase, entry.held_since) = (phase, Some(since));
        });
        bed.state.apply(&Change::Put(Arc::new(held)));
        bed.apply(&Event::Ensure(bed.request("later", job(1, 2, None))));
        assert_eq!(codes(&bed, bed.now)[1], expected, "{order}");
    }
}

#[test]
fn a_request_that_fits_but_for_those_that_start_first_is_held_back_for_them() {
    use ReasonCode::{HeldBackForEarlier as HeldBack, NextInLine, NotEnoughFree};
    let mut bed = Bed::new(&[8, 8], Policy::default());
    bed.submit(&bed.request("holder", job(2, 0, Some(1))));
    for (name, pin) in [("first", None), ("next", None), ("pinned", Some(1))] {
        bed.apply(&Event::Ensure(bed.request(name, job(3, 0, pin))));
    }
    assert_eq!(codes(&bed, bed.now), [NextInLine, HeldBack, NotEnoughFree]);
}

proptest! {
    #[test]
    fn a_blocked_request_is_overtaken_at_most_as_often_as_allowed(
        mut bed in beds(),
        submitted in prop::collection::vec((jobs(), prop::bool::weighted(0.3)), 1..24),
    ) {
        for (number, (job, is_end_of_batch)) in submitted.into_iter().enumerate() {
            bed.apply(&Event::Ensure(bed.request(&format!("j{number}"), job)));
            if is_end_of_batch {
                bed.settle();
            }
            let mut entries = bed.state.entries();
            prop_assert!(entries.all(|entry| entry.overtaken <= bed.policy.overtake_limit));
        }
    }
}

#[test]
fn a_refused_request_is_tried_again_once_the_holders_are_others() {
    let mut bed = Bed::new(&[16], Policy::default());
    let held = ["h0", "h1"].map(|name| bed.request(name, job(2, 0, None)));
    held.iter().for_each(|request| bed.submit(request));
    bed.controllers[0].refuses = true;
    bed.submit(&bed.request("refused", job(2, 1, None)));
    assert_eq!(codes(&bed, bed.now), [ReasonCode::ControllerRefused]);
    for (request, id) in held.iter().zip(["x0", "x1"]) {
        let recorded = bed.state.get(&request.id).unwrap();
        let entry = changed(recorded, |entry| entry.id = id.parse().unwrap());
        bed.state.apply(&Change::Remove(request.id.clone()));
        bed.state.apply(&Change::Put(Arc::new(entry)));
    }
    assert_eq!(codes(&bed, bed.now), [ReasonCode::NextInLine]);
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

#[test]
fn capacity_is_kept_for_an_earlier_request_unless_its_controller_refused_the_later_one() {
    use ReasonCode::{ControllerRefused, HeldBackForEarlier, NextInLine};
    for (refusals, code) in [(1, HeldBackForEarlier), (2, ControllerRefused)] {
        let mut bed = Bed::new(&[8, 8], Policy::default());
        (0..2).for_each(|at| bed.controllers[at].refuses = true);
        let later = bed.request("later", job(3, 0, None));
        bed.submit(&later);
        let mut later = Entry::clone(bed.state.get(&later.id).unwrap());
        later.refusals.truncate(refusals);
        bed.state.apply(&Change::Put(Arc::new(later)));
        let earlier = bed.request("earlier", job(3, 0, Some(1)).urgent());
        bed.apply(&Event::Ensure(earlier));
        assert_eq!(codes(&bed, bed.now), [NextInLine, code]);
    }
}

#[test]
fn a_reason_names_the_request_that_preempts_or_the_cordons_if_no_end_of_a_partition_helps() {
    let it = "Test n0/u (8 IPUs) preempts";
    let kept = format!("HeldBackForEarlier: the IPUs that {it} are kept for it");
    let large = format!("TooLarge: there are too few IPUs; {it} partitions, and their IPUs are kept for it");
    let few = String::from("Cordoned: c0: too few IPUs are free; c1: there are too few IPUs");
    let cordoned = format!("{few}; cordons: k (the whole controller) by a: broken");
    for (is_held, is_cordoned, last, expected) in [
        (true, false, job(0, 0, Some(0)), kept),
        (true, false, job(4, 0, Some(0)), large),
        (true, true, job(3, 0, None), few),
        (false, true, job(3, 0, None), cordoned),
    ] {
        let mut bed = Bed::new(&[8, 4], Policy::default());
        bed.policy.preemption = true;
        if is_held {
            bed.submit(&bed.request("held", job(2, 0, None).preemptible()));
        }
        if is_cordoned {
            let (id, owner) = (CordonId::new("k").unwrap(), CordonOwner::new("a").unwrap());
            let (name, all) = (Controller::new(0, 8).name, CordonTarget::Controller);
            assert!(bed.apply(&Event::Cordon(Cordon::new(id, name, all, owner, "broken"))));
        } else {
            bed.submit(&bed.request("u", job(3, 0, None).urgent()));
        }
        bed.submit(&bed.request("last", last));
        let now = Timestamp::from_millis(bed.now);
        let queue = evaluate_queue(&bed.state, &bed.hardware(), &bed.policy, now);
        assert_eq!(queue.last().unwrap().1.reason.to_string(), expected);
    }
}

#[test]
fn a_quota_limits_the_ipus_and_the_partitions_that_are_held_at_a_time() {
    use ReasonCode::{NextInLine, QuotaExceeded, QuotaTooSmall};
    for (max_ipus, max_partitions, code) in [
        (Some(4), None, NextInLine),
        (Some(2), None, QuotaExceeded),
        (Some(1), None, QuotaTooSmall),
        (None, Some(2), NextInLine),
        (None, Some(1), QuotaExceeded),
        (None, Some(0), QuotaTooSmall),
    ] {
        let mut bed = Bed::new(&[8], Policy::default());
        bed.submit(&bed.request("held", job(1, 0, None)));
        let mut quota = Quota::default();
        (quota.max_ipus, quota.max_partitions) = (max_ipus, max_partitions);
        let subject = QuotaSubject::Namespace("n0".parse().unwrap());
        bed.policy.quotas.insert(subject, quota);
        let usage = bed.state.quota_usage(&bed.policy);
        assert_eq!((usage[0].ipus, usage[0].partitions), (2, 1));
        assert_eq!(usage[0].subject.to_string(), "namespace n0");
        bed.apply(&Event::Ensure(bed.request("j", job(1, 0, None))));
        assert_eq!(codes(&bed, bed.now), [code], "{quota:?}");
    }
}

#[test]
fn a_namespace_asks_for_no_priority_or_account_beyond_its_limits_and_what_is_recorded() {
    let mut policy = Policy::default();
    policy.namespaces.max_priority = 5;
    for (account, namespace) in [("own", "n0"), ("other", "n1")] {
        let namespaces = [namespace.parse().unwrap()].into();
        policy.namespaces.accounts.insert(account.into(), namespaces);
    }
    let wanted = |(priority, account): (i32, &str)| {
        let mut request = request(0, 1);
        (request.priority, request.account) = (priority, Some(account.into()));
        request
    };
    for (recorded, asked, is_allowed) in [
        (None, (5, "open"), true),
        (None, (6, "open"), false),
        (None, (0, "own"), true),
        (None, (0, "other"), false),
        (Some((9, "other")), (9, "other"), true),
        (Some((9, "other")), (10, "other"), false),
        (Some((9, "open")), (9, "other"), false),
    ] {
        let state = State::new(recorded.map(|values| queued_entry(&wanted(values))), []);
        let (event, now) = (Event::Ensure(wanted(asked)), Timestamp::from_millis(1));
        let result = step(&state, &Hardware::default(), &policy, now, &event);
        assert_eq!(result.is_ok(), is_allowed, "{recorded:?} {asked:?}");
    }
}

#[test]
fn the_counted_size_of_a_request_grows_with_each_value_by_its_json_and_little_more() {
    let sizes = |entry: &Entry| (serde_json::to_string(entry).unwrap().len(), entry.record_bytes());
    let plain = queued_entry(&request(4, 64));
    let (json, counted) = sizes(&plain);
    assert!((json + 224..=json + 608).contains(&counted));
    let changes: [fn(&mut Entry); 12] = [
        |entry| entry.instance = u32::MAX,
        |entry| entry.attempt = u32::MAX,
        |entry| entry.priority = i32::MIN,
        |entry| entry.preemptible = true,
        |entry| entry.rejects = true,
        |entry| entry.max_runtime = Some(Duration::from_millis(u64::MAX)),
        |entry| entry.account = Some("a".repeat(63)),
        |entry| entry.spec.allocation = Some("a".parse().unwrap()),
        |entry| entry.pin.controller = Some("c0".parse().unwrap()),
        |entry| entry.pin.ipus = places(u64::MAX),
        |entry| entry.holder = "\u{1}\"\\ä".repeat(99),
        |entry| entry.owner.as_mut().unwrap().job.name = "~".repeat(253).parse().unwrap(),
    ];
    for change in changes {
        let mut entry = plain.clone();
        change(&mut entry);
        let (json, counted) = (sizes(&entry).0 - json, sizes(&entry).1.saturating_sub(counted));
        let most = json + 40 + 12 * entry.pin.ipus.len();
        assert!((json..=most).contains(&counted), "{entry:?}");
    }
}
