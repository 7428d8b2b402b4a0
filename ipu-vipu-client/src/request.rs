//! Encodes requests as wire messages: pure, so that every request is tested without a server.

use std::collections::BTreeMap;

use ipu_core::hardware::IpuPlace;
use ipu_core::{AgentId, AllocationId, IpuCount, PartitionId};

use crate::controller::CreatePartition;
use crate::wire;

pub(crate) fn list(allocation: Option<&AllocationId>) -> wire::ListPartitionsRequest {
    wire::ListPartitionsRequest {
        allocation_id: allocation.map(ToString::to_string).unwrap_or_default(),
    }
}

pub(crate) fn create(request: &CreatePartition) -> wire::CreatePartitionRequest {
    let spec = &request.spec;
    let ipus = ipus(&request.ipus);
    // Routing and sync types stay undefined: the controller derives them from size and topology (API
    // comment).
    let requirements = wire::PartitionRequirements {
        id: request.id.to_string(),
        size: spec.size.get(),
        num_ipulink_segments: segments(spec.size, &ipus),
        num_gcds: spec.gcds,
        reconfigurable: spec.reconfigurable,
        num_replicas: spec.replicas,
        allocation_id: spec
            .allocation
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        ipus,
        ..wire::PartitionRequirements::default()
    };
    wire::CreatePartitionRequest {
        requirements: Some(requirements),
        disable_auto_reset: false,
        relocatable: false,
    }
}

/// Returns the number of segments of the partition, each in one link domain.
fn segments(size: IpuCount, ipus: &[wire::PartitionIpu]) -> u32 {
    let explicit = ipus.iter().map(|ipu| ipu.ipulink_domain_routing_id + 1).max();
    explicit.unwrap_or_else(|| size.get().div_ceil(IpuCount::LINK_DOMAIN.get()))
}

/// Returns the IPUs in routing order. Link domains are numbered within the partition in the order of their
/// first occurrence.
fn ipus(places: &[IpuPlace]) -> Vec<wire::PartitionIpu> {
    let mut domains = BTreeMap::new();
    (0_u32..)
        .zip(places)
        .map(|(routing_id, place)| {
            let next = u32::try_from(domains.len()).unwrap_or(u32::MAX);
            wire::PartitionIpu {
                ipulink_domain_topology_id: place.link_domain,
                ipulink_domain_routing_id: *domains.entry(place.link_domain).or_insert(next),
                topology_id: place.ipu,
                routing_id,
            }
        })
        .collect()
}

pub(crate) fn status(id: &PartitionId) -> wire::GetPartitionStatusRequest {
    wire::GetPartitionStatusRequest {
        partition_id: id.to_string(),
    }
}

pub(crate) fn ipuof_config(id: &PartitionId, gcd: Option<u32>) -> wire::GetPartitionIpuofConfigRequest {
    wire::GetPartitionIpuofConfigRequest {
        partition_id: id.to_string(),
        gcd_id: gcd.map(|id| wire::GcdId { id }),
    }
}

pub(crate) fn reset(id: &PartitionId) -> wire::ResetPartitionRequest {
    wire::ResetPartitionRequest {
        partition_id: id.to_string(),
        relocatable: false,
    }
}

pub(crate) fn remove(id: &PartitionId, force: bool) -> wire::RemovePartitionRequest {
    wire::RemovePartitionRequest {
        partition_id: id.to_string(),
        force,
    }
}

pub(crate) fn attributes(agents: &[AgentId]) -> wire::ListIpuAttributesRequest {
    wire::ListIpuAttributesRequest {
        agents: agents.iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use ipu_core::hardware::PartitionSpec;

    use super::*;

    fn id() -> PartitionId {
        PartitionId::new("p1").unwrap()
    }

    fn requirements_of(size: u32, places: &[(u32, u32)]) -> wire::PartitionRequirements {
        let request = CreatePartition {
            id: id(),
            spec: PartitionSpec::of_size(IpuCount::try_from(size).unwrap()),
            ipus: places
                .iter()
                .map(|&(link_domain, ipu)| IpuPlace { link_domain, ipu })
                .collect(),
        };
        create(&request).requirements.unwrap()
    }

    #[test]
    fn a_plain_request_leaves_all_other_fields_to_the_controller() {
        let expected = wire::PartitionRequirements {
            id: "p1".into(),
            size: 4,
            num_ipulink_segments: 1,
            num_gcds: 1,
            num_replicas: 1,
            ..wire::PartitionRequirements::default()
        };
        assert_eq!(requirements_of(4, &[]), expected);
    }

    #[test]
    fn every_field_of_a_spec_reaches_the_wire() {
        let request = CreatePartition {
            id: id(),
            spec: PartitionSpec {
                size: IpuCount::try_from(16).unwrap(),
                gcds: 4,
                replicas: 8,
                reconfigurable: true,
                allocation: Some(AllocationId::new("cl1").unwrap()),
            },
            ipus: Vec::new(),
        };
        let message = create(&request);
        assert!(!message.disable_auto_reset && !message.relocatable);
        let expected = wire::PartitionRequirements {
            id: "p1".into(),
            size: 16,
            num_ipulink_segments: 1,
            num_gcds: 4,
            reconfigurable: true,
            num_replicas: 8,
            allocation_id: "cl1".into(),
            ..wire::PartitionRequirements::default()
        };
        assert_eq!(message.requirements.unwrap(), expected);
    }

    #[test]
    fn partitions_beyond_a_link_domain_use_whole_link_domains() {
        for (size, segments) in [(1, 1), (64, 1), (128, 2), (256, 4), (65_536, 1024)] {
            assert_eq!(
                requirements_of(size, &[]).num_ipulink_segments,
                segments,
                "{size}"
            );
        }
    }

    #[test]
    fn explicit_ipus_are_numbered_in_the_order_given() {
        let message = requirements_of(4, &[(3, 5), (3, 4), (1, 0), (3, 6)]);
        let ipu = |ipulink_domain_topology_id, ipulink_domain_routing_id, topology_id, routing_id| {
            wire::PartitionIpu {
                ipulink_domain_topology_id,
                ipulink_domain_routing_id,
                topology_id,
                routing_id,
            }
        };
        assert_eq!(
            message.ipus,
            [ipu(3, 0, 5, 0), ipu(3, 0, 4, 1), ipu(1, 1, 0, 2), ipu(3, 0, 6, 3)]
        );
        assert_eq!(message.num_ipulink_segments, 2);
    }
}
