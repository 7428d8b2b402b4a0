//! A controller whose calls are timed.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::{AgentId, AllocationId, ControllerName, Partition, PartitionId};
use ipu_vipu_client::{
    AgentIpus, ControllerEndpoint, CreatePartition, GrpcController, IpuofConfig, PartitionStatus,
    VipuController, VipuError,
};
use tokio::time::Instant;

use crate::app::AnyController;
use crate::metrics::Metrics;

/// `controller`, whose calls are booked under the name of `endpoint`.
pub(crate) fn measured(
    controller: GrpcController,
    endpoint: &ControllerEndpoint,
    metrics: &Arc<Metrics>,
) -> AnyController {
    Arc::new(Measured {
        controller,
        name: endpoint.name().clone(),
        metrics: Arc::clone(metrics),
    })
}

/// `controller`, whose calls are booked under `name`.
struct Measured<C> {
    controller: C,
    name: ControllerName,
    metrics: Arc<Metrics>,
}

impl<C> Measured<C> {
    async fn time<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        // A call that its caller gave up is booked too: those are the ones that matter.
        let mut booked = CallTimer {
            metrics: &self.metrics,
            controller: self.name.as_str(),
            operation,
            began: Instant::now(),
            outcome: "abandoned",
        };
        let answer = call.await;
        booked.outcome = match &answer {
            Ok(_) => "ok",
            Err(error) if error.is_unhealthy() => "failed",
            Err(_) => "refused",
        };
        answer
    }
}

struct CallTimer<'a> {
    metrics: &'a Metrics,
    controller: &'a str,
    operation: &'a str,
    began: Instant,
    outcome: &'static str,
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.metrics
            .call(self.controller, self.operation, self.outcome, took);
    }
}

#[async_trait]
impl<C: VipuController> VipuController for Measured<C> {
    async fn version(&self) -> Result<String, VipuError> {
        self.time("version", self.controller.version()).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.time("list", self.controller.list_partitions(allocation))
            .await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        self.time("create", self.controller.create_partition(request))
            .await
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.time("status", self.controller.partition_status(id)).await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.time("ipuof-config", self.controller.ipuof_config(id, gcd))
            .await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.time("reset", self.controller.reset_partition(id)).await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        self.time("remove", self.controller.remove_partition(id, force))
            .await
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.time("ipu-attributes", self.controller.ipu_attributes(agents))
            .await
    }
}
