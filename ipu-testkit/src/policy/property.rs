//! Properties of placement policies, and their violations.

use std::fmt;

use ipu_core::{Block, Impossible, PlacementRequest};

use crate::reference_inventory::ReferenceInventory;
use crate::strategies::InventoryChange;

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

impl PolicyProperty {
    /// Returns the sentence, and the name of a test that reproduces a failure.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::NeverPanics => ("it does not panic", "the_policy_does_not_panic"),
            Self::RightSize => (
                "the chosen block has the requested size",
                "the_policy_chooses_the_requested_size",
            ),
            Self::Exists => ("the chosen block exists", "the_policy_chooses_existing_ipus"),
            Self::OneCluster => (
                "the chosen block is in one cluster",
                "the_policy_stays_in_one_cluster",
            ),
            Self::Aligned => (
                "the chosen block is an aligned block of one link domain, or whole link domains",
                "the_policy_chooses_aligned_blocks",
            ),
            Self::NotHeld => ("the chosen block is not held", "the_policy_chooses_free_ipus"),
            Self::NotCordoned => (
                "the chosen block is not cordoned",
                "the_policy_chooses_ipus_without_a_cordon",
            ),
            Self::OneAllocation => (
                "the chosen block is in one allocation",
                "the_policy_stays_in_one_allocation",
            ),
            Self::RequestedAllocation => (
                "the chosen block is in the requested allocation",
                "the_policy_stays_in_the_requested_allocation",
            ),
            Self::FindsWhatFits => (
                "it finds a block whenever one exists",
                "the_policy_finds_each_free_block",
            ),
            Self::TrueReason => (
                "only impossible requests are rejected, with the correct reason",
                "an_impossible_request_gets_the_correct_reason",
            ),
            Self::SameAnswerTwice => (
                "it decides the same for a repeated request",
                "the_policy_repeats_its_choice",
            ),
            Self::ViewAlone => (
                "its decision is independent of earlier requests",
                "the_policy_does_not_depend_on_earlier_requests",
            ),
            Self::IgnoresHistory => (
                "its decision is independent of the history of the inventory",
                "the_policy_does_not_depend_on_the_history",
            ),
            Self::FillsUp => (
                "placing until nothing fits places the maximum number",
                "the_policy_fills_the_inventory",
            ),
            Self::CostsLeast => (
                "the chosen block has the minimum cost",
                "the_policy_minimises_the_cost",
            ),
            Self::WellCovered => ("the cases reached every class", "the_policy_is_well_covered"),
        }
    }

    pub(super) const fn test_name(self) -> &'static str {
        self.texts().1
    }
}

impl fmt::Display for PolicyProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().0)
    }
}

/// Violated property with the case that shows it.
#[derive(Clone, Debug)]
pub(super) struct BrokenProperty {
    pub(super) property: PolicyProperty,
    /// Details, in one sentence.
    pub(super) detail: String,
    pub(super) reproduction: Reproduction,
    /// Inventory at the failure.
    pub(super) reference: ReferenceInventory,
    /// Changes that led to it.
    pub(super) history: Vec<InventoryChange>,
    pub(super) request: PlacementRequest,
}

/// Kind of test that shows the violation.
#[derive(Clone, Debug)]
pub(super) enum Reproduction {
    /// Placing panics.
    Placing,
    /// The result is `Impossible::Illegal`.
    Illegal,
    /// The result is not `Fits`.
    NoFit,
    /// The result is not this reason.
    Not(Impossible),
    /// The results of repeated requests differ.
    Repeated,
    /// The result differs after other requests.
    AfterOthers,
    /// The result differs on an inventory with another history.
    Rebuilt,
    /// Fewer partitions than this are placed.
    Count(u32),
    /// The result is this block, which does not have the minimum cost.
    CostlyBlock(Block),
}
