//! The policy `pinned`: exactly these IPUs.

use super::{PlacementPolicy, PlacementRequest};
use crate::hardware::inventory::{Block, BlockError, InventoryView};
use crate::hardware::topology::IpuAddress;

/// Chooses exactly the given IPUs. If they are not a legal partition, or not free,
/// [`place`](crate::placement::place) reports the rule that they break.
///
/// ```
/// use ipu_core::IpuCount;
/// use ipu_core::hardware::{Inventory, IpuAddress, Topology};
/// use ipu_core::placement::{Pinned, PlacementRequest, place};
///
/// let inventory = Inventory::new(&Topology::pod16());
/// let pinned = Pinned::new([4, 5].map(|ipu| IpuAddress { link_domain: 0, ipu }))?;
/// let request = PlacementRequest::of_size(IpuCount::try_from(2)?);
/// let block = place(&inventory, &request, &pinned)?;
/// assert_eq!(block.first().ipu, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
