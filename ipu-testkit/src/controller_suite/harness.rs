//! What the cases share: a started controller, words for asking it, and rules that hold of every answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{IpuCount, IpuPlace, Partition, PartitionId, PartitionSpec, PartitionState};
use ipu_vipu_client::{
    CreatePartition, Removal, Retry, RetryOptions, VipuController, VipuError, WaitOptions, ensure_absent,
    wait_active,
};

use super::{CallFault, CallKind, ControllerBench, FaultSupport, Setup};
use crate::conformance::{CaseOutcome, Stop, broken, ok, same};

type Starting = Pin<Box<dyn Future<Output = Box<dyn ControllerBench>> + Send>>;

/// Starts controllers of one bench. A function pointer, so that the cases are compiled once and not for every bench.
#[derive(Clone, Copy)]
pub(super) struct Harness(fn(Setup) -> Starting);

impl Harness {
    pub(super) fn of<B: ControllerBench>() -> Self {
        Self(|setup| Box::pin(async move { Box::new(B::start(setup).await) as Box<dyn ControllerBench> }))
    }

    pub(super) async fn pod(self, setup: Setup) -> Pod {
        let bench = (self.0)(setup).await;
        let controller = bench.controller();
        Pod { bench, controller }
    }
}

/// A controller under test.
pub(super) struct Pod {
    pub(super) bench: Box<dyn ControllerBench>,
    pub(super) controller: Arc<dyn VipuController>,
}

impl Pod {
    pub(super) async fn create(&self, name: &str, size: u32) -> Result<PartitionId, VipuError> {
        self.controller.create_partition(request(name, size)).await
    }

    /// A partition that is active.
    pub(super) async fn make(&self, name: &str, size: u32) -> CaseOutcome {
        self.make_as(request(name, size)).await
    }

    pub(super) async fn make_as(&self, request: CreatePartition) -> CaseOutcome {
        let id = request.id.clone();
        let answered = ok(
            "a partition that fits is made",
            self.controller.create_partition(request).await,
        )?;
        same("create answers the id that was asked for", &answered, &id)?;
        self.is_active(id.as_str()).await
    }

    /// A partition on its way becomes active.
    pub(super) async fn is_active(&self, name: &str) -> CaseOutcome {
        let answer = wait_active(&*self.controller, &id(name), &patience()).await;
        ok("a partition becomes active", answer).map(drop)
    }

    /// What the status says of a partition that exists.
    pub(super) async fn state(&self, name: &str) -> Result<PartitionState, Stop> {
        let answer = self.controller.partition_status(&id(name)).await;
        let status = ok("a partition that exists has a status", answer)?;
        same(
            "a status tells of the partition that was asked for",
            &status.id,
            &id(name),
        )?;
        Ok(status.state)
    }

    /// The partition is gone, or never was.
    pub(super) async fn is_unknown(&self, name: &str) -> CaseOutcome {
        let answer = self.controller.partition_status(&id(name)).await;
        let rule = "the status of a partition that does not exist is not found";
        refused(rule, answer, &["not_found"]).map(drop)
    }

    pub(super) async fn remove(&self, name: &str, removal: Removal) -> CaseOutcome {
        let answer = ensure_absent(&*self.controller, &id(name), removal, &patience()).await;
        ok("a partition is removed", answer)
    }

    /// All partitions, after a look whether the listing can be true at all.
    pub(super) async fn listed(&self) -> Result<Vec<Partition>, Stop> {
        listed(&*self.controller).await
    }

    pub(super) async fn names(&self) -> Result<Vec<String>, Stop> {
        let listed = self.listed().await?;
        let mut names: Vec<_> = listed.iter().map(|partition| partition.id.to_string()).collect();
        names.sort();
        Ok(names)
    }

    pub(super) async fn lists_exactly(&self, names: &[&str]) -> CaseOutcome {
        let expected: Vec<_> = names.iter().map(ToString::to_string).collect();
        same(
            "the listing has every partition, and no other",
            &self.names().await?,
            &expected,
        )
    }

    /// Nothing is left: no partition, and all `ipus` of the Pod can be had at once.
    pub(super) async fn is_all_free(&self, ipus: u32) -> CaseOutcome {
        self.lists_exactly(&[]).await?;
        let answer = self.create("all", ipus).await;
        ok("what is removed is free again", answer)?;
        self.remove("all", Removal::Forced).await
    }

    /// The next call of `kind` suffers `fault`.
    pub(super) async fn inject(&self, kind: CallKind, fault: CallFault) -> CaseOutcome {
        let needs = format!("the bench cannot have {fault:?} strike a call of {kind:?}");
        able(self.bench.inject(kind, fault).await, &needs)
    }
}

/// A case that needs something of its bench has it.
pub(super) fn able(injected: FaultSupport, needs: &str) -> CaseOutcome {
    match injected {
        FaultSupport::Done => Ok(()),
        FaultSupport::Unsupported => Err(Stop::Unable(needs.to_owned())),
    }
}

/// All partitions, after a look whether the listing can be true at all.
pub(super) async fn listed(controller: &dyn VipuController) -> Result<Vec<Partition>, Stop> {
    let listed = ok("partitions are listed", controller.list_partitions(None).await)?;
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
        same(
            "a listed partition has as many IPUs as it has size",
            &(id, partition.ipus.len()),
            &(id, size),
        )?;
        for place in &partition.ipus {
            if let Some(other) = holders.insert((&partition.cluster, *place), id) {
                let seen = format!("{place:?} is in {other} and in {id}");
                return Err(broken(
                    "no IPU is in two partitions",
                    "every IPU in one at most",
                    seen,
                ));
            }
        }
    }
    Ok(listed)
}

/// `rule`: the answer is an error, with one of these labels.
pub(super) fn refused<T: std::fmt::Debug>(
    rule: &str,
    answer: Result<T, VipuError>,
    labels: &[&str],
) -> Result<VipuError, Stop> {
    let expected = format!("an error that is {}", labels.join(" or "));
    match answer {
        Err(error) if labels.contains(&error.label()) => Ok(error),
        Err(error) => {
            let seen = format!("{} ({error})", error.label());
            Err(broken(rule, expected, seen))
        }
        Ok(value) => Err(broken(rule, expected, format_args!("success: {value:?}"))),
    }
}

/// The call came to nothing that its caller can be sure of, and he may try again soon.
pub(super) fn is_unsure<T: std::fmt::Debug>(rule: &str, answer: Result<T, VipuError>) -> CaseOutcome {
    let expected = "an error after which one tries again soon, and that may have been done";
    match answer {
        Err(error) if error.retry() == Retry::Soon && error.may_have_happened() => Ok(()),
        Err(error) => {
            let (retry, done) = (error.retry(), error.may_have_happened());
            let seen = format!(
                "{} ({error}): {retry:?}, may have been done: {done}",
                error.label()
            );
            Err(broken(rule, expected, seen))
        }
        Ok(value) => Err(broken(rule, expected, format_args!("success: {value:?}"))),
    }
}

/// # Panics
///
/// If it is no id: the ids are those of this crate.
pub(super) fn id(name: &str) -> PartitionId {
    PartitionId::new(name).expect("a case names partitions by the rules for ids")
}

pub(super) fn size(ipus: u32) -> IpuCount {
    IpuCount::try_from(ipus).expect("a case asks for powers of two")
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

/// Waits for what takes a moment, so that it matters only when something is wrong.
pub(super) fn patience() -> WaitOptions {
    let mut wait = WaitOptions::at_most(Duration::from_secs(20));
    wait.first_pause = Duration::from_millis(1);
    wait.longest_pause = Duration::from_millis(50);
    wait
}

/// More attempts than any case has faults in a row, with pauses that cost nothing.
pub(super) fn attempts(attempts: u32) -> RetryOptions {
    let mut options = RetryOptions::default();
    options.attempts = attempts;
    options.first_pause = Duration::from_micros(1);
    options.longest_pause = Duration::from_millis(1);
    options
}
