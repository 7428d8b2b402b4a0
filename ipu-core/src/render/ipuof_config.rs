//! The IPUoF configuration of a partition: the devices of each GCD and the addresses of their servers.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::PartitionId;

/// The attribute by which PopTorch identifies the GCD of a file.
const GCD_ID: &str = "GCD Id";

/// The configuration by which Poplar's IPUoF client reaches the devices of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IpuofConfig {
    /// Set if Poplar may use devices of any aligned size.
    pub reconfigurable: bool,
    /// One entry for each requested graph compilation domain, in order.
    pub gcds: Vec<GcdConfig>,
    /// The version of the IPUoF servers.
    pub server_version: String,
}

/// The devices of one graph compilation domain, in the format of an IPUoF configuration file: an object of
/// `attributes` and `devices`.
///
/// The spelling of the devices' keys is an assumption: they are those of the V-IPU user API, and files of
/// real systems are not public. PopTorch reads the attribute `GCD Id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GcdConfig {
    /// Attributes such as `GCD Id`.
    pub attributes: BTreeMap<String, String>,
    /// The devices, in order of their id.
    pub devices: Vec<IpuofDevice>,
}

/// One device that Poplar can attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct IpuofDevice {
    /// The address of the IPU-Machine's IPUoF server.
    pub ip: String,
    /// The server's TCP port.
    pub server_port: u32,
    /// The server's RDMA port.
    pub rdma_port: u32,
    /// The device's number in the partition.
    pub device_id: u32,
    /// Its link domain in the partition.
    pub ipulink_segment_id: u32,
    /// The logical IPU.
    pub routing_id: u32,
    /// The architecture, as a number.
    pub ipu_arch_id: u32,
    /// The IPU in its IPU-Machine.
    pub ipu_id: u32,
    /// The silicon's id.
    pub chip_id: String,
    /// The gateway software's version.
    pub gwsw_version: String,
    /// The IPU-Machine software's version.
    pub ipum_sw_version: String,
}

impl GcdConfig {
    /// Returns the configuration with the attribute of GCD `gcd`.
    #[must_use]
    pub fn for_gcd(mut self, gcd: u32) -> Self {
        self.attributes.insert(GCD_ID.to_string(), gcd.to_string());
        self
    }

    /// Returns the name of the file for GCD `gcd` of a partition of `gcds`: `<partition>_ipuof.conf` for a
    /// single GCD, `<partition>_gcd<N>_ipuof.conf` for several.
    ///
    /// ```
    /// use ipu_core::PartitionId;
    /// use ipu_core::render::GcdConfig;
    ///
    /// let id = PartitionId::new("p-mnist-0")?;
    /// assert_eq!(GcdConfig::file_name(&id, 0, 1), "p-mnist-0_ipuof.conf");
    /// assert_eq!(GcdConfig::file_name(&id, 3, 4), "p-mnist-0_gcd3_ipuof.conf");
    /// # Ok::<(), ipu_core::NameError>(())
    /// ```
    #[must_use]
    pub fn file_name(partition: &PartitionId, gcd: u32, gcds: u32) -> String {
        if gcds > 1 {
            format!("{partition}_gcd{gcd}_ipuof.conf")
        } else {
            format!("{partition}_ipuof.conf")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_an_object_of_attributes_and_devices() {
        let gcd = GcdConfig {
            devices: [IpuofDevice::default()].into(),
            ..GcdConfig::default()
        };
        let value = serde_json::to_value(gcd.for_gcd(3)).unwrap();
        assert_eq!(value["attributes"]["GCD Id"], "3");
        assert_eq!(value["devices"][0]["routing_id"], 0);
    }

    #[test]
    fn a_file_is_named_after_its_partition_and_its_gcd_if_there_are_several() {
        let id = PartitionId::new("p-a-0").unwrap();
        assert_eq!(GcdConfig::file_name(&id, 0, 1), "p-a-0_ipuof.conf");
        assert_eq!(GcdConfig::file_name(&id, 1, 2), "p-a-0_gcd1_ipuof.conf");
    }
}
