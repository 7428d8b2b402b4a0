//! Limits of namespaces: the queue, priorities, accounts, and ids that follow from another owner.

use ipu_core::{Admission, Namespace, Request, Topology, TransitionError};

use super::{Bench, request};

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

/// A Pod16 that is taken, and a namespace that may have `most` requests in the queue.
fn full(most: usize) -> Bench {
    let mut bench = Bench::new(&Topology::pod16());
    bench.rules.namespaces.max_queued = most;
    bench.drive(&request("holder", "holds", 16));
    bench
}

fn queue(bench: &mut Bench, namespace: &str, count: usize) {
    for number in 0..count {
        let waits = bench
            .request(&request(namespace, &format!("job-{number}"), 4))
            .unwrap();
        assert!(matches!(waits, Admission::Stay(_)), "{waits:?}");
    }
}

#[test]
fn a_namespace_cannot_fill_the_queue_for_others() {
    let mut bench = full(3);
    queue(&mut bench, "a", 3);
    let before = bench.state.clone();
    let refused = bench.request(&request("a", "one-more", 4)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "namespace a has 3 queued requests of at most 3"
    );
    assert_eq!(bench.state, before);
    // Those that are queued may ask again, and others are not concerned.
    queue(&mut bench, "a", 3);
    queue(&mut bench, "b", 3);
}

#[test]
fn a_namespace_may_queue_a_tenth_of_the_queue_unless_set() {
    let rules = ipu_core::QueuePolicy::default();
    assert_eq!(rules.namespaces.max_queued * 10, rules.length_limit);
}

#[test]
fn long_requests_fill_the_share_of_a_namespace_sooner() {
    let most = |account: &str| {
        let mut bench = full(usize::MAX);
        bench.rules.namespaces.max_queued_bytes = Some(10_000);
        let ask = |number: usize| {
            let mut request = request("a", &format!("job-{number}"), 4);
            request.account = Some(account.into());
            request
        };
        let refused = (0..1_000).find(|number| bench.request(&ask(*number)).is_err());
        let count = refused.unwrap();
        let refused = bench.request(&ask(count)).unwrap_err().to_string();
        let expected = format!(
            "namespace a has {count} queued requests, and one more would exceed their share of the ledger, 10000 bytes"
        );
        assert_eq!(refused, expected);
        queue(&mut bench, "b", 3);
        count
    };
    let (short, long) = (most("x"), most(&"x".repeat(63)));
    // A record of `Entry::record_bytes` takes 256 bytes, 32 for the account, and its texts: 12 or 13, and 62 more.
    assert_eq!((short, long), (33, 27));
}

#[test]
fn the_namespaces_of_one_client_count_together() {
    let mut bench = full(3);
    let of = |name: &str, job: &str| -> Request {
        let mut request = request(name, job, 4);
        request.client_namespaces = vec![namespace("a"), namespace("b")];
        request
    };
    for (name, job) in [("a", "one"), ("a", "two"), ("b", "three")] {
        bench.request(&of(name, job)).unwrap();
    }
    let refused = bench.request(&of("b", "four")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "namespaces b, a together have 3 queued requests of at most 3"
    );
    // Another client of one of them is bound by the namespace alone.
    bench.request(&request("b", "four", 4)).unwrap();
}

#[test]
fn a_request_that_is_granted_is_not_queued() {
    let mut bench = Bench::new(&Topology::pod16());
    bench.rules.namespaces.max_queued = 1;
    for number in 0..4 {
        let granted = bench.drive(&request("a", &format!("job-{number}"), 4));
        assert!(matches!(granted, Admission::Drive(_)), "{granted:?}");
    }
}

#[test]
fn a_priority_above_that_of_the_namespace_is_refused_and_one_that_is_recorded_is_kept() {
    let mut bench = full(10);
    let with = |name: &str, priority: i32| {
        let mut request = request(name, "job", 4);
        request.priority = priority;
        request
    };
    bench.request(&with("b", 5)).unwrap();
    bench.rules.namespaces.max_priority = 10;
    bench.rules.namespaces.max_priorities.insert(namespace("b"), 0);
    let refused = bench.request(&with("a", 11)).unwrap_err();
    assert_eq!(
        refused,
        TransitionError::PriorityTooHigh {
            namespace: namespace("a"),
            asked: 11,
            highest: 10
        }
    );
    bench.request(&with("a", 10)).unwrap();
    // It was queued before the limit: it may stay as it is or become less, and not more.
    bench.request(&with("b", 5)).unwrap();
    let refused = bench.request(&with("b", 6)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "priority 6 is higher than 0, the highest of namespace b"
    );
    bench.request(&with("b", 1)).unwrap();
    assert!(bench.request(&with("b", 5)).is_err());
}

#[test]
fn an_account_is_charged_by_its_namespaces_only() {
    let mut bench = full(10);
    let accounts = &mut bench.rules.namespaces.accounts;
    accounts.insert("course-7".into(), [namespace("a")].into());
    let charging = |name: &str, account: &str| {
        let mut request = request(name, "job", 4);
        request.account = Some(account.into());
        request
    };
    let refused = bench.request(&charging("b", "course-7")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "owners of namespace b may not charge account course-7"
    );
    bench.request(&charging("a", "course-7")).unwrap();
    // An account that is not listed is free, and a queued request cannot change to one that is not.
    bench.request(&charging("b", "course-8")).unwrap();
    assert!(bench.request(&charging("b", "course-7")).is_err());
}

#[test]
fn an_id_that_follows_from_a_job_is_for_that_job_alone() {
    let mut bench = Bench::new(&Topology::pod16());
    let of_a = request("a", "training", 4);
    for thief in [request("b", "training", 4), request("a", "other", 4)] {
        let mut taking = Request::named(of_a.id.clone(), thief.owner.clone(), thief.spec.clone());
        let refused = bench.request(&taking).unwrap_err();
        assert!(matches!(refused, TransitionError::NotDerived { .. }), "{refused}");
        taking.owner = of_a.owner.clone();
        taking.instance = 1;
        assert!(matches!(
            bench.request(&taking),
            Err(TransitionError::NotDerived { .. })
        ));
    }
    bench.drive(&of_a);
    // Any other id is free.
    bench.drive(&Request::named(
        "training".parse().unwrap(),
        of_a.owner,
        of_a.spec,
    ));
}

#[test]
fn a_request_that_is_granted_next_says_so() {
    let waiting = ipu_core::QueueStatus::next_in_queue(1);
    assert_eq!((waiting.position, &*waiting.reason.code), (1, "NextInLine"));
}
