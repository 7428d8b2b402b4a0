//! Seeing operations through, against a scripted controller and paused time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ipu_core::{IpuCount, PartitionSpec};

use super::*;
use crate::controller::MockVipuController;

/// Answers that come one after the other; the last one stays.
struct Script<T>(Arc<Mutex<VecDeque<T>>>);

impl<T: Clone> Script<T> {
    fn new(answers: impl IntoIterator<Item = T>) -> Self {
        Self(Arc::new(Mutex::new(answers.into_iter().collect())))
    }

    fn next(&self) -> T {
        let mut answers = self.0.lock().unwrap();
        let first = answers.front().cloned().expect("a script has an answer");
        if answers.len() > 1 {
            answers.pop_front();
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

fn gone<T>() -> Result<T, VipuError> {
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
    let wait = WaitOptions::at_most(Duration::from_secs(10));
    let result = wait_active(&with_status(statuses), &id(), &wait).await;
    (
        result.map(|status| status.state).map_err(|error| error.label()),
        started.elapsed(),
    )
}

#[tokio::test(start_paused = true)]
async fn the_first_poll_is_at_once() {
    let (result, waited) = activate(vec![in_state(PartitionState::Active)]).await;
    assert_eq!((result, waited), (Ok(PartitionState::Active), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn pauses_double_up_to_the_longest() {
    let mut statuses = vec![in_state(PartitionState::Creating); 9];
    statuses.push(in_state(PartitionState::Active));
    let (result, waited) = activate(statuses).await;
    assert_eq!(result, Ok(PartitionState::Active));
    // 5 + 10 + 20 + 40 + 80 + 160 + 320 + 500 + 500 ms
    assert_eq!(waited, Duration::from_millis(1635));
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_away_for_a_while_is_asked_again() {
    let statuses = vec![
        in_state(PartitionState::Creating),
        lost(),
        lost(),
        in_state(PartitionState::Active),
    ];
    assert_eq!(activate(statuses).await.0, Ok(PartitionState::Active));
}

#[tokio::test(start_paused = true)]
async fn a_partition_in_error_is_a_failure_at_once() {
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
async fn a_partition_that_vanishes_is_not_waited_for() {
    let statuses = vec![
        in_state(PartitionState::Creating),
        in_state(PartitionState::Removing),
        gone(),
    ];
    assert_eq!(activate(statuses).await.0, Err("not_found"));
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_the_deadline_with_the_last_state() {
    let controller = with_status(vec![in_state(PartitionState::Resetting)]);
    let started = Instant::now();
    let wait = WaitOptions::at_most(Duration::from_millis(1700));
    let error = wait_active(&controller, &id(), &wait).await.unwrap_err();
    assert_eq!(error.to_string(), "partition p1 is still RESETTING after 1.7s");
    assert_eq!(started.elapsed(), Duration::from_millis(1700));

    let (result, waited) = activate(vec![lost()]).await;
    assert_eq!((result, waited), (Err("unreachable"), Duration::from_secs(10)));
}

/// A controller that removes with these answers and then has these statuses; counts the removals.
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
    let wait = WaitOptions::at_most(Duration::from_secs(10));
    ensure_absent(controller, &id(), Removal::Forced, &wait)
        .await
        .map_err(|error| error.label())
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_gone_already_is_absent() {
    assert_eq!(remove(&removing(vec![gone()], vec![lost()], 1)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_removal_is_polled_until_the_controller_does_not_know_the_partition() {
    let statuses = vec![
        in_state(PartitionState::Removing),
        in_state(PartitionState::Removing),
        gone(),
    ];
    assert_eq!(remove(&removing(vec![Ok(())], statuses, 1)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_removal_whose_reply_is_lost_is_settled_by_asking() {
    assert_eq!(remove(&removing(vec![lost()], vec![gone()], 1)).await, Ok(()));
    let statuses = vec![in_state(PartitionState::Active), gone()];
    assert_eq!(remove(&removing(vec![lost(), Ok(())], statuses, 2)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_being_removed_already_may_refuse_a_second_removal() {
    let statuses = vec![in_state(PartitionState::Removing), gone()];
    assert_eq!(remove(&removing(vec![refused()], statuses, 1)).await, Ok(()));
    let statuses = vec![in_state(PartitionState::Active)];
    assert_eq!(
        remove(&removing(vec![refused()], statuses, 1)).await,
        Err("refused")
    );
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_is_refused_while_something_else_is_under_way_is_tried_again() {
    for busy in [PartitionState::Creating, PartitionState::Resetting] {
        let statuses = vec![in_state(busy.clone()), in_state(busy.clone()), gone()];
        let removals = vec![refused(), refused(), Ok(())];
        assert_eq!(remove(&removing(removals, statuses, 3)).await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_removal_failed_is_removed_again() {
    let failed = in_state(PartitionState::Failed { errors: Vec::new() });
    let statuses = vec![in_state(PartitionState::Removing), failed, gone()];
    assert_eq!(remove(&removing(vec![Ok(())], statuses, 2)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_stays_is_an_error_at_the_deadline() {
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

/// Makes a partition at a controller that answers so, and lists one of `size` IPUs.
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
async fn a_partition_that_is_made_is_not_asked_for() {
    assert_eq!(present(vec![Ok(())], vec![gone()], 64).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_exists_is_fine_if_it_is_what_was_asked_for() {
    let there = || vec![in_state(PartitionState::Active)];
    assert_eq!(present(vec![exists()], there(), 4).await, Ok(()));
    assert_eq!(present(vec![exists()], there(), 8).await, Err("already_exists"));
    let going = vec![in_state(PartitionState::Removing)];
    assert_eq!(present(vec![exists()], going, 4).await, Err("already_exists"));
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_settled_by_asking_before_anything_is_made_again() {
    let there = vec![in_state(PartitionState::Creating)];
    assert_eq!(present(vec![lost()], there, 4).await, Ok(()));
    assert_eq!(present(vec![lost(), Ok(())], vec![gone()], 4).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn no_room_after_a_lost_reply_is_not_believed_unasked() {
    // The first attempt arrives late, after the first question, and takes the last room.
    let statuses = vec![gone(), in_state(PartitionState::Creating)];
    assert_eq!(present(vec![lost(), full()], statuses, 4).await, Ok(()));
    // Asked and still unknown: it may arrive even later.
    let statuses = vec![gone(), lost(), in_state(PartitionState::Creating)];
    assert_eq!(present(vec![lost(), full(), exists()], statuses, 4).await, Ok(()));
    assert_eq!(
        present(vec![lost(), full()], vec![gone()], 4).await,
        Err("no_capacity")
    );
}

#[tokio::test(start_paused = true)]
async fn no_room_at_first_is_told_without_another_call() {
    assert_eq!(present(vec![full()], vec![lost()], 4).await, Err("no_capacity"));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_goes_while_it_is_asked_for_is_made_again() {
    assert_eq!(present(vec![exists(), Ok(())], vec![gone()], 4).await, Ok(()));
}

#[test]
fn what_the_request_leaves_open_is_as_asked() {
    let partition = |change: fn(&mut Partition)| {
        let mut partition = listed(4);
        change(&mut partition);
        is_as_asked(&partition, &request())
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
