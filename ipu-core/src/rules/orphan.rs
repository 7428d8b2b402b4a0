//! Orphan: whether a process belongs to what its job is doing.
//!
//! Fields: none
//! Source: ours; workers that outlive their job hold devices
//!
//! | process | its instance runs an attempt | its instance has ended |
//! |---|---|---|
//! | of another attempt | stop | stop |
//! | a worker number that the job does not have, a launcher in a job without one | stop | stop |
//! | does the work (a launcher, or a worker without launcher) and is alive | keep | stop: the others have failed |
//! | a worker that only serves a launcher, or has ended | keep | as the clean-up policy says |
//!
//! Attempts are closed in the record before their processes are stopped: nothing of an open attempt is ever an orphan.

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrphanFacts {
    /// Whether it was started for the instance's attempt.
    pub(crate) of_this_attempt: bool,
    /// Whether the job has such a process at all.
    pub(crate) in_range: bool,
    /// Whether it does the job's work, as launchers and workers without launcher do.
    pub(crate) does_work: bool,
    /// Whether it may still use the partition.
    pub(crate) alive: bool,
    /// Whether its instance has ended for good.
    pub(crate) instance_ended: bool,
}

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanDecision {
    /// It belongs to the job.
    Belongs,
    /// It is stopped and forgotten.
    Stop,
}

/// Whether a process belongs to its job.
pub(crate) const fn decide(facts: OrphanFacts) -> OrphanDecision {
    let misplaced = !facts.of_this_attempt || !facts.in_range;
    let straggler = facts.instance_ended && facts.does_work && facts.alive;
    if misplaced || straggler {
        OrphanDecision::Stop
    } else {
        OrphanDecision::Belongs
    }
}
