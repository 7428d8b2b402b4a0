//! GetPartitionIpuofConfig: the devices that Poplar reaches over the network.
//!
//! Documented: reconfigurable partitions expose 2N-1 devices (singles, aligned pairs, quads, …), the order
//! of IPUs in a machine is reversed, one attribute is called `GCD Id`. Assumed: a partition that is not
//! reconfigurable exposes its singles and one device of the whole GCD; numbers start at 0 in each GCD;
//! ports and addresses.

use std::collections::BTreeMap;

use ipu_core::hardware::IpuAddress;
use ipu_vipu_client::wire::{Gcd, IpuofDevice, PartitionConfig};

use super::queries::IPUOF_SERVER_VERSION;
use super::{SimPartition, SimState};
use crate::error::SimError;
use crate::hardware::hardware_id;

/// TCP port of the IPUoF server of each simulated machine (an assumption).
const SERVER_PORT: u32 = 50_020;
/// RDMA port of the IPUoF server of each simulated machine (an assumption).
const RDMA_PORT: u32 = 50_021;
/// Number of the Mk2 architecture.
const ARCHITECTURE: u32 = 2;
/// Gateway and machine software versions that the simulated machines report.
const SOFTWARE_VERSION: &str = "2.6.0-sim";

impl SimState {
    /// Returns the IPUoF configuration of one GCD, or of all GCDs in order.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` if the partition has no such GCD.
    pub(crate) fn ipuof_config(&self, id: &str, gcd: Option<u32>) -> Result<PartitionConfig, SimError> {
        let partition = self.partition(id)?;
        let spec = &partition.spec;
        if let Some(gcd) = gcd.filter(|gcd| *gcd >= spec.num_gcds) {
            let rule = format!("partition {id} has the GCDs 0 to {}", spec.num_gcds - 1);
            return Err(SimError::invalid("gcd_id", gcd, rule));
        }
        let gcds = gcd.map_or(0..spec.num_gcds, |gcd| gcd..gcd + 1);
        Ok(PartitionConfig {
            ipulink_routing_type: spec.ipulink_routing_type,
            sync_type: spec.sync_type,
            reconfigurable: spec.reconfigurable,
            gw_routing_type: spec.gw_routing_type,
            num_ipulink_segments: spec.num_ipulink_segments,
            gcd_configs: gcds.map(|gcd| self.gcd(partition, gcd)).collect(),
            ipuof_server_version: IPUOF_SERVER_VERSION.to_owned(),
        })
    }

    fn gcd(&self, partition: &SimPartition, gcd: u32) -> Gcd {
        let ipu_addresses = self.ipu_addresses(&partition.spec);
        let size = ipu_addresses.len() / partition.spec.num_gcds.max(1) as usize;
        let first = size * gcd as usize;
        let singles: Vec<IpuofDevice> = partition.spec.ipus[first..]
            .iter()
            .zip(&ipu_addresses[first..])
            .take(size)
            .map(|(ipu, address)| Self::device(*address, ipu.routing_id, ipu.ipulink_domain_routing_id))
            .collect();
        let group_sizes: Vec<usize> = if partition.spec.reconfigurable {
            std::iter::successors(Some(1), |group| Some(group * 2))
                .take_while(|group| *group <= size)
                .collect()
        } else if size > 1 {
            vec![1, size]
        } else {
            vec![1]
        };
        // A device of several IPUs is addressed through its first IPU.
        let groups = group_sizes.iter().flat_map(|group| singles.chunks(*group));
        let devices = groups.zip(0..).filter_map(|(group, device_id)| {
            group.first().map(|device| IpuofDevice {
                device_id,
                ..device.clone()
            })
        });
        let reconfigurable = u32::from(partition.spec.reconfigurable).to_string();
        let attributes = [
            ("GCD Id", gcd.to_string()),
            ("Fabric Reconfigurable", reconfigurable),
        ];
        Gcd {
            devices: devices.collect(),
            attributes: attributes
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<BTreeMap<_, _>>(),
        }
    }

    fn device(address: IpuAddress, routing_id: u32, segment: u32) -> IpuofDevice {
        IpuofDevice {
            ip: machine_ip(address),
            server_port: SERVER_PORT,
            rdma_port: RDMA_PORT,
            device_id: 0,
            ipulink_segment_id: segment,
            routing_id,
            ipu_arch_id: ARCHITECTURE,
            ipu_id: hardware_id(address),
            chip_id: format!("sim-{}-{}", address.link_domain, address.ipu),
            gwsw_version: SOFTWARE_VERSION.to_owned(),
            ipum_sw_version: SOFTWARE_VERSION.to_owned(),
        }
    }
}

/// Returns the address of a machine's IPUoF server: 10.<link domain, two bytes>.<machine from 1>.
fn machine_ip(address: IpuAddress) -> String {
    format!(
        "10.{}.{}.{}",
        address.link_domain >> 8 & 0xff,
        address.link_domain & 0xff,
        address.ipu / 4 + 1
    )
}
