//! Static partitions of a node (option 2).

pub(crate) mod command;
pub(crate) mod node_hooks;
pub(crate) mod task;
