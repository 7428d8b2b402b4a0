//! Invariant checks of inventories and plans. They share no code with the logic that they check.

mod inventory;
mod plan;

pub use inventory::{BrokenInventory, check_inventory};
pub use plan::{BrokenPlan, check_plan};
