//! Controller whose calls are measured.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::hardware::Partition;
use ipu_core::{AgentId, AllocationId, ControllerName, PartitionId};
use ipu_vipu_client::{
    AgentIpus, ControllerEndpoint, CreatePartition, GrpcController, IpuofConfig, PartitionStatus,
    VipuController, VipuError,
};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Time by which a call may be dropped before its deadline because of the deadline: the timer of the caller
/// starts a little earlier.
const TIMER_DIFFERENCE: Duration = Duration::from_millis(100);

/// Wraps `controller` so that its calls, which have `deadline` to respond, are recorded under the name of
/// `endpoint`.
pub(crate) fn with_metrics(
    controller: GrpcController,
    endpoint: &ControllerEndpoint,
    metrics: &Arc<Metrics>,
    deadline: Duration,
) -> Arc<dyn VipuController> {
    Arc::new(InstrumentedController {
        controller,
        name: endpoint.name().clone(),
        metrics: Arc::clone(metrics),
        deadline,
    })
}

/// Controller whose calls are recorded under `name`.
struct InstrumentedController<C> {
    controller: C,
    name: ControllerName,
    metrics: Arc<Metrics>,
    deadline: Duration,
}

impl<C> InstrumentedController<C> {
    async fn time<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        // The timer also records calls that are dropped at their deadline, because those matter most.
        let mut timer = CallTimer {
            metrics: &self.metrics,
            controller: self.name.as_str(),
            operation,
            started: Instant::now(),
            deadline: self.deadline,
            outcome: None,
        };
        let result = call.await;
        timer.outcome = Some(match &result {
            Ok(_) => "ok",
            Err(error) if error.is_unhealthy() => "failed",
            Err(_) => "refused",
        });
        result
    }
}

struct CallTimer<'a> {
    metrics: &'a Metrics,
    controller: &'a str,
    operation: &'a str,
    started: Instant,
    deadline: Duration,
    /// None while the call has not ended.
    outcome: Option<&'static str>,
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        let duration = self.started.elapsed();
        let is_late = duration + TIMER_DIFFERENCE >= self.deadline;
        let outcome = self
            .outcome
            .unwrap_or(if is_late { "abandoned" } else { "cancelled" });
        self.metrics
            .record_call(self.controller, self.operation, outcome, duration);
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

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_call_that_is_dropped_at_its_deadline_is_a_failure() {
        let metrics = Arc::new(Metrics::default());
        let controller = InstrumentedController {
            controller: (),
            name: "pod:8090".parse().unwrap(),
            metrics: Arc::clone(&metrics),
            deadline: Duration::from_secs(10),
        };
        for waited in [2, 10] {
            let call = controller.time("status", std::future::pending::<Result<(), VipuError>>());
            let result = tokio::time::timeout(Duration::from_secs(waited), call).await;
            assert!(result.is_err(), "{result:?}");
        }
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        for outcome in ["cancelled", "abandoned"] {
            let labels = format!("controller=\"pod:8090\",operation=\"status\",outcome=\"{outcome}\"");
            let line = format!("vipu_proxy_controller_call_seconds_count{{{labels}}} 1\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
