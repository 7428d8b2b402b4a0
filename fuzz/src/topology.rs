//! Topologies, as text and as JSON.

use ipu_core::{Inventory, Topology, check_inventory};

use crate::decide::prints_as_itself;
use crate::error_messages::said_of;

/// A topology as text, or as JSON if it begins with `{`.
///
/// # Panics
///
/// If it does not print as itself, or an inventory of it is broken.
pub fn topology(bytes: &[u8]) {
    let text = crate::error_messages::text(bytes);
    if text.trim_start().starts_with('{') {
        match serde_json::from_str::<Topology>(&text) {
            Ok(topology) => {
                prints_as_itself(&topology);
                sound(&topology);
            }
            Err(error) => said_of(&error, bytes.len()),
        }
        return;
    }
    match text.parse::<Topology>() {
        Ok(topology) => {
            let printed = topology.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&topology), "{printed}");
            sound(&topology);
        }
        Err(error) => said_of(&error, bytes.len()),
    }
}

/// What holds of every topology.
pub(crate) fn sound(topology: &Topology) {
    assert!(topology.ipus() > 0 && topology.link_domains() as usize <= Topology::MAX_LINK_DOMAINS);
    assert_eq!(topology.agents().count(), topology.machines() as usize);
    for (agent, first) in topology.agents() {
        assert_eq!(topology.agent_at(first), Some(agent));
        let (cluster, place) = topology.place(first).expect("an agent is somewhere");
        assert_eq!(topology.address(cluster, place), Some(first));
        // The way back walks through all link domains: enough of the first ones.
        if first.link_domain > 64 {
            break;
        }
    }
    let inventory = Inventory::new(topology);
    assert_eq!(check_inventory(&inventory), []);
    // What is in no allocation cannot be given to anybody.
    let allocated = topology.agents().filter(|(agent, _)| {
        let mut allocations = topology.allocations().iter();
        allocations.any(|allocation| allocation.agents.contains(*agent))
    });
    let allocated =
        u32::try_from(allocated.count()).expect("a topology has a limit") * Topology::MACHINE_IPUS;
    let everything = inventory.whole_view();
    assert_eq!(everything.free(), allocated);
    assert_eq!(everything.largest_block().is_some(), allocated > 0);
}
