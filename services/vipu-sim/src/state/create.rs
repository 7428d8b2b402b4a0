//! CreatePartition: what may be asked for, and what the controller makes of what was left open.

use ipu_core::{IpuCount, PartitionId, Timestamp};
use ipu_vipu_client::wire::{
    CreatePartitionRequest, GatewayRoutingType, IpuLinkRoutingType, PartitionRequirements, PartitionSpec,
    SyncType,
};

use super::{AutoReset, Phase, SimPartition, SimState};
use crate::error::SimError;

impl SimState {
    /// Starts to make a partition: PENDING and CREATING until the delay has passed.
    ///
    /// # Errors
    ///
    /// `Invalid` for what could never be made, `AlreadyExists`, and `NoRoom` or `TakenSlots` for what does not fit now.
    pub(crate) fn create(
        &mut self,
        request: &CreatePartitionRequest,
        now: Timestamp,
    ) -> Result<PartitionId, SimError> {
        self.advance(now);
        let none = PartitionRequirements::default();
        let asked = request.requirements.as_ref().unwrap_or(&none);
        let id: PartitionId = asked.id.parse().map_err(|error: ipu_core::NameError| {
            SimError::invalid("requirements.id", format!("{:?}", error.value), error.rule)
        })?;
        let size = IpuCount::try_from(asked.size).map_err(|_| {
            SimError::invalid(
                "requirements.size",
                asked.size,
                "must be a power of two, from 1 on",
            )
        })?;
        let mut spec = settle(asked, size)?;
        if self.partitions.contains_key(&id) {
            return Err(SimError::AlreadyExists {
                kind: "partition",
                id: id.into(),
            });
        }
        let (allocation, ipus) = self.choose(asked, size)?;
        spec.cluster_id = allocation.cluster.to_string();
        spec.allocation_id = allocation.id.to_string();
        spec.ipus = ipus;
        let held = SimPartition {
            spec,
            phase: Phase::Creating {
                done_at: self.after(self.settings.create_ms),
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
        self.partitions.insert(id.clone(), held);
        // An operation that takes no time is done before the reply.
        self.advance(now);
        Ok(id)
    }
}

/// The specification without its place: what was asked for, with every value that was left open filled in.
fn settle(asked: &PartitionRequirements, size: IpuCount) -> Result<PartitionSpec, SimError> {
    let size = size.get();
    let gcds = if asked.num_gcds == 0 { 1 } else { asked.num_gcds };
    if !size.is_multiple_of(gcds) {
        let rule = format!("must divide requirements.size, which is {size}");
        return Err(SimError::invalid("requirements.num_gcds", gcds, rule));
    }
    let replicas = if asked.num_replicas == 0 {
        gcds
    } else {
        asked.num_replicas
    };
    if replicas < gcds || replicas > size {
        let rule = format!("must be from num_gcds, which is {gcds}, to size, which is {size}");
        return Err(SimError::invalid("requirements.num_replicas", replicas, rule));
    }
    let segments = size.div_ceil(IpuCount::LINK_DOMAIN.get());
    if !matches!(asked.num_ipulink_segments, 0 | 1) && asked.num_ipulink_segments != segments {
        let rule = format!("{size} IPUs take {segments} link domains");
        return Err(SimError::invalid(
            "requirements.num_ipulink_segments",
            asked.num_ipulink_segments,
            rule,
        ));
    }
    if asked.reconfigurable && segments > 1 {
        let rule = "a reconfigurable partition lies in one link domain";
        return Err(SimError::invalid("requirements.reconfigurable", true, rule));
    }
    Ok(PartitionSpec {
        cluster_id: String::new(),
        ipus: Vec::new(),
        ipulink_routing_type: link_routing(asked, size)?.into(),
        sync_type: sync(asked)?.into(),
        num_gcds: gcds,
        num_ipulink_segments: segments,
        reconfigurable: asked.reconfigurable,
        gw_routing_type: gateway_routing(asked, segments)?.into(),
        num_replicas: replicas,
        allocation_id: String::new(),
    })
}

/// The routing inside a link domain. Sliding window with loops for whole link domains is what public logs of 64-IPU
/// partitions show, the default configuration what those of 4 and 8 show; between them it is an assumption.
fn link_routing(asked: &PartitionRequirements, size: u32) -> Result<IpuLinkRoutingType, SimError> {
    match IpuLinkRoutingType::try_from(asked.ipulink_routing_type) {
        Ok(IpuLinkRoutingType::IrtUndefined) if size >= IpuCount::LINK_DOMAIN.get() => {
            Ok(IpuLinkRoutingType::IrtRingswnc)
        }
        Ok(IpuLinkRoutingType::IrtUndefined) => Ok(IpuLinkRoutingType::IrtDnc),
        Ok(given) => Ok(given),
        Err(_) => Err(SimError::invalid(
            "requirements.ipulink_routing_type",
            asked.ipulink_routing_type,
            "not a value of IpuLinkRoutingType",
        )),
    }
}

/// The routing between link domains; means nothing inside one.
fn gateway_routing(asked: &PartitionRequirements, segments: u32) -> Result<GatewayRoutingType, SimError> {
    match GatewayRoutingType::try_from(asked.gw_routing_type) {
        Ok(GatewayRoutingType::GrtUndefined) if segments > 1 => Ok(GatewayRoutingType::GrtRing),
        Ok(given) => Ok(given),
        Err(_) => Err(SimError::invalid(
            "requirements.gw_routing_type",
            asked.gw_routing_type,
            "not a value of GatewayRoutingType",
        )),
    }
}

/// The sync type. Reconfigurable partitions work with the C2-compatible one only (V-IPU user guide, "Partitions").
fn sync(asked: &PartitionRequirements) -> Result<SyncType, SimError> {
    const FIELD: &str = "requirements.sync_type";
    let given = SyncType::try_from(asked.sync_type);
    match (given, asked.reconfigurable) {
        (Ok(SyncType::StUndefined | SyncType::StGs2Default), true) => Ok(SyncType::StGs2Default),
        (Ok(SyncType::StUndefined), false) => Ok(SyncType::StPodNativeDefault),
        (Ok(given @ SyncType::StGs2IndependentRails), _) => Err(SimError::invalid(
            FIELD,
            given.as_str_name(),
            "not supported by the controller",
        )),
        (Ok(given), true) => {
            let rule = "a reconfigurable partition works with ST_GS2_DEFAULT only";
            Err(SimError::invalid(FIELD, given.as_str_name(), rule))
        }
        (Ok(given), false) => Ok(given),
        (Err(_), _) => Err(SimError::invalid(
            FIELD,
            asked.sync_type,
            "not a value of SyncType",
        )),
    }
}
