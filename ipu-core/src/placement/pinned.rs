//! The policy `pinned`: exactly these IPUs.

use super::{PlacementPolicy, PlacementRequest};
use crate::hardware::inventory::{Block, BlockError, InventoryView};
use crate::hardware::topology::IpuAddress;

/// Chooses exactly the given IPUs. If they are not a legal partition, or not free,
/// [`place`](crate::placement::place) reports the rule that they break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    block: Block,
}

impl Pinned {
    /// Pins to these IPUs, in any order.
    ///
    /// # Errors
    ///
    /// [`BlockError::Ipus`] if there are none, or one is repeated.
    pub fn new(ipus: impl IntoIterator<Item = IpuAddress>) -> Result<Self, BlockError> {
        Block::from_ipus(ipus).map(|block| Self { block })
    }
}

impl PlacementPolicy for Pinned {
    fn name(&self) -> &'static str {
        "pinned"
    }

    fn choose(&self, _: &InventoryView<'_>, _: &PlacementRequest) -> Option<Block> {
        Some(self.block.clone())
    }
}
