//! What can go wrong with a cluster for tests.

use std::path::PathBuf;

/// Why a cluster could not be had, or did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A program is not where it is looked for.
    #[error("{} is missing: run `cargo xtask cluster build`", .0.display())]
    Missing(PathBuf),
    /// A node cannot be had on this machine.
    #[error("no node: {0}")]
    NoNode(String),
    /// A program cannot be built.
    #[error("cannot build {what}: {detail}")]
    Build {
        /// Which programs.
        what: String,
        /// What was said.
        detail: String,
    },
    /// A step failed.
    #[error("cannot {step}: {detail}")]
    Step {
        /// What was being done.
        step: String,
        /// Why it failed.
        detail: String,
    },
    /// A server ended, or did not become ready in time.
    #[error("{name} is not ready: {detail}; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        name: &'static str,
        /// What was seen last.
        detail: String,
        /// The end of its log.
        log: String,
    },
}

impl ClusterError {
    /// A step that failed because of `error`.
    pub(crate) fn step(step: impl Into<String>, error: impl std::fmt::Display) -> Self {
        Self::Step {
            step: step.into(),
            detail: error.to_string(),
        }
    }
}
