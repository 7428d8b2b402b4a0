//! The list of controllers and their health, with texts in place of controllers.

use super::*;
use crate::endpoint::parse_controllers;

fn name(text: &str) -> ControllerName {
    ControllerName::new(text).unwrap()
}

fn pool(list: &str) -> ControllerPool<String> {
    let pool = ControllerPool::new([]);
    replace(&pool, list);
    pool
}

fn replace(pool: &ControllerPool<String>, list: &str) {
    let endpoints = parse_controllers(list).unwrap();
    let connect = |endpoint: &ControllerEndpoint| Ok::<_, ()>(Arc::new(format!("connected as {endpoint}")));
    pool.replace(&endpoints, connect).unwrap();
}

fn names(members: Vec<Member<String>>) -> Vec<String> {
    members.iter().map(|member| member.name.to_string()).collect()
}

fn lost() -> Result<(), VipuError> {
    Err(VipuError::Unreachable {
        endpoint: "a:8090".into(),
        detail: "connection refused".into(),
    })
}

#[test]
fn members_are_in_the_order_of_the_list() {
    let pool = pool("c,a:1,b:k=v");
    assert_eq!(names(pool.members()), ["c:8090", "a:1", "b:8090"]);
    let endpoint = pool.member(&name("b:8090")).unwrap().endpoint.unwrap();
    assert_eq!(endpoint.label().unwrap().to_string(), "k=v");
}

#[test]
fn a_single_controller_needs_no_address() {
    let pool = ControllerPool::<str>::new([(name("sim"), Arc::from("x"))]);
    assert_eq!(pool.get(&name("sim")).as_deref(), Some("x"));
    assert_eq!(pool.members().len(), 1);
}

#[tokio::test]
async fn a_controller_on_both_lists_keeps_connection_and_health_and_takes_its_new_label() {
    let pool = pool("a:k=v");
    pool.record(&name("a:8090"), &lost());
    replace(&pool, "b,a:k=w");
    let member = pool.member(&name("a:8090")).unwrap();
    assert_eq!(member.controller.as_str(), "connected as a:8090:k=v");
    assert_eq!(member.health.consecutive_failures, 1);
    assert_eq!(member.endpoint.unwrap().label().unwrap().value(), "w");
    assert_eq!(names(pool.members()), ["b:8090", "a:8090"]);
}

#[test]
fn a_controller_that_is_no_longer_listed_drains_until_it_is_forgotten() {
    let pool = pool("a,b");
    pool.forget(&name("a:8090"));
    replace(&pool, "b");
    assert_eq!(
        names(pool.members()),
        ["b:8090"],
        "forget has no effect on a listed controller"
    );
    assert_eq!(names(pool.draining()), ["a:8090"]);
    assert!(pool.get(&name("a:8090")).is_some());

    replace(&pool, "b,a");
    assert!(pool.draining().is_empty());
    replace(&pool, "b");
    pool.forget(&name("a:8090"));
    assert!(pool.get(&name("a:8090")).is_none());
}

#[test]
fn a_list_that_cannot_be_connected_changes_nothing() {
    let pool = pool("a,b");
    let endpoints = parse_controllers("b,c").unwrap();
    assert_eq!(
        pool.replace(&endpoints, |_| Err("no such host")),
        Err("no such host")
    );
    assert_eq!(names(pool.members()), ["a:8090", "b:8090"]);
}

#[tokio::test(start_paused = true)]
async fn a_controller_is_unavailable_after_three_failures_and_retried_later() {
    let pool = pool("a");
    let a = name("a:8090");
    let available = || pool.member(&a).unwrap().health.is_available(Instant::now());
    for _ in 0..2 {
        pool.record(&a, &lost());
        assert!(available());
    }
    for pause in [1, 2, 4, 8, 16, 30, 30] {
        // The second call was under way.
        pool.record(&a, &lost());
        pool.record(&a, &lost());
        assert!(!available());
        tokio::time::advance(Duration::from_secs(pause) - Duration::from_millis(1)).await;
        assert!(!available(), "{pause} s");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(available(), "{pause} s");
    }
    pool.record(&a, &Ok(()));
    let health = pool.member(&a).unwrap().health;
    assert_eq!(health.consecutive_failures, 0);
    assert_eq!(health.last_error, lost().err());
}

#[tokio::test]
async fn a_refusal_does_not_count_as_a_failure() {
    let pool = pool("a");
    let a = name("a:8090");
    let full = Err::<(), _>(VipuError::NoCapacity {
        detail: String::new(),
    });
    for _ in 0..9 {
        pool.record(&a, &full);
    }
    let health = pool.member(&a).unwrap().health;
    assert_eq!((health.consecutive_failures, &health.last_error), (0, &None));
    assert!(health.last_success.is_some());
}

#[test]
fn the_first_of_two_controllers_with_one_name_is_kept() {
    let pool = ControllerPool::new([(name("x"), Arc::new(1)), (name("x"), Arc::new(2))]);
    assert_eq!(pool.get(&name("x")).as_deref(), Some(&1));
    assert_eq!(pool.members().len(), 1);
}

#[test]
fn an_unlisted_controller_of_the_ledger_drains_until_a_list_names_it() {
    let pool = pool("a");
    let connect = |endpoint: &ControllerEndpoint| Ok::<_, ()>(Arc::new(format!("drained as {endpoint}")));
    for name in ["old:1", "a:8090"] {
        pool.drain(&name.parse().unwrap(), connect).unwrap();
    }
    assert_eq!(
        (names(pool.members()), names(pool.draining())),
        (vec!["a:8090".into()], vec!["old:1".into()])
    );
    replace(&pool, "a,old:1");
    assert_eq!(names(pool.members()), ["a:8090", "old:1"]);
    assert_eq!(*pool.get(&name("old:1")).unwrap(), "drained as old:1");
}

#[tokio::test]
async fn a_new_client_of_a_controller_resets_its_health() {
    let pool = pool("a");
    pool.record(&name("a:8090"), &lost());
    pool.reconnect(&name("a:8090"), Arc::new("new".into()));
    pool.reconnect(&name("unknown"), Arc::new("never".into()));
    let member = pool.member(&name("a:8090")).unwrap();
    assert_eq!(
        (member.controller.as_str(), member.health),
        ("new", CircuitBreaker::default())
    );
}
