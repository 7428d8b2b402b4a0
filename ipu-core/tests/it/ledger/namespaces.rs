//! Limits of namespaces: the queue, priorities, accounts, and ids derived from another owner.

use ipu_core::{Admission, Namespace, Request, Topology, TransitionError};

use super::{LedgerHarness, request};

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

/// Returns a fully used Pod16 and a limit of `limit` queued requests per namespace.
fn fully_used(limit: usize) -> LedgerHarness {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.policy.namespaces.max_queued = limit;
    harness.submit(&request("holder", "holds", 16));
    harness
}

fn queue_requests(harness: &mut LedgerHarness, namespace: &str, count: usize) {
    for number in 0..count {
        let admission = harness
            .request(&request(namespace, &format!("job-{number}"), 4))
            .unwrap();
        assert!(matches!(admission, Admission::Queued(_)), "{admission:?}");
    }
}

#[test]
fn a_namespace_cannot_fill_the_queue_for_others() {
    let mut harness = fully_used(3);
    queue_requests(&mut harness, "a", 3);
    let before = harness.state.clone();
    let rejected = harness.request(&request("a", "one-more", 4)).unwrap_err();
    assert_eq!(
        rejected.to_string(),
        "namespace a has 3 queued requests of at most 3"
    );
    assert_eq!(harness.state, before);
    // Queued requests may repeat, and other namespaces are unaffected.
    queue_requests(&mut harness, "a", 3);
    queue_requests(&mut harness, "b", 3);
}

#[test]
fn a_namespace_may_queue_a_tenth_of_the_queue_unless_set() {
    let policy = ipu_core::QueuePolicy::default();
    assert_eq!(policy.namespaces.max_queued * 10, policy.length_limit);
}

#[test]
fn long_requests_fill_the_share_of_a_namespace_sooner() {
    let limit = |account: &str| {
        let mut harness = fully_used(usize::MAX);
        harness.policy.namespaces.max_queued_bytes = Some(10_000);
        let request_of = |number: usize| {
            let mut request = request("a", &format!("job-{number}"), 4);
            request.account = Some(account.into());
            request
        };
        let rejected = (0..1_000).find(|number| harness.request(&request_of(*number)).is_err());
        let count = rejected.unwrap();
        let rejected = harness.request(&request_of(count)).unwrap_err().to_string();
        let expected = format!(
            "namespace a has {count} queued requests, and one more would exceed their share of the ledger, 10000 bytes"
        );
        assert_eq!(rejected, expected);
        queue_requests(&mut harness, "b", 3);
        count
    };
    let (short, long) = (limit("x"), limit(&"x".repeat(63)));
    // `Entry::record_bytes` counts 256 bytes, 32 for the account, and the texts: 12 or 13, and 62 more.
    assert_eq!((short, long), (33, 27));
}

#[test]
fn the_namespaces_of_one_client_count_together() {
    let mut harness = fully_used(3);
    let request_in = |name: &str, job: &str| -> Request {
        let mut request = request(name, job, 4);
        request.client_namespaces = vec![namespace("a"), namespace("b")];
        request
    };
    for (name, job) in [("a", "one"), ("a", "two"), ("b", "three")] {
        harness.request(&request_in(name, job)).unwrap();
    }
    let rejected = harness.request(&request_in("b", "four")).unwrap_err();
    assert_eq!(
        rejected.to_string(),
        "namespaces b, a together have 3 queued requests of at most 3"
    );
    // The limit of the namespace alone applies to another client of one of them.
    harness.request(&request("b", "four", 4)).unwrap();
}

#[test]
fn a_granted_request_does_not_count_as_queued() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.policy.namespaces.max_queued = 1;
    for number in 0..4 {
        let granted = harness.submit(&request("a", &format!("job-{number}"), 4));
        assert!(matches!(granted, Admission::Drive(_)), "{granted:?}");
    }
}

#[test]
fn a_priority_above_the_namespace_limit_is_rejected_and_a_recorded_one_is_kept() {
    let mut harness = fully_used(10);
    let with_priority = |name: &str, priority: i32| {
        let mut request = request(name, "job", 4);
        request.priority = priority;
        request
    };
    harness.request(&with_priority("b", 5)).unwrap();
    harness.policy.namespaces.max_priority = 10;
    harness.policy.namespaces.max_priorities.insert(namespace("b"), 0);
    let rejected = harness.request(&with_priority("a", 11)).unwrap_err();
    assert_eq!(
        rejected,
        TransitionError::PriorityTooHigh {
            namespace: namespace("a"),
            asked: 11,
            highest: 10
        }
    );
    harness.request(&with_priority("a", 10)).unwrap();
    // A request queued before the limit may keep or lower its priority, and not raise it.
    harness.request(&with_priority("b", 5)).unwrap();
    let rejected = harness.request(&with_priority("b", 6)).unwrap_err();
    assert_eq!(
        rejected.to_string(),
        "priority 6 is higher than 0, the highest of namespace b"
    );
    harness.request(&with_priority("b", 1)).unwrap();
    assert!(harness.request(&with_priority("b", 5)).is_err());
}

#[test]
fn an_account_is_charged_by_its_namespaces_only() {
    let mut harness = fully_used(10);
    let accounts = &mut harness.policy.namespaces.accounts;
    accounts.insert("course-7".into(), [namespace("a")].into());
    let request_charging = |name: &str, account: &str| {
        let mut request = request(name, "job", 4);
        request.account = Some(account.into());
        request
    };
    let rejected = harness.request(&request_charging("b", "course-7")).unwrap_err();
    assert_eq!(
        rejected.to_string(),
        "owners of namespace b may not charge account course-7"
    );
    harness.request(&request_charging("a", "course-7")).unwrap();
    // Any namespace may charge an unlisted account; a queued request cannot change to a restricted one.
    harness.request(&request_charging("b", "course-8")).unwrap();
    assert!(harness.request(&request_charging("b", "course-7")).is_err());
}

#[test]
fn an_id_derived_from_a_job_is_reserved_for_that_job() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let original = request("a", "training", 4);
    for other in [request("b", "training", 4), request("a", "other", 4)] {
        let mut stolen = Request::with_id(original.id.clone(), other.owner.clone(), other.spec.clone());
        let rejected = harness.request(&stolen).unwrap_err();
        assert!(
            matches!(rejected, TransitionError::NotDerived { .. }),
            "{rejected}"
        );
        stolen.owner = original.owner.clone();
        stolen.instance = 1;
        assert!(matches!(
            harness.request(&stolen),
            Err(TransitionError::NotDerived { .. })
        ));
    }
    harness.submit(&original);
    // Any other id is available.
    harness.submit(&Request::with_id(
        "training".parse().unwrap(),
        original.owner,
        original.spec,
    ));
}

#[test]
fn a_request_that_is_granted_next_reports_it() {
    let status = ipu_core::QueueStatus::next_in_queue(1);
    assert_eq!((status.position, &*status.reason.code), (1, "NextInLine"));
}
