//! Errors of test clusters.

use std::path::PathBuf;

/// Errors of starting or operating a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A program is missing.
    #[error("{} is missing: run `cargo xtask cluster build`", .0.display())]
    Missing(PathBuf),
    /// This machine does not support a node.
    #[error("this machine cannot run a node: {0}")]
    NoNode(String),
    /// A program cannot be built.
    #[error("cannot build {what}: {detail}")]
    Build {
        /// The programs.
        what: String,
        /// Output of the build.
        detail: String,
    },
    /// A step failed.
    #[error("cannot {step}: {detail}")]
    Step {
        /// The failed step.
        step: String,
        /// Reason of the failure.
        detail: String,
    },
    /// A server ended, or did not become ready in time.
    #[error("{name} is not ready: {detail}; the end of its log:\n{log}")]
    NotReady {
        /// The server.
        name: &'static str,
        /// Last observed status.
        detail: String,
        /// The end of its log.
        log: String,
    },
}

impl ClusterError {
    /// Returns the error of a step that failed because of `error`.
    pub(crate) fn step(step: impl Into<String>, error: impl std::fmt::Display) -> Self {
        Self::Step {
            step: step.into(),
            detail: error.to_string(),
        }
    }
}
