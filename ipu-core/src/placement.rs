//! Placement of partitions: a policy chooses a block, and [`place`] validates the choice.

use serde::{Deserialize, Serialize};

use crate::hardware::inventory::{Block, Inventory, InventoryView};
use crate::ids::AllocationId;
use crate::units::IpuCount;

mod best_fit;
mod first_fit;
mod impossible;
mod mode;
mod pinned;

pub use best_fit::BestFit;
pub use first_fit::FirstFit;
pub use impossible::{IllegalChoice, Impossible};
pub use mode::{PlacementMode, PlacementModeError, SharedPolicy};
pub use pinned::Pinned;

/// The partition to place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct PlacementRequest {
    /// Number of IPUs.
    pub size: IpuCount,
    /// The allocation to draw from; none for any one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationId>,
}

impl PlacementRequest {
    /// Creates a request for `size` IPUs of any allocation.
    #[must_use]
    pub const fn of_size(size: IpuCount) -> Self {
        Self {
            size,
            allocation: None,
        }
    }

    /// Returns the request restricted to this allocation, if one is given.
    #[must_use]
    pub fn in_allocation(self, allocation: Option<AllocationId>) -> Self {
        Self { allocation, ..self }
    }
}

/// A policy that chooses one of the free blocks.
///
/// To implement one, inspect the free space in `view` and return a block of exactly `request.size`. [`place`]
/// validates the block, so an incorrect policy gets an error and can never cause a double hold. A policy must
/// be pure: the same view and request give the same result. `check_policy` of the crate `ipu-testkit` tests
/// all of this.
///
/// As an example, `Spread` places every partition in the link domain with the most free IPUs, so that jobs
/// share as few link domains as possible:
///
/// ```
/// use core::cmp::Reverse;
///
/// use ipu_core::IpuCount;
/// use ipu_core::hardware::{Block, Inventory, Topology, InventoryView};
/// use ipu_core::placement::{PlacementPolicy, PlacementRequest, place};
///
/// /// Chooses a block in the link domain with the most free IPUs, the lowest of the lowest such link domain.
/// struct Spread;
///
/// impl PlacementPolicy for Spread {
///     fn name(&self) -> &str {
///         "spread"
///     }
///
///     fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
///         // Every candidate is legal and free, in ascending order.
///         // `max_by_key` would return the last of several equals.
///         let free = |block: &Block| view.free_in(block.first().link_domain);
///         view.blocks(request.size).min_by_key(|block| Reverse(free(block)))
///     }
/// }
///
/// let mut inventory = Inventory::new(&Topology::pod128());
/// let four = PlacementRequest::of_size(IpuCount::try_from(4)?);
/// for (job, link_domain) in [("a", 0), ("b", 1), ("c", 0)] {
///     let block = place(&inventory, &four, &Spread)?;
///     assert_eq!(block.first().link_domain, link_domain);
///     inventory.occupy(job.parse()?, block)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait PlacementPolicy {
    /// Returns the name shown to users, such as `best-fit`.
    fn name(&self) -> &str;

    /// Returns the chosen block; none to decline, or if nothing fits. `view` is limited to the allocation of
    /// the request.
    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block>;
}

/// The result of a placement: an aligned block of the requested size, free, in one allocation, or why the
/// request fits nowhere now.
pub type Placement = Result<Block, Impossible>;

/// Places `request` in `inventory` by `policy`. The inventory does not change; pass the block to
/// [`Inventory::occupy`].
///
/// *Guarantees*. The block is legal, whatever the policy does: aligned, of the requested size, free, not
/// cordoned, in one allocation. The reasons `TooLarge`, `NotEnoughFree`, `Fragmented` and `Cordoned` are
/// given only if no legal block exists.
///
/// ```
/// use ipu_core::{IpuCount, PartitionId, Reason};
/// use ipu_core::hardware::{Inventory, Topology};
/// use ipu_core::placement::{BestFit, PlacementRequest, place};
///
/// let mut inventory = Inventory::new(&Topology::pod16());
/// let request = PlacementRequest::of_size(IpuCount::try_from(16)?);
/// if let Ok(block) = place(&inventory, &request, &BestFit) {
///     inventory.occupy(PartitionId::new("first")?, block)?;
/// }
/// let why = place(&inventory, &request, &BestFit).unwrap_err();
/// assert_eq!(Reason::from(why).message, "cannot fit 16 IPUs: none is free");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`Impossible`], if the request fits nowhere now.
pub fn place(inventory: &Inventory, request: &PlacementRequest, policy: &dyn PlacementPolicy) -> Placement {
    let view = match inventory.view(request.allocation.as_ref()) {
        Ok(view) => view,
        Err(unknown) => {
            return Err(Impossible::UnknownAllocation {
                allocation: unknown.allocation,
            });
        }
    };
    let Some(block) = policy.choose(&view, request) else {
        return Err(explain_no_choice(&view, request, policy));
    };
    match broken_rule(&view, request, &block) {
        None => Ok(block),
        Some(rule) => Err(Impossible::Illegal {
            size: request.size,
            policy: policy.name().into(),
            block,
            rule,
        }),
    }
}

/// Returns the rule that a choice breaks.
fn broken_rule(view: &InventoryView<'_>, request: &PlacementRequest, block: &Block) -> Option<IllegalChoice> {
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

/// Determines the reason that a policy chose no block.
fn explain_no_choice(
    view: &InventoryView<'_>,
    request: &PlacementRequest,
    policy: &dyn PlacementPolicy,
) -> Impossible {
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
    } else if view.would_fit_without_cordons(size) {
        Impossible::Cordoned {
            size,
            free,
            largest_block,
            cordoned: view.cordoned(),
            owners: view.cordon_owners(),
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

#[cfg(test)]
mod tests {
    use std::string::ToString as _;
    use std::vec::Vec;

    use super::*;
    use crate::hardware::topology::{IpuAddress, Topology};
    use crate::ids::{CordonOwner, PartitionId};
    use crate::reason::Reason;

    fn count(ipus: u32) -> IpuCount {
        IpuCount::try_from(ipus).unwrap()
    }

    fn ipus(range: impl IntoIterator<Item = u8>) -> impl Iterator<Item = IpuAddress> {
        range.into_iter().map(|ipu| IpuAddress { link_domain: 0, ipu })
    }

    /// Creates an inventory of `topology` with these IPUs of its first link domain held, each by its own
    /// holder.
    fn inventory_with_held(topology: &Topology, singles: impl IntoIterator<Item = u8>) -> Inventory {
        let mut inventory = Inventory::new(topology);
        for at in ipus(singles) {
            let holder = PartitionId::new(alloc::format!("p{}", at.ipu)).unwrap();
            inventory.occupy(holder, Block::from_ipus([at]).unwrap()).unwrap();
        }
        inventory
    }

    fn rejection(inventory: &Inventory, size: u32, policy: &dyn PlacementPolicy) -> Reason {
        match place(inventory, &PlacementRequest::of_size(count(size)), policy) {
            Ok(block) => panic!("it fits on {block}"),
            Err(why) => why.into(),
        }
    }

    #[track_caller]
    fn assert_fits(inventory: &Inventory, size: u32, policy: &dyn PlacementPolicy, first: u8) {
        let placed = place(inventory, &PlacementRequest::of_size(count(size)), policy);
        assert_eq!(placed, Ok(Block::within(0, first, count(size)).unwrap()));
    }

    #[test]
    fn best_fit_uses_the_fuller_half_and_first_fit_the_lowest_address() {
        // Of 8 IPUs, 0 and 2 are busy: the next single is placed at 1, the next pair at 4, as in the one
        // public model of this.
        let inventory = inventory_with_held(&"1x2".parse().unwrap(), [0, 2]);
        assert_fits(&inventory, 1, &BestFit, 1);
        assert_fits(&inventory, 2, &BestFit, 4);
        assert_eq!(
            (
                inventory.free(),
                inventory.fit_count(count(2), None),
                inventory.fit_count(count(4), None)
            ),
            (6, 2, 1)
        );
        let inventory = inventory_with_held(&"1x2".parse().unwrap(), [4]);
        assert_fits(&inventory, 1, &FirstFit, 0);
        assert_fits(&inventory, 1, &BestFit, 5);
        assert_fits(&inventory, 2, &BestFit, 6);
    }

    #[test]
    fn every_rejection_has_a_reason_of_one_sentence() {
        let pod = "1x8".parse().unwrap();
        let fragmented = inventory_with_held(&pod, [0, 8]);
        let reason = rejection(&fragmented, 32, &FirstFit);
        assert_eq!(
            (reason.code.as_str(), &*reason.message),
            ("NotEnoughFree", "cannot fit 32 IPUs: 30 are free")
        );
        let reason = rejection(&inventory_with_held(&pod, [0, 9, 20, 28]), 16, &BestFit);
        assert_eq!(
            (reason.code.as_str(), &*reason.message),
            (
                "Fragmented",
                "cannot fit 16 IPUs: 28 are free but the largest free block is 4"
            )
        );
        assert_eq!(reason.numbers.get("largestBlock"), Some(&4));
        let reason = rejection(&fragmented, 64, &BestFit);
        assert_eq!(
            (reason.code.as_str(), &*reason.message),
            (
                "TooLarge",
                "cannot fit 64 IPUs: the largest partition that one allocation can form is of 32"
            )
        );
        let mut cordoned = Inventory::new(&pod);
        cordoned.cordon(&CordonOwner::health(), ipus([3])).unwrap();
        cordoned.cordon(&CordonOwner::foreign(), ipus(16..18)).unwrap();
        let reason = rejection(&cordoned, 32, &FirstFit);
        assert_eq!(
            (reason.code.as_str(), &*reason.message),
            (
                "Cordoned",
                "cannot fit 32 IPUs: 29 are free and 3 that would serve are cordoned (by foreign, health)"
            )
        );
    }

    #[test]
    fn a_pinned_partition_gets_its_ipus_or_the_rule_that_they_break() {
        let inventory = inventory_with_held(&Topology::pod16(), [9]);
        let pin = |range: core::ops::Range<u8>| Pinned::new(ipus(range)).unwrap();
        assert_fits(&inventory, 4, &pin(4..8), 4);
        for (range, rule) in [
            (8..12, "IPU 9 of link domain 0 is held by p9"),
            (2..6, "from a multiple of its size on"),
            (12..14, "the choice of the policy pinned: that is 2 IPUs"),
            (16..20, "there is no IPU 16 of link domain 0"),
        ] {
            let reason = rejection(&inventory, 4, &pin(range));
            assert!(
                reason.code == "Illegal" && reason.message.contains(rule),
                "{reason}"
            );
        }
        assert!(Pinned::new(ipus([1, 1])).is_err());
    }

    #[test]
    fn a_broken_policy_gets_an_error_and_never_causes_a_double_hold() {
        struct Always(Block);
        impl PlacementPolicy for Always {
            fn name(&self) -> &'static str {
                "always"
            }
            fn choose(&self, _: &InventoryView<'_>, _: &PlacementRequest) -> Option<Block> {
                Some(self.0.clone())
            }
        }
        struct Never;
        impl PlacementPolicy for Never {
            fn name(&self) -> &'static str {
                "never"
            }
            fn choose(&self, _: &InventoryView<'_>, _: &PlacementRequest) -> Option<Block> {
                None
            }
        }
        let inventory = inventory_with_held(&Topology::pod16(), [0]);
        let taken = Always(Block::within(0, 0, count(4)).unwrap());
        assert_eq!(rejection(&inventory, 4, &taken).code, "Illegal");
        let nowhere = Always(Block::whole([4, 7]).unwrap());
        assert_eq!(rejection(&inventory, 128, &nowhere).code, "Illegal");
        assert_eq!(rejection(&inventory, 4, &Never).code, "Declined");
        assert!(
            rejection(&inventory, 4, &Never)
                .to_string()
                .contains("never declines")
        );
    }

    #[test]
    fn no_partition_spans_two_allocations() {
        // The example of the V-IPU user guide: allocations of 4 and 2 agents give a largest partition of 16
        // and one of 8.
        let topology: Topology = "1x6".parse().unwrap();
        let mut clusters = topology.clusters().to_vec();
        let agents: Vec<_> = clusters
            .remove(0)
            .link_domains
            .remove(0)
            .machines
            .into_iter()
            .flatten()
            .collect();
        let allocation = |id: &str, agents: &[crate::AgentId]| crate::hardware::Allocation {
            id: AllocationId::new(id).unwrap(),
            cluster: "cl1".parse().unwrap(),
            agents: agents.iter().cloned().collect(),
        };
        let inventory_of = |allocations| {
            Inventory::new(&Topology::new(topology.clusters().to_vec(), Some(allocations)).unwrap())
        };
        // An IPU of two allocations is free once.
        let overlapping = [
            allocation("four", &agents[..4]),
            allocation("three", &agents[3..]),
        ];
        assert_eq!(inventory_of(overlapping.into()).free(), 24);
        let disjoint = [allocation("four", &agents[..4]), allocation("two", &agents[4..])];
        let inventory = inventory_of(disjoint.into());
        let two = AllocationId::new("two").unwrap();
        assert_eq!(inventory.largest_block(), Some(count(16)));
        assert_eq!(inventory.fit_count(count(16), Some(&two)), 0);
        assert_eq!(inventory.fit_count(count(8), Some(&two)), 1);
        let request = PlacementRequest::of_size(count(8)).in_allocation(Some(two));
        assert_eq!(
            place(&inventory, &request, &FirstFit),
            Ok(Block::within(0, 16, count(8)).unwrap())
        );
        let outside = Pinned::new(ipus(0..8)).unwrap();
        let placed = place(&inventory, &request, &outside);
        assert!(matches!(
            placed,
            Err(Impossible::Illegal {
                rule: IllegalChoice::OutsideAllocation,
                ..
            })
        ));
        let request = request.in_allocation(Some(AllocationId::new("five").unwrap()));
        let placed = place(&inventory, &request, &FirstFit);
        assert!(matches!(placed, Err(Impossible::UnknownAllocation { .. })));
    }
}
