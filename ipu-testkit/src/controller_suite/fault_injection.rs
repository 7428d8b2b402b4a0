//! Faults between the suite and the controller under test, without its support.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{AgentId, AllocationId, Partition, PartitionId};
use ipu_vipu_client::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError};

use super::CallKind;

/// Longer than any caller waits.
const FOREVER: Duration = Duration::from_secs(3600);

/// Fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InjectedFault {
    /// The call does not arrive.
    LostRequest,
    /// The call takes effect, and the reply is lost.
    LostReply,
    /// The call does not arrive, and the caller receives a controller failure.
    Failed,
    /// The call takes effect twice, and the caller receives the first reply.
    TwiceFirst,
    /// The call takes effect twice, and the caller receives the second reply.
    TwiceSecond,
    /// The request is in flight for longer than any caller waits.
    SlowRequest,
    /// The call takes effect, and the reply is in flight for longer than any caller waits.
    SlowReply,
}

/// Chooses the fault by the kind of a call and its number, from 1.
type FaultPlan = Box<dyn FnMut(CallKind, u32) -> Option<InjectedFault> + Send>;

/// Controller with injected faults. Its caller can crash before and after each call.
pub(super) struct FaultyController {
    inner: Arc<dyn VipuController>,
    plan: Mutex<(u32, FaultPlan)>,
}

impl FaultyController {
    pub(super) fn new(
        inner: &Arc<dyn VipuController>,
        plan: impl FnMut(CallKind, u32) -> Option<InjectedFault> + Send + 'static,
    ) -> Self {
        Self {
            inner: Arc::clone(inner),
            plan: Mutex::new((0, Box::new(plan))),
        }
    }

    /// Wraps a controller without faults: only the points at which the caller can crash.
    pub(super) fn stepping(inner: &Arc<dyn VipuController>) -> Self {
        Self::new(inner, |_, _| None)
    }

    /// Injects `fault` into call number `call`, from 1.
    pub(super) fn at(inner: &Arc<dyn VipuController>, call: u32, fault: InjectedFault) -> Self {
        Self::new(inner, move |_, number| (number == call).then_some(fault))
    }

    fn fault(&self, kind: CallKind) -> Option<InjectedFault> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, decide) = &mut *plan;
        *number += 1;
        decide(kind, *number)
    }

    async fn pass<T, F>(&self, kind: CallKind, call: impl Fn() -> F) -> Result<T, VipuError>
    where
        F: Future<Output = Result<T, VipuError>>,
    {
        let fault = self.fault(kind);
        tokio::task::yield_now().await;
        let answer = match fault {
            None => call().await,
            Some(InjectedFault::LostRequest) => Err(lost()),
            Some(InjectedFault::Failed) => Err(VipuError::Failed {
                detail: "injected fault".to_owned(),
            }),
            Some(InjectedFault::LostReply) => {
                drop(call().await);
                Err(lost())
            }
            Some(InjectedFault::TwiceFirst) => {
                let answer = call().await;
                drop(call().await);
                answer
            }
            Some(InjectedFault::TwiceSecond) => {
                drop(call().await);
                call().await
            }
            Some(InjectedFault::SlowRequest) => {
                tokio::time::sleep(FOREVER).await;
                call().await
            }
            Some(InjectedFault::SlowReply) => {
                let answer = call().await;
                tokio::time::sleep(FOREVER).await;
                answer
            }
        };
        tokio::task::yield_now().await;
        answer
    }
}

fn lost() -> VipuError {
    VipuError::Unreachable {
        endpoint: "the suite".to_owned(),
        detail: "injected fault".to_owned(),
    }
}

#[async_trait]
impl VipuController for FaultyController {
    async fn version(&self) -> Result<String, VipuError> {
        self.pass(CallKind::Other, || self.inner.version()).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.pass(CallKind::List, || self.inner.list_partitions(allocation.clone()))
            .await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        self.pass(CallKind::Create, || self.inner.create_partition(request.clone()))
            .await
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.pass(CallKind::Status, || self.inner.partition_status(id))
            .await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.pass(CallKind::Other, || self.inner.ipuof_config(id, gcd))
            .await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.pass(CallKind::Reset, || self.inner.reset_partition(id))
            .await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        self.pass(CallKind::Remove, || self.inner.remove_partition(id, force))
            .await
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.pass(CallKind::Other, || self.inner.ipu_attributes(agents))
            .await
    }
}
