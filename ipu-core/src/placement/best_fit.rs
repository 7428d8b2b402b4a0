//! The policy `best-fit`: the tightest block.

use super::{PlacementPolicy, PlacementRequest};
use crate::hardware::inventory::{Block, InventoryView};

/// Chooses the start of the smallest free block that the partition fits into, the lowest of those: large
/// blocks are split last. Above 64 IPUs it chooses the allocation with the fewest whole free link domains
/// that are enough.
///
/// ```
/// use ipu_core::hardware::{Block, Inventory, Topology};
/// use ipu_core::placement::{BestFit, PlacementRequest, place};
/// use ipu_core::{IpuCount, PartitionId};
///
/// let mut inventory = Inventory::new(&Topology::pod16());
/// inventory.occupy(PartitionId::new("other")?, Block::within(0, 12, IpuCount::try_from(1)?)?)?;
/// let request = PlacementRequest::of_size(IpuCount::try_from(1)?);
/// let block = place(&inventory, &request, &BestFit)?;
/// assert_eq!(block.first().ipu, 13, "the smallest gap");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
