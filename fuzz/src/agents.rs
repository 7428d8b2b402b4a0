//! What a controller lists of its hardware and its partitions, made into a topology and an inventory.

use std::collections::BTreeMap;

use ipu_core::{AgentAttributes, AgentId, Inventory, Partition, Topology, check_inventory};
use serde::Deserialize;

use crate::error_messages::said_of;

#[derive(Deserialize)]
struct Listed {
    agents: BTreeMap<AgentId, AgentAttributes>,
    #[serde(default)]
    partitions: Vec<Partition>,
}

/// `{"agents": {agent: {ipu: {attribute: value}}}, "partitions": […]}`.
///
/// # Panics
///
/// If the inventory is broken, or a partition is neither in it nor named as one that does not fit.
pub fn agents(bytes: &[u8]) {
    let Ok(listed) = serde_json::from_slice::<Listed>(bytes) else {
        return;
    };
    let discovered = match Topology::from_agents(&listed.agents) {
        Ok(discovered) => discovered,
        Err(error) => return said_of(&error, bytes.len()),
    };
    let topology = &discovered.topology;
    crate::topology::sound(topology);
    assert_eq!(topology.machines() as usize, listed.agents.len());
    assert!(discovered.unhealthy.iter().all(|at| topology.contains(*at)));
    for ours in [true, false] {
        let observed = Inventory::observe(topology, &discovered.unhealthy, &listed.partitions, |_| ours);
        assert_eq!(check_inventory(&observed.inventory), []);
        for (_, misfit) in &observed.conflicts {
            said_of(misfit, bytes.len());
        }
        for partition in &listed.partitions {
            let held = observed.inventory.block_of(&partition.id).is_some();
            let named = observed.conflicts.iter().any(|(id, _)| *id == partition.id);
            assert!(held || named || !ours, "partition {} was lost", partition.id);
        }
    }
}
