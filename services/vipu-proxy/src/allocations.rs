//! The `/v1/allocations/{id}/partitions` endpoint: partitions that others made in an allocation.

use std::time::Duration;

use http::StatusCode;
use ipu_core::hardware::Partition;
use ipu_core::{AllocationId, ControllerName, ErrorChain};
use ipu_proxy_client::{AllocationPartitions, UnrecordedPartition};
use ipu_vipu_client::{Member, VipuError};
use tokio::time::Instant;

use crate::app::App;
use crate::partition_api::parse_name;
use crate::problem::Problem;

/// Timeout of a call of the controller.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a request to an unavailable controller is repeated, in seconds.
const RETRY_AFTER_SECS: u32 = 5;

/// Handles `GET /v1/allocations/{id}/partitions`.
pub(crate) async fn list(
    app: &App,
    id: &str,
    controller: Option<String>,
) -> Result<AllocationPartitions, Problem> {
    let allocation = Allocation::find(app, id, controller)?;
    let partitions = allocation.unrecorded(app).await?;
    Ok(allocation.document(&partitions))
}

/// Handles `DELETE /v1/allocations/{id}/partitions`: removes them with force.
pub(crate) async fn remove(
    app: &App,
    id: &str,
    controller: Option<String>,
) -> Result<AllocationPartitions, Problem> {
    let allocation = Allocation::find(app, id, controller)?;
    let partitions = allocation.unrecorded(app).await?;
    let until = Instant::now() + CALL_TIMEOUT;
    let removals = partitions.iter().map(|partition| {
        app.allocator
            .remove_foreign(partition.clone(), allocation.name.clone(), until)
    });
    futures::future::try_join_all(removals).await?;
    Ok(allocation.document(&partitions))
}

/// An allocation at its controller.
struct Allocation {
    id: AllocationId,
    name: ControllerName,
    member: Member,
}

impl Allocation {
    fn find(app: &App, id: &str, controller: Option<String>) -> Result<Self, Problem> {
        let text = crate::query::decode(id);
        let id = AllocationId::requested(&*text)
            .map_err(|error| Problem::invalid("id", text, error.rule, "use the id of an allocation"))?;
        let fix = "set controller to one of GET /v1/controllers";
        let Some(controller) = controller else {
            return Err(Problem::invalid("controller", "", "must be set", fix));
        };
        let name: ControllerName = parse_name("controller", controller)?;
        match app.allocator.pool().member(&name) {
            Some(member) => Ok(Self { id, name, member }),
            None => Err(Problem::invalid(
                "controller",
                name,
                "must be on the list of this proxy",
                fix,
            )),
        }
    }

    /// Returns the partitions that the ledger does not record. The ledger records a partition before it
    /// creates it, so none of its own is missed.
    async fn unrecorded(&self, app: &App) -> Result<Vec<Partition>, Problem> {
        let list = self.member.controller.list_partitions(Some(self.id.clone()));
        let listed = self.call(list).await.map_err(|error| self.problem(&error))?;
        let mut unrecorded = Vec::new();
        for partition in listed {
            if app.allocator.get(&partition.id).await?.is_none() {
                unrecorded.push(partition);
            }
        }
        Ok(unrecorded)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, VipuError>> + Send) -> Result<T, VipuError> {
        let late = VipuError::Timeout {
            endpoint: self.name.to_string(),
            waited: CALL_TIMEOUT,
        };
        tokio::time::timeout(CALL_TIMEOUT, call)
            .await
            .unwrap_or(Err(late))
    }

    fn problem(&self, error: &VipuError) -> Problem {
        let detail = format!("allocation {} at {}: {}", self.id, self.name, ErrorChain(error));
        match error {
            VipuError::Refused { .. } => {
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "ControllerRefused", detail)
                    .with_fix("use an allocation that the controller has")
            }
            _ => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ControllerUnavailable", detail)
                .with_retry_after(RETRY_AFTER_SECS),
        }
    }

    fn document(&self, partitions: &[Partition]) -> AllocationPartitions {
        let partitions = partitions
            .iter()
            .map(|partition| UnrecordedPartition::new(partition.id.clone(), partition.spec.size.get()));
        AllocationPartitions::new(self.name.clone(), self.id.clone(), partitions.collect())
    }
}
