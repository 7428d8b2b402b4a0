//! Processes of this host: discovery in `/proc`, supervision, start, and end with all descendants.

mod holder_token;
mod procfs;
mod spawn;
mod supervise;

pub(crate) use holder_token::{Holder, HolderState};
pub(crate) use procfs::{RUN_MARKER, end_marked, marked};
pub(crate) use spawn::{ProcessEvent, Spawn, Supervised, Terminal, start};
pub(crate) use supervise::main as supervise_main;
