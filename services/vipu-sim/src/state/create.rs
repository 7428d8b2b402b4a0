//! CreatePartition: validates the request and fills in the defaults.

use ipu_core::{IpuCount, PartitionId, Timestamp};
use ipu_vipu_client::wire::{
    CreatePartitionRequest, GatewayRoutingType, IpuLinkRoutingType, PartitionRequirements, PartitionSpec,
    SyncType,
};

use super::{AutoReset, Phase, SimPartition, SimState};
use crate::error::SimError;

impl SimState {
    /// Starts creating a partition: PENDING and CREATING until the delay has passed.
    ///
    /// # Errors
    ///
    /// `Invalid` if the request can never succeed, `AlreadyExists`, and `NoRoom` or `Taken` if it does not
    /// fit now.
    pub(crate) fn create(
        &mut self,
        request: &CreatePartitionRequest,
        now: Timestamp,
    ) -> Result<PartitionId, SimError> {
        self.advance(now);
        let none = PartitionRequirements::default();
        let requirements = request.requirements.as_ref().unwrap_or(&none);
        let id: PartitionId = requirements.id.parse().map_err(|error: ipu_core::NameError| {
            SimError::invalid("requirements.id", format!("{:?}", error.value), error.rule)
        })?;
        let size = IpuCount::try_from(requirements.size).map_err(|_| {
            SimError::invalid(
                "requirements.size",
                requirements.size,
                "must be a power of two, at least 1",
            )
        })?;
        let mut spec = complete_spec(requirements, size)?;
        if self.partitions.contains_key(&id) {
            return Err(SimError::AlreadyExists {
                kind: "partition",
                id: id.into(),
            });
        }
        let (allocation, ipus) = self.choose(requirements, size)?;
        spec.cluster_id = allocation.cluster.to_string();
        spec.allocation_id = allocation.id.to_string();
        spec.ipus = ipus;
        let partition = SimPartition {
            spec,
            phase: Phase::Creating {
                done_at: self.time_after(self.settings.create_ms),
            },
            auto_reset: if request.disable_auto_reset {
                AutoReset::Off
            } else {
                AutoReset::On
            },
            relocatable: request.relocatable,
            auto_resets: 0,
            last_auto_reset: None,
        };
        self.partitions.insert(id.clone(), partition);
        // A zero-time operation completes before the reply.
        self.advance(now);
        Ok(id)
    }
}

/// Returns the specification without placement: the request with defaults filled in.
fn complete_spec(requirements: &PartitionRequirements, size: IpuCount) -> Result<PartitionSpec, SimError> {
    let size = size.get();
    let gcds = if requirements.num_gcds == 0 {
        1
    } else {
        requirements.num_gcds
    };
    if !size.is_multiple_of(gcds) {
        let rule = format!("must divide requirements.size, which is {size}");
        return Err(SimError::invalid("requirements.num_gcds", gcds, rule));
    }
    let replicas = if requirements.num_replicas == 0 {
        gcds
    } else {
        requirements.num_replicas
    };
    if replicas < gcds || replicas > size {
        let rule = format!("must be from num_gcds, which is {gcds}, to size, which is {size}");
        return Err(SimError::invalid("requirements.num_replicas", replicas, rule));
    }
    let segments = size.div_ceil(IpuCount::LINK_DOMAIN.get());
    if !matches!(requirements.num_ipulink_segments, 0 | 1) && requirements.num_ipulink_segments != segments {
        let rule = format!("{size} IPUs take {segments} link domains");
        return Err(SimError::invalid(
            "requirements.num_ipulink_segments",
            requirements.num_ipulink_segments,
            rule,
        ));
    }
    if requirements.reconfigurable && segments > 1 {
        let rule = "a reconfigurable partition must be in one link domain";
        return Err(SimError::invalid("requirements.reconfigurable", true, rule));
    }
    Ok(PartitionSpec {
        cluster_id: String::new(),
        ipus: Vec::new(),
        ipulink_routing_type: link_routing(requirements, size)?.into(),
        sync_type: sync(requirements)?.into(),
        num_gcds: gcds,
        num_ipulink_segments: segments,
        reconfigurable: requirements.reconfigurable,
        gw_routing_type: gateway_routing(requirements, segments)?.into(),
        num_replicas: replicas,
        allocation_id: String::new(),
    })
}

/// Returns the routing inside a link domain. Public logs show a sliding window with loops for 64-IPU
/// partitions, and the default configuration for 4 and 8 IPUs. The sizes between them are an assumption.
fn link_routing(requirements: &PartitionRequirements, size: u32) -> Result<IpuLinkRoutingType, SimError> {
    match IpuLinkRoutingType::try_from(requirements.ipulink_routing_type) {
        Ok(IpuLinkRoutingType::IrtUndefined) if size >= IpuCount::LINK_DOMAIN.get() => {
            Ok(IpuLinkRoutingType::IrtRingswnc)
        }
        Ok(IpuLinkRoutingType::IrtUndefined) => Ok(IpuLinkRoutingType::IrtDnc),
        Ok(value) => Ok(value),
        Err(_) => Err(SimError::invalid(
            "requirements.ipulink_routing_type",
            requirements.ipulink_routing_type,
            "not a value of IpuLinkRoutingType",
        )),
    }
}

/// Returns the routing between link domains; it has no effect inside one.
fn gateway_routing(
    requirements: &PartitionRequirements,
    segments: u32,
) -> Result<GatewayRoutingType, SimError> {
    match GatewayRoutingType::try_from(requirements.gw_routing_type) {
        Ok(GatewayRoutingType::GrtUndefined) if segments > 1 => Ok(GatewayRoutingType::GrtRing),
        Ok(value) => Ok(value),
        Err(_) => Err(SimError::invalid(
            "requirements.gw_routing_type",
            requirements.gw_routing_type,
            "not a value of GatewayRoutingType",
        )),
    }
}

/// Returns the sync type. Reconfigurable partitions work with the C2-compatible one only (V-IPU user guide,
/// "Partitions").
fn sync(requirements: &PartitionRequirements) -> Result<SyncType, SimError> {
    const FIELD: &str = "requirements.sync_type";
    let value = SyncType::try_from(requirements.sync_type);
    match (value, requirements.reconfigurable) {
        (Ok(SyncType::StUndefined | SyncType::StGs2Default), true) => Ok(SyncType::StGs2Default),
        (Ok(SyncType::StUndefined), false) => Ok(SyncType::StPodNativeDefault),
        (Ok(value @ SyncType::StGs2IndependentRails), _) => Err(SimError::invalid(
            FIELD,
            value.as_str_name(),
            "not supported by the controller",
        )),
        (Ok(value), true) => {
            let rule = "a reconfigurable partition works with ST_GS2_DEFAULT only";
            Err(SimError::invalid(FIELD, value.as_str_name(), rule))
        }
        (Ok(value), false) => Ok(value),
        (Err(_), _) => Err(SimError::invalid(
            FIELD,
            requirements.sync_type,
            "not a value of SyncType",
        )),
    }
}
