//! Properties of placement policies, and their violations.

use std::fmt;

/// Property of every placement policy. Displays as one sentence about the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyProperty {
    /// The policy does not panic.
    NeverPanics,
    /// The chosen block has the requested size.
    RightSize,
    /// The chosen block exists.
    Exists,
    /// The chosen block is in one cluster.
    OneCluster,
    /// The chosen block is an aligned block of one link domain, or whole link domains.
    Aligned,
    /// The chosen block is not held.
    NotHeld,
    /// The chosen block is not cordoned.
    NotCordoned,
    /// The chosen block is in one allocation.
    OneAllocation,
    /// The chosen block is in the requested allocation.
    RequestedAllocation,
    /// The policy finds a block whenever one exists. Not required of policies that may decline.
    FindsWhatFits,
    /// Only impossible requests are rejected, with the correct reason.
    TrueReason,
    /// The policy decides the same for a repeated request.
    SameAnswerTwice,
    /// The decision is independent of earlier requests, also to other instances of the policy.
    ViewAlone,
    /// The decision is independent of the history of the inventory.
    IgnoresHistory,
    /// Placing blocks of one size until nothing fits places the maximum number. Not required of policies that
    /// may decline.
    FillsUp,
    /// The chosen block has the minimum cost, by the cost of
    /// [`PolicyCheck::minimises`](crate::PolicyCheck::minimises).
    CostsLeast,
    /// The cases reach every class of sizes, fill, fragmentation, cordons, allocations and results. Otherwise
    /// too few cases ran, or the policy declines too much for a verdict.
    WellCovered,
}

impl fmt::Display for PolicyProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverPanics => "it does not panic",
            Self::RightSize => "the chosen block has the requested size",
            Self::Exists => "the chosen block exists",
            Self::OneCluster => "the chosen block is in one cluster",
            Self::Aligned => "the chosen block is an aligned block of one link domain, or whole link domains",
            Self::NotHeld => "the chosen block is not held",
            Self::NotCordoned => "the chosen block is not cordoned",
            Self::OneAllocation => "the chosen block is in one allocation",
            Self::RequestedAllocation => "the chosen block is in the requested allocation",
            Self::FindsWhatFits => "it finds a block whenever one exists",
            Self::TrueReason => "only impossible requests are rejected, with the correct reason",
            Self::SameAnswerTwice => "it decides the same for a repeated request",
            Self::ViewAlone => "its decision is independent of earlier requests",
            Self::IgnoresHistory => "its decision is independent of the history of the inventory",
            Self::FillsUp => "placing until nothing fits places the maximum number",
            Self::CostsLeast => "the chosen block has the minimum cost",
            Self::WellCovered => "the cases reached every class",
        })
    }
}

/// Violated property with the case that shows it.
#[derive(Clone, Debug)]
pub(super) struct BrokenProperty {
    pub(super) property: PolicyProperty,
    /// Details, in one sentence.
    pub(super) detail: String,
    /// Topology, changes that led to the failure, and request.
    pub(super) case: String,
}
