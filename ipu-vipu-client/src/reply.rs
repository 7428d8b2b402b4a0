//! Decodes replies of a controller into the types of [`ipu_core`]: pure. A reply that violates the API is a
//! [`VipuError::BadReply`] with the violation. No value is guessed, because a job may depend on it.

use std::collections::BTreeMap;
use std::fmt::Display;

use ipu_core::hardware::{IpuPlace, Partition, PartitionSpec};
use ipu_core::{AgentId, AllocationId, ClusterId, IpuCount, PartitionId, Timestamp};

use crate::controller::{AgentIpus, GcdConfig, IpuofConfig, IpuofDevice, PartitionStatus};
use crate::error::VipuError;
use crate::partition_state;
use crate::wire;

fn bad(detail: impl Into<String>) -> VipuError {
    VipuError::BadReply {
        detail: detail.into(),
    }
}

fn bad_field(subject: &str, reason: impl Display) -> VipuError {
    bad(format!("{subject}: {reason}"))
}

pub(crate) fn version(reply: wire::VersionReply) -> Result<String, VipuError> {
    if reply.version.is_empty() {
        return Err(bad("an empty version"));
    }
    Ok(reply.version)
}

/// Decodes a listing. One invalid partition makes the listing invalid: if it were omitted, its IPUs would
/// look free. Values that the documents do not exclude are accepted as far as possible, so that a foreign
/// partition never blocks all clients.
pub(crate) fn partitions(reply: wire::ListPartitionsReply) -> Result<Vec<Partition>, VipuError> {
    reply.partitions.into_iter().map(partition).collect()
}

fn partition(listed: wire::Partition) -> Result<Partition, VipuError> {
    let id = listed_id(listed.id)?;
    let subject = format!("listed partition {id}");
    let spec = listed
        .spec
        .ok_or_else(|| bad_field(&subject, "it has no specification"))?;
    let size = listed_size(spec.ipus.len()).ok_or_else(|| bad_field(&subject, "it has too many IPUs"))?;
    let gcds = spec.num_gcds.max(1);
    Ok(Partition {
        state: partition_state::collapse(listed.ready_state, 0, Vec::new())?,
        cluster: optional(spec.cluster_id, ClusterId::new).map_err(|error| bad_field(&subject, error))?,
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
                .map_err(|error| bad_field(&subject, error))?,
        },
        id,
    })
}

/// Returns the id, or a replacement for an id that this project cannot have created. Such a partition is
/// never addressed, but its IPUs count.
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
    id.map_err(|error| bad_field("a listed partition", error))
}

/// Returns the partition size for a number of IPUs, because a listing has no size field. Zero IPUs count as
/// one, and other numbers are rounded up to a power of two.
fn listed_size(ipus: usize) -> Option<IpuCount> {
    let ipus = u32::try_from(ipus.max(1)).ok()?;
    IpuCount::try_from(ipus.checked_next_power_of_two()?).ok()
}

/// proto3 has no absent strings: an empty string means absent.
fn optional<T, E>(text: String, parse: fn(String) -> Result<T, E>) -> Result<Option<T>, E> {
    if text.is_empty() {
        Ok(None)
    } else {
        parse(text).map(Some)
    }
}

/// Sorts in routing order. The routing id counts within the partition or within its link domain; this order
/// is correct for both.
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
    requested: &PartitionId,
) -> Result<PartitionId, VipuError> {
    check_id(&reply.partition_id, requested)?;
    Ok(requested.clone())
}

fn check_id(replied: &str, requested: &PartitionId) -> Result<(), VipuError> {
    if replied.is_empty() || replied == requested.as_str() {
        return Ok(());
    }
    Err(bad(format!(
        "it is about partition {replied:?}; the call was about {requested}"
    )))
}

pub(crate) fn status(
    reply: wire::GetPartitionStatusReply,
    requested: &PartitionId,
) -> Result<PartitionStatus, VipuError> {
    let status = reply
        .status
        .ok_or_else(|| bad("a status reply without a status"))?;
    check_id(&status.partition_id, requested)?;
    Ok(PartitionStatus {
        id: requested.clone(),
        state: partition_state::collapse(status.ready_state, status.operation_state, status.errors)?,
        max_auto_resets: status.max_auto_reset_retries,
        auto_resets: status.auto_reset_retry_count,
        last_auto_reset: status.last_auto_reset_time.and_then(timestamp),
    })
}

/// Converts a timestamp. A time before 1970 is "never" of a Go server (its zero time is the year 1).
fn timestamp(time: prost_types::Timestamp) -> Option<Timestamp> {
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
                agent: AgentId::new(entry.agent).map_err(|error| bad_field("a listed agent", error))?,
                ipus: ipus
                    .map(|(ipu, facts)| (ipu, facts.attributes))
                    .collect::<BTreeMap<_, _>>(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
