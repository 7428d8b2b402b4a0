//! Updates of queued requests, and their effect on the queue order.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::{
    Admission, Entry, EntryState, Quota, QuotaSubject, Request, Timestamp, Topology, TransitionError,
};
use proptest::prelude::*;

use super::{LedgerHarness, request};

/// Returns a ledger whose IPUs are all held, with `a`, `b` and `c` in the queue.
fn three_queued() -> (LedgerHarness, Request, [Request; 3]) {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let holder = request("ns", "holder", 16);
    harness.submit(&holder);
    let requests = ["a", "b", "c"].map(|name| request("ns", name, 16));
    for request in &requests {
        harness.expect_queued(request);
    }
    (harness, holder, requests)
}

fn queue_order(harness: &LedgerHarness) -> Vec<&str> {
    let names = harness.state.queue().into_iter();
    names
        .map(|entry| entry.owner.as_ref().unwrap().job.name.as_str())
        .collect()
}

fn entry<'a>(harness: &'a LedgerHarness, request: &Request) -> &'a Entry {
    harness.state.get(&request.id).unwrap()
}

#[test]
fn a_queued_request_with_a_raised_priority_precedes_earlier_ones() {
    let (mut harness, holder, [a, b, mut c]) = three_queued();
    c.priority = 1;
    let ticket = entry(&harness, &c).ticket;
    assert_eq!(harness.expect_queued(&c).position, 1);
    assert_eq!(queue_order(&harness), ["c", "a", "b"]);
    assert_eq!(
        (entry(&harness, &c).priority, entry(&harness, &c).ticket),
        (1, ticket)
    );
    harness.release(&holder);
    for behind in [&a, &b] {
        assert_eq!(&*harness.expect_queued(behind).reason.code, "HeldBackForEarlier");
    }
    assert!(matches!(harness.submit(&c), Admission::Drive(_)));
}

#[test]
fn a_request_with_its_original_priority_regains_its_position_among_equals() {
    let (mut harness, _, [mut a, _, _]) = three_queued();
    for (priority, position, order) in [
        (-1, 3, ["b", "c", "a"]),
        (0, 1, ["a", "b", "c"]),
        (7, 1, ["a", "b", "c"]),
    ] {
        a.priority = priority;
        assert_eq!(harness.expect_queued(&a).position, position);
        assert_eq!(queue_order(&harness), order);
    }
}

#[test]
fn an_identical_request_writes_nothing_and_keeps_the_order() {
    let (harness, _, requests) = three_queued();
    for request in &requests {
        let step = harness
            .state
            .request(request, &harness.snapshot(), &harness.policy, harness.window());
        assert_eq!(step.unwrap().changes, []);
    }
}

#[test]
fn the_quota_applies_to_the_account_of_the_latest_request() {
    let (mut harness, holder, [mut a, b, _]) = three_queued();
    let zero_quota = Quota {
        max_ipus: Some(0),
        max_partitions: None,
    };
    harness
        .policy
        .quotas
        .insert(QuotaSubject::Account("lab".into()), zero_quota);
    a.account = Some("lab".into());
    assert_eq!(&*harness.expect_queued(&a).reason.code, "QuotaExceeded");
    harness.release(&holder);
    assert!(matches!(harness.submit(&b), Admission::Drive(_)));
}

#[test]
fn an_intent_or_active_entry_keeps_the_terms_of_its_grant() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let latest = request("ns", "job", 8);
    let mut other = latest.clone();
    other.priority = 5;
    other.max_runtime = Some(Duration::from_secs(9));
    other.account = Some("lab".into());
    other.preemptible = true;
    for state in ["intent", "active", "active"] {
        if state == "intent" {
            assert!(matches!(harness.request(&latest).unwrap(), Admission::Drive(_)));
        } else {
            harness.submit(&latest);
        }
        let before = entry(&harness, &latest).clone();
        assert_eq!(before.state.label(), state);
        harness.request(&other).unwrap();
        assert_eq!(*entry(&harness, &latest), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each step requests for one job with new terms.
    #[test]
    fn the_queue_is_ordered_by_latest_priority_and_then_by_arrival(
        steps in proptest::collection::vec((0_usize..6, -2_i32..=2, any::<bool>()), 1..60),
    ) {
        let mut harness = LedgerHarness::new(&Topology::pod16());
        harness.submit(&request("ns", "holder", 16));
        let mut arrivals: Vec<usize> = Vec::new();
        let mut latest: BTreeMap<usize, Request> = BTreeMap::new();
        for (job, priority, preemptible) in steps {
            let mut request = request("ns", &format!("j{job}"), 4);
            request.priority = priority;
            request.preemptible = preemptible;
            request.max_runtime = u64::try_from(priority).ok().map(Duration::from_secs);
            if !arrivals.contains(&job) {
                arrivals.push(job);
            }
            let position = harness.expect_queued(&request).position;
            latest.insert(job, request);
            let mut order = arrivals.clone();
            // The sort is stable: equal priorities keep the order of arrival.
            order.sort_by_key(|job| std::cmp::Reverse(latest[job].priority));
            let names: Vec<String> = order.iter().map(|job| format!("j{job}")).collect();
            prop_assert_eq!(queue_order(&harness), names);
            prop_assert_eq!(order[position as usize - 1], job);
            for request in latest.values() {
                let entry = entry(&harness, request);
                let waits = matches!(entry.state, EntryState::Waiting { .. });
                prop_assert!(waits);
                prop_assert_eq!(
                    (entry.preemptible, entry.max_runtime),
                    (request.preemptible, request.max_runtime)
                );
            }
        }
    }
}

#[test]
fn a_request_read_after_its_deadline_is_rejected_and_leaves_no_entry() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut late = request("ns", "job", 4);
    late.not_after = Some(Timestamp::from_millis(1_000));
    harness.now = 1_001;
    let refused = harness.request(&late).unwrap_err();
    assert!(matches!(refused, TransitionError::TooLate { .. }));
    assert_eq!(
        refused.to_string(),
        format!(
            "the request for partition {} expired at 1000 ms and was read at 1001 ms; send it again, and compare \
             the clocks",
            late.id
        )
    );
    assert!(harness.state.get(&late.id).is_none());
    harness.now = 1_000;
    assert!(matches!(harness.request(&late).unwrap(), Admission::Drive(_)));
}
