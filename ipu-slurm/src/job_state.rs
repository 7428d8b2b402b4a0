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
    /// Ended with exit code 0.
    Completed,
    /// Cancelled.
    Cancelled,
    /// Ended with another exit code.
    Failed,
    /// Ended by its time limit.
    Timeout,
    /// Ended by a failed node.
    NodeFail,
    /// Ended by preemption.
    Preempted,
    /// Ended because a node did not boot.
    BootFail,
    /// Ended by its deadline.
    Deadline,
    /// Ended because memory was exhausted.
    OutOfMemory,
    /// Any other word, such as `STAGE_OUT` or `RESIZING`. No decision relies on it.
    Other(String),
}

/// Every state with a variant of its own.
const STATE_NAMES: [(&str, JobState); 14] = [
    ("PENDING", JobState::Pending),
    ("CONFIGURING", JobState::Configuring),
    ("RUNNING", JobState::Running),
    ("SUSPENDED", JobState::Suspended),
    ("COMPLETING", JobState::Completing),
    ("COMPLETED", JobState::Completed),
    ("CANCELLED", JobState::Cancelled),
    ("FAILED", JobState::Failed),
    ("TIMEOUT", JobState::Timeout),
    ("NODE_FAIL", JobState::NodeFail),
    ("PREEMPTED", JobState::Preempted),
    ("BOOT_FAIL", JobState::BootFail),
    ("DEADLINE", JobState::Deadline),
    ("OUT_OF_MEMORY", JobState::OutOfMemory),
];

impl JobState {
    /// Parses a word of capital letters and `_`; none for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some((_, state)) = STATE_NAMES.iter().find(|(name, _)| *name == text) {
            return Some(state.clone());
        }
        let is_word = !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        is_word.then(|| Self::Other(text.to_owned()))
    }

    /// Returns the word that Slurm prints.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Other(text) => text,
            named => STATE_NAMES
                .iter()
                .find(|(_, state)| state == named)
                .map_or("", |(name, _)| name),
        }
    }

    /// Returns whether the run has ended, and all nodes and hooks are done with it.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        matches!(
            self,
            Self::Completed
                | Self::Cancelled
                | Self::Failed
                | Self::Timeout
                | Self::NodeFail
                | Self::Preempted
                | Self::BootFail
                | Self::Deadline
                | Self::OutOfMemory
        )
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
