//! The one trait through which everything reaches a V-IPU controller, in the words of [`ipu_core`].

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::{
    AgentId, AllocationId, IpuPlace, Partition, PartitionId, PartitionSpec, PartitionState, Timestamp,
};

pub use ipu_core::{GcdConfig, IpuofConfig, IpuofDevice};

use crate::error::VipuError;

/// A partition to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatePartition {
    /// The id that it is to have.
    pub id: PartitionId,
    /// What it is to be made of.
    pub spec: PartitionSpec,
    /// Which IPUs, in routing order; empty leaves the choice to the controller.
    pub ipus: Vec<IpuPlace>,
}

/// The status of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStatus {
    /// Which partition.
    pub id: PartitionId,
    /// What one may do with it.
    pub state: PartitionState,
    /// How often the controller tries to repair a failed partition by itself.
    pub max_auto_resets: u32,
    /// How often it has tried.
    pub auto_resets: u32,
    /// When it last tried.
    pub last_auto_reset: Option<Timestamp>,
}

/// The IPUs of one agent with what the controller tells of each, by hardware id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIpus {
    /// Which agent.
    pub agent: AgentId,
    /// The attributes of each IPU, by its hardware id in the machine (0 to 3).
    pub ipus: BTreeMap<u32, BTreeMap<String, String>>,
}

/// A V-IPU controller, as its user API shows it.
///
/// Create, reset and remove only start the operation: poll [`partition_status`](Self::partition_status), or use
/// `wait_active` and `ensure_absent`.
///
/// # Errors
///
/// Every method answers a [`VipuError`]; its `retry()` says whether trying again can help.
#[cfg_attr(feature = "mock", mockall::automock)]
#[async_trait]
pub trait VipuController: Send + Sync {
    /// The controller's version.
    async fn version(&self) -> Result<String, VipuError>;

    /// The partitions of one allocation, or of all that the user may see.
    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError>;

    /// Starts to make a partition. [`VipuError::AlreadyExists`] if the id is taken, [`VipuError::NoCapacity`] if it
    /// does not fit.
    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError>;

    /// How a partition is; [`VipuError::NotFound`] if it is gone or never was.
    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError>;

    /// The IPUoF configuration of one GCD, or of all.
    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError>;

    /// Starts to reset a partition.
    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError>;

    /// Starts to remove a partition; with `force` in spite of errors.
    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError>;

    /// The IPUs of the given agents, or of all if none is given.
    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError>;
}

/// A shared controller is a controller.
#[async_trait]
impl<C: VipuController + ?Sized> VipuController for Arc<C> {
    async fn version(&self) -> Result<String, VipuError> {
        (**self).version().await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        (**self).list_partitions(allocation).await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        (**self).create_partition(request).await
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        (**self).partition_status(id).await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        (**self).ipuof_config(id, gcd).await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        (**self).reset_partition(id).await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        (**self).remove_partition(id, force).await
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        (**self).ipu_attributes(agents).await
    }
}
