//! The policy `first-fit`: the lowest address.

use super::{PlacementPolicy, PlacementRequest};
use crate::hardware::inventory::{Block, InventoryView};

/// Chooses the free block at the lowest address. Packs from one end, so that the free space stays contiguous
/// at the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstFit;

impl PlacementPolicy for FirstFit {
    fn name(&self) -> &'static str {
        "first-fit"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        view.first_fit(request.size)
    }
}
