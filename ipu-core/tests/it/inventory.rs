//! Compares the inventory with the reference implementation over random topologies and operations.

use std::collections::BTreeSet;

use ipu_core::hardware::{Block, Inventory, IpuAddress};
use ipu_core::{AllocationId, CordonOwner, IpuCount};
use ipu_testkit::ReferenceInventory;
use ipu_testkit::strategies::{operations, topologies};
use proptest::prelude::*;

/// Returns no scope, and each allocation.
fn scopes(reference: &ReferenceInventory) -> Vec<Option<AllocationId>> {
    let ids = reference.scopes(None).map(|(id, _)| Some(id.clone()));
    std::iter::once(None).chain(ids).collect()
}

/// Returns the sizes that fit into the topologies, and one larger size.
fn sizes() -> impl DoubleEndedIterator<Item = IpuCount> {
    (0..=8).filter_map(IpuCount::from_order)
}

/// Returns whether any two allocations that share a whole link domain are nested in their whole link domains.
fn is_nested(reference: &ReferenceInventory) -> bool {
    let whole: Vec<BTreeSet<u32>> = scopes(reference)
        .iter()
        .skip(1)
        .map(|scope| {
            reference
                .blocks(IpuCount::LINK_DOMAIN, scope.as_ref(), |_| true)
                .iter()
                .map(|block| block.first().link_domain)
                .collect()
        })
        .collect();
    whole.iter().all(|one| {
        whole
            .iter()
            .all(|other| one.is_disjoint(other) || one.is_subset(other) || other.is_subset(one))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_inventory_matches_the_reference_after_any_operations(topology in topologies(), operations in operations(40)) {
        let (mut reference, mut inventory) = (ReferenceInventory::new(&topology), Inventory::new(&topology));
        for operation in &operations {
            operation.apply(&mut reference, &mut inventory);
            prop_assert_eq!(inventory.free(), reference.free(None));
        }
        let holders: Vec<_> = inventory.holders().map(|(id, block)| (id.clone(), block.addresses().collect())).collect();
        let firsts: Vec<_> = inventory.holders().map(|(_, block)| block.first()).collect();
        prop_assert!(firsts.is_sorted());
        prop_assert_eq!(holders.into_iter().collect::<std::collections::BTreeMap<_, BTreeSet<_>>>(), reference.holders());
        let cordons: BTreeSet<_> = inventory.cordons().map(|(owner, at)| (owner.clone(), at)).collect();
        prop_assert_eq!(cordons, reference.cordons());
    }

    #[test]
    fn every_query_matches_an_exhaustive_search(topology in topologies(), operations in operations(24)) {
        let (mut reference, mut inventory) = (ReferenceInventory::new(&topology), Inventory::new(&topology));
        for operation in &operations {
            operation.apply(&mut reference, &mut inventory);
        }
        let nested = is_nested(&reference);
        let legal = inventory.holders().all(|(_, block)| block.size().is_some());
        for scope in scopes(&reference) {
            let scope = scope.as_ref();
            let view = inventory.view(scope).unwrap();
            prop_assert_eq!(view.ipus() as usize, reference.ipus(scope).len());
            prop_assert_eq!(view.free(), reference.free(scope));
            prop_assert_eq!((view.cordoned(), view.cordon_owners()), reference.idle_cordons(scope));
            prop_assert_eq!(view.largest_block(), reference.largest(scope, |at| reference.is_free(at)));
            prop_assert_eq!(view.capacity(), reference.largest(scope, |_| true));
            prop_assert!(scope.is_none() || view.allocation() == scope);
            let ipus = reference.ipus(scope);
            for domain in 0..topology.link_domains() {
                let free = ipus.iter().filter(|at| at.link_domain == domain && reference.is_free(**at));
                prop_assert_eq!(view.free_in(domain) as usize, free.count());
            }
            for size in sizes() {
                let (found, expected) = (inventory.fit_count(size, scope), reference.fit_count(size, scope));
                if size <= IpuCount::LINK_DOMAIN || scope.is_some() || nested {
                    prop_assert_eq!(found, expected, "{} IPUs in {:?}", size, scope);
                } else {
                    prop_assert!(found <= expected && (found > 0) == (expected > 0), "{} of {}", found, expected);
                }
                let fits = reference.has_block(size, scope, |at| reference.is_free(at));
                prop_assert_eq!(view.fits(size), fits);
                let without = reference.has_block(size, scope, |at| reference.holder(at).is_none());
                prop_assert_eq!(view.would_fit_without_cordons(size), without);
                if size <= IpuCount::LINK_DOMAIN {
                    let blocks: Vec<Block> = view.blocks(size).collect();
                    prop_assert_eq!(blocks, reference.free_blocks(size, scope).into_iter().collect::<Vec<_>>());
                }
                let blockers = inventory.blockers_for(size, scope);
                let cost = blockers.as_ref().map(|found| (found.holders.len(), found.ipus));
                let minimum = reference.blockers(size, scope);
                if size <= IpuCount::LINK_DOMAIN {
                    prop_assert_eq!(cost, minimum);
                } else if legal {
                    prop_assert_eq!(cost.map(|(holders, _)| holders), minimum.map(|(holders, _)| holders));
                }
                if let Some(blockers) = blockers {
                    // Ending the reported holders frees the block.
                    let mut after = inventory.clone();
                    for holder in &blockers.holders {
                        prop_assert!(after.vacate(holder).is_ok());
                    }
                    prop_assert!(after.view(scope).unwrap().covers(&blockers.block));
                    prop_assert_eq!(blockers.block.size(), Some(size));
                    prop_assert_eq!(after.occupy("probe".parse().unwrap(), blockers.block), Ok(()));
                }
            }
        }
    }
}

#[test]
fn an_ipu_with_two_cordons_is_cordoned_until_both_are_removed() {
    let mut inventory = Inventory::new(&"pod4".parse().unwrap());
    let at = [IpuAddress {
        link_domain: 0,
        ipu: 1,
    }];
    let (health, alice) = (CordonOwner::health(), CordonOwner::new("alice").unwrap());
    inventory.cordon(&health, at).unwrap();
    inventory.cordon(&alice, at).unwrap();
    inventory.cordon(&alice, at).unwrap();
    inventory.uncordon(&health, at).unwrap();
    assert_eq!(inventory.free(), 3);
    let error = inventory.uncordon(&health, at).unwrap_err().to_string();
    assert_eq!(
        error,
        "IPU 1 of link domain 0 is not cordoned by health; only the owner of a cordon can remove it"
    );
    inventory.uncordon(&alice, at).unwrap();
    assert_eq!(inventory.free(), 4);
}

#[test]
fn the_inventory_returns_the_documented_numbers_of_a_query() {
    // V-IPU guide §6.8.1: 32 IPUs of which 4 are used leave 14 partitions of 2 and none of 64.
    let mut inventory = Inventory::new(&"1x8".parse().unwrap());
    let four = IpuCount::try_from(4).unwrap();
    let block = inventory.whole_view().first_fit(four).unwrap();
    inventory.occupy("p-default".parse().unwrap(), block).unwrap();
    assert_eq!(inventory.free(), 28);
    assert_eq!(inventory.fit_count(IpuCount::try_from(2).unwrap(), None), 14);
    assert_eq!(inventory.fit_count(IpuCount::LINK_DOMAIN, None), 0);
}

#[test]
fn blockers_are_the_fewest_and_then_the_smallest_holders() {
    let mut inventory = Inventory::new(&"9x16".parse().unwrap());
    for (holder, domains) in [("four", 0..4), ("two", 4..6)] {
        inventory
            .occupy(holder.parse().unwrap(), Block::whole(domains).unwrap())
            .unwrap();
    }
    for (holder, domain, ipus) in [("one", 6, 64), ("another", 7, 64), ("small", 8, 32)] {
        let block = Block::within(domain, 0, IpuCount::try_from(ipus).unwrap()).unwrap();
        inventory.occupy(holder.parse().unwrap(), block).unwrap();
    }
    let blockers = |inventory: &Inventory, ipus: u32| {
        let found = inventory
            .blockers_for(IpuCount::try_from(ipus).unwrap(), None)
            .unwrap();
        found
            .holders
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(blockers(&inventory, 64), "small");
    assert_eq!(blockers(&inventory, 128), "two");
    assert_eq!(blockers(&inventory, 256), "four");
    assert_eq!(blockers(&inventory, 512), "four one small two");
    inventory.vacate(&"one".parse().unwrap()).unwrap();
    assert_eq!(blockers(&inventory, 128), "small");
}
