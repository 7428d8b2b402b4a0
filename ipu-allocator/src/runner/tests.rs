//! Calls against a mocked controller.

use std::sync::Arc;

use ipu_core::IpuCount;
use ipu_core::hardware::IpuPlace;
use ipu_core::hardware::PartitionSpec;
use ipu_vipu_client::{MockVipuController, PartitionStatus, boot_time};

use super::*;

const DEADLINE: Duration = Duration::from_secs(1);

fn id() -> PartitionId {
    PartitionId::new("p").unwrap()
}

fn spec() -> PartitionSpec {
    PartitionSpec::of_size(IpuCount::try_from(4).unwrap())
}

fn listed() -> Partition {
    Partition {
        id: id(),
        spec: spec(),
        cluster: None,
        ipus: Vec::new(),
        state: PartitionState::Active,
    }
}

fn status(state: PartitionState) -> Result<PartitionStatus, VipuError> {
    Ok(PartitionStatus {
        id: id(),
        state,
        max_auto_resets: 0,
        auto_resets: 0,
        last_auto_reset: None,
    })
}

fn not_found<T>() -> Result<T, VipuError> {
    Err(VipuError::NotFound { id: id() })
}

fn refused<T>() -> Result<T, VipuError> {
    let detail = "busy".into();
    Err(VipuError::Refused { detail })
}

fn full<T>() -> Result<T, VipuError> {
    let detail = "no block".into();
    Err(VipuError::NoCapacity { detail })
}

fn lost<T>() -> Result<T, VipuError> {
    let detail = "crashed".into();
    Err(VipuError::Failed { detail })
}

fn denied<T>() -> Result<T, VipuError> {
    let detail = "no key".into();
    Err(VipuError::Denied { detail })
}

fn pool(mock: MockVipuController) -> ControllerPool {
    ControllerPool::single(ControllerName::new("c").unwrap(), Arc::new(mock))
}

fn call(kind: CallKind) -> Call {
    Call {
        id: id(),
        controller: ControllerName::new("c").unwrap(),
        operation: Default::default(),
        kind,
    }
}

async fn reply(mock: MockVipuController, kind: CallKind) -> Reply {
    run(pool(mock), call(kind), DEADLINE, boot_time().plus(DEADLINE)).await
}

/// A controller that also lists the partition, and another one.
fn listing() -> MockVipuController {
    let mut mock = MockVipuController::new();
    let mut other = listed();
    other.id = PartitionId::new("other").unwrap();
    mock.expect_list_partitions()
        .returning(move |_| Ok(vec![other.clone(), listed()]));
    mock
}

#[tokio::test]
async fn the_answer_to_a_create_is_not_believed_before_the_status_confirms_it() {
    let message = |text: &str| Reply::Refused { message: text.into() };
    let cases = [
        (Ok(id()), None, vec![], Reply::Accepted),
        (
            Err(VipuError::AlreadyExists { id: id() }),
            None,
            vec![],
            Reply::Exists(Some(listed())),
        ),
        (lost(), None, vec![], Reply::Lost),
        (
            Err(VipuError::NotSent),
            Some(Err(VipuError::NotSent)),
            vec![],
            Reply::NotSent,
        ),
        (full(), Some(not_found()), vec![], message("no block")),
        (
            full(),
            Some(status(PartitionState::Creating)),
            vec![],
            Reply::Exists(Some(listed())),
        ),
        (full(), Some(lost()), vec![], Reply::Lost),
        (full(), Some(denied()), vec![], Reply::NotSent),
        (
            refused(),
            Some(not_found()),
            vec![],
            message("the controller refuses the request: busy"),
        ),
        (
            refused(),
            Some(not_found()),
            vec![IpuPlace {
                link_domain: 0,
                ipu: 0,
            }],
            message(
                "it does not accept the IPUs that were chosen (the controller refuses the request: busy)",
            ),
        ),
    ];
    for (created, status, ipus, expected) in cases {
        let case = format!("{created:?}, {status:?}, {ipus:?}");
        let mut mock = listing();
        let expected_ipus = ipus.clone();
        mock.expect_create_partition().return_once(move |request| {
            assert_eq!(
                (request.id, request.spec, request.ipus),
                (id(), spec(), expected_ipus)
            );
            created
        });
        if let Some(status) = status {
            mock.expect_partition_status().return_once(|_| status);
        }
        let spec = spec();
        assert_eq!(
            reply(mock, CallKind::Create { spec, ipus }).await,
            expected,
            "{case}"
        );
    }
}

#[tokio::test]
async fn a_refused_reset_is_accepted_only_if_no_job_can_have_used_the_partition() {
    let cases = [
        (Ok(()), None, Reply::Accepted),
        (not_found(), None, Reply::Absent),
        (refused(), Some(status(PartitionState::Creating)), Reply::Accepted),
        (
            refused(),
            Some(status(PartitionState::Resetting)),
            Reply::Accepted,
        ),
        (refused(), Some(status(PartitionState::Active)), Reply::NotSent),
        (refused(), Some(not_found()), Reply::Absent),
        (refused(), Some(lost()), Reply::NotSent),
        (lost(), None, Reply::Lost),
        (denied(), None, Reply::NotSent),
    ];
    for (reset, status, expected) in cases {
        let case = format!("{reset:?}, {status:?}");
        let mut mock = MockVipuController::new();
        mock.expect_reset_partition().return_once(|_| reset);
        if let Some(status) = status {
            mock.expect_partition_status().return_once(|_| status);
        }
        assert_eq!(reply(mock, CallKind::Reset).await, expected, "{case}");
    }
}

#[tokio::test]
async fn force_is_used_only_where_it_is_allowed_and_the_controller_refuses_without() {
    let message = "the controller refuses the request: busy".to_owned();
    let cases = [
        (false, vec![Ok(())], Reply::Accepted),
        (true, vec![Ok(())], Reply::Accepted),
        (true, vec![not_found()], Reply::Absent),
        (false, vec![refused()], Reply::NeedsForce { message }),
        (true, vec![refused(), Ok(())], Reply::Accepted),
        (true, vec![refused(), not_found()], Reply::Absent),
        (true, vec![refused(), refused()], Reply::NotSent),
        (true, vec![lost()], Reply::Lost),
        (false, vec![denied()], Reply::NotSent),
    ];
    for (force, removed, expected) in cases {
        let case = format!("{force} {removed:?}");
        let mut mock = MockVipuController::new();
        for (number, result) in removed.into_iter().enumerate() {
            mock.expect_remove_partition()
                .withf(move |asked, with_force| *asked == id() && *with_force == (number > 0))
                .times(1)
                .return_once(|_, _| result);
        }
        assert_eq!(reply(mock, CallKind::Remove { force }).await, expected, "{case}");
    }
}

#[tokio::test]
async fn a_status_query_locates_only_an_active_partition() {
    let of = |state, listed| Reply::Status { state, listed };
    let cases = [
        (
            true,
            status(PartitionState::Active),
            of(PartitionState::Active, Some(listed())),
        ),
        (
            false,
            status(PartitionState::Active),
            of(PartitionState::Active, None),
        ),
        (
            true,
            status(PartitionState::Creating),
            of(PartitionState::Creating, None),
        ),
        (true, not_found(), Reply::Absent),
        (true, lost(), Reply::Lost),
        (true, denied(), Reply::Lost),
    ];
    for (locate, status, expected) in cases {
        let case = format!("{locate} {status:?}");
        let mut mock = listing();
        mock.expect_partition_status().return_once(|_| status);
        assert_eq!(reply(mock, CallKind::Status { locate }).await, expected, "{case}");
    }
    let mut mock = MockVipuController::new();
    mock.expect_partition_status()
        .return_once(|_| status(PartitionState::Active));
    mock.expect_list_partitions().return_once(|_| lost());
    let expected = of(PartitionState::Active, None);
    assert_eq!(reply(mock, CallKind::Status { locate: true }).await, expected);
}

#[tokio::test]
async fn nothing_is_sent_to_an_unknown_or_unavailable_controller_or_after_the_latest_time() {
    // The controller panics at each call.
    let mut elsewhere = call(CallKind::Reset);
    elsewhere.controller = ControllerName::new("unknown").unwrap();
    let latest = boot_time().plus(DEADLINE);
    let unused = || pool(MockVipuController::new());
    assert_eq!(run(unused(), elsewhere, DEADLINE, latest).await, Reply::NotSent);
    let unavailable = unused();
    let name = ControllerName::new("c").unwrap();
    while unavailable
        .member(&name)
        .unwrap()
        .health
        .is_available(Instant::now())
    {
        unavailable.record(&name, &lost::<()>());
    }
    let reply = run(unavailable, call(CallKind::Reset), DEADLINE, latest).await;
    assert_eq!(reply, Reply::NotSent);
    let begun = boot_time();
    while boot_time() == begun {}
    assert_eq!(
        run(unused(), call(CallKind::Reset), DEADLINE, begun).await,
        Reply::NotSent
    );
}
