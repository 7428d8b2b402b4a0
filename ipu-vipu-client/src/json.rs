//! The calls of V-IPU as proto3 canonical JSON over HTTP, without an HTTP client.

mod reply;
mod request;

use std::time::Instant;

use async_trait::async_trait;
use http::Method;
use ipu_core::hardware::Partition;
use ipu_core::{AgentId, AllocationId, PartitionId};
use serde::de::DeserializeOwned;

use crate::controller::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController};
use crate::error::VipuError;
use crate::status_code::{RpcMethod, Subject};
use crate::{request as message, wire};

/// A request without the address of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonRequest {
    /// `GET`, `POST` or `DELETE`. A `GET` changes nothing.
    pub method: Method,
    /// Path and query, percent-encoded, such as `/v1/partitions/p1/status`.
    pub path: String,
    /// The body, of the type `application/json`; none for requests without a body.
    pub body: Option<Vec<u8>>,
}

/// A reply of a controller, or of something on the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonReply {
    /// The HTTP status, such as 200.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Transfers one request and its reply: all that a transport of your own needs. [`JsonController`] makes a
/// [`VipuController`] of it.
#[async_trait]
pub trait JsonTransport: Send + Sync {
    /// Returns the address of the controller for errors, such as `pod001:8090`.
    fn endpoint(&self) -> &str;

    /// Sends `request` once, and returns the reply, whatever its status. Sends nothing after
    /// [`send_deadline`](crate::send_deadline). It may be cancelled at any point.
    ///
    /// # Errors
    ///
    /// [`VipuError::NotSent`] if nothing was sent; [`VipuError::Timeout`] or [`VipuError::Unreachable`] if
    /// there is no complete reply: the controller may have executed the request.
    async fn exchange(&self, request: JsonRequest) -> Result<JsonReply, VipuError>;
}

/// A controller behind a [`JsonTransport`].
#[derive(Clone, Debug)]
pub struct JsonController<T>(T);

impl<T: JsonTransport> JsonController<T> {
    /// Creates the controller. Nothing is sent yet.
    pub const fn new(transport: T) -> Self {
        Self(transport)
    }

    /// Sends `request` and decodes the reply as `R`.
    async fn call<R: DeserializeOwned>(
        &self,
        subject: Subject<'_>,
        request: JsonRequest,
    ) -> Result<R, VipuError> {
        let begun = Instant::now();
        let answer = self.0.exchange(request).await?;
        let call = RpcMethod {
            endpoint: self.0.endpoint(),
            subject,
            deadline: begun.elapsed(),
        };
        reply::parse(answer.status, &answer.body, &call)
    }
}

#[async_trait]
impl<T: JsonTransport> VipuController for JsonController<T> {
    async fn version(&self) -> Result<String, VipuError> {
        self.call(Subject::None, request::version())
            .await
            .and_then(crate::reply::version)
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.call(Subject::None, request::list(&message::list(allocation.as_ref())))
            .await
            .and_then(crate::reply::partitions)
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let call = request::create(&message::create(&request))?;
        let reply = self.call(Subject::New(&request.id), call).await?;
        crate::reply::created(reply, &request.id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        let call = request::status(&message::status(id))?;
        let reply = self.call(Subject::Existing(id), call).await?;
        crate::reply::status(reply, id)
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        let call = request::ipuof_config(&message::ipuof_config(id, gcd))?;
        let reply = self.call(Subject::Existing(id), call).await?;
        crate::reply::ipuof_config(reply)
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        let call = request::reset(&message::reset(id))?;
        let _: wire::ResetPartitionReply = self.call(Subject::Existing(id), call).await?;
        Ok(())
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        let call = request::remove(&message::remove(id, force))?;
        let _: wire::RemovePartitionReply = self.call(Subject::Existing(id), call).await?;
        Ok(())
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.call(Subject::None, request::attributes(&message::attributes(agents)))
            .await
            .and_then(crate::reply::attributes)
    }
}
