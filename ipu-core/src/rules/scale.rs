//! Scale: which instances a job has.
//!
//! Fields: `jobInstances`
//! Source: seed 000 §6.7, "Scale up/down operations"
//!
//! | instance | wanted |
//! |---|---|
//! | 0 to `jobInstances` − 1 | keep, or start |
//! | any other | remove: highest first, its workers before its partition |
//!
//! A removed instance forgets its attempts. A job scaled to 0 holds nothing and has not finished; a finished job is not
//! started again by scaling it.

/// What is done with an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleDecision {
    /// It belongs to the job.
    Keep,
    /// It is surplus.
    Remove,
}

/// Whether instance `index` belongs to a job of `wanted` instances.
pub(crate) const fn decide(index: u32, wanted: u32) -> ScaleDecision {
    if index < wanted {
        ScaleDecision::Keep
    } else {
        ScaleDecision::Remove
    }
}
