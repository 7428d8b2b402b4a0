//! Views of the state for people and clients, computed on request.

pub(crate) mod dry_run;
pub(crate) mod free_capacity;
pub(crate) mod map;
pub(crate) mod quota_usage;
pub(crate) mod stats;
