//! The inventory against a model of sets, over random topologies and operations.

use std::collections::BTreeSet;

use ipu_core::{AllocationId, Block, ExclusionOwner, Inventory, IpuAddress, IpuCount, check_inventory};
use proptest::prelude::*;

use crate::model::{Model, SIZES};
use crate::strategies::{apply, steps, topologies};

/// No scope, and each allocation.
fn scopes(model: &Model) -> Vec<Option<AllocationId>> {
    let ids = model
        .topology
        .allocations()
        .iter()
        .map(|allocation| Some(allocation.id.clone()));
    std::iter::once(None).chain(ids).collect()
}

/// Whether of any two allocations that share a whole link domain one has all whole link domains of the other.
fn is_nested(model: &Model) -> bool {
    let whole: Vec<BTreeSet<u32>> = scopes(model)
        .iter()
        .skip(1)
        .map(|scope| {
            model
                .blocks(64, scope.as_ref(), |_| true)
                .iter()
                .map(|block| block[0].link_domain)
                .collect()
        })
        .collect();
    whole.iter().all(|a| {
        whole
            .iter()
            .all(|b| a.is_disjoint(b) || a.is_subset(b) || b.is_subset(a))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn after_any_operations_the_inventory_agrees_with_the_model(topology in topologies(), steps in steps(40)) {
        let (mut model, mut inventory) = (Model::new(&topology), Inventory::new(&topology));
        for step in &steps {
            apply(step, &mut model, &mut inventory);
            prop_assert_eq!(check_inventory(&inventory), []);
        }
        let holders: Vec<_> = inventory.holders().map(|(id, block)| (id.clone(), block.addresses().collect())).collect();
        let firsts: Vec<_> = inventory.holders().map(|(_, block)| block.first()).collect();
        prop_assert!(firsts.is_sorted());
        prop_assert_eq!(holders.into_iter().collect::<std::collections::BTreeMap<_, BTreeSet<_>>>(), model.held.clone());
        let exclusions: BTreeSet<_> = inventory.exclusions().map(|(owner, at)| (owner.clone(), at)).collect();
        prop_assert_eq!(exclusions, model.excluded);
    }

    #[test]
    fn every_question_is_answered_as_by_trying_everything(topology in topologies(), steps in steps(24)) {
        let (mut model, mut inventory) = (Model::new(&topology), Inventory::new(&topology));
        for step in &steps {
            apply(step, &mut model, &mut inventory);
        }
        let nested = is_nested(&model);
        let legal = inventory.holders().all(|(_, block)| block.size().is_some());
        for scope in scopes(&model) {
            let scope = scope.as_ref();
            let view = inventory.view(scope).unwrap();
            let ipus = model.ipus(scope);
            prop_assert_eq!(view.ipus() as usize, ipus.len());
            prop_assert_eq!(view.free(), model.free(scope));
            let idle = |at: &&IpuAddress| model.is_excluded(**at) && model.holder(**at).is_none();
            prop_assert_eq!(view.excluded() as usize, ipus.iter().filter(idle).count());
            let owners: BTreeSet<ExclusionOwner> = model.excluded.iter()
                .filter(|(_, at)| ipus.contains(at) && model.holder(*at).is_none()).map(|(owner, _)| owner.clone()).collect();
            prop_assert_eq!(view.excluders(), owners.into_iter().collect::<Vec<_>>());
            let largest = |blocks: &dyn Fn(u32) -> bool| SIZES.iter().rev().find(|size| blocks(**size)).copied();
            let fitting = largest(&|size| !model.free_blocks(size, scope).is_empty());
            prop_assert_eq!(view.largest_block().map(IpuCount::get), fitting);
            let capacity = largest(&|size| !model.blocks(size, scope, |_| true).is_empty());
            prop_assert_eq!(view.capacity().map(IpuCount::get), capacity);
            for size in SIZES {
                let count = IpuCount::try_from(size).unwrap();
                let (found, expected) = (inventory.fit_count(count, scope), model.fit_count(size, scope));
                if size <= 64 || scope.is_some() || nested {
                    prop_assert_eq!(found, expected, "{} IPUs in {:?}", size, scope);
                } else {
                    prop_assert!(found <= expected && (found > 0) == (expected > 0), "{} of {}", found, expected);
                }
                let without = !model.blocks(size, scope, |at| model.holder(at).is_none()).is_empty();
                prop_assert_eq!(view.would_fit_without_exclusions(count), without);
                if size <= 64 {
                    let blocks: Vec<Vec<IpuAddress>> = view.blocks(count).map(|block| block.addresses().collect()).collect();
                    prop_assert_eq!(blocks, model.free_blocks(size, scope).into_iter().collect::<Vec<_>>());
                }
                let blockers = inventory.blockers_for(count, scope);
                let cost = blockers.as_ref().map(|found| (found.holders.len(), found.ipus));
                let least = model.blockers(size, scope);
                if size <= 64 {
                    prop_assert_eq!(cost, least);
                } else if legal {
                    prop_assert_eq!(cost.map(|(holders, _)| holders), least.map(|(holders, _)| holders));
                }
                if let Some(blockers) = blockers {
                    // What it promises comes true.
                    let mut after = inventory.clone();
                    for holder in &blockers.holders {
                        prop_assert!(after.vacate(holder).is_ok());
                    }
                    prop_assert!(after.view(scope).unwrap().covers(&blockers.block));
                    prop_assert_eq!(after.occupy("probe".parse().unwrap(), blockers.block), Ok(()));
                }
            }
        }
    }
}

#[test]
fn an_ipu_excluded_twice_stays_excluded_until_both_lift() {
    let mut inventory = Inventory::new(&"pod4".parse().unwrap());
    let at = [IpuAddress {
        link_domain: 0,
        ipu: 1,
    }];
    let (health, alice) = (ExclusionOwner::health(), ExclusionOwner::new("alice").unwrap());
    inventory.exclude(&health, at).unwrap();
    inventory.exclude(&alice, at).unwrap();
    inventory.exclude(&alice, at).unwrap();
    inventory.lift(&health, at).unwrap();
    assert_eq!(inventory.free(), 3);
    let error = inventory.lift(&health, at).unwrap_err().to_string();
    assert_eq!(
        error,
        "IPU 1 of link domain 0 is not excluded by health; only who excludes an IPU can lift it"
    );
    inventory.lift(&alice, at).unwrap();
    assert_eq!(inventory.free(), 4);
}

#[test]
fn the_documented_numbers_of_a_query_come_out() {
    // Seed 000 §6.8.1: 32 IPUs of which 4 are used leave 14 partitions of 2 and none of 64.
    let mut inventory = Inventory::new(&"1x8".parse().unwrap());
    let four = IpuCount::try_from(4).unwrap();
    let block = inventory.everything().first_fit(four).unwrap();
    inventory.occupy("p-default".parse().unwrap(), block).unwrap();
    assert_eq!(inventory.free(), 28);
    assert_eq!(inventory.fit_count(IpuCount::try_from(2).unwrap(), None), 14);
    assert_eq!(inventory.fit_count(IpuCount::LINK_DOMAIN, None), 0);
}

#[test]
fn one_large_partition_is_ended_rather_than_several_small_ones_and_no_larger_one_than_is_enough() {
    let mut inventory = Inventory::new(&"8x16".parse().unwrap());
    for (holder, domains) in [("four", 0..4), ("two", 4..6)] {
        inventory
            .occupy(holder.parse().unwrap(), Block::whole(domains).unwrap())
            .unwrap();
    }
    for (holder, domain) in [("one", 6), ("other", 7)] {
        let block = Block::within(domain, 0, IpuCount::LINK_DOMAIN).unwrap();
        inventory.occupy(holder.parse().unwrap(), block).unwrap();
    }
    let blockers = |ipus: u32| {
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
    assert_eq!(blockers(64), "one");
    assert_eq!(blockers(128), "two");
    assert_eq!(blockers(256), "four");
    assert_eq!(blockers(512), "four one other two");
}
