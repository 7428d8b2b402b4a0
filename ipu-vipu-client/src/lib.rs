//! Client of the Graphcore V-IPU controller's user API.

mod controller;
mod error;
pub mod wire;

#[cfg(feature = "mock")]
pub use controller::MockVipuController;
pub use controller::{
    AgentIpus, CreatePartition, GcdConfig, IpuofConfig, IpuofDevice, PartitionStatus, VipuController,
};
pub use error::{Retry, VipuError};
