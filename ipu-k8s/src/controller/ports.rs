//! The ports of the operator, as two traits: the API server and the proxy. This crate implements both; a
//! simulator has its own implementations.

use async_trait::async_trait;
use ipu_core::{PartitionId, Timestamp};
use ipu_proxy_client::{
    ClientError, DeletePartition, OnNoCapacity, PartitionDocument, ProxyClient, PutPartition, ResetPartition,
};
use serde_json::Value;
use std::time::Duration;

/// Time for which a request for a partition waits for it: a fast controller saves the job one status write.
const PARTITION_WAIT_TIMEOUT: Duration = Duration::from_millis(250);

/// Error of a request to the API server or the proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The object exists already or has changed meanwhile: observe it again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The object to change does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The request is refused until something else changes.
    #[error("{message}")]
    Refused {
        /// Stable code.
        code: String,
        /// Reason of the refusal.
        message: String,
    },
    /// The request did not reach the server, or the server rejected it before doing anything: retry later.
    #[error("{0}")]
    NotDone(String),
    /// The request has no conclusive response: it may have been executed.
    #[error("{0}")]
    Unavailable(String),
}

/// An event about a job, for its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// Normal or warning.
    pub severity: Severity,
    /// Stable reason in UpperCamelCase.
    pub reason: String,
    /// One sentence.
    pub note: String,
    /// Time of the event, which may be published later.
    pub at: Timestamp,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The event is expected.
    Normal,
    /// The event may need an action by the user.
    Warning,
}

/// The API server.
#[async_trait]
pub trait ApiServer: Send + Sync {
    /// Returns the pod of this name from the API server, bypassing any cache, or `None` if it does not exist.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, PortError>;
    /// Creates a pod and returns the stored object. Fails with [`PortError::Conflict`] if the name exists.
    async fn create_pod(&self, pod: &Value) -> Result<Value, PortError>;
    /// Deletes the pod of this name and uid with its grace period. Fails with [`PortError::NotFound`] if it
    /// does not exist.
    async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), PortError>;
    /// Returns when the last line of the log of a pod, or of this container, was written: since the Unix
    /// epoch, with nanosecond precision. Returns `None` for an empty log; the default implementation returns
    /// `None`.
    async fn last_log_time(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
    ) -> Result<Option<Duration>, PortError> {
        let _ = (namespace, name, container);
        Ok(None)
    }
    /// Returns the last lines of the log of a pod, or of this container: enough for the final messages of a
    /// program, at most 1 MiB. Returns `None` for an empty log; the default implementation returns `None`.
    async fn last_lines(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
    ) -> Result<Option<String>, PortError> {
        let _ = (namespace, name, container);
        Ok(None)
    }
    /// Creates an object of another kind, or updates it to match this one.
    async fn apply(&self, object: &Value) -> Result<(), PortError>;
    /// Empties the rules of the Role of this name, if the job of this uid owns it. Does nothing if the Role
    /// does not exist.
    async fn revoke(&self, namespace: &str, role: &str, uid: &str) -> Result<(), PortError>;
    /// Patches metadata and spec of a job with a merge patch, and returns the stored job. Fails with
    /// [`PortError::Conflict`] if the patch contains a `resourceVersion` that is not the newest.
    async fn patch_job(&self, namespace: &str, name: &str, patch: &Value) -> Result<Value, PortError>;
    /// Deletes `job`, of which only the metadata are read, as its owner would. Fails with
    /// [`PortError::Conflict`] if there is a newer version. The default implementation keeps the job.
    async fn delete_job(&self, job: &Value) -> Result<(), PortError> {
        let _ = job;
        Ok(())
    }
    /// Replaces the status of `job` with `status`, and returns the stored job. Fails with
    /// [`PortError::Conflict`] if there is a newer version.
    async fn write_status(&self, job: &Value, status: &Value) -> Result<Value, PortError>;
    /// Publishes an Event about `job`, of which only the metadata are read.
    async fn publish(&self, job: &Value, event: &JobEvent) -> Result<(), PortError>;
}

/// The proxy, or another keeper of the ledger.
#[async_trait]
pub trait Partitions: Send + Sync {
    /// Returns the partition, or `None` if the ledger does not have it.
    async fn get_partition(&self, id: &PartitionId) -> Result<Option<PartitionDocument>, PortError>;
    /// Requests a partition: creates it, resets it for a newer attempt, or queues the request.
    async fn ensure(&self, id: &PartitionId, wanted: &PutPartition) -> Result<PartitionDocument, PortError>;
    /// Resets a partition.
    async fn reset(&self, id: &PartitionId, request: &ResetPartition)
    -> Result<PartitionDocument, PortError>;
    /// Releases a partition durably. Does nothing if it does not exist or has another owner.
    async fn release(&self, id: &PartitionId, request: &DeletePartition) -> Result<(), PortError>;
}

#[async_trait]
impl Partitions for ProxyClient {
    async fn get_partition(&self, id: &PartitionId) -> Result<Option<PartitionDocument>, PortError> {
        match self.partition(id).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.code() == Some("NotFound") => Ok(None),
            Err(error) => Err(port_error(&error)),
        }
    }

    async fn ensure(&self, id: &PartitionId, wanted: &PutPartition) -> Result<PartitionDocument, PortError> {
        self.put(id, wanted, OnNoCapacity::Queue(PARTITION_WAIT_TIMEOUT))
            .await
            .map_err(|error| port_error(&error))
    }

    async fn reset(
        &self,
        id: &PartitionId,
        request: &ResetPartition,
    ) -> Result<PartitionDocument, PortError> {
        Self::reset(self, id, request)
            .await
            .map_err(|error| port_error(&error))
    }

    async fn release(&self, id: &PartitionId, request: &DeletePartition) -> Result<(), PortError> {
        match self.delete(id, request).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code(), Some("NotFound" | "NotTheOwner")) => Ok(()),
            Err(error) => Err(port_error(&error)),
        }
    }
}

fn port_error(error: &ClientError) -> PortError {
    match error.problem() {
        Some(problem) if problem.status < 500 && problem.status != 429 => PortError::Refused {
            code: problem.code.clone(),
            message: problem.detail.clone(),
        },
        _ => PortError::Unavailable(error.to_string()),
    }
}
