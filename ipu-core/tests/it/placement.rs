//! Every policy against brute force: what it answers is legal and best, and "impossible" is really impossible.

use std::collections::BTreeSet;

use ipu_core::{
    BestFit, FirstFit, Impossible, Inventory, IpuAddress, IpuCount, Pinned, Placement, PlacementPolicy,
    PlacementRequest, place,
};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::model::{Model, SIZES, span};
use crate::strategies::{apply, steps, topologies};

/// A topology with things done to it, and a request.
fn situations() -> impl Strategy<Value = (Model, Inventory, PlacementRequest)> {
    let size = prop::sample::select(&SIZES[..]);
    (topologies(), steps(24), size, any::<Index>(), any::<bool>()).prop_map(
        |(topology, steps, size, scope, all)| {
            let (mut model, mut inventory) = (Model::new(&topology), Inventory::new(&topology));
            for step in &steps {
                apply(step, &mut model, &mut inventory);
            }
            let allocations = topology.allocations();
            let scope = (!all && !allocations.is_empty()).then(|| scope.get(allocations).id.clone());
            let request = PlacementRequest::of_size(IpuCount::try_from(size).unwrap()).in_allocation(scope);
            (model, inventory, request)
        },
    )
}

fn ipus(placement: &Placement) -> Option<Vec<IpuAddress>> {
    match placement {
        Placement::Fits(block) => Some(block.addresses().collect()),
        _ => None,
    }
}

/// The largest free aligned block around `block` in one of the parts of its link domain that allocations of the scope
/// have, parts of larger parts left out; the smallest of these.
fn tightness(model: &Model, request: &PlacementRequest, block: &[IpuAddress]) -> u32 {
    let domain = block[0].link_domain;
    let chosen = model
        .topology
        .allocations()
        .iter()
        .filter(|a| request.allocation.as_ref().is_none_or(|id| a.id == *id));
    let parts: BTreeSet<BTreeSet<IpuAddress>> = chosen
        .map(|allocation| {
            let ipus = allocation
                .agents
                .iter()
                .flat_map(|agent| model.topology.agent_ipus(agent).unwrap());
            ipus.filter(|at| at.link_domain == domain).collect()
        })
        .collect();
    let outermost = parts
        .iter()
        .filter(|part| !parts.iter().any(|other| other != *part && part.is_subset(other)));
    let around = outermost.filter_map(|part| {
        let sizes = SIZES
            .iter()
            .filter(|size| **size <= 64 && **size as usize >= block.len());
        sizes.rev().copied().find(|size| {
            let first = block[0].ipu & !(*size as u8 - 1);
            span(domain, first, *size)
                .iter()
                .all(|at| part.contains(at) && model.is_free(*at))
        })
    });
    around.min().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn first_fit_takes_the_lowest_of_all_legal_blocks((model, inventory, request) in situations()) {
        let blocks = model.free_blocks(request.size.get(), request.allocation.as_ref());
        let placed = place(&inventory, &request, &FirstFit);
        prop_assert_eq!(ipus(&placed), blocks.first().cloned());
    }

    #[test]
    fn best_fit_takes_the_tightest_of_all_legal_blocks((model, inventory, request) in situations()) {
        let blocks = model.free_blocks(request.size.get(), request.allocation.as_ref());
        let placed = ipus(&place(&inventory, &request, &BestFit));
        if request.size.get() <= 64 {
            let best = blocks.into_iter().min_by_key(|block| (tightness(&model, &request, block), block.clone()));
            prop_assert_eq!(placed, best);
        } else {
            // The allocation with the fewest whole free link domains that are enough.
            let scopes = model.topology.allocations().iter().map(|allocation| &allocation.id)
                .filter(|id| request.allocation.as_ref().is_none_or(|scope| scope == *id));
            let best = scopes.filter_map(|id| {
                let block = model.free_blocks(request.size.get(), Some(id)).into_iter().next()?;
                Some((model.free_blocks(64, Some(id)).len(), block))
            }).min();
            prop_assert_eq!(placed, best.map(|(_, block)| block));
        }
    }

    #[test]
    fn impossible_means_that_no_block_is_free_and_says_the_true_reason((model, inventory, request) in situations()) {
        let (size, scope) = (request.size.get(), request.allocation.as_ref());
        for policy in [&FirstFit as &dyn PlacementPolicy, &BestFit] {
            let why = match place(&inventory, &request, policy) {
                Placement::Impossible(why) => why,
                _ => continue,
            };
            prop_assert!(model.free_blocks(size, scope).is_empty());
            let never = model.blocks(size, scope, |_| true).is_empty();
            let excluded = !model.blocks(size, scope, |at| model.holder(at).is_none()).is_empty();
            let free = model.free(scope);
            let right = match &why {
                Impossible::TooLarge { .. } => never,
                Impossible::Excluded { .. } => !never && excluded,
                Impossible::NotEnoughFree { free: told, .. } => !never && !excluded && free < size && *told == free,
                Impossible::Fragmented { free: told, .. } => !never && !excluded && free >= size && *told == free,
                _ => false,
            };
            prop_assert!(right, "{}", why);
        }
    }

    #[test]
    fn pinned_fits_exactly_if_what_is_pinned_is_a_free_legal_block(
        (model, inventory, request) in situations(), at in any::<Index>(), aligned in prop::bool::weighted(0.8),
    ) {
        let (size, scope) = (request.size.get(), request.allocation.as_ref());
        let domain = at.index(model.topology.link_domains() as usize) as u32;
        let pinned: Vec<IpuAddress> = if size > 64 {
            (domain..domain + size / 64).flat_map(|domain| span(domain, 0, 64)).collect()
        } else {
            let first = at.index(65 - size as usize) as u8;
            span(domain, if aligned { first & !(size as u8 - 1) } else { first }, size)
        };
        let placed = place(&inventory, &request, &Pinned::to(pinned.iter().rev().copied()).unwrap());
        let legal = model.free_blocks(size, scope).contains(&pinned);
        prop_assert_eq!(ipus(&placed), legal.then_some(pinned));
    }

    #[test]
    fn what_fits_can_be_occupied_until_as_many_as_were_counted_are_placed((model, inventory, request) in situations()) {
        let scope = request.allocation.as_ref();
        for policy in [&FirstFit as &dyn PlacementPolicy, &BestFit] {
            let mut inventory = inventory.clone();
            let mut placed = 0;
            while let Placement::Fits(block) = place(&inventory, &request, policy) {
                placed += 1;
                let holder = format!("new-{placed}").parse().unwrap();
                prop_assert_eq!(inventory.occupy(holder, block), Ok(()));
            }
            // One after the other, large ones of crossing allocations may get in each other's way.
            if request.size.get() <= 64 || scope.is_some() {
                prop_assert_eq!(placed, model.fit_count(request.size.get(), scope));
            }
        }
    }
}
