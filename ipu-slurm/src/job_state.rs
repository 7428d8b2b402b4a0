//! The state of a job as Slurm prints it.

use core::fmt;

/// The state of a job. Slurm prints one word: a flag such as `COMPLETING` hides the base state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// In the queue.
    Pending,
    /// Nodes are allocated; PrologSlurmctld or the nodes' Prolog runs.
    Configuring,
    /// Running.
    Running,
    /// Suspended, with its nodes.
    Suspended,
    /// Ended, but a node or EpilogSlurmctld is not done.
    Completing,
    /// Ended, and all nodes and hooks are done with it: the word, such as `COMPLETED` or `NODE_FAIL`.
    Finished(String),
    /// Any other word, such as `STAGE_OUT` or `RESIZING`. No decision relies on it.
    Other(String),
}

impl JobState {
    /// Parses a word of capital letters and `_`; none for any other text.
    ///
    /// ```
    /// use ipu_slurm::JobState;
    ///
    /// assert!(JobState::parse("NODE_FAIL").is_some_and(|state| state.is_finished()));
    /// assert_eq!(JobState::parse("RESIZING"), Some(JobState::Other("RESIZING".to_owned())));
    /// assert_eq!(JobState::parse("Invalid job id specified"), None);
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_word = !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        is_word.then(|| match text {
            "PENDING" => Self::Pending,
            "CONFIGURING" => Self::Configuring,
            "RUNNING" => Self::Running,
            "SUSPENDED" => Self::Suspended,
            "COMPLETING" => Self::Completing,
            "COMPLETED" | "CANCELLED" | "FAILED" | "TIMEOUT" | "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL"
            | "DEADLINE" | "OUT_OF_MEMORY" => Self::Finished(text.to_owned()),
            _ => Self::Other(text.to_owned()),
        })
    }

    /// Returns the word that Slurm prints.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Pending => "PENDING",
            Self::Configuring => "CONFIGURING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completing => "COMPLETING",
            Self::Finished(text) | Self::Other(text) => text,
        }
    }

    /// Returns whether the run has ended, and all nodes and hooks are done with it.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        matches!(self, Self::Finished(_))
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
