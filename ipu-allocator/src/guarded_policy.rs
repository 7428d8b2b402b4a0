//! Guard for the placement policy of an embedder: a panic counts as a declined request.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ipu_core::hardware::{Block, InventoryView};
use ipu_core::placement::{PlacementMode, PlacementPolicy, PlacementRequest, SharedPolicy};

/// A policy that declines a request instead of panicking. A panic in the middle of a queue scan would fail
/// every request, not only the one that the policy cannot place.
struct GuardedPolicy(SharedPolicy);

impl PlacementPolicy for GuardedPolicy {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        // A policy is pure, so a panic leaves no broken state behind.
        catch_unwind(AssertUnwindSafe(|| self.0.choose(view, request))).unwrap_or_else(|_| {
            tracing::error!(policy = self.name(), size = %request.size, "the placement policy panicked");
            None
        })
    }
}

/// Returns the mode with a policy that never panics.
pub(crate) fn guarded(mode: PlacementMode) -> PlacementMode {
    match mode {
        PlacementMode::Explicit(policy) => PlacementMode::Explicit(Arc::new(GuardedPolicy(policy))),
        PlacementMode::Delegated => PlacementMode::Delegated,
    }
}

#[cfg(test)]
mod tests {
    use ipu_core::IpuCount;
    use ipu_core::hardware::{Inventory, Topology};
    use ipu_core::placement::place;

    use super::*;

    struct Panicking;

    impl PlacementPolicy for Panicking {
        fn name(&self) -> &str {
            "panicking"
        }

        fn choose(&self, _: &InventoryView<'_>, _: &PlacementRequest) -> Option<Block> {
            panic!("out of ideas")
        }
    }

    #[test]
    fn a_policy_that_panics_declines_under_its_own_name() {
        let PlacementMode::Explicit(policy) = guarded(PlacementMode::Explicit(Arc::new(Panicking))) else {
            panic!("delegated");
        };
        assert_eq!(policy.name(), "panicking");
        let request = PlacementRequest::of_size(IpuCount::try_from(4).unwrap());
        let placed = place(&Inventory::new(&Topology::pod16()), &request, &*policy);
        assert!(format!("{placed:?}").contains("Declined"), "{placed:?}");
    }
}
