//! Views of the state for people and clients, computed on request.

pub(crate) mod dry_run;
pub(crate) mod free_capacity;
pub(crate) mod stats;
