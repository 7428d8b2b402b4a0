//! Invariants, re-derived from scratch: what must hold whatever the code that is checked believes.

mod inventory;

pub use inventory::{BrokenInventory, check_inventory};
