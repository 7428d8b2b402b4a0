//! Reasons that a run gets no partition.

/// The reason that there is no partition, as a sentence.
pub(super) enum AcquireError {
    /// The wait is over. The sentence has the last obstacle.
    TimedOut(String),
    /// The request can never be granted.
    Refused(String),
    /// An earlier hook of the run has requested something else for this start.
    OtherProperties(String),
    /// No partition of the size can lie on the machines of the job.
    NoPlace(String),
    /// A later hook of the same run has taken over.
    Superseded(String),
}
