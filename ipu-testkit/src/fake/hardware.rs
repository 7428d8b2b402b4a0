//! Hardware attributes of a fake controller, and validation against the hardware.

use std::collections::BTreeMap;

use ipu_core::{AgentId, AllocationId, GcdConfig, IpuAddress, IpuofConfig, IpuofDevice, PartitionId};
use ipu_vipu_client::{AgentIpus, CreatePartition, VipuError};

use super::state::SharedState;

/// Returns the device id of an IPU in its machine, which counts from the other end (as public device listings
/// show).
fn hardware_id(at: IpuAddress) -> u32 {
    3 - u32::from(at.ipu % 4)
}

pub(super) fn refused(detail: impl Into<String>) -> VipuError {
    VipuError::Refused {
        detail: detail.into(),
    }
}

impl SharedState {
    /// Rejects requests that the hardware can never satisfy, whatever is free.
    pub(super) fn check(&self, request: &CreatePartition) -> Result<(), VipuError> {
        let (spec, size) = (&request.spec, request.spec.size.get());
        if spec.gcds == 0 || !size.is_multiple_of(spec.gcds) {
            return Err(refused(format!("{} GCDs do not divide {size} IPUs", spec.gcds)));
        }
        if spec.replicas < spec.gcds || spec.replicas > size {
            let (replicas, gcds) = (spec.replicas, spec.gcds);
            return Err(refused(format!(
                "{replicas} replicas do not match {gcds} GCDs and {size} IPUs"
            )));
        }
        if !request.ipus.is_empty() && request.ipus.len() != size as usize {
            return Err(refused(format!(
                "{} IPUs named for a size of {size}",
                request.ipus.len()
            )));
        }
        match &spec.allocation {
            Some(allocation) => self.check_allocation(allocation),
            None => Ok(()),
        }
    }

    fn check_allocation(&self, allocation: &AllocationId) -> Result<(), VipuError> {
        match self.inventory.topology().allocation(allocation) {
            Some(_) => Ok(()),
            None => Err(refused(format!("allocation {allocation} does not exist"))),
        }
    }

    /// Returns the partitions that use `allocation`.
    pub(super) fn using_allocation(&self, allocation: &AllocationId) -> Result<Vec<PartitionId>, VipuError> {
        self.check_allocation(allocation)?;
        let using = self.created.iter().filter(|(_, created)| {
            let drawn = created
                .spec
                .allocation
                .as_ref()
                .or_else(|| self.first_containing(&created.ipus));
            drawn == Some(allocation)
        });
        Ok(using.map(|(id, _)| id.clone()).collect())
    }

    /// Returns the first allocation that contains all of these IPUs.
    fn first_containing(&self, ipus: &[IpuAddress]) -> Option<&AllocationId> {
        let topology = self.inventory.topology();
        let around = topology.allocations().iter().find(|allocation| {
            ipus.iter().all(|at| {
                topology
                    .agent_at(*at)
                    .is_some_and(|agent| allocation.agents.contains(agent))
            })
        });
        around.map(|allocation| &allocation.id)
    }

    /// Returns the devices of one GCD, or of all: the single IPUs, and aligned groups of them if they are
    /// reconfigurable.
    pub(super) fn ipuof_config(
        &mut self,
        id: &PartitionId,
        gcd: Option<u32>,
    ) -> Result<IpuofConfig, VipuError> {
        let created = self.find(id)?;
        let spec = &created.spec;
        if gcd.is_some_and(|gcd| gcd >= spec.gcds) {
            return Err(refused(format!("{id} has {} GCDs", spec.gcds)));
        }
        let each = created.ipus.len() / spec.gcds.max(1) as usize;
        let all = (0..spec.gcds).zip(created.ipus.chunks(each.max(1)));
        let wanted = all.filter(|(number, _)| gcd.is_none_or(|gcd| gcd == *number));
        let gcds = wanted.map(|(number, ipus)| {
            let groups = std::iter::successors(Some(1), |group| Some(group * 2))
                .take_while(|group| *group == 1 || (spec.reconfigurable && *group <= each));
            let devices = groups.flat_map(|group| ipus.chunks(group).filter_map(|group| group.first()));
            let devices = (0..).zip(devices).map(|(device_id, at)| device(device_id, *at));
            GcdConfig {
                devices: devices.collect(),
                ..GcdConfig::default()
            }
            .for_gcd(number)
        });
        Ok(IpuofConfig {
            reconfigurable: spec.reconfigurable,
            gcds: gcds.collect(),
            server_version: "fake".into(),
        })
    }

    /// Returns every IPU of these agents, or of all agents if none is named.
    pub(super) fn attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        let topology = self.inventory.topology();
        if let Some(unknown) = agents.iter().find(|agent| topology.agent_ipus(agent).is_none()) {
            return Err(refused(format!("agent {unknown} does not exist")));
        }
        let wanted = topology
            .agents()
            .map(|(agent, _)| agent)
            .filter(|agent| agents.is_empty() || agents.contains(agent));
        let attributes = wanted.map(|agent| AgentIpus {
            agent: agent.clone(),
            ipus: topology
                .agent_ipus(agent)
                .into_iter()
                .flatten()
                .map(|at| (hardware_id(at), self.attributes_of(agent, at)))
                .collect(),
        });
        Ok(attributes.collect())
    }

    fn attributes_of(&self, agent: &AgentId, at: IpuAddress) -> BTreeMap<String, String> {
        let topology = self.inventory.topology();
        let allocations = topology.allocations().iter();
        let allocations: Vec<_> = allocations
            .filter(|allocation| allocation.agents.contains(agent))
            .map(|allocation| allocation.id.as_str())
            .collect();
        let place = topology.place(at);
        let place = place.into_iter().flat_map(|(cluster, place)| {
            [
                ("cluster", cluster.to_string()),
                ("linkDomain", place.link_domain.to_string()),
                ("ipu", place.ipu.to_string()),
            ]
        });
        place
            .chain([("health", "ok".to_owned()), ("allocation", allocations.join(","))])
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

fn device(device_id: u32, at: IpuAddress) -> IpuofDevice {
    IpuofDevice {
        ip: format!("fake-{}-{}", at.link_domain, at.ipu / 4),
        device_id,
        ipu_id: hardware_id(at),
        ..IpuofDevice::default()
    }
}
