//! Scale: which instances a job has.
//!
//! Fields: `jobInstances`
//! Source: Graphcore's V-IPU user guide, "Inference job spec", "Scale up/down operations"
//!
//! | instance | verdict |
//! |---|---|
//! | 0 to `jobInstances` − 1 | keep, or start |
//! | any other | remove: highest first, its workers before its partition |
//!
//! The attempts of a removed instance are deleted. A job scaled to 0 holds nothing and has not finished.
//! Scaling does not restart a finished job.

/// The decision about an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleDecision {
    /// It belongs to the job.
    Keep,
    /// It is surplus.
    Remove,
}

/// Decides whether instance `index` belongs to a job of `desired` instances.
pub(crate) const fn decide(index: u32, desired: u32) -> ScaleDecision {
    if index < desired {
        ScaleDecision::Keep
    } else {
        ScaleDecision::Remove
    }
}
