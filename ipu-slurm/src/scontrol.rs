//! Output of `scontrol`.

mod allocated;
pub(crate) mod config;
pub(crate) mod licenses;

pub use allocated::parse_allocated_gres;
