//! Harness of the controller cases: a started controller, calls, and checks that apply to every result.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipu_core::hardware::{IpuPlace, Partition, PartitionSpec, PartitionState};
use ipu_core::{IpuCount, PartitionId};
use ipu_vipu_client::{CreatePartition, Retry, VipuController, VipuError};

use super::{CallFault, CallKind, ControllerBench, FaultSupport, Setup};
use crate::conformance::{CaseError, CaseOutcome, broken, check_eq, check_ok};

/// Time limit of a wait for a state: no operation in a test takes that long.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two polls of a state.
const POLL_PAUSE: Duration = Duration::from_millis(2);

/// Whether a removal continues despite errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Regular,
    Forced,
}

type StartFuture = Pin<Box<dyn Future<Output = Box<dyn ControllerBench>> + Send>>;

/// Starts controllers of one fixture. A function object, so that the cases are compiled once and not for
/// every type.
#[derive(Clone)]
pub(super) struct Harness(Arc<dyn Fn(Setup) -> StartFuture + Send + Sync>);

impl Harness {
    pub(super) fn new<B, F>(start: impl Fn(Setup) -> F + Send + Sync + 'static) -> Self
    where
        B: ControllerBench,
        F: Future<Output = B> + Send + 'static,
    {
        Self(Arc::new(move |setup| {
            let started = start(setup);
            Box::pin(async move { Box::new(started.await) as Box<dyn ControllerBench> })
        }))
    }

    pub(super) async fn start(&self, setup: Setup) -> Fixture {
        let implementation = (self.0)(setup).await;
        let controller = implementation.controller();
        Fixture {
            implementation,
            controller,
        }
    }
}

/// Controller under test.
pub(super) struct Fixture {
    pub(super) implementation: Box<dyn ControllerBench>,
    pub(super) controller: Arc<dyn VipuController>,
}

impl Fixture {
    pub(super) async fn create(&self, name: &str, size: u32) -> Result<PartitionId, VipuError> {
        self.controller.create_partition(request(name, size)).await
    }

    /// Creates a partition and waits until it is active.
    pub(super) async fn create_active(&self, name: &str, size: u32) -> CaseOutcome {
        self.create_active_from(request(name, size)).await
    }

    pub(super) async fn create_active_from(&self, request: CreatePartition) -> CaseOutcome {
        let id = request.id.clone();
        let answered = check_ok(
            "a partition that fits is created",
            self.controller.create_partition(request).await,
        )?;
        check_eq("create returns the requested id", &answered, &id)?;
        self.check_active(id.as_str()).await
    }

    /// Waits until a partition is active.
    pub(super) async fn check_active(&self, name: &str) -> CaseOutcome {
        wait_active(&*self.controller, name).await
    }

    /// Returns the state of an existing partition according to its status.
    pub(super) async fn state(&self, name: &str) -> Result<PartitionState, CaseError> {
        let answer = self.controller.partition_status(&id(name)).await;
        let status = check_ok("a partition that exists has a status", answer)?;
        check_eq(
            "a status describes the requested partition",
            &status.id,
            &id(name),
        )?;
        Ok(status.state)
    }

    /// Checks that the partition does not exist.
    pub(super) async fn check_unknown(&self, name: &str) -> CaseOutcome {
        let answer = self.controller.partition_status(&id(name)).await;
        let rule = "the status of a partition that does not exist is not found";
        check_error(rule, answer, &["not_found"]).map(drop)
    }

    pub(super) async fn remove(&self, name: &str, removal: Removal) -> CaseOutcome {
        remove(&*self.controller, name, removal).await
    }

    /// Returns all partitions after a consistency check of the listing.
    pub(super) async fn listed(&self) -> Result<Vec<Partition>, CaseError> {
        listed(&*self.controller).await
    }

    pub(super) async fn names(&self) -> Result<Vec<String>, CaseError> {
        let listed = self.listed().await?;
        let mut names: Vec<_> = listed.iter().map(|partition| partition.id.to_string()).collect();
        names.sort();
        Ok(names)
    }

    pub(super) async fn check_listing(&self, names: &[&str]) -> CaseOutcome {
        let expected: Vec<_> = names.iter().map(ToString::to_string).collect();
        check_eq(
            "the listing contains exactly the existing partitions",
            &self.names().await?,
            &expected,
        )
    }

    /// Checks that no partition is left and that all `ipus` can be allocated at once.
    pub(super) async fn check_all_free(&self, ipus: u32) -> CaseOutcome {
        self.check_listing(&[]).await?;
        let answer = self.create("all", ipus).await;
        check_ok("removed IPUs are free again", answer)?;
        self.remove("all", Removal::Forced).await
    }

    /// Injects `fault` into the next call of `kind`.
    pub(super) async fn inject(&self, kind: CallKind, fault: CallFault) -> CaseOutcome {
        let needs = format!("the fixture cannot inject {fault:?} into a call of {kind:?}");
        require(self.implementation.inject(kind, fault).await, &needs)
    }
}

/// Skips the case if its fixture does not support `needs`.
pub(super) fn require(injected: FaultSupport, needs: &str) -> CaseOutcome {
    match injected {
        FaultSupport::Done => Ok(()),
        FaultSupport::Unsupported => Err(CaseError::Unsupported(needs.to_owned())),
    }
}

/// Waits until a partition is active. A controller that cannot be reached for now is asked again.
pub(super) async fn wait_active(controller: &dyn VipuController, name: &str) -> CaseOutcome {
    let rule = "a partition becomes active";
    let last = LastAnswer::default();
    let poll = async {
        loop {
            let answer = controller.partition_status(&id(name)).await;
            last.set(&answer);
            match answer {
                Ok(status) if status.state == PartitionState::Active => return Ok(()),
                Ok(status) if matches!(status.state, PartitionState::Failed { .. }) => {
                    return Err(broken(rule, "ACTIVE", status.state.label()));
                }
                Err(error) if error.retry() != Retry::Soon => return check_ok(rule, Err(error)),
                Ok(_) | Err(_) => tokio::time::sleep(POLL_PAUSE).await,
            }
        }
    };
    in_time(rule, &last, poll).await
}

/// Removes a partition, which may be unknown, and waits until the controller no longer knows it. A removal
/// that is refused because of an operation in progress is repeated.
pub(super) async fn remove(controller: &dyn VipuController, name: &str, removal: Removal) -> CaseOutcome {
    let rule = "a partition is removed";
    let (id, force) = (id(name), removal == Removal::Forced);
    let last = LastAnswer::default();
    let poll = async {
        loop {
            let answer = controller.remove_partition(&id, force).await;
            last.set(&answer);
            match answer {
                Err(VipuError::NotFound { .. }) => return Ok(()),
                Err(error) if error.retry() != Retry::Soon && error.label() != "refused" => {
                    return check_ok(rule, Err(error));
                }
                Ok(()) | Err(_) => {}
            }
            loop {
                tokio::time::sleep(POLL_PAUSE).await;
                let answer = controller.partition_status(&id).await;
                last.set(&answer);
                match answer {
                    Err(VipuError::NotFound { .. }) => return Ok(()),
                    Ok(status) if status.state == PartitionState::Removing => {}
                    Ok(_) => break,
                    Err(error) if error.retry() == Retry::Soon => {}
                    Err(error) => return check_ok(rule, Err(error)),
                }
            }
        }
    };
    in_time(rule, &last, poll).await
}

/// The last answer of a controller that is asked repeatedly.
#[derive(Default)]
struct LastAnswer(Mutex<String>);

impl LastAnswer {
    fn set<T: std::fmt::Debug>(&self, answer: &Result<T, VipuError>) {
        let text = match answer {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

async fn in_time(
    rule: &str,
    LastAnswer(last): &LastAnswer,
    work: impl Future<Output = CaseOutcome>,
) -> CaseOutcome {
    tokio::time::timeout(WAIT_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| {
            let last = last.lock().unwrap_or_else(PoisonError::into_inner);
            let actual = format!("not after {WAIT_TIMEOUT:?}; the last answer was {last}");
            Err(broken(rule, "in time", actual))
        })
}

/// Returns all partitions after a consistency check of the listing.
pub(super) async fn listed(controller: &dyn VipuController) -> Result<Vec<Partition>, CaseError> {
    let listed = check_ok("partitions are listed", controller.list_partitions(None).await)?;
    let mut holders = BTreeMap::<(&Option<_>, IpuPlace), &PartitionId>::new();
    let mut ids = std::collections::BTreeSet::new();
    for partition in &listed {
        let id = &partition.id;
        if !ids.insert(id) {
            return Err(broken(
                "a partition is listed once",
                "one entry",
                format_args!("{id} twice"),
            ));
        }
        let size = partition.spec.size.get() as usize;
        check_eq(
            "a listed partition has as many IPUs as it has size",
            &(id, partition.ipus.len()),
            &(id, size),
        )?;
        for place in &partition.ipus {
            if let Some(other) = holders.insert((&partition.cluster, *place), id) {
                let actual = format!("{place:?} is in {other} and {id}");
                return Err(broken(
                    "no IPU is in two partitions",
                    "every IPU in at most one",
                    actual,
                ));
            }
        }
    }
    Ok(listed)
}

/// Checks `rule`: the result is an error with one of these labels.
pub(super) fn check_error<T: std::fmt::Debug>(
    rule: &str,
    answer: Result<T, VipuError>,
    labels: &[&str],
) -> Result<VipuError, CaseError> {
    let expected = format!("an error that is {}", labels.join(" or "));
    match answer {
        Err(error) if labels.contains(&error.label()) => Ok(error),
        Err(error) => {
            let actual = format!("{} ({error})", error.label());
            Err(broken(rule, expected, actual))
        }
        Ok(value) => Err(broken(rule, expected, format_args!("success: {value:?}"))),
    }
}

/// Checks that the result of the call is ambiguous, and that the caller may retry soon.
pub(super) fn check_ambiguous<T: std::fmt::Debug>(rule: &str, answer: Result<T, VipuError>) -> CaseOutcome {
    let expected = "an error that is retryable soon and may have taken effect";
    match answer {
        Err(error) if error.retry() == Retry::Soon && error.may_have_executed() => Ok(()),
        Err(error) => {
            let (retry, done) = (error.retry(), error.may_have_executed());
            let actual = format!(
                "{} ({error}): {retry:?}, may have taken effect: {done}",
                error.label()
            );
            Err(broken(rule, expected, actual))
        }
        Ok(value) => Err(broken(rule, expected, format_args!("success: {value:?}"))),
    }
}

/// # Panics
///
/// If `name` is not a valid id: all names come from this crate.
pub(super) fn id(name: &str) -> PartitionId {
    PartitionId::new(name).expect("a valid partition id")
}

pub(super) fn size(ipus: u32) -> IpuCount {
    IpuCount::try_from(ipus).expect("a power of two")
}

pub(super) fn request(name: &str, ipus: u32) -> CreatePartition {
    CreatePartition {
        id: id(name),
        spec: PartitionSpec::of_size(size(ipus)),
        ipus: Vec::new(),
    }
}

pub(super) const fn place(link_domain: u32, ipu: u32) -> IpuPlace {
    IpuPlace { link_domain, ipu }
}
