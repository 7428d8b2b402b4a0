//! What a controller answers, in the words of [`ipu_core`]: pure. An answer that breaks the interface's promise is a
//! [`VipuError::BadReply`] that says which; nothing is guessed, because what is guessed may be handed to a job.

use std::collections::BTreeMap;
use std::fmt::Display;

use ipu_core::{
    AgentId, AllocationId, ClusterId, IpuCount, IpuPlace, Partition, PartitionId, PartitionSpec, Timestamp,
};

use crate::controller::{AgentIpus, GcdConfig, IpuofConfig, IpuofDevice, PartitionStatus};
use crate::error::VipuError;
use crate::partition_state;
use crate::wire;

fn bad(detail: impl Into<String>) -> VipuError {
    VipuError::BadReply {
        detail: detail.into(),
    }
}

fn broken(what: &str, why: impl Display) -> VipuError {
    bad(format!("{what}: {why}"))
}

pub(crate) fn version(reply: wire::VersionReply) -> Result<String, VipuError> {
    if reply.version.is_empty() {
        return Err(bad("an empty version"));
    }
    Ok(reply.version)
}

/// One partition that cannot be understood spoils the listing: left out, its IPUs would look free. What the documents do
/// not rule out is understood as well as it can be, so that a stranger's partition never stops everybody.
pub(crate) fn partitions(reply: wire::ListPartitionsReply) -> Result<Vec<Partition>, VipuError> {
    reply.partitions.into_iter().map(partition).collect()
}

fn partition(listed: wire::Partition) -> Result<Partition, VipuError> {
    let id = listed_id(listed.id)?;
    let what = format!("listed partition {id}");
    let spec = listed
        .spec
        .ok_or_else(|| broken(&what, "it has no specification"))?;
    let size = listed_size(spec.ipus.len()).ok_or_else(|| broken(&what, "it has too many IPUs"))?;
    let gcds = spec.num_gcds.max(1);
    Ok(Partition {
        state: partition_state::collapse(listed.ready_state, 0, Vec::new())?,
        cluster: optional(spec.cluster_id, ClusterId::new).map_err(|error| broken(&what, error))?,
        ipus: places(spec.ipus),
        spec: PartitionSpec {
            size,
            gcds,
            replicas: if spec.num_replicas == 0 {
                gcds
            } else {
                spec.num_replicas
            },
            reconfigurable: spec.reconfigurable,
            allocation: optional(spec.allocation_id, AllocationId::new)
                .map_err(|error| broken(&what, error))?,
        },
        id,
    })
}

/// The id, or a name for one that cannot be ours: nothing is ever asked about such a partition, but its IPUs count.
fn listed_id(text: String) -> Result<PartitionId, VipuError> {
    let id = PartitionId::new(text).or_else(|error| {
        if error.value.is_empty() {
            return Err(error);
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let text: String = "foreign-"
            .chars()
            .chain(error.value.chars().map(plain))
            .take(PartitionId::MAX_LEN)
            .collect();
        PartitionId::new(text)
    });
    id.map_err(|error| broken("a listed partition", error))
}

/// The size of a partition with so many IPUs: a listing has no size of its own. One that shows none yet counts as one
/// IPU, a number that is no power of two as the next one.
fn listed_size(ipus: usize) -> Option<IpuCount> {
    let ipus = u32::try_from(ipus.max(1)).ok()?;
    IpuCount::try_from(ipus.checked_next_power_of_two()?).ok()
}

/// proto3 has no absent strings: an empty one was not given.
fn optional<T, E>(text: String, parse: fn(String) -> Result<T, E>) -> Result<Option<T>, E> {
    if text.is_empty() {
        Ok(None)
    } else {
        parse(text).map(Some)
    }
}

/// In routing order: the routing id counts through the partition, or through the link domain of it; this order is right
/// for both readings.
fn places(mut ipus: Vec<wire::PartitionIpu>) -> Vec<IpuPlace> {
    ipus.sort_by_key(|ipu| (ipu.ipulink_domain_routing_id, ipu.routing_id));
    ipus.iter()
        .map(|ipu| IpuPlace {
            link_domain: ipu.ipulink_domain_topology_id,
            ipu: ipu.topology_id,
        })
        .collect()
}

pub(crate) fn created(
    reply: wire::CreatePartitionReply,
    asked: &PartitionId,
) -> Result<PartitionId, VipuError> {
    same(&reply.partition_id, asked)?;
    Ok(asked.clone())
}

fn same(answered: &str, asked: &PartitionId) -> Result<(), VipuError> {
    if answered.is_empty() || answered == asked.as_str() {
        return Ok(());
    }
    Err(bad(format!(
        "it is about partition {answered:?}; the call was about {asked}"
    )))
}

pub(crate) fn status(
    reply: wire::GetPartitionStatusReply,
    asked: &PartitionId,
) -> Result<PartitionStatus, VipuError> {
    let status = reply
        .status
        .ok_or_else(|| bad("a status reply without a status"))?;
    same(&status.partition_id, asked)?;
    Ok(PartitionStatus {
        id: asked.clone(),
        state: partition_state::collapse(status.ready_state, status.operation_state, status.errors)?,
        max_auto_resets: status.max_auto_reset_retries,
        auto_resets: status.auto_reset_retry_count,
        last_auto_reset: status.last_auto_reset_time.and_then(moment),
    })
}

/// A moment before 1970 is how a Go server writes "never" (its zero time is the year 1).
fn moment(time: ::pbjson_types::Timestamp) -> Option<Timestamp> {
    let seconds = u64::try_from(time.seconds).ok()?;
    let millis = u64::try_from(time.nanos).ok()? / 1_000_000;
    Some(Timestamp::from_millis(
        seconds.checked_mul(1000)?.checked_add(millis)?,
    ))
}

pub(crate) fn ipuof_config(reply: wire::GetPartitionIpuofConfigReply) -> Result<IpuofConfig, VipuError> {
    let config = reply
        .ipuof_config
        .ok_or_else(|| bad("an IPUoF configuration reply without one"))?;
    Ok(IpuofConfig {
        reconfigurable: config.reconfigurable,
        gcds: config.gcd_configs.into_iter().map(gcd).collect(),
        server_version: config.ipuof_server_version,
    })
}

fn gcd(gcd: wire::Gcd) -> GcdConfig {
    let mut devices: Vec<IpuofDevice> = gcd.devices.into_iter().map(device).collect();
    devices.sort_by_key(|device| device.device_id);
    GcdConfig {
        devices,
        attributes: gcd.attributes,
    }
}

fn device(device: wire::IpuofDevice) -> IpuofDevice {
    IpuofDevice {
        ip: device.ip,
        server_port: device.server_port,
        rdma_port: device.rdma_port,
        device_id: device.device_id,
        ipulink_segment_id: device.ipulink_segment_id,
        routing_id: device.routing_id,
        ipu_arch_id: device.ipu_arch_id,
        ipu_id: device.ipu_id,
        chip_id: device.chip_id,
        gwsw_version: device.gwsw_version,
        ipum_sw_version: device.ipum_sw_version,
    }
}

pub(crate) fn attributes(reply: wire::ListIpuAttributesReply) -> Result<Vec<AgentIpus>, VipuError> {
    reply
        .entries
        .into_iter()
        .map(|entry| {
            let ipus = entry.ipu_attributes.into_iter();
            Ok(AgentIpus {
                agent: AgentId::new(entry.agent).map_err(|error| broken("a listed agent", error))?,
                ipus: ipus
                    .map(|(ipu, facts)| (ipu, facts.attributes))
                    .collect::<BTreeMap<_, _>>(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
