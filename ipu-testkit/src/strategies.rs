//! proptest strategies: random topologies, what is done to inventories, requests for partitions, ledgers.
//!
//! What is random is always legal hardware and always possible history: everything is reached by public functions of
//! `ipu-core`. Values shrink towards one link domain with little in it.

mod inventory;
mod topology;

pub use inventory::{InventoryChange, Operation, Situation, operations, situations};
pub use topology::{topologies, wide_topologies};
