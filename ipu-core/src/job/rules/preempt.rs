//! Preempt: what happens to an instance whose partition a request of higher priority demands.
//!
//! Fields: `preemptible`, `priority`
//! Source: this project; Kueue stops a preempted workload and queues it again in the same way
//!
//! | instance | step |
//! |---|---|
//! | runs, or its attempt has processes or a partition | close the attempt, stop its processes, release the partition, request another for the next attempt |
//! | backs off with a partition | release the partition; the next attempt starts after the back-off |
//! | has ended, and its job keeps the partition | stop its remaining processes and release the partition |
//! | holds no partition | none: there is nothing to release |
//!
//! A preempted attempt has not failed: no restart is counted, there is no back-off, and the restart policy
//! does not apply. The job opted in with `preemptible`.

/// The decision about an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreemptDecision {
    /// Its partition is not demanded.
    Keep,
    /// Stop its processes, release its partition, and queue for the next attempt.
    Requeue,
    /// Release the partition that it keeps after its end.
    ReleaseKept,
}

/// The demand for the partition of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// No request demands it.
    None,
    /// A queued request of higher priority demands it.
    Preempted,
}

/// Whether the instance has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It has an attempt that runs, or a next attempt.
    Open,
    /// It has a final outcome.
    Ended,
}

/// Decides about an instance.
pub(crate) const fn decide(demand: Demand, progress: Progress) -> PreemptDecision {
    match (demand, progress) {
        (Demand::None, _) => PreemptDecision::Keep,
        (Demand::Preempted, Progress::Open) => PreemptDecision::Requeue,
        (Demand::Preempted, Progress::Ended) => PreemptDecision::ReleaseKept,
    }
}
