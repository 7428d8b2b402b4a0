//! Invariants, re-derived from scratch: what must hold whatever the code that is checked believes.

mod inventory;
mod plan;

pub use inventory::{BrokenInventory, check_inventory};
pub use plan::{BrokenPlan, check_plan};
