//! Topologies, as text and as JSON.

use ipu_core::hardware::{Inventory, Topology};

use crate::decide::assert_round_trip;
use crate::error_messages::check_error;

/// Parses the input as a topology: JSON if it begins with `{`, else text.
///
/// # Panics
///
/// If a topology does not round-trip, or its inventory is inconsistent.
pub fn topology(bytes: &[u8]) {
    let text = crate::error_messages::text(bytes);
    if text.trim_start().starts_with('{') {
        match serde_json::from_str::<Topology>(&text) {
            Ok(topology) => {
                assert_round_trip(&topology);
                check_topology(&topology);
            }
            Err(error) => check_error(&error, bytes.len()),
        }
        return;
    }
    match text.parse::<Topology>() {
        Ok(topology) => {
            let printed = topology.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&topology), "{printed}");
            check_topology(&topology);
        }
        Err(error) => check_error(&error, bytes.len()),
    }
}

/// Asserts the invariants of a topology.
pub(crate) fn check_topology(topology: &Topology) {
    assert!(topology.ipus() > 0 && topology.link_domains() as usize <= Topology::MAX_LINK_DOMAINS);
    assert_eq!(topology.agents().count(), topology.machines() as usize);
    for (agent, first) in topology.agents() {
        assert_eq!(topology.agent_at(first), Some(agent));
        let (cluster, place) = topology.place(first).expect("every agent has a position");
        assert_eq!(topology.address(cluster, place), Some(first));
        // The reverse lookup scans all link domains, so the first ones suffice.
        if first.link_domain > 64 {
            break;
        }
    }
    let inventory = Inventory::new(topology);
    // IPUs outside any allocation are not available.
    let allocated = topology.agents().filter(|(agent, _)| {
        let mut allocations = topology.allocations().iter();
        allocations.any(|allocation| allocation.agents.contains(*agent))
    });
    let allocated =
        u32::try_from(allocated.count()).expect("the topology size is limited") * Topology::MACHINE_IPUS;
    let whole = inventory.whole_view();
    assert_eq!(whole.free(), allocated);
    assert_eq!(whole.largest_block().is_some(), allocated > 0);
}
