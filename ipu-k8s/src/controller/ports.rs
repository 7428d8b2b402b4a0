//! What the operator needs of the world, as two traits: the API server, and the proxy. The real ones are in this crate; a
//! simulator has its own.

use async_trait::async_trait;
use ipu_core::{PartitionId, Timestamp};
use ipu_proxy_client::{
    ClientError, DeletePartition, OnNoCapacity, PartitionDocument, ProxyClient, PutPartition, ResetPartition,
};
use serde_json::Value;
use std::time::Duration;

/// How long a request for a partition waits for it: controllers that are quick spare the job one status.
const QUICK: Duration = Duration::from_millis(250);

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// Somebody else was first, or what was changed has changed meanwhile: look again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// What was to be changed is not there.
    #[error("not found: {0}")]
    NotFound(String),
    /// It is refused, and will be until something else changes.
    #[error("{message}")]
    Refused {
        /// A stable code.
        code: String,
        /// Why.
        message: String,
    },
    /// It did not get there, or was turned away before anything was done: once more, later.
    #[error("{0}")]
    NotDone(String),
    /// There was no answer, or none that tells: it may have been done.
    #[error("{0}")]
    Unavailable(String),
}

/// Something that happened to a job, for its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// Whether it is a warning.
    pub severity: Severity,
    /// A stable code in UpperCamelCase.
    pub reason: String,
    /// One sentence.
    pub note: String,
    /// When it happened: it may be told later.
    pub at: Timestamp,
}

/// How serious an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As it should be.
    Normal,
    /// Somebody may want to do something.
    Warning,
}

/// The API server.
#[async_trait]
pub trait ApiServer: Send + Sync {
    /// The Kubernetes Pod of this name, from the API server itself; none if there is none.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, PortError>;
    /// Creates a Kubernetes Pod; the object as it is now. [`PortError::Conflict`] if there is one of its name.
    async fn create_pod(&self, pod: &Value) -> Result<Value, PortError>;
    /// Deletes the Kubernetes Pod of this name and uid, giving it its time to end; [`PortError::NotFound`] if it is gone.
    async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), PortError>;
    /// When the last line of the log of a Kubernetes Pod, or of its container of this name, was written, since the Unix epoch,
    /// to the nanosecond; none if there is no line. What does not know answers none.
    async fn last_log_time(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
    ) -> Result<Option<Duration>, PortError> {
        let _ = (namespace, name, container);
        Ok(None)
    }
    /// The last lines of the log of a Kubernetes Pod, or of its container of this name: enough to read what a program says at
    /// last, at most 1 MiB; none if there is no line. What does not know answers none.
    async fn last_lines(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
    ) -> Result<Option<String>, PortError> {
        let _ = (namespace, name, container);
        Ok(None)
    }
    /// Creates any other object, or makes it what this one says.
    async fn apply(&self, object: &Value) -> Result<(), PortError>;
    /// Empties the rules of the Role of this name, if the job of this uid is its owner. Nothing if there is no such Role.
    async fn revoke(&self, namespace: &str, role: &str, uid: &str) -> Result<(), PortError>;
    /// Patches metadata and spec of a job by a merge patch; the job as it is now. [`PortError::Conflict`] if the patch names a
    /// `resourceVersion` that is not the newest.
    async fn patch_job(&self, namespace: &str, name: &str, patch: &Value) -> Result<Value, PortError>;
    /// Deletes `job`, of which the metadata alone are read, as its owner would. [`PortError::Conflict`] if there is a newer version than
    /// `job`. What does not know how keeps it.
    async fn delete_job(&self, job: &Value) -> Result<(), PortError> {
        let _ = job;
        Ok(())
    }
    /// Makes `status` the whole status of `job`; the job as it is now. [`PortError::Conflict`] if there is a newer version than
    /// `job`.
    async fn write_status(&self, job: &Value, status: &Value) -> Result<Value, PortError>;
    /// Tells the users of `job`, of which the metadata alone are read.
    async fn publish(&self, job: &Value, event: &JobEvent) -> Result<(), PortError>;
}

/// The proxy, or whoever keeps the ledger.
#[async_trait]
pub trait Partitions: Send + Sync {
    /// The partition, if the ledger has it.
    async fn get_partition(&self, id: &PartitionId) -> Result<Option<PartitionDocument>, PortError>;
    /// Asks for a partition: makes it, resets it for a newer attempt, or puts the request into the line.
    async fn ensure(&self, id: &PartitionId, wanted: &PutPartition) -> Result<PartitionDocument, PortError>;
    /// Has it reset.
    async fn reset(&self, id: &PartitionId, how: &ResetPartition) -> Result<PartitionDocument, PortError>;
    /// Gives it back, durably; nothing if it is not there or another's.
    async fn release(&self, id: &PartitionId, how: &DeletePartition) -> Result<(), PortError>;
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
        self.put(id, wanted, OnNoCapacity::Join(QUICK))
            .await
            .map_err(|error| port_error(&error))
    }

    async fn reset(&self, id: &PartitionId, how: &ResetPartition) -> Result<PartitionDocument, PortError> {
        Self::reset(self, id, how)
            .await
            .map_err(|error| port_error(&error))
    }

    async fn release(&self, id: &PartitionId, how: &DeletePartition) -> Result<(), PortError> {
        match self.delete(id, how).await {
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
