//! Static partitions of a node (option 2).

pub(crate) mod command;
mod directory;
pub(crate) mod node_hooks;
pub(crate) mod task;
