//! Effects of failed calls on a fake controller.

use std::time::Duration;

use ipu_core::{PartitionId, PartitionSpec, PartitionState, Topology};
use ipu_testkit::{FakeController, Fault};
use ipu_vipu_client::{CreatePartition, VipuController as _, VipuError};

fn create(size: u32) -> CreatePartition {
    CreatePartition {
        id: id(),
        spec: PartitionSpec::of_size(size.try_into().unwrap()),
        ipus: Vec::new(),
    }
}

fn id() -> PartitionId {
    "p".parse().unwrap()
}

async fn with(fault: Fault) -> (FakeController, Result<PartitionId, VipuError>) {
    let controller = FakeController::new(&Topology::pod16(), 1);
    controller.script([Some(fault)]);
    let answer = controller.create_partition(create(4)).await;
    (controller, answer)
}

#[tokio::test(start_paused = true)]
async fn a_broken_or_failed_call_has_no_effect() {
    for fault in [Fault::Broken, Fault::Failed] {
        let (controller, answer) = with(fault).await;
        assert!(answer.unwrap_err().may_have_executed());
        assert_eq!(controller.ids(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_with_a_lost_reply_takes_effect() {
    let (controller, answer) = with(Fault::LostReply).await;
    assert!(answer.is_err());
    assert_eq!(controller.state_of(&id()), Some(PartitionState::Creating));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(controller.state_of(&id()), Some(PartitionState::Active));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_call_gets_the_second_reply() {
    let (controller, answer) = with(Fault::Duplicate).await;
    assert_eq!(answer, Err(VipuError::AlreadyExists { id: id() }));
    assert_eq!(controller.ids(), [id()]);
}

#[tokio::test(start_paused = true)]
async fn a_late_call_takes_effect_after_its_caller_timed_out() {
    let (controller, answer) = with(Fault::Late(Duration::from_secs(15))).await;
    assert!(answer.is_err());
    tokio::time::sleep(Duration::from_secs(14)).await;
    assert_eq!(controller.ids(), []);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(controller.ids(), [id()]);
}

#[tokio::test(start_paused = true)]
async fn a_reset_under_workers_is_recorded() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    controller.create_partition(create(4)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    controller.mark_in_use(&id());
    let before = controller.generation(&id());
    controller.reset_partition(&id()).await.unwrap();
    assert_eq!(controller.disturbed(), ["reset p"]);
    assert_ne!(controller.generation(&id()), before);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "granted again without a reset")]
async fn a_second_use_without_a_reset_panics() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    controller.create_partition(create(4)).await.unwrap();
    controller.mark_in_use(&id());
    controller.mark_unused(&id());
    controller.mark_in_use(&id());
}
