//! Orphan: whether a process belongs to the current state of its job.
//!
//! Fields: none
//! Source: this project; workers that outlive their job hold devices
//!
//! | process | its instance runs an attempt | its instance has ended |
//! |---|---|---|
//! | of another attempt | stop | stop |
//! | a worker number that the job does not have, a launcher in a job without one | stop | stop |
//! | does the work (a launcher, or a worker without launcher) and is alive | keep | stop: another process has failed |
//! | a worker that only serves a launcher, or has ended | keep | the clean-up policy decides |
//!
//! The planner closes an attempt in the record before it stops its processes. A process of an open attempt is
//! therefore never an orphan.

/// The facts about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrphanFacts {
    /// Whether it belongs to the current attempt of the instance.
    pub(crate) of_this_attempt: bool,
    /// Whether the job has a process of this role and index.
    pub(crate) in_range: bool,
    /// Whether it does the job's work, as launchers and workers without launcher do.
    pub(crate) does_work: bool,
    /// Whether it may still use the partition.
    pub(crate) alive: bool,
    /// Whether its instance has a final outcome.
    pub(crate) instance_ended: bool,
}

/// The decision about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanDecision {
    /// It belongs to the job.
    Belongs,
    /// Stop it and delete its record.
    Stop,
}

/// Decides whether a process belongs to its job.
pub(crate) const fn decide(facts: OrphanFacts) -> OrphanDecision {
    let misplaced = !facts.of_this_attempt || !facts.in_range;
    let straggler = facts.instance_ended && facts.does_work && facts.alive;
    if misplaced || straggler {
        OrphanDecision::Stop
    } else {
        OrphanDecision::Belongs
    }
}
