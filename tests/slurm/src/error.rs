//! Errors of test beds.

/// Errors of starting or operating a bed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BedError {
    /// This machine cannot run a bed.
    #[error("this machine cannot run Slurm: {0}")]
    Unsupported(String),
    /// A step failed.
    #[error("cannot {step}: {detail}")]
    Step {
        /// The failed step.
        step: String,
        /// Reason of the failure.
        detail: String,
    },
    /// A condition did not hold in time, or a daemon ended meanwhile.
    #[error("waited in vain until {condition}: {detail}; the ends of the logs:\n{logs}")]
    NotReady {
        /// The awaited condition.
        condition: String,
        /// Reason of the end of the wait.
        detail: String,
        /// The ends of the daemons' logs.
        logs: String,
    },
}

impl BedError {
    /// Returns the error of a step that failed because of `error`.
    pub(crate) fn step(step: impl Into<String>, error: impl std::fmt::Display) -> Self {
        Self::Step {
            step: step.into(),
            detail: error.to_string(),
        }
    }
}
