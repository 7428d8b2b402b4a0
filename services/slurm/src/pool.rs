//! Static partitions of a node (option 2 of Graphcore's Slurm guide).

pub(crate) mod command;
pub(crate) mod node_hooks;
pub(crate) mod task;
