//! The policy `best-fit`: the tightest block.

use super::{PlacementPolicy, PlacementRequest};
use crate::hardware::inventory::{Block, InventoryView};

/// Chooses the start of the smallest free block that the partition fits into, the lowest of those: large
/// blocks are split last. Above 64 IPUs it chooses the allocation with the fewest whole free link domains
/// that are enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BestFit;

impl PlacementPolicy for BestFit {
    fn name(&self) -> &'static str {
        "best-fit"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        view.best_fit(request.size)
    }
}
