//! Which calls are retried, how often and after which pause, with a mock and paused time.

use std::sync::atomic::{AtomicU32, Ordering};

use ipu_core::{IpuCount, PartitionSpec};
use tokio::time::Instant;

use super::*;
use crate::controller::MockVipuController;

fn id() -> PartitionId {
    PartitionId::new("p1").unwrap()
}

fn lost() -> VipuError {
    VipuError::Unreachable {
        endpoint: "pod1:8090".into(),
        detail: "connection reset".into(),
    }
}

fn full() -> VipuError {
    VipuError::NoCapacity {
        detail: "full".into(),
    }
}

/// Options whose jitter always selects the upper bound.
fn longest() -> RetryOptions {
    RetryOptions {
        random: Arc::new(|| u64::MAX),
        ..RetryOptions::default()
    }
}

/// Returns a function that fails `failures` times with `error`, and then succeeds.
fn after<T: Clone>(failures: u32, error: fn() -> VipuError, value: T) -> impl Fn() -> Result<T, VipuError> {
    let calls = AtomicU32::new(0);
    move || {
        if calls.fetch_add(1, Ordering::Relaxed) < failures {
            Err(error())
        } else {
            Ok(value.clone())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_is_retried_until_it_succeeds() {
    let mut controller = MockVipuController::new();
    let reply = after(3, lost, "1.18.0".to_owned());
    controller.expect_version().times(4).returning(reply);
    let version = RetryLayer::new(controller, RetryOptions::default())
        .version()
        .await;
    assert_eq!(version, Ok("1.18.0".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_the_last_error_is_returned() {
    let mut controller = MockVipuController::new();
    controller.expect_version().times(4).returning(|| Err(lost()));
    let error = RetryLayer::new(controller, RetryOptions::default())
        .version()
        .await;
    assert_eq!(error, Err(lost()));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_a_retry_cannot_help_is_returned_at_once() {
    let mut controller = MockVipuController::new();
    controller
        .expect_partition_status()
        .times(1)
        .returning(|id| Err(VipuError::NotFound { id: id.clone() }));
    let started = Instant::now();
    let error = RetryLayer::new(controller, longest())
        .partition_status(&id())
        .await;
    assert_eq!(error, Err(VipuError::NotFound { id: id() }));
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[test]
fn pauses_are_a_random_part_of_a_doubling_limit() {
    let options = RetryOptions {
        attempts: 9,
        ..RetryOptions::default()
    };
    let longest = [100, 200, 400, 800, 1600, 3200, 5000, 5000];
    for (attempt, millis) in (1..).zip(longest) {
        let limit = Duration::from_millis(millis);
        let nanos = u64::try_from(limit.as_nanos()).unwrap();
        assert_eq!(options.pause(attempt, &lost(), nanos), Some(limit));
        assert_eq!(options.pause(attempt, &lost(), 0), Some(Duration::ZERO));
        assert!(options.pause(attempt, &lost(), u64::MAX).unwrap() <= limit);
    }
    assert_eq!(options.pause(9, &lost(), 0), None);
    assert_eq!(options.pause(1, &full(), 0), None);
}

#[test]
fn the_default_jitter_differs_from_draw_to_draw() {
    let options = RetryOptions::default();
    assert_ne!((options.random)(), (options.random)());
}

#[tokio::test(start_paused = true)]
async fn a_removal_with_a_lost_reply_succeeds_if_the_partition_is_unknown() {
    let mut controller = MockVipuController::new();
    let calls = AtomicU32::new(0);
    controller.expect_remove_partition().returning(move |id, _| {
        Err(match calls.fetch_add(1, Ordering::Relaxed) {
            0 => lost(),
            _ => VipuError::NotFound { id: id.clone() },
        })
    });
    let controller = RetryLayer::new(controller, RetryOptions::default());
    assert_eq!(controller.remove_partition(&id(), false).await, Ok(()));
    let again = controller.remove_partition(&id(), false).await;
    assert_eq!(again, Err(VipuError::NotFound { id: id() }));
}

fn status(state: PartitionState) -> PartitionStatus {
    PartitionStatus {
        id: id(),
        state,
        max_auto_resets: 0,
        auto_resets: 0,
        last_auto_reset: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_with_a_lost_reply_is_not_repeated_while_it_runs() {
    let mut controller = MockVipuController::new();
    controller
        .expect_reset_partition()
        .times(1)
        .returning(|_| Err(lost()));
    controller
        .expect_partition_status()
        .returning(|_| Ok(status(PartitionState::Resetting)));
    let controller = RetryLayer::new(controller, RetryOptions::default());
    assert_eq!(controller.reset_partition(&id()).await, Ok(()));
}

fn request() -> CreatePartition {
    CreatePartition {
        id: id(),
        spec: PartitionSpec::of_size(IpuCount::ONE),
        ipus: Vec::new(),
    }
}

fn listing(_: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
    Ok(vec![Partition {
        id: id(),
        spec: request().spec,
        cluster: None,
        ipus: Vec::new(),
        state: PartitionState::Creating,
    }])
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_existed_before_is_not_adopted() {
    let mut controller = MockVipuController::new();
    controller
        .expect_create_partition()
        .times(1)
        .returning(|request| Err(VipuError::AlreadyExists { id: request.id }));
    let controller = RetryLayer::new(controller, RetryOptions::default());
    let error = controller.create_partition(request()).await;
    assert_eq!(error, Err(VipuError::AlreadyExists { id: id() }));
}

#[tokio::test(start_paused = true)]
async fn a_creation_with_a_lost_reply_is_found_and_not_repeated() {
    let mut controller = MockVipuController::new();
    controller
        .expect_create_partition()
        .times(1)
        .returning(|_| Err(lost()));
    controller
        .expect_partition_status()
        .returning(|_| Ok(status(PartitionState::Active)));
    controller.expect_list_partitions().returning(listing);
    let controller = RetryLayer::new(controller, RetryOptions::default());
    assert_eq!(controller.create_partition(request()).await, Ok(id()));
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_never_arrived_is_repeated() {
    let mut controller = MockVipuController::new();
    let reply = after(2, lost, id());
    controller
        .expect_create_partition()
        .times(3)
        .returning(move |_| reply());
    controller
        .expect_partition_status()
        .times(2)
        .returning(|id| Err(VipuError::NotFound { id: id.clone() }));
    let controller = RetryLayer::new(controller, RetryOptions::default());
    assert_eq!(controller.create_partition(request()).await, Ok(id()));
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_creation_stays_uncertain_if_the_status_query_fails() {
    let mut controller = MockVipuController::new();
    controller.expect_create_partition().returning(|_| Err(lost()));
    controller
        .expect_partition_status()
        .returning(|_| Err(VipuError::Denied { detail: "no".into() }));
    let controller = RetryLayer::new(controller, RetryOptions::default());
    let error = controller.create_partition(request()).await.unwrap_err();
    assert!(error.may_have_executed(), "{error}");
}

#[tokio::test]
async fn a_shared_controller_can_be_wrapped() {
    let mut controller = MockVipuController::new();
    controller.expect_version().returning(|| Ok("1".into()));
    let shared: Arc<dyn VipuController> = Arc::new(controller);
    let controller = RetryLayer::new(shared, RetryOptions::default());
    assert_eq!(controller.version().await, Ok("1".into()));
}
