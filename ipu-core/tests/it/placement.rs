//! Every policy against brute force: what it answers is legal and best, and "impossible" is really impossible.

use std::collections::BTreeSet;

use ipu_core::{
    BestFit, Block, FirstFit, IpuAddress, IpuCount, Pinned, Placement, PlacementPolicy, PlacementRequest,
    place,
};
use ipu_testkit::strategies::{PlacementCase, situations};
use ipu_testkit::{PolicyCheck, ReferenceInventory};
use proptest::prelude::*;
use proptest::sample::Index;

fn block(placement: Placement) -> Option<Block> {
    match placement {
        Placement::Fits(block) => Some(block),
        _ => None,
    }
}

/// What `best-fit` minimises: the size of the free block that `block` is taken from; above 64 IPUs, how many whole link
/// domains its allocation has free. Then the address.
fn tightness(reference: &ReferenceInventory, request: &PlacementRequest, block: &Block) -> (u32, Block) {
    let cost = if request.size <= IpuCount::LINK_DOMAIN {
        around(reference, request, block).get()
    } else {
        whole(reference, request, block)
    };
    (cost, block.clone())
}

/// The largest free aligned block around `block` in one of the parts of its link domain that allocations of the scope
/// have, parts of larger parts left out; the smallest of these.
fn around(reference: &ReferenceInventory, request: &PlacementRequest, block: &Block) -> IpuCount {
    let first = block.first();
    let parts: BTreeSet<BTreeSet<IpuAddress>> = reference
        .scopes(request.allocation.as_ref())
        .map(|(_, ipus)| {
            let at = |ipu| IpuAddress { ipu, ..first };
            ipus.range(at(0)..=at(63)).copied().collect()
        })
        .collect();
    let outermost = parts
        .iter()
        .filter(|part| !parts.iter().any(|other| other != *part && part.is_subset(other)));
    let around = outermost.filter_map(|part| {
        let sizes = request.size.order()..=IpuCount::LINK_DOMAIN.order();
        let mut sizes = sizes.rev().filter_map(IpuCount::from_order);
        sizes.find(|size| {
            let start = first.ipu & !(size.get() as u8 - 1);
            let around = Block::within(first.link_domain, start, *size).unwrap();
            around
                .addresses()
                .all(|at| part.contains(&at) && reference.is_free(at))
        })
    });
    around.min().unwrap()
}

/// The fewest whole free link domains of an allocation of the scope that has all of `block`.
fn whole(reference: &ReferenceInventory, request: &PlacementRequest, block: &Block) -> u32 {
    let scopes = reference.scopes(request.allocation.as_ref());
    let having = scopes.filter(|(_, ipus)| block.addresses().all(|at| ipus.contains(&at)));
    having
        .map(|(id, _)| reference.fit_count(IpuCount::LINK_DOMAIN, Some(id)))
        .min()
        .unwrap()
}

#[test]
fn first_fit_takes_the_lowest_of_all_legal_blocks() {
    PolicyCheck::new()
        .minimises(|_, _, block| block.clone())
        .check(|| FirstFit);
}

#[test]
fn best_fit_takes_the_tightest_of_all_legal_blocks() {
    PolicyCheck::new().minimises(tightness).check(|| BestFit);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn pinned_fits_exactly_if_what_is_pinned_is_a_free_legal_block(
        PlacementCase { reference, inventory, request, .. } in situations(), at in any::<Index>(), aligned in prop::bool::weighted(0.8),
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
    fn link_domains_of_one_allocation_are_placed_until_as_many_as_were_counted(PlacementCase { reference, inventory, request, .. } in situations()) {
        let scope = request.allocation.as_ref();
        // Every choice is tried: only for few. Up to 64 IPUs the check of policies asks for this.
        prop_assume!(scope.is_some() && reference.topology().link_domains() <= 8);
        for policy in [&FirstFit as &dyn PlacementPolicy, &BestFit] {
            let mut inventory = inventory.clone();
            let mut placed = 0;
            while let Placement::Fits(block) = place(&inventory, &request, policy) {
                placed += 1;
                let holder = format!("new-{placed}").parse().unwrap();
                prop_assert_eq!(inventory.occupy(holder, block), Ok(()));
            }
            prop_assert_eq!(placed, reference.fit_count(request.size, scope));
        }
    }
}
