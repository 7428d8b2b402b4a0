//! Views of the state for people and clients, computed when somebody asks.

pub(crate) mod dry_run;
pub(crate) mod free_capacity;
pub(crate) mod stats;
