//! Faults between the suite and the controller under test, which need nothing of it.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{AgentId, AllocationId, Partition, PartitionId};
use ipu_vipu_client::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError};

use super::CallKind;

/// Longer than any caller waits.
const LATE: Duration = Duration::from_secs(3600);

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
    /// It does not arrive.
    LostRequest,
    /// It is done, and the reply is lost.
    LostReply,
    /// It does not arrive, and the caller is told that the controller failed.
    Failed,
    /// It is done twice, and the first reply is heard.
    TwiceFirst,
    /// It is done twice, and the second reply is heard.
    TwiceSecond,
    /// It is on its way for longer than anybody waits.
    SlowRequest,
    /// It is done, and the reply is on its way for longer than anybody waits.
    SlowReply,
}

/// Decides by the kind of a call and its number, from 1, what happens to it.
type Plan = Box<dyn FnMut(CallKind, u32) -> Option<Strike> + Send>;

/// A controller with faults in front of it. There are points before and after each call at which its caller can die.
pub(super) struct Faulty {
    inner: Arc<dyn VipuController>,
    plan: Mutex<(u32, Plan)>,
}

impl Faulty {
    pub(super) fn new(
        inner: &Arc<dyn VipuController>,
        plan: impl FnMut(CallKind, u32) -> Option<Strike> + Send + 'static,
    ) -> Self {
        Self {
            inner: Arc::clone(inner),
            plan: Mutex::new((0, Box::new(plan))),
        }
    }

    /// No faults: only the points at which the caller can die.
    pub(super) fn stepping(inner: &Arc<dyn VipuController>) -> Self {
        Self::new(inner, |_, _| None)
    }

    /// `strike` happens to call number `call`, from 1.
    pub(super) fn at(inner: &Arc<dyn VipuController>, call: u32, strike: Strike) -> Self {
        Self::new(inner, move |_, number| (number == call).then_some(strike))
    }

    fn strike(&self, kind: CallKind) -> Option<Strike> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, decide) = &mut *plan;
        *number += 1;
        decide(kind, *number)
    }

    async fn pass<T, F>(&self, kind: CallKind, call: impl Fn() -> F) -> Result<T, VipuError>
    where
        F: Future<Output = Result<T, VipuError>>,
    {
        let strike = self.strike(kind);
        tokio::task::yield_now().await;
        let answer = match strike {
            None => call().await,
            Some(Strike::LostRequest) => Err(lost()),
            Some(Strike::Failed) => Err(VipuError::Failed {
                detail: "a fault of the suite".to_owned(),
            }),
            Some(Strike::LostReply) => {
                drop(call().await);
                Err(lost())
            }
            Some(Strike::TwiceFirst) => {
                let answer = call().await;
                drop(call().await);
                answer
            }
            Some(Strike::TwiceSecond) => {
                drop(call().await);
                call().await
            }
            Some(Strike::SlowRequest) => {
                tokio::time::sleep(LATE).await;
                call().await
            }
            Some(Strike::SlowReply) => {
                let answer = call().await;
                tokio::time::sleep(LATE).await;
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
        detail: "a fault of the suite".to_owned(),
    }
}

#[async_trait]
impl VipuController for Faulty {
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
