//! Every policy against brute force: what it answers is legal and best, and "impossible" is really impossible.

use std::collections::BTreeSet;

use ipu_core::{
    BestFit, Block, FirstFit, IpuAddress, IpuCount, Pinned, Placement, PlacementPolicy, PlacementRequest,
    place,
};
use ipu_testkit::ReferenceInventory;
use ipu_testkit::strategies::{Situation, situations};
use proptest::prelude::*;
use proptest::sample::Index;

fn block(placement: Placement) -> Option<Block> {
    match placement {
        Placement::Fits(block) => Some(block),
        _ => None,
    }
}

/// The largest free aligned block around `block` in one of the parts of its link domain that allocations of the scope
/// have, parts of larger parts left out; the smallest of these.
fn tightness(reference: &ReferenceInventory, request: &PlacementRequest, block: &Block) -> IpuCount {
    let first = block.first();
    let parts: BTreeSet<BTreeSet<IpuAddress>> = reference
        .scopes(request.allocation.as_ref())
        .map(|(_, ipus)| {
            let here = ipus.iter().filter(|at| at.link_domain == first.link_domain);
            here.copied().collect()
        })
        .collect();
    let outermost = parts
        .iter()
        .filter(|part| !parts.iter().any(|other| other != *part && part.is_subset(other)));
    let around = outermost.filter_map(|part| {
        let larger = (request.size.order()..=6).rev().filter_map(IpuCount::from_order);
        larger.into_iter().find(|size| {
            let first_ipu = first.ipu & !(size.get() as u8 - 1);
            let around = Block::within(first.link_domain, first_ipu, *size).unwrap();
            around
                .addresses()
                .all(|at| part.contains(&at) && reference.is_free(at))
        })
    });
    around.min().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn first_fit_takes_the_lowest_of_all_legal_blocks(Situation { reference, inventory, request, .. } in situations()) {
        let blocks = reference.free_blocks(request.size, request.allocation.as_ref());
        prop_assert_eq!(block(place(&inventory, &request, &FirstFit)), blocks.first().cloned());
    }

    #[test]
    fn best_fit_takes_the_tightest_of_all_legal_blocks(Situation { reference, inventory, request, .. } in situations()) {
        let scope = request.allocation.as_ref();
        let placed = block(place(&inventory, &request, &BestFit));
        let best = if request.size <= IpuCount::LINK_DOMAIN {
            let blocks = reference.free_blocks(request.size, scope).into_iter();
            blocks.min_by_key(|block| (tightness(&reference, &request, block), block.clone()))
        } else {
            // The allocation with the fewest whole free link domains that are enough.
            let best = reference.scopes(scope).filter_map(|(id, _)| {
                let block = reference.free_blocks(request.size, Some(id)).into_iter().next()?;
                Some((reference.free_blocks(IpuCount::LINK_DOMAIN, Some(id)).len(), block))
            }).min();
            best.map(|(_, block)| block)
        };
        prop_assert_eq!(placed, best);
    }

    #[test]
    fn impossible_means_that_no_block_is_free_and_says_the_true_reason(Situation { reference, inventory, request, .. } in situations()) {
        for policy in [&FirstFit as &dyn PlacementPolicy, &BestFit] {
            let why = match place(&inventory, &request, policy) {
                Placement::Impossible(why) => Some(why),
                _ => None,
            };
            prop_assert_eq!(why, reference.why_not(&request));
        }
    }

    #[test]
    fn pinned_fits_exactly_if_what_is_pinned_is_a_free_legal_block(
        Situation { reference, inventory, request, .. } in situations(), at in any::<Index>(), aligned in prop::bool::weighted(0.8),
    ) {
        let (size, scope) = (request.size.get(), request.allocation.as_ref());
        let from = at.index(reference.topology().link_domains() as usize) as u32;
        let span = |link_domain: u32, first: u8, size: u8| (first..first + size).map(move |ipu| IpuAddress { link_domain, ipu });
        let pinned: Vec<IpuAddress> = if size > 64 {
            (from..from + size / 64).flat_map(|domain| span(domain, 0, 64)).collect()
        } else {
            let first = at.index(65 - size as usize) as u8;
            span(from, if aligned { first & !(size as u8 - 1) } else { first }, size as u8).collect()
        };
        let placed = place(&inventory, &request, &Pinned::to(pinned.iter().rev().copied()).unwrap());
        let pinned = Block::of_ipus(pinned).unwrap();
        let legal = reference.free_blocks(request.size, scope).contains(&pinned);
        prop_assert_eq!(block(placed), legal.then_some(pinned));
    }

    #[test]
    fn what_fits_can_be_occupied_until_as_many_as_were_counted_are_placed(Situation { reference, inventory, request, .. } in situations()) {
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
            let few = scope.is_some() && reference.topology().link_domains() <= 8;
            if request.size <= IpuCount::LINK_DOMAIN || few {
                prop_assert_eq!(placed, reference.fit_count(request.size, scope));
            }
        }
    }
}
