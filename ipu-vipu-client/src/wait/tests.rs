//! Waits for operations, with a scripted controller and paused time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ipu_core::{IpuCount, PartitionSpec};

use super::*;
use crate::controller::MockVipuController;

/// Scripted replies, in order; the last one repeats.
struct Script<T>(Arc<Mutex<VecDeque<T>>>);

impl<T: Clone> Script<T> {
    fn new(replies: impl IntoIterator<Item = T>) -> Self {
        Self(Arc::new(Mutex::new(replies.into_iter().collect())))
    }

    fn next(&self) -> T {
        let mut replies = self.0.lock().unwrap();
        let first = replies.front().cloned().expect("a script has a reply");
        if replies.len() > 1 {
            replies.pop_front();
        }
        first
    }
}

fn id() -> PartitionId {
    PartitionId::new("p1").unwrap()
}

fn in_state(state: PartitionState) -> Result<PartitionStatus, VipuError> {
    Ok(PartitionStatus {
        id: id(),
        state,
        max_auto_resets: 0,
        auto_resets: 0,
        last_auto_reset: None,
    })
}

fn unknown<T>() -> Result<T, VipuError> {
    Err(VipuError::NotFound { id: id() })
}

fn lost<T>() -> Result<T, VipuError> {
    Err(VipuError::Unreachable {
        endpoint: "pod1:8090".into(),
        detail: "connection reset".into(),
    })
}

fn refused<T>() -> Result<T, VipuError> {
    Err(VipuError::Refused {
        detail: "it is being removed".into(),
    })
}

type Statuses = Vec<Result<PartitionStatus, VipuError>>;

fn with_status(statuses: Statuses) -> MockVipuController {
    let mut controller = MockVipuController::new();
    let script = Script::new(statuses);
    controller
        .expect_partition_status()
        .returning(move |_| script.next());
    controller
}

async fn activate(statuses: Statuses) -> (Result<PartitionState, &'static str>, Duration) {
    let started = Instant::now();
    let wait = WaitOptions::with_deadline(Duration::from_secs(10));
    let result = wait_active(&with_status(statuses), &id(), &wait).await;
    (
        result.map(|status| status.state).map_err(|error| error.label()),
        started.elapsed(),
    )
}

#[tokio::test(start_paused = true)]
async fn the_first_poll_is_immediate() {
    let (result, waited) = activate(vec![in_state(PartitionState::Active)]).await;
    assert_eq!((result, waited), (Ok(PartitionState::Active), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn pauses_double_up_to_the_maximum() {
    let mut statuses = vec![in_state(PartitionState::Creating); 9];
    statuses.push(in_state(PartitionState::Active));
    let (result, waited) = activate(statuses).await;
    assert_eq!(result, Ok(PartitionState::Active));
    // 5 + 10 + 20 + 40 + 80 + 160 + 320 + 500 + 500 ms
    assert_eq!(waited, Duration::from_millis(1635));
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_controller_is_polled_again() {
    let statuses = vec![
        in_state(PartitionState::Creating),
        lost(),
        lost(),
        in_state(PartitionState::Active),
    ];
    assert_eq!(activate(statuses).await.0, Ok(PartitionState::Active));
}

#[tokio::test(start_paused = true)]
async fn a_partition_in_error_ends_the_wait_at_once() {
    let errors = vec!["link 3 down".to_owned()];
    let failed = in_state(PartitionState::Failed {
        errors: errors.clone(),
    });
    let controller = with_status(vec![in_state(PartitionState::Creating), failed]);
    let error = wait_active(&controller, &id(), &WaitOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error, VipuError::PartitionFailed { id: id(), errors });
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_disappears_ends_the_wait() {
    let statuses = vec![
        in_state(PartitionState::Creating),
        in_state(PartitionState::Removing),
        unknown(),
    ];
    assert_eq!(activate(statuses).await.0, Err("not_found"));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_the_deadline_with_the_last_state() {
    let controller = with_status(vec![in_state(PartitionState::Resetting)]);
    let started = Instant::now();
    let wait = WaitOptions::with_deadline(Duration::from_millis(1700));
    let error = wait_active(&controller, &id(), &wait).await.unwrap_err();
    assert_eq!(error.to_string(), "partition p1 is still RESETTING after 1.7s");
    assert_eq!(started.elapsed(), Duration::from_millis(1700));

    let (result, waited) = activate(vec![lost()]).await;
    assert_eq!((result, waited), (Err("unreachable"), Duration::from_secs(10)));
}

/// Returns a controller with these replies to removals and to status queries; expects `times` removals.
fn removing(removals: Vec<Result<(), VipuError>>, statuses: Statuses, times: usize) -> MockVipuController {
    let mut controller = with_status(statuses);
    let script = Script::new(removals);
    controller
        .expect_remove_partition()
        .withf(|_, force| *force)
        .times(times)
        .returning(move |_, _| script.next());
    controller
}

async fn remove(controller: &MockVipuController) -> Result<(), &'static str> {
    let wait = WaitOptions::with_deadline(Duration::from_secs(10));
    ensure_absent(controller, &id(), Removal::Forced, &wait)
        .await
        .map_err(|error| error.label())
}

#[tokio::test(start_paused = true)]
async fn an_unknown_partition_is_absent() {
    assert_eq!(remove(&removing(vec![unknown()], vec![lost()], 1)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_removal_is_polled_until_the_partition_is_unknown() {
    let statuses = vec![
        in_state(PartitionState::Removing),
        in_state(PartitionState::Removing),
        unknown(),
    ];
    assert_eq!(remove(&removing(vec![Ok(())], statuses, 1)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_removal_with_a_lost_reply_is_verified_by_its_status() {
    assert_eq!(remove(&removing(vec![lost()], vec![unknown()], 1)).await, Ok(()));
    let statuses = vec![in_state(PartitionState::Active), unknown()];
    assert_eq!(remove(&removing(vec![lost(), Ok(())], statuses, 2)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_being_removed_already_may_refuse_a_second_removal() {
    let statuses = vec![in_state(PartitionState::Removing), unknown()];
    assert_eq!(remove(&removing(vec![refused()], statuses, 1)).await, Ok(()));
    let statuses = vec![in_state(PartitionState::Active)];
    assert_eq!(
        remove(&removing(vec![refused()], statuses, 1)).await,
        Err("refused")
    );
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_is_refused_during_another_operation_is_retried() {
    for busy in [PartitionState::Creating, PartitionState::Resetting] {
        let statuses = vec![in_state(busy.clone()), in_state(busy.clone()), unknown()];
        let removals = vec![refused(), refused(), Ok(())];
        assert_eq!(remove(&removing(removals, statuses, 3)).await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_removal_failed_is_removed_again() {
    let failed = in_state(PartitionState::Failed { errors: Vec::new() });
    let statuses = vec![in_state(PartitionState::Removing), failed, unknown()];
    assert_eq!(remove(&removing(vec![Ok(())], statuses, 2)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_not_removed_is_an_error_at_the_deadline() {
    let controller = removing(vec![Ok(())], vec![in_state(PartitionState::Removing)], 1);
    assert_eq!(remove(&controller).await, Err("slow"));
}

fn request() -> CreatePartition {
    CreatePartition {
        id: id(),
        spec: PartitionSpec::of_size(IpuCount::try_from(4).unwrap()),
        ipus: Vec::new(),
    }
}

fn listed(size: u32) -> Partition {
    Partition {
        id: id(),
        spec: PartitionSpec::of_size(IpuCount::try_from(size).unwrap()),
        cluster: None,
        ipus: Vec::new(),
        state: PartitionState::Creating,
    }
}

/// Creates a partition at a controller with these replies, which lists one of `size` IPUs.
async fn present(
    creations: Vec<Result<(), VipuError>>,
    statuses: Statuses,
    size: u32,
) -> Result<(), &'static str> {
    let times = creations.len();
    let mut controller = with_status(statuses);
    let script = Script::new(creations);
    controller
        .expect_create_partition()
        .times(times)
        .returning(move |request| script.next().map(|()| request.id));
    controller
        .expect_list_partitions()
        .returning(move |_| Ok(vec![listed(size)]));
    ensure_present(&controller, &request(), &WaitOptions::default())
        .await
        .map_err(|error| error.label())
}

fn exists() -> Result<(), VipuError> {
    Err(VipuError::AlreadyExists { id: id() })
}

fn full() -> Result<(), VipuError> {
    Err(VipuError::NoCapacity {
        detail: "full".into(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_successful_creation_needs_no_status_query() {
    assert_eq!(present(vec![Ok(())], vec![unknown()], 64).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_existing_partition_is_accepted_if_it_matches_the_request() {
    let existing = || vec![in_state(PartitionState::Active)];
    assert_eq!(present(vec![exists()], existing(), 4).await, Ok(()));
    assert_eq!(
        present(vec![exists()], existing(), 8).await,
        Err("already_exists")
    );
    let removing_status = vec![in_state(PartitionState::Removing)];
    assert_eq!(
        present(vec![exists()], removing_status, 4).await,
        Err("already_exists")
    );
}

#[tokio::test(start_paused = true)]
async fn a_creation_with_a_lost_reply_is_verified_before_a_retry() {
    let existing = vec![in_state(PartitionState::Creating)];
    assert_eq!(present(vec![lost()], existing, 4).await, Ok(()));
    assert_eq!(present(vec![lost(), Ok(())], vec![unknown()], 4).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn no_capacity_after_a_lost_reply_is_verified_by_the_status() {
    // The first attempt arrives late, after the first status query, and takes the last capacity.
    let statuses = vec![unknown(), in_state(PartitionState::Creating)];
    assert_eq!(present(vec![lost(), full()], statuses, 4).await, Ok(()));
    // Queried and still unknown: the attempt may arrive even later.
    let statuses = vec![unknown(), lost(), in_state(PartitionState::Creating)];
    assert_eq!(present(vec![lost(), full(), exists()], statuses, 4).await, Ok(()));
    assert_eq!(
        present(vec![lost(), full()], vec![unknown()], 4).await,
        Err("no_capacity")
    );
}

#[tokio::test(start_paused = true)]
async fn no_capacity_at_the_first_attempt_is_returned_without_another_call() {
    assert_eq!(present(vec![full()], vec![lost()], 4).await, Err("no_capacity"));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_disappears_during_verification_is_created_again() {
    assert_eq!(present(vec![exists(), Ok(())], vec![unknown()], 4).await, Ok(()));
}

#[test]
fn unspecified_fields_of_a_request_match_any_value() {
    let partition = |change: fn(&mut Partition)| {
        let mut partition = listed(4);
        change(&mut partition);
        matches_request(&partition, &request())
    };
    assert!(partition(|_| {}));
    assert!(partition(
        |p| p.spec.allocation = Some(ipu_core::AllocationId::new("a").unwrap())
    ));
    assert!(partition(|p| p.ipus = vec![ipu_core::IpuPlace {
        link_domain: 0,
        ipu: 0
    }]));
    assert!(!partition(|p| p.spec.gcds = 2));
    assert!(!partition(|p| p.spec.replicas = 2));
    assert!(!partition(|p| p.spec.reconfigurable = true));
    assert!(!partition(|p| p.id = PartitionId::new("p2").unwrap()));
}
