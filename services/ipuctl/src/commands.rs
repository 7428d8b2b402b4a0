//! The commands that are one question or one action each.

pub(crate) mod decide;
pub(crate) mod gc;
pub(crate) mod partition;
pub(crate) mod plan;
pub(crate) mod proxy;
pub(crate) mod query;
pub(crate) mod server_version;
