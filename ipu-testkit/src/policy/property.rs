//! What must hold of a placement policy, and how it was found not to.

use std::fmt;

use ipu_core::{Block, Impossible, PlacementRequest};

use crate::reference_inventory::ReferenceInventory;
use crate::strategies::InventoryChange;

/// Something that must hold of every placement policy. Displays as one sentence about the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PolicyProperty {
    /// It does not panic.
    NeverPanics,
    /// What it chooses has the size asked for.
    RightSize,
    /// What it chooses exists.
    Exists,
    /// What it chooses is in one cluster.
    OneCluster,
    /// What it chooses is an aligned block of one link domain, or whole link domains.
    Aligned,
    /// What it chooses is held by nobody.
    NotHeld,
    /// What it chooses is cordoned by nobody.
    NotCordoned,
    /// What it chooses is in one allocation.
    OneAllocation,
    /// What it chooses is in the allocation asked for.
    RequestedAllocation,
    /// It finds a place whenever there is one. Not asked of policies that may decline.
    FindsWhatFits,
    /// What is called impossible is impossible, for the reason that is told.
    TrueReason,
    /// It answers the same when it is asked the same again.
    SameAnswerTwice,
    /// It answers the same whatever it, or another instance of it, was asked before.
    ViewAlone,
    /// It answers the same however the inventory came to be as it is.
    IgnoresHistory,
    /// Placing blocks of one size until nothing fits places as many as there are. Not asked of policies that may
    /// decline.
    FillsUp,
    /// What it chooses costs the least, by the cost that [`PolicyCheck::minimises`](crate::PolicyCheck::minimises) was
    /// given.
    CostsLeast,
    /// The cases reached every class of sizes, fill, fragmentation, cordons, allocations and answers. If not, too few
    /// cases ran, or the policy declines too much to be judged.
    WellCovered,
}

impl PolicyProperty {
    /// The sentence, and the name of a test that reproduces a failure.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NeverPanics => ("it does not panic", "the_policy_does_not_panic"),
            Self::RightSize => (
                "what it chooses has the size asked for",
                "the_policy_chooses_the_requested_size",
            ),
            Self::Exists => ("what it chooses exists", "the_policy_chooses_existing_ipus"),
            Self::OneCluster => (
                "what it chooses is in one cluster",
                "the_policy_stays_in_one_cluster",
            ),
            Self::Aligned => (
                "what it chooses is an aligned block of one link domain, or whole link domains",
                "the_policy_chooses_aligned_blocks",
            ),
            Self::NotHeld => (
                "what it chooses is held by nobody",
                "the_policy_chooses_free_ipus",
            ),
            Self::NotCordoned => (
                "what it chooses is excluded by nobody",
                "the_policy_chooses_ipus_without_a_cordon",
            ),
            Self::OneAllocation => (
                "what it chooses is in one allocation",
                "the_policy_stays_in_one_allocation",
            ),
            Self::RequestedAllocation => (
                "what it chooses is in the allocation asked for",
                "the_policy_stays_in_the_requested_allocation",
            ),
            Self::FindsWhatFits => (
                "it finds a place whenever there is one",
                "the_policy_finds_each_free_block",
            ),
            Self::TrueReason => (
                "what is called impossible is impossible, for the reason that is told",
                "what_is_impossible_is_told_with_the_true_reason",
            ),
            Self::SameAnswerTwice => (
                "it answers the same when it is asked the same again",
                "the_policy_repeats_its_choice",
            ),
            Self::ViewAlone => (
                "it answers the same whatever was asked before",
                "the_policy_does_not_depend_on_earlier_requests",
            ),
            Self::IgnoresHistory => (
                "it answers the same however the inventory came to be as it is",
                "the_policy_does_not_depend_on_the_history",
            ),
            Self::FillsUp => (
                "placing until nothing fits places as many as there are",
                "the_policy_fills_up_what_there_is",
            ),
            Self::CostsLeast => ("what it chooses costs the least", "the_policy_minimises_the_cost"),
            Self::WellCovered => ("the cases reached every class", "the_policy_is_well_covered"),
        }
    }

    pub(super) const fn test_name(self) -> &'static str {
        self.words().1
    }
}

impl fmt::Display for PolicyProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().0)
    }
}

/// A property that does not hold, with all that it takes to see it again.
#[derive(Clone, Debug)]
pub(super) struct BrokenProperty {
    pub(super) property: PolicyProperty,
    /// What happened, in one sentence.
    pub(super) what: String,
    pub(super) shown_by: Reproduction,
    /// Where things were.
    pub(super) reference: ReferenceInventory,
    /// How they came to be so.
    pub(super) history: Vec<InventoryChange>,
    pub(super) request: PlacementRequest,
}

/// How a test shows that a property does not hold.
#[derive(Clone, Debug)]
pub(super) enum Reproduction {
    /// To place panics.
    Placing,
    /// The answer is `TransitionError`.
    Illegal,
    /// The answer is not `Fits`.
    NoFit,
    /// The answer is not this one.
    Not(Impossible),
    /// The answers to the same question differ.
    Again,
    /// The answer differs after other questions.
    Others,
    /// The answer differs on an inventory that came to be in another way.
    Rebuilt,
    /// As many are not placed.
    Count(u32),
    /// The answer is this block, which does not cost the least.
    Costs(Block),
}
