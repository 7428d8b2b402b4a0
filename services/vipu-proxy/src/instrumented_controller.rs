//! Controller whose calls are measured.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::hardware::Partition;
use ipu_core::{AgentId, AllocationId, ControllerName, PartitionId};
use ipu_vipu_client::{
    AgentIpus, ControllerEndpoint, CreatePartition, GrpcController, IpuofConfig, PartitionStatus,
    VipuController, VipuError,
};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Wraps `controller` so that its calls are recorded under the name of `endpoint`.
pub(crate) fn with_metrics(
    controller: GrpcController,
    endpoint: &ControllerEndpoint,
    metrics: &Arc<Metrics>,
) -> Arc<dyn VipuController> {
    Arc::new(InstrumentedController {
        controller,
        name: endpoint.name().clone(),
        metrics: Arc::clone(metrics),
    })
}

/// Controller whose calls are recorded under `name`.
struct InstrumentedController<C> {
    controller: C,
    name: ControllerName,
    metrics: Arc<Metrics>,
}

impl<C> InstrumentedController<C> {
    async fn time<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        // The timer also records calls that are cancelled, because those matter most.
        let mut timer = CallTimer {
            metrics: &self.metrics,
            controller: self.name.as_str(),
            operation,
            started: Instant::now(),
            outcome: "abandoned",
        };
        let result = call.await;
        timer.outcome = match &result {
            Ok(_) => "ok",
            Err(error) if error.is_unhealthy() => "failed",
            Err(_) => "refused",
        };
        result
    }
}

struct CallTimer<'a> {
    metrics: &'a Metrics,
    controller: &'a str,
    operation: &'a str,
    started: Instant,
    outcome: &'static str,
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        let duration = self.started.elapsed();
        self.metrics
            .record_call(self.controller, self.operation, self.outcome, duration);
    }
}

#[async_trait]
impl<C: VipuController> VipuController for InstrumentedController<C> {
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
