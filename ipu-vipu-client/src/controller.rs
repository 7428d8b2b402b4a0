//! The trait for access to a V-IPU controller, in the types of [`ipu_core`].

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::hardware::{IpuPlace, Partition, PartitionSpec, PartitionState};
use ipu_core::{AgentId, AllocationId, PartitionId, Timestamp};

pub use ipu_core::render::{GcdConfig, IpuofConfig, IpuofDevice};

use crate::error::VipuError;

/// A request to create a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatePartition {
    /// The id of the new partition.
    pub id: PartitionId,
    /// The specification of the new partition.
    pub spec: PartitionSpec,
    /// The IPUs, in routing order; if empty, the controller selects them.
    pub ipus: Vec<IpuPlace>,
}

/// The status of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStatus {
    /// The partition.
    pub id: PartitionId,
    /// The state, reduced to the possible operations.
    pub state: PartitionState,
    /// Maximum number of automatic resets of a failed partition by the controller.
    pub max_auto_resets: u32,
    /// Number of automatic resets so far.
    pub auto_resets: u32,
    /// The time of the last automatic reset.
    pub last_auto_reset: Option<Timestamp>,
}

/// The IPUs of one agent with the attributes that the controller reports, by hardware id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIpus {
    /// The agent.
    pub agent: AgentId,
    /// The attributes of each IPU, by its hardware id in the machine (0 to 3).
    pub ipus: BTreeMap<u32, BTreeMap<String, String>>,
}

/// A V-IPU controller with its user API.
///
/// Create, reset and remove only start the operation: poll [`partition_status`](Self::partition_status), or
/// let `ipu-allocator` do it.
///
/// # Errors
///
/// Every method returns a [`VipuError`]; its `retry()` shows whether a retry can help.
#[cfg_attr(feature = "mock", mockall::automock)]
#[async_trait]
pub trait VipuController: Send + Sync {
    /// Returns the controller's version.
    async fn version(&self) -> Result<String, VipuError>;

    /// Returns the partitions of one allocation, or all partitions that are visible to the user.
    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError>;

    /// Starts to create a partition. [`VipuError::AlreadyExists`] if the id is in use,
    /// [`VipuError::NoCapacity`] if the partition does not fit.
    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError>;

    /// Returns the status of a partition; [`VipuError::NotFound`] if it does not exist.
    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError>;

    /// Returns the IPUoF configuration of one GCD, or of all.
    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError>;

    /// Starts to reset a partition.
    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError>;

    /// Starts to remove a partition; with `force` even if errors occur.
    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError>;

    /// Returns the IPUs of the given agents, or of all agents if the list is empty.
    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError>;
}

/// Delegates to the shared controller.
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
