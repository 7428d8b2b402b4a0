//! Calls to controllers: each becomes one reply.

use std::time::Duration;

use ipu_core::allocator::{Call, CallKind, Reply};
use ipu_core::hardware::{Partition, PartitionState};
use ipu_core::{BootTime, ControllerName, PartitionId};
use ipu_vipu_client::{ControllerPool, CreatePartition, VipuController, VipuError, send_before};
use tokio::time::Instant;

/// Makes `call`, which is sent before `latest` or not at all, and answered within `deadline`.
pub(crate) async fn run(pool: ControllerPool, call: Call, deadline: Duration, latest: BootTime) -> Reply {
    let Some(member) = pool.member(&call.controller) else {
        return Reply::NotSent;
    };
    if !member.health.is_available(Instant::now()) {
        return Reply::NotSent;
    }
    let target = CallTarget {
        pool: &pool,
        call: &call,
        controller: &*member.controller,
        deadline,
        latest,
    };
    match &call.kind {
        CallKind::Create { spec, ipus } => {
            let request = CreatePartition {
                id: call.id.clone(),
                spec: spec.clone(),
                ipus: ipus.clone(),
            };
            target.create(request).await
        }
        CallKind::Reset => target.reset().await,
        CallKind::Remove { force } => target.remove(*force).await,
        CallKind::Status { locate } => target.status(*locate).await,
    }
}

struct CallTarget<'a> {
    pool: &'a ControllerPool,
    call: &'a Call,
    controller: &'a dyn VipuController,
    deadline: Duration,
    latest: BootTime,
}

impl CallTarget<'_> {
    /// Makes one call like [`call_within`], unless it is too late to send it.
    async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        let call = send_before(self.latest, call);
        call_within(self.deadline, self.pool, &self.call.controller, call).await
    }

    fn id(&self) -> &PartitionId {
        &self.call.id
    }

    async fn create(&self, request: CreatePartition) -> Reply {
        let are_named = !request.ipus.is_empty();
        let error = match self.within(self.controller.create_partition(request)).await {
            Ok(_) => return Reply::Accepted,
            Err(VipuError::AlreadyExists { .. }) => return Reply::Exists(self.listed().await),
            Err(error) if error.may_have_executed() => return unanswered(self.call, &error),
            Err(error) => error,
        };
        // The call may have arrived twice, for example through a load balancer that retried: the second one
        // found its capacity taken by the first, whose reply is lost.
        match self.within(self.controller.partition_status(self.id())).await {
            Err(VipuError::NotFound { .. }) => {}
            Ok(_) => return Reply::Exists(self.listed().await),
            Err(error) => return unanswered(self.call, &error),
        }
        let message = match &error {
            VipuError::NoCapacity { detail } => detail.clone(),
            error if are_named => format!("it does not accept the IPUs that were chosen ({error})"),
            error => error.to_string(),
        };
        tracing::info!(id = %self.id(), controller = %self.call.controller, message, "the controller refuses");
        Reply::Refused { message }
    }

    async fn reset(&self) -> Reply {
        match self.within(self.controller.reset_partition(self.id())).await {
            Ok(()) => Reply::Accepted,
            Err(VipuError::NotFound { .. }) => Reply::Absent,
            // It is being created or reset already, so that no job can have used it since.
            Err(error @ VipuError::Refused { .. }) => {
                match self.within(self.controller.partition_status(self.id())).await {
                    Ok(status)
                        if matches!(status.state, PartitionState::Creating | PartitionState::Resetting) =>
                    {
                        Reply::Accepted
                    }
                    Err(VipuError::NotFound { .. }) => Reply::Absent,
                    _ => unanswered(self.call, &error),
                }
            }
            Err(error) => unanswered(self.call, &error),
        }
    }

    /// Removes the partition; if the controller refuses because of errors, with force where that is allowed.
    async fn remove(&self, force: bool) -> Reply {
        let needs_force = |error: &VipuError| matches!(error, VipuError::Refused { .. });
        let mut result = self
            .within(self.controller.remove_partition(self.id(), false))
            .await;
        if force && result.as_ref().is_err_and(needs_force) {
            result = self
                .within(self.controller.remove_partition(self.id(), true))
                .await;
        }
        match result {
            Ok(()) => Reply::Accepted,
            Err(VipuError::NotFound { .. }) => Reply::Absent,
            Err(error) if !force && needs_force(&error) => {
                let message = error.to_string();
                tracing::warn!(id = %self.id(), message, "the controller refuses to remove a partition without force");
                Reply::NeedsForce { message }
            }
            Err(error) => unanswered(self.call, &error),
        }
    }

    async fn status(&self, locate: bool) -> Reply {
        match self.within(self.controller.partition_status(self.id())).await {
            Ok(status) => {
                let is_wanted = locate && status.state == PartitionState::Active;
                let listed = if is_wanted { self.listed().await } else { None };
                Reply::Status {
                    state: status.state,
                    listed,
                }
            }
            Err(VipuError::NotFound { .. }) => Reply::Absent,
            Err(_) => Reply::Lost,
        }
    }

    async fn listed(&self) -> Option<Partition> {
        let listed = self.within(self.controller.list_partitions(None)).await.ok()?;
        listed.into_iter().find(|partition| partition.id == *self.id())
    }
}

fn unanswered(call: &Call, error: &VipuError) -> Reply {
    tracing::debug!(id = %call.id, controller = %call.controller, %error, "a call was not answered");
    if error.may_have_executed() {
        Reply::Lost
    } else {
        Reply::NotSent
    }
}

/// Makes a call to the controller `name`, answered within `deadline`, and records its result in the health of
/// the controller.
pub(crate) async fn call_within<T>(
    deadline: Duration,
    pool: &ControllerPool,
    name: &ControllerName,
    call: impl Future<Output = Result<T, VipuError>> + Send,
) -> Result<T, VipuError> {
    let late = VipuError::Timeout {
        endpoint: name.to_string(),
        waited: deadline,
    };
    let result = tokio::time::timeout(deadline, call).await.unwrap_or(Err(late));
    record(pool, name, &result);
    result
}

/// Records the result of a call in the health of its controller, and logs when the controller is lost and
/// when it is back.
fn record<T>(pool: &ControllerPool, name: &ControllerName, result: &Result<T, VipuError>) {
    let is_lost = || pool.member(name).is_some_and(|member| member.health.is_open());
    let before = is_lost();
    pool.record(name, result);
    match (before, is_lost(), result) {
        (false, true, Err(error)) => tracing::warn!(controller = %name, %error, "the controller is lost"),
        (true, false, _) => tracing::warn!(controller = %name, "the controller is back"),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
