//! Topology and inventory built from a controller's list of hardware and partitions.

use std::collections::BTreeMap;

use ipu_core::AgentId;
use ipu_core::hardware::{AgentAttributes, Inventory, Partition, Topology};
use serde::Deserialize;

use crate::error_messages::check_error;

#[derive(Deserialize)]
struct ControllerListing {
    agents: BTreeMap<AgentId, AgentAttributes>,
    #[serde(default)]
    partitions: Vec<Partition>,
}

/// `{"agents": {agent: {ipu: {attribute: value}}}, "partitions": […]}`.
///
/// # Panics
///
/// If the inventory is inconsistent, or a partition is neither in it nor reported as a conflict.
pub fn agents(bytes: &[u8]) {
    let Ok(listing) = serde_json::from_slice::<ControllerListing>(bytes) else {
        return;
    };
    let discovered = match Topology::from_agents(&listing.agents) {
        Ok(discovered) => discovered,
        Err(error) => return check_error(&error, bytes.len()),
    };
    let topology = &discovered.topology;
    crate::topology::check_topology(topology);
    assert_eq!(topology.machines() as usize, listing.agents.len());
    assert!(discovered.unhealthy.iter().all(|at| topology.contains(*at)));
    for ours in [true, false] {
        let observed =
            Inventory::from_listing(topology, &discovered.unhealthy, &listing.partitions, |_| ours);
        let inventory = &observed.inventory;
        let held: u32 = inventory.holders().map(|(_, block)| block.ipus()).sum();
        assert!(held + inventory.free() <= topology.ipus());
        for (_, misfit) in &observed.conflicts {
            check_error(misfit, bytes.len());
        }
        for partition in &listing.partitions {
            let held = inventory.block_of(&partition.id).is_some();
            let reported = observed.conflicts.iter().any(|(id, _)| *id == partition.id);
            assert!(held || reported || !ours, "partition {} was lost", partition.id);
        }
    }
}
