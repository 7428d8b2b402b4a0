//! IPUoF configurations.

use ipu_core::PartitionId;
use ipu_core::allocator::Entry;
use ipu_core::render::{GcdConfig, IpuofConfig};
use serde::{Deserialize, Serialize};

/// Response of `GET /v1/partitions/{id}/ipuof-config`: the configuration files by which Poplar reaches the
/// devices of an active partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct IpuofConfigDocument {
    /// Partition id.
    pub id: PartitionId,
    /// Attempt for which the partition is fresh.
    pub attempt: u32,
    /// True if Poplar may select devices of any aligned size.
    pub reconfigurable: bool,
    /// Version of the IPUoF servers.
    pub server_version: String,
    /// Configuration file of each requested GCD, in the order of the GCDs.
    pub files: Vec<IpuofFileDocument>,
}

/// Configuration file of one graph compilation domain (GCD).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IpuofFileDocument {
    /// Number of the GCD, from 0.
    pub gcd: u32,
    /// Customary name of the file: `<partition>_ipuof.conf`, with `_gcd<N>` if there are several GCDs.
    pub name: String,
    /// Content of the file, which is JSON.
    pub config: GcdConfig,
}

impl IpuofConfigDocument {
    /// Creates the response for the partition of `entry`; `config` has the GCDs from `first` on.
    #[must_use]
    pub fn new(entry: &Entry, config: IpuofConfig, first: u32) -> Self {
        let files = (first..).zip(config.gcds).map(|(gcd, config)| IpuofFileDocument {
            gcd,
            name: GcdConfig::file_name(&entry.id, gcd, entry.spec.gcds),
            config,
        });
        Self {
            id: entry.id.clone(),
            attempt: entry.attempt,
            reconfigurable: config.reconfigurable,
            server_version: config.server_version,
            files: files.collect(),
        }
    }
}
