//! One module for each command besides `run`.

pub(crate) mod capacity;
pub(crate) mod cordon;
pub(crate) mod decide;
pub(crate) mod gc;
pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod partition;
mod partition_table;
mod partition_watch;
pub(crate) mod plan;
#[cfg_attr(not(feature = "wasm"), path = "commands/policy_stub.rs")]
pub(crate) mod policy;
pub(crate) mod render;
pub(crate) mod server_version;
pub(crate) mod top;
pub(crate) mod usage;
