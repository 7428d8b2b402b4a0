//! Free capacity of each controller, without regard to the queue.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::allocator::capacity::{Capacity, Hardware};
use crate::allocator::holders::measure_capacities;
use crate::allocator::state::State;
use crate::hardware::partition::PartitionSpec;
use crate::ids::ControllerName;
use crate::reason::Reason;
use crate::units::IpuCount;

/// Free capacity of one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FreeCapacity {
    /// Free IPUs.
    pub free: u32,
    /// Size of the largest partition that fits.
    pub largest_block: u32,
    /// Number of partitions of the requested size that fit side by side.
    #[serde(rename = "fits")]
    pub fit_count: u32,
}

/// Free capacity of one controller for every partition size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CapacityBySize {
    /// Free IPUs.
    pub free: u32,
    /// Size of the largest partition that fits.
    pub largest_block: u32,
    /// Number of partitions of each power of two up to the number of IPUs of the controller, in ascending
    /// order. Empty if the controller does not report its hardware.
    pub fits: Vec<SizeFit>,
}

/// Number of partitions of one size that fit side by side now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SizeFit {
    /// The size.
    pub size: IpuCount,
    /// Number of partitions; 0 if none fits.
    pub count: u32,
}

impl CapacityBySize {
    fn of(capacity: &dyn Capacity) -> Self {
        let ipus = capacity.counts().map_or(0, |counts| counts.ipus);
        let largest_block = capacity.largest_block();
        let sizes = (0..u32::BITS)
            .map(|power| 1 << power)
            .take_while(|size| *size <= ipus);
        let fits = sizes.filter_map(|size| {
            let size = IpuCount::try_from(size).ok()?;
            let count = if size.get() > largest_block {
                0
            } else {
                capacity.fit_count(&PartitionSpec::of_size(size))
            };
            Some(SizeFit { size, count })
        });
        Self {
            free: capacity.free(),
            largest_block,
            fits: fits.collect(),
        }
    }
}

impl State {
    /// Returns the capacity of each controller for partitions of `spec`, or the reason that it is unknown.
    /// Partitions that only the ledger records and cordoned IPUs are subtracted; queued requests are not.
    #[must_use]
    pub fn free_capacity(
        &self,
        hardware: &Hardware,
        spec: &PartitionSpec,
    ) -> Vec<(ControllerName, Result<FreeCapacity, Reason>)> {
        measure_capacities(self, hardware, |capacity| FreeCapacity {
            free: capacity.free(),
            largest_block: capacity.largest_block(),
            fit_count: capacity.fit_count(spec),
        })
    }

    /// Returns the capacity of each controller for every partition size, as
    /// [`free_capacity`](Self::free_capacity) does for one.
    #[must_use]
    pub fn capacity_by_size(
        &self,
        hardware: &Hardware,
    ) -> Vec<(ControllerName, Result<CapacityBySize, Reason>)> {
        measure_capacities(self, hardware, CapacityBySize::of)
    }
}
