//! Which IPUs a partition gets: the placement of the core, over an inventory made from the state.

use ipu_core::{
    Allocation, Block, CordonOwner, FirstFit, Inventory, IpuAddress, IpuCount, Pinned, Placement,
    PlacementPolicy, PlacementRequest, place,
};
use ipu_vipu_client::wire::{PartitionIpu, PartitionRequirements};

use super::SimState;
use crate::error::SimError;

const IPUS: &str = "requirements.ipus";

impl SimState {
    /// Who holds what, and which IPUs are bad. A partition that is being removed still holds its IPUs.
    pub(crate) fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::new(&self.hardware.topology);
        for (id, held) in &self.partitions {
            let taken =
                Block::of_ipus(self.places(&held.spec)).map(|block| inventory.occupy(id.clone(), block));
            if !matches!(taken, Ok(Ok(()))) {
                tracing::error!(partition = %id, ?taken, "the state holds an IPU twice, or one that does not exist");
            }
        }
        let bad = self.hardware.bad.iter().copied();
        if let Err(error) = inventory.cordon(&CordonOwner::health(), bad) {
            tracing::error!(%error, "the state calls an IPU bad that does not exist");
        }
        inventory
    }

    /// The allocation and the IPUs, in routing order: as asked, or the lowest that fit.
    ///
    /// # Errors
    ///
    /// `Invalid` for what could never be given, `NoRoom` or `TakenSlots` for what cannot be given now.
    pub(super) fn choose(
        &self,
        asked: &PartitionRequirements,
        size: IpuCount,
    ) -> Result<(&Allocation, Vec<PartitionIpu>), SimError> {
        let candidates = self.candidates(asked)?;
        let inventory = self.inventory();
        if !asked.ipus.is_empty() {
            return self.choose_explicit(&inventory, asked, size, &candidates);
        }
        let (mut free, mut largest) = (0, 0);
        for allocation in &candidates {
            if let Some(block) = fit(&inventory, size, allocation, &FirstFit) {
                let places: Vec<IpuAddress> = block.addresses().collect();
                return Ok((allocation, self.number(&places)));
            }
            if let Ok(view) = inventory.view(Some(&allocation.id)) {
                free = free.max(view.free());
                largest = largest.max(view.largest_block().map_or(0, IpuCount::get));
            }
        }
        let within = match candidates.as_slice() {
            [only] => format!("allocation {}", only.id),
            several => format!("any of {} allocations", several.len()),
        };
        Err(SimError::NoRoom {
            size: size.get(),
            within,
            free,
            largest,
        })
    }

    /// Other IPUs of the same allocation for a partition that may move; its own good ones may be among them.
    pub(super) fn choose_again(&self, id: &ipu_core::PartitionId) -> Option<Vec<PartitionIpu>> {
        let held = self.partitions.get(id)?;
        let size = IpuCount::try_from(u32::try_from(held.spec.ipus.len()).ok()?).ok()?;
        let mut allocations = self.hardware.topology.allocations().iter();
        let allocation = allocations.find(|of| of.id.as_str() == held.spec.allocation_id)?;
        let mut inventory = self.inventory();
        inventory.vacate(id).ok()?;
        let places: Vec<IpuAddress> = fit(&inventory, size, allocation, &FirstFit)?
            .addresses()
            .collect();
        Some(self.number(&places))
    }

    /// The allocations that a request may draw from: the named one, or all (of the named cluster).
    fn candidates(&self, asked: &PartitionRequirements) -> Result<Vec<&Allocation>, SimError> {
        let fits = |of: &&Allocation| {
            (asked.allocation_id.is_empty() || of.id.as_str() == asked.allocation_id)
                && (asked.cluster_id.is_empty() || of.cluster.as_str() == asked.cluster_id)
        };
        let all = self.hardware.topology.allocations();
        let found: Vec<_> = all.iter().filter(fits).collect();
        if !found.is_empty() || (asked.allocation_id.is_empty() && asked.cluster_id.is_empty()) {
            return Ok(found);
        }
        // Not NOT_FOUND: for a partition call that means that the partition is gone.
        let known: Vec<&str> = all.iter().map(|of| of.id.as_str()).collect();
        let (field, value) = if asked.allocation_id.is_empty() {
            ("requirements.cluster_id", &asked.cluster_id)
        } else {
            ("requirements.allocation_id", &asked.allocation_id)
        };
        let rule = format!(
            "no such allocation of such a cluster; allocations: {}",
            known.join(", ")
        );
        Err(SimError::invalid(field, format!("{value:?}"), rule))
    }

    /// Takes exactly the IPUs that the caller names, if all of them are free and of one allocation.
    fn choose_explicit<'a>(
        &self,
        inventory: &Inventory,
        asked: &PartitionRequirements,
        size: IpuCount,
        candidates: &[&'a Allocation],
    ) -> Result<(&'a Allocation, Vec<PartitionIpu>), SimError> {
        let ipus = in_routing_order(&asked.ipus, size)?;
        let find = |of: &Allocation| -> Option<Vec<IpuAddress>> {
            let place = |ipu: &PartitionIpu| {
                let at = self
                    .hardware
                    .find(&of.cluster, ipu.ipulink_domain_topology_id, ipu.topology_id)?;
                self.hardware.is_in(at, of).then_some(at)
            };
            ipus.iter().map(place).collect()
        };
        let Some((allocation, places)) = candidates.iter().find_map(|of| Some((*of, find(of)?))) else {
            let rule = "not all of them exist in one allocation that the request may draw from";
            return Err(SimError::invalid(IPUS, names(&ipus), rule));
        };
        let named_twice = || SimError::invalid(IPUS, names(&ipus), "each IPU may be named once");
        let pinned = Pinned::to(places.iter().copied()).map_err(|_| named_twice())?;
        if fit(inventory, size, allocation, &pinned).is_some() {
            return Ok((allocation, ipus));
        }
        let unavailable: Vec<String> = places
            .iter()
            .filter_map(|at| self.why_unavailable(inventory, *at))
            .collect();
        if unavailable.is_empty() {
            let rule = "must be an aligned block of one link domain (the first one a multiple of the size), \
                        or whole link domains";
            return Err(SimError::invalid(IPUS, names(&ipus), rule));
        }
        Err(SimError::Taken { unavailable })
    }

    /// Why an IPU cannot be given away, if so.
    fn why_unavailable(&self, inventory: &Inventory, at: IpuAddress) -> Option<String> {
        if let Some((holder, _)) = inventory.holder_at(at) {
            return Some(format!(
                "{} is held by partition {holder}",
                self.hardware.describe(at)
            ));
        }
        let good = self.hardware.is_good(at);
        (!good).then(|| format!("{} is bad", self.hardware.describe(at)))
    }

    /// IPUs in the API's form, numbered in their order.
    fn number(&self, places: &[IpuAddress]) -> Vec<PartitionIpu> {
        let mut domains: Vec<u32> = places.iter().map(|at| at.link_domain).collect();
        domains.dedup();
        let segment = |at: &IpuAddress| {
            domains
                .iter()
                .zip(0..)
                .find(|(domain, _)| **domain == at.link_domain)
        };
        let numbered = places.iter().zip(0..).map(|(at, routing_id)| PartitionIpu {
            ipulink_domain_topology_id: self.hardware.number_in_cluster(at.link_domain),
            ipulink_domain_routing_id: segment(at).map_or(0, |(_, segment)| segment),
            topology_id: u32::from(at.ipu),
            routing_id,
        });
        numbered.collect()
    }
}

/// Where a policy puts a partition in one allocation.
fn fit(
    inventory: &Inventory,
    size: IpuCount,
    allocation: &Allocation,
    policy: &dyn PlacementPolicy,
) -> Option<Block> {
    let request = PlacementRequest::of_size(size).in_allocation(Some(allocation.id.clone()));
    match place(inventory, &request, policy) {
        Placement::Fits(block) => Some(block),
        _ => None,
    }
}

/// Explicit IPUs in routing order. Routing ids are kept as given if they number the IPUs; if none is given, the order of
/// the list counts.
fn in_routing_order(ipus: &[PartitionIpu], size: IpuCount) -> Result<Vec<PartitionIpu>, SimError> {
    if ipus.len() != size.get() as usize {
        let rule = format!("must be as many as requirements.size, which is {size}");
        return Err(SimError::invalid(IPUS, format!("{} IPUs", ipus.len()), rule));
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
        let rule = "routing ids must be 0 to size-1, each once, or all left out";
        return Err(SimError::invalid(IPUS, names(ipus), rule));
    }
    Ok(ordered)
}

/// IPUs as `domain/ipu`, for messages.
fn names(ipus: &[PartitionIpu]) -> String {
    let name = |ipu: &PartitionIpu| format!("{}/{}", ipu.ipulink_domain_topology_id, ipu.topology_id);
    ipus.iter().map(name).collect::<Vec<_>>().join(" ")
}
