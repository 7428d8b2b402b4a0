//! Who waits may say other things of himself than before, and stands where he now belongs.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::{
    Admission, Entry, EntryState, Quota, QuotaSubject, Request, Timestamp, Topology, TransitionError,
};
use proptest::prelude::*;

use super::{Bench, request};

/// A bench whose IPUs are all held, with `a`, `b` and `c` in its line.
fn three_in_line() -> (Bench, Request, [Request; 3]) {
    let mut bench = Bench::new(&Topology::pod16());
    let holder = request("ns", "holder", 16);
    bench.drive(&holder);
    let line = ["a", "b", "c"].map(|name| request("ns", name, 16));
    for request in &line {
        bench.waiting(request);
    }
    (bench, holder, line)
}

fn line(bench: &Bench) -> Vec<&str> {
    let names = bench.state.queue().into_iter();
    names
        .map(|entry| entry.owner.as_ref().unwrap().job.name.as_str())
        .collect()
}

fn entry<'a>(bench: &'a Bench, request: &Request) -> &'a Entry {
    bench.state.get(&request.id).unwrap()
}

#[test]
fn who_waits_and_asks_with_a_higher_priority_goes_before_those_who_came_first() {
    let (mut bench, holder, [a, b, mut c]) = three_in_line();
    c.priority = 1;
    let ticket = entry(&bench, &c).ticket;
    assert_eq!(bench.waiting(&c).position, 1);
    assert_eq!(line(&bench), ["c", "a", "b"]);
    assert_eq!(
        (entry(&bench, &c).priority, entry(&bench, &c).ticket),
        (1, ticket)
    );
    bench.release(&holder);
    for behind in [&a, &b] {
        assert_eq!(&*bench.waiting(behind).reason.code, "HeldBackForEarlier");
    }
    assert!(matches!(bench.drive(&c), Admission::Drive(_)));
}

#[test]
fn who_takes_his_priority_back_stands_among_his_equals_where_he_stood() {
    let (mut bench, _, [mut a, _, _]) = three_in_line();
    for (priority, position, order) in [
        (-1, 3, ["b", "c", "a"]),
        (0, 1, ["a", "b", "c"]),
        (7, 1, ["a", "b", "c"]),
    ] {
        a.priority = priority;
        assert_eq!(bench.waiting(&a).position, position);
        assert_eq!(line(&bench), order);
    }
}

#[test]
fn asking_again_with_the_same_writes_nothing_and_moves_nobody() {
    let (bench, _, requests) = three_in_line();
    for request in &requests {
        let step = bench
            .state
            .request(request, &bench.world(), &bench.rules, bench.window());
        assert_eq!(step.unwrap().changes, []);
    }
}

#[test]
fn the_account_that_counts_is_the_one_last_named() {
    let (mut bench, holder, [mut a, b, _]) = three_in_line();
    let none = Quota {
        max_ipus: Some(0),
        max_partitions: None,
    };
    bench
        .rules
        .quotas
        .insert(QuotaSubject::Account("lab".into()), none);
    a.account = Some("lab".into());
    assert_eq!(&*bench.waiting(&a).reason.code, "QuotaExceeded");
    bench.release(&holder);
    assert!(matches!(bench.drive(&b), Admission::Drive(_)));
}

#[test]
fn who_holds_or_is_being_made_keeps_what_he_said_when_his_turn_came() {
    let mut bench = Bench::new(&Topology::pod16());
    let said = request("ns", "job", 8);
    let mut other = said.clone();
    other.priority = 5;
    other.max_runtime = Some(Duration::from_secs(9));
    other.account = Some("lab".into());
    other.preemptible = true;
    for state in ["intent", "active", "active"] {
        if state == "intent" {
            assert!(matches!(bench.request(&said).unwrap(), Admission::Drive(_)));
        } else {
            bench.drive(&said);
        }
        let before = entry(&bench, &said).clone();
        assert_eq!(before.state.label(), state);
        bench.request(&other).unwrap();
        assert_eq!(*entry(&bench, &said), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Of each job how it asks: all that it says, again and again.
    #[test]
    fn the_line_is_ordered_by_what_each_said_last_and_by_who_came_first(
        steps in proptest::collection::vec((0_usize..6, -2_i32..=2, any::<bool>()), 1..60),
    ) {
        let mut bench = Bench::new(&Topology::pod16());
        bench.drive(&request("ns", "holder", 16));
        let mut came: Vec<usize> = Vec::new();
        let mut said: BTreeMap<usize, Request> = BTreeMap::new();
        for (job, priority, preemptible) in steps {
            let mut request = request("ns", &format!("j{job}"), 4);
            request.priority = priority;
            request.preemptible = preemptible;
            request.max_runtime = u64::try_from(priority).ok().map(Duration::from_secs);
            if !came.contains(&job) {
                came.push(job);
            }
            let position = bench.waiting(&request).position;
            said.insert(job, request);
            let mut order = came.clone();
            // Stable: among equals who came first stays first.
            order.sort_by_key(|job| std::cmp::Reverse(said[job].priority));
            let names: Vec<String> = order.iter().map(|job| format!("j{job}")).collect();
            prop_assert_eq!(line(&bench), names);
            prop_assert_eq!(order[position as usize - 1], job);
            for request in said.values() {
                let entry = entry(&bench, request);
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
fn a_request_that_is_read_after_its_client_gave_up_is_refused_and_leaves_no_trace() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut late = request("ns", "job", 4);
    late.not_after = Some(Timestamp::from_millis(1_000));
    bench.now = 1_001;
    let refused = bench.request(&late).unwrap_err();
    assert!(matches!(refused, TransitionError::TooLate { .. }));
    assert_eq!(
        refused.to_string(),
        format!(
            "the request for partition {} was to be read until 1000 ms and is read at 1001 ms; ask again, and compare \
             the clocks",
            late.id
        )
    );
    assert!(bench.state.get(&late.id).is_none());
    bench.now = 1_000;
    assert!(matches!(bench.request(&late).unwrap(), Admission::Drive(_)));
}
