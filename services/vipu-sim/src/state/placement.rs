//! Placement: the policies of `ipu-core` over an inventory derived from the state.

use ipu_core::hardware::{Allocation, Block, Inventory, IpuAddress};
use ipu_core::placement::{FirstFit, Pinned, PlacementPolicy, PlacementRequest, place};
use ipu_core::{CordonOwner, IpuCount};
use ipu_vipu_client::wire::{PartitionIpu, PartitionRequirements};

use super::SimState;
use crate::error::SimError;

const IPUS_FIELD: &str = "requirements.ipus";

impl SimState {
    /// Returns the inventory of holders and bad IPUs. A partition in removal still holds its IPUs.
    pub(crate) fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::new(&self.hardware.topology);
        for (id, partition) in &self.partitions {
            let occupied = Block::from_ipus(self.ipu_addresses(&partition.spec))
                .map(|block| inventory.occupy(id.clone(), block));
            if !matches!(occupied, Ok(Ok(()))) {
                tracing::error!(partition = %id, ?occupied, "the state has an IPU that is held twice or does not exist");
            }
        }
        let unhealthy = self.hardware.bad.iter().copied();
        if let Err(error) = inventory.cordon(&CordonOwner::health(), unhealthy) {
            tracing::error!(%error, "the state marks a missing IPU as bad");
        }
        inventory
    }

    /// Returns the allocation and the IPUs in routing order: the requested ones, or the lowest that fit.
    ///
    /// # Errors
    ///
    /// `Invalid` if the request can never succeed, `NoRoom` or `Taken` if it cannot succeed now.
    pub(super) fn choose(
        &self,
        requirements: &PartitionRequirements,
        size: IpuCount,
    ) -> Result<(&Allocation, Vec<PartitionIpu>), SimError> {
        let candidates = self.candidates(requirements)?;
        let inventory = self.inventory();
        if !requirements.ipus.is_empty() {
            return self.choose_explicit(&inventory, requirements, size, &candidates);
        }
        let (mut free, mut largest) = (0, 0);
        for allocation in &candidates {
            if let Some(block) = fit(&inventory, size, allocation, &FirstFit) {
                let addresses: Vec<IpuAddress> = block.addresses().collect();
                return Ok((allocation, self.with_routing_ids(&addresses)));
            }
            if let Ok(view) = inventory.view(Some(&allocation.id)) {
                free = free.max(view.free());
                largest = largest.max(view.largest_block().map_or(0, IpuCount::get));
            }
        }
        let within = match candidates.as_slice() {
            [allocation] => format!("allocation {}", allocation.id),
            allocations => format!("any of {} allocations", allocations.len()),
        };
        Err(SimError::NoRoom {
            size: size.get(),
            within,
            free,
            largest,
        })
    }

    /// Returns replacement IPUs of the same allocation for a relocatable partition, which may include its
    /// own healthy IPUs.
    pub(super) fn choose_replacement(&self, id: &ipu_core::PartitionId) -> Option<Vec<PartitionIpu>> {
        let partition = self.partitions.get(id)?;
        let size = IpuCount::try_from(u32::try_from(partition.spec.ipus.len()).ok()?).ok()?;
        let mut allocations = self.hardware.topology.allocations().iter();
        let allocation =
            allocations.find(|allocation| allocation.id.as_str() == partition.spec.allocation_id)?;
        let mut inventory = self.inventory();
        inventory.vacate(id).ok()?;
        let addresses: Vec<IpuAddress> = fit(&inventory, size, allocation, &FirstFit)?
            .addresses()
            .collect();
        Some(self.with_routing_ids(&addresses))
    }

    /// Returns the eligible allocations: the named one, or all (of the named cluster).
    fn candidates(&self, requirements: &PartitionRequirements) -> Result<Vec<&Allocation>, SimError> {
        let fits = |allocation: &&Allocation| {
            (requirements.allocation_id.is_empty() || allocation.id.as_str() == requirements.allocation_id)
                && (requirements.cluster_id.is_empty()
                    || allocation.cluster.as_str() == requirements.cluster_id)
        };
        let all = self.hardware.topology.allocations();
        let found: Vec<_> = all.iter().filter(fits).collect();
        if !found.is_empty() || (requirements.allocation_id.is_empty() && requirements.cluster_id.is_empty())
        {
            return Ok(found);
        }
        // Not NOT_FOUND, which means a missing partition.
        let allocation_ids: Vec<&str> = all.iter().map(|allocation| allocation.id.as_str()).collect();
        let (field, value) = if requirements.allocation_id.is_empty() {
            ("requirements.cluster_id", &requirements.cluster_id)
        } else {
            ("requirements.allocation_id", &requirements.allocation_id)
        };
        let rule = format!(
            "no matching allocation and cluster; allocations: {}",
            allocation_ids.join(", ")
        );
        Err(SimError::invalid(field, format!("{value:?}"), rule))
    }

    /// Chooses exactly the requested IPUs, if all are free and in one allocation.
    fn choose_explicit<'a>(
        &self,
        inventory: &Inventory,
        requirements: &PartitionRequirements,
        size: IpuCount,
        candidates: &[&'a Allocation],
    ) -> Result<(&'a Allocation, Vec<PartitionIpu>), SimError> {
        let ipus = in_routing_order(&requirements.ipus, size)?;
        let find = |allocation: &Allocation| -> Option<Vec<IpuAddress>> {
            let place = |ipu: &PartitionIpu| {
                let address = self.hardware.find(
                    &allocation.cluster,
                    ipu.ipulink_domain_topology_id,
                    ipu.topology_id,
                )?;
                self.hardware.is_in(address, allocation).then_some(address)
            };
            ipus.iter().map(place).collect()
        };
        let Some((allocation, addresses)) = candidates
            .iter()
            .find_map(|candidate| Some((*candidate, find(candidate)?)))
        else {
            let rule = "not all of them exist in one eligible allocation";
            return Err(SimError::invalid(IPUS_FIELD, format_ipus(&ipus), rule));
        };
        let named_twice = || SimError::invalid(IPUS_FIELD, format_ipus(&ipus), "each IPU may be named once");
        let pinned = Pinned::new(addresses.iter().copied()).map_err(|_| named_twice())?;
        if fit(inventory, size, allocation, &pinned).is_some() {
            return Ok((allocation, ipus));
        }
        let unavailable: Vec<String> = addresses
            .iter()
            .filter_map(|address| self.unavailability_reason(inventory, *address))
            .collect();
        if unavailable.is_empty() {
            let rule = "must be an aligned block of one link domain (the first one a multiple of the size), \
                        or whole link domains";
            return Err(SimError::invalid(IPUS_FIELD, format_ipus(&ipus), rule));
        }
        Err(SimError::Taken { unavailable })
    }

    /// Returns the reason why an IPU is unavailable, if any.
    fn unavailability_reason(&self, inventory: &Inventory, address: IpuAddress) -> Option<String> {
        if let Some((holder, _)) = inventory.holder_at(address) {
            return Some(format!(
                "{} is held by partition {holder}",
                self.hardware.describe(address)
            ));
        }
        let good = self.hardware.is_good(address);
        (!good).then(|| format!("{} is bad", self.hardware.describe(address)))
    }

    /// Converts IPUs to the API's form, with routing ids in order.
    fn with_routing_ids(&self, addresses: &[IpuAddress]) -> Vec<PartitionIpu> {
        let mut domains: Vec<u32> = addresses.iter().map(|address| address.link_domain).collect();
        domains.dedup();
        let segment = |address: &IpuAddress| {
            domains
                .iter()
                .zip(0..)
                .find(|(domain, _)| **domain == address.link_domain)
        };
        let numbered = addresses
            .iter()
            .zip(0..)
            .map(|(address, routing_id)| PartitionIpu {
                ipulink_domain_topology_id: self.hardware.number_in_cluster(address.link_domain),
                ipulink_domain_routing_id: segment(address).map_or(0, |(_, segment)| segment),
                topology_id: u32::from(address.ipu),
                routing_id,
            });
        numbered.collect()
    }
}

/// Returns the block that a policy chooses in one allocation.
fn fit(
    inventory: &Inventory,
    size: IpuCount,
    allocation: &Allocation,
    policy: &dyn PlacementPolicy,
) -> Option<Block> {
    let request = PlacementRequest::of_size(size).in_allocation(Some(allocation.id.clone()));
    place(inventory, &request, policy).ok()
}

/// Sorts explicit IPUs by routing id. If all ids are zero, the order of the list applies.
fn in_routing_order(ipus: &[PartitionIpu], size: IpuCount) -> Result<Vec<PartitionIpu>, SimError> {
    if ipus.len() != size.get() as usize {
        let rule = format!("must be as many as requirements.size, which is {size}");
        return Err(SimError::invalid(
            IPUS_FIELD,
            format!("{} IPUs", ipus.len()),
            rule,
        ));
    }
    let mut ordered = ipus.to_vec();
    if ipus.iter().all(|ipu| ipu.routing_id == 0) {
        ordered
            .iter_mut()
            .zip(0..)
            .for_each(|(ipu, index)| ipu.routing_id = index);
    }
    ordered.sort_unstable_by_key(|ipu| ipu.routing_id);
    if !ordered.iter().map(|ipu| ipu.routing_id).eq(0..size.get()) {
        let rule = "routing ids must be 0 to size-1, each once, or all absent";
        return Err(SimError::invalid(IPUS_FIELD, format_ipus(ipus), rule));
    }
    Ok(ordered)
}

/// Formats IPUs as `domain/ipu`, for messages.
fn format_ipus(ipus: &[PartitionIpu]) -> String {
    let name = |ipu: &PartitionIpu| format!("{}/{}", ipu.ipulink_domain_topology_id, ipu.topology_id);
    ipus.iter().map(name).collect::<Vec<_>>().join(" ")
}
