//! Where a partition goes: one policy chooses, one frame checks.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{AllocationId, ExclusionOwner};
use crate::inventory::{Block, Inventory, InventoryError, View};
use crate::reason::Reason;
use crate::units::IpuCount;

mod best_fit;
mod first_fit;
mod pinned;

pub use best_fit::BestFit;
pub use first_fit::FirstFit;
pub use pinned::Pinned;

/// What is to be placed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct PlacementRequest {
    /// How many IPUs.
    pub size: IpuCount,
    /// The allocation to draw from; none for any one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationId>,
}

impl PlacementRequest {
    /// `size` IPUs of any allocation.
    #[must_use]
    pub const fn of_size(size: IpuCount) -> Self {
        Self {
            size,
            allocation: None,
        }
    }

    /// The same request, of this allocation alone if one is given.
    #[must_use]
    pub fn in_allocation(self, allocation: Option<AllocationId>) -> Self {
        Self { allocation, ..self }
    }
}

/// A rule by which one of the free blocks is chosen.
///
/// To write your own, look at the free space in `view` and answer a block of exactly `request.size`. [`place`] checks
/// the answer, so a policy that is wrong is told so and can never cause a double hold. It must be pure: the same view
/// and request give the same answer.
///
/// As an example, `Spread` puts every partition where most IPUs are free, so that jobs share as few link domains as
/// possible:
///
/// ```
/// use core::cmp::Reverse;
///
/// use ipu_core::{Block, Inventory, IpuCount, Placement, PlacementPolicy, PlacementRequest, Topology, View, place};
///
/// /// Chooses a block in the link domain with the most free IPUs, the lowest block of the lowest such link domain.
/// struct Spread;
///
/// impl PlacementPolicy for Spread {
///     fn name(&self) -> &str {
///         "spread"
///     }
///
///     fn choose(&self, view: &View<'_>, request: &PlacementRequest) -> Option<Block> {
///         // Every candidate is legal and free, in ascending order; `max_by_key` would answer the last of several equals.
///         view.blocks(request.size).min_by_key(|block| Reverse(view.free_in(block.first().link_domain)))
///     }
/// }
///
/// let mut inventory = Inventory::new(&Topology::pod128());
/// let four = PlacementRequest::of_size(IpuCount::try_from(4)?);
/// for (job, link_domain) in [("a", 0), ("b", 1), ("c", 0)] {
///     let Placement::Fits(block) = place(&inventory, &four, &Spread) else { panic!("it fits") };
///     assert_eq!(block.first().link_domain, link_domain);
///     inventory.occupy(job.parse()?, block)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait PlacementPolicy {
    /// The name by which people know it, such as `best-fit`.
    fn name(&self) -> &str;

    /// The block to take; none to decline. `view` is limited to the allocation of the request.
    fn choose(&self, view: &View<'_>, request: &PlacementRequest) -> Option<Block>;
}

/// Where a partition can go. That it cannot go anywhere is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Placement {
    /// It fits here: an aligned block of the size asked for, free, in one allocation.
    Fits(Block),
    /// It fits nowhere now.
    Impossible(Impossible),
}

/// Why a partition cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all_fields = "camelCase", tag = "why")]
#[non_exhaustive]
pub enum Impossible {
    /// There is no such allocation.
    #[error("there is no allocation {allocation}")]
    UnknownAllocation {
        /// What was asked for.
        allocation: AllocationId,
    },
    /// It would not fit even if everything were free.
    #[error("cannot fit {size} IPUs: the largest partition that {} can form is of {capacity}", within(.allocation.as_ref()))]
    TooLarge {
        /// What was asked for.
        size: IpuCount,
        /// The largest size that fits if everything is free; 0 if there is nothing.
        capacity: u32,
        /// The allocation asked for.
        allocation: Option<AllocationId>,
    },
    /// Fewer IPUs are free than asked for.
    #[error("cannot fit {size} IPUs: {}", free_are(*.free))]
    NotEnoughFree {
        /// What was asked for.
        size: IpuCount,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now; 0 if none does.
        largest_block: u32,
    },
    /// Enough IPUs are free, but not side by side.
    #[error("cannot fit {size} IPUs: {} but the largest free block is {largest_block}", free_are(*.free))]
    Fragmented {
        /// What was asked for.
        size: IpuCount,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now.
        largest_block: u32,
    },
    /// It would fit now if nothing were excluded.
    #[error("cannot fit {size} IPUs: {} and {excluded} that would serve are excluded (by {})", free_are(*.free), list(.owners))]
    Excluded {
        /// What was asked for.
        size: IpuCount,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now; 0 if none does.
        largest_block: u32,
        /// How many IPUs are excluded and not held.
        excluded: u32,
        /// Who excludes them.
        owners: Vec<ExclusionOwner>,
    },
    /// It fits, but the policy does not want it to.
    #[error("cannot fit {size} IPUs: the policy {policy} declines, although {} and the largest free block is {largest_block}", free_are(*.free))]
    Declined {
        /// What was asked for.
        size: IpuCount,
        /// The policy.
        policy: String,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now.
        largest_block: u32,
    },
    /// The policy chose what is no legal partition of the size asked for.
    #[error("cannot fit {size} IPUs on {block}, the choice of the policy {policy}: {rule}")]
    Illegal {
        /// What was asked for.
        size: IpuCount,
        /// The policy.
        policy: String,
        /// What it chose.
        block: Block,
        /// The rule that this breaks.
        rule: IllegalChoice,
    },
}

/// The rule that a policy's choice breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum IllegalChoice {
    /// Not aligned.
    #[error(
        "a partition is 1 to 64 IPUs of one link domain from a multiple of its size on, or 2, 4, ... whole link domains"
    )]
    NotABlock,
    /// Another size than was asked for.
    #[error("that is {0} IPUs")]
    WrongSize(u32),
    /// Held, excluded or not there.
    #[error("{0}")]
    Unavailable(InventoryError),
    /// Not all in one allocation, or not in the one asked for.
    #[error("a partition draws from one allocation, the one that is asked for if any")]
    OutsideAllocation,
}

/// Where `request` goes in `inventory` by `policy`. Nothing changes; [`Inventory::occupy`] takes the answer.
///
/// *Guarantees*. What fits is legal, whatever the policy does: aligned, of the size asked for, free, not excluded, in one
/// allocation. The reasons `TooLarge`, `NotEnoughFree`, `Fragmented` and `Excluded` are given only if no legal block
/// exists at all.
///
/// ```
/// use ipu_core::{BestFit, Inventory, IpuCount, PartitionId, Placement, PlacementRequest, Reason, Topology, place};
///
/// let mut inventory = Inventory::new(&Topology::pod16());
/// let request = PlacementRequest::of_size(IpuCount::try_from(16)?);
/// if let Placement::Fits(block) = place(&inventory, &request, &BestFit) {
///     inventory.occupy(PartitionId::new("first")?, block)?;
/// }
/// let Placement::Impossible(why) = place(&inventory, &request, &BestFit) else { unreachable!() };
/// assert_eq!(Reason::from(why).message, "cannot fit 16 IPUs: none is free");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn place(inventory: &Inventory, request: &PlacementRequest, policy: &dyn PlacementPolicy) -> Placement {
    let view = match inventory.view(request.allocation.as_ref()) {
        Ok(view) => view,
        Err(unknown) => {
            return Placement::Impossible(Impossible::UnknownAllocation {
                allocation: unknown.allocation,
            });
        }
    };
    let Some(block) = policy.choose(&view, request) else {
        return Placement::Impossible(why_not(&view, request, policy));
    };
    match illegal(&view, request, &block) {
        None => Placement::Fits(block),
        Some(rule) => Placement::Impossible(Impossible::Illegal {
            size: request.size,
            policy: policy.name().into(),
            block,
            rule,
        }),
    }
}

/// The rule that a choice breaks.
fn illegal(view: &View<'_>, request: &PlacementRequest, block: &Block) -> Option<IllegalChoice> {
    if block.ipus() != request.size.get() {
        return Some(IllegalChoice::WrongSize(block.ipus()));
    }
    if block.size().is_none() {
        return Some(IllegalChoice::NotABlock);
    }
    if let Err(error) = view.inventory().check_available(block) {
        return Some(IllegalChoice::Unavailable(error));
    }
    (!view.covers(block)).then_some(IllegalChoice::OutsideAllocation)
}

/// Why a policy found nothing.
fn why_not(view: &View<'_>, request: &PlacementRequest, policy: &dyn PlacementPolicy) -> Impossible {
    let size = request.size;
    let (free, largest_block) = (view.free(), view.largest_block().map_or(0, IpuCount::get));
    let capacity = view.capacity().map_or(0, IpuCount::get);
    if largest_block >= size.get() {
        Impossible::Declined {
            size,
            policy: policy.name().into(),
            free,
            largest_block,
        }
    } else if capacity < size.get() {
        Impossible::TooLarge {
            size,
            capacity,
            allocation: request.allocation.clone(),
        }
    } else if view.would_fit_without_exclusions(size) {
        Impossible::Excluded {
            size,
            free,
            largest_block,
            excluded: view.excluded(),
            owners: view.excluders(),
        }
    } else if free < size.get() {
        Impossible::NotEnoughFree {
            size,
            free,
            largest_block,
        }
    } else {
        Impossible::Fragmented {
            size,
            free,
            largest_block,
        }
    }
}

impl From<Impossible> for Reason {
    /// The code is the name of the variant; the numbers are `size`, `free`, `largestBlock`, `capacity`, `excluded`, as
    /// far as known.
    fn from(why: Impossible) -> Self {
        let message = alloc::format!("{why}");
        let with = |code: &str, size: IpuCount| Self::new(code, message.clone()).with("size", size.get());
        let space =
            |reason: Self, free: u32, largest: u32| reason.with("free", free).with("largestBlock", largest);
        match why {
            Impossible::UnknownAllocation { .. } => Self::new("UnknownAllocation", message),
            Impossible::TooLarge { size, capacity, .. } => with("TooLarge", size).with("capacity", capacity),
            Impossible::NotEnoughFree {
                size,
                free,
                largest_block,
            } => space(with("NotEnoughFree", size), free, largest_block),
            Impossible::Fragmented {
                size,
                free,
                largest_block,
            } => space(with("Fragmented", size), free, largest_block),
            Impossible::Excluded {
                size,
                free,
                largest_block,
                excluded,
                ..
            } => space(with("Excluded", size), free, largest_block).with("excluded", excluded),
            Impossible::Declined {
                size,
                free,
                largest_block,
                ..
            } => space(with("Declined", size), free, largest_block),
            Impossible::Illegal { size, .. } => with("Illegal", size),
        }
    }
}

fn within(allocation: Option<&AllocationId>) -> String {
    match allocation {
        Some(allocation) => alloc::format!("allocation {allocation}"),
        None => String::from("one allocation"),
    }
}

fn free_are(free: u32) -> String {
    match free {
        0 => String::from("none is free"),
        1 => String::from("1 is free"),
        more => alloc::format!("{more} are free"),
    }
}

fn list(owners: &[ExclusionOwner]) -> String {
    let names: Vec<&str> = owners.iter().map(ExclusionOwner::as_str).collect();
    names.join(", ")
}
