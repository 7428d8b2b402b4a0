//! Processes of this host: discovery in `/proc`, supervision, start, and end with all descendants.

mod procfs;
mod spawn;
mod supervise;

pub(crate) use procfs::end_marked;
pub(crate) use spawn::{ProcessEvent, Spawn, SupervisedProcess, Terminal, start};
pub(crate) use supervise::main as supervise_main;
