//! One fuzz target per parser: it takes any bytes, must not panic, and asserts the invariants of the
//! result.
//!
//! These functions run as tests on stable (`cargo test -p ipu-fuzz`, by bolero, from a committed corpus)
//! and for hours under libFuzzer (`fuzz/cargo-fuzz`). `docs/dev/fuzzing.md` has the table of targets, the
//! findings, and how to add a target.

mod agents;
mod allocator;
#[cfg(feature = "network")]
mod client;
mod controllers;
mod decide;
mod error_messages;
mod gres;
mod manifest;
mod names;
#[cfg(feature = "network")]
mod simulator;
mod slurm_conf;
mod slurm_hooks;
mod slurm_output;
mod swf;
mod topology;

pub use agents::agents;
pub use allocator::allocator;
#[cfg(feature = "network")]
pub use client::grpc_reply;
pub use controllers::controllers;
pub use decide::decide;
pub use gres::gres;
pub use manifest::manifest;
pub use names::{exit_codes, names};
#[cfg(feature = "network")]
pub use simulator::{sim_grpc, sim_rest};
pub use slurm_conf::slurm_conf;
pub use slurm_hooks::slurm_hooks;
pub use slurm_output::slurm_output;
pub use swf::swf;
pub use topology::topology;

/// A fuzz target. Its name is that of its corpus and its function.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Target {
    /// Target name, such as `manifest`.
    pub name: &'static str,
    /// Runs the target on an input; panics if an invariant is violated.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("agents", agents),
    target("allocator", allocator),
    target("controllers", controllers),
    target("decide", decide),
    target("exit_codes", exit_codes),
    target("gres", gres),
    #[cfg(feature = "network")]
    target("grpc_reply", grpc_reply),
    target("manifest", manifest),
    target("names", names),
    #[cfg(feature = "network")]
    target("sim_grpc", sim_grpc),
    #[cfg(feature = "network")]
    target("sim_rest", sim_rest),
    target("slurm_conf", slurm_conf),
    target("slurm_hooks", slurm_hooks),
    target("slurm_output", slurm_output),
    target("swf", swf),
    target("topology", topology),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}
