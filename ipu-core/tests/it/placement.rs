//! Compares every policy with an exhaustive search: its placements are legal and optimal, and it finds one if
//! any exists.

use std::collections::BTreeSet;

use ipu_core::IpuCount;
use ipu_core::hardware::{Block, IpuAddress};
use ipu_core::placement::{
    BestFit, FirstFit, Pinned, Placement, PlacementMode, PlacementPolicy, PlacementRequest, place,
};
use ipu_testkit::strategies::{PlacementCase, placement_cases};
use ipu_testkit::{PolicyCheck, ReferenceInventory};
use proptest::prelude::*;
use proptest::sample::Index;

/// Returns the cost that `best-fit` minimises: the size of the free block around `block`. Above 64 IPUs it is
/// the number of free whole link domains in its allocation. Ties are broken by address.
fn tightness(reference: &ReferenceInventory, request: &PlacementRequest, block: &Block) -> (u32, Block) {
    let cost = if request.size <= IpuCount::LINK_DOMAIN {
        enclosing_free_size(reference, request, block).get()
    } else {
        free_link_domains(reference, request, block)
    };
    (cost, block.clone())
}

/// Returns the size of the largest free aligned block around `block` within one part of its link domain. The
/// parts are those of the allocations in scope, without parts inside larger ones; the smallest result counts.
fn enclosing_free_size(
    reference: &ReferenceInventory,
    request: &PlacementRequest,
    block: &Block,
) -> IpuCount {
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
    let sizes = outermost.filter_map(|part| {
        let sizes = request.size.order()..=IpuCount::LINK_DOMAIN.order();
        let mut sizes = sizes.rev().filter_map(IpuCount::from_order);
        sizes.find(|size| {
            let start = first.ipu & !(size.get() as u8 - 1);
            let candidate = Block::within(first.link_domain, start, *size).unwrap();
            candidate
                .addresses()
                .all(|at| part.contains(&at) && reference.is_free(at))
        })
    });
    sizes.min().unwrap()
}

/// Returns the minimum number of free whole link domains over the allocations of the scope that contain
/// `block`.
fn free_link_domains(reference: &ReferenceInventory, request: &PlacementRequest, block: &Block) -> u32 {
    let scopes = reference.scopes(request.allocation.as_ref());
    let containing = scopes.filter(|(_, ipus)| block.addresses().all(|at| ipus.contains(&at)));
    containing
        .map(|(id, _)| reference.fit_count(IpuCount::LINK_DOMAIN, Some(id)))
        .min()
        .unwrap()
}

#[test]
fn every_listed_mode_is_read_from_its_name_and_no_other_text_is() {
    let modes = PlacementMode::NAMES.map(|name| name.parse::<PlacementMode>().unwrap());
    for (mode, name) in modes.iter().zip(PlacementMode::NAMES) {
        assert_eq!((mode.name(), mode.to_string().as_str()), (name, name));
        assert_eq!(modes.iter().filter(|other| *other == mode).count(), 1);
        let written = serde_json::to_string(mode).unwrap();
        assert_eq!(serde_json::from_str::<PlacementMode>(&written).unwrap(), *mode);
    }
    let error = "Delegated".parse::<PlacementMode>().unwrap_err().to_string();
    assert_eq!(
        error,
        "placement \"Delegated\" does not exist; use one of delegated, first-fit, best-fit"
    );
}

#[test]
fn first_fit_selects_the_lowest_legal_block() {
    PolicyCheck::new()
        .minimises(|_, _, block| block.clone())
        .check(|| FirstFit);
}

#[test]
fn best_fit_selects_the_tightest_legal_block() {
    PolicyCheck::new().minimises(tightness).check(|| BestFit);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn pinned_fits_if_and_only_if_the_pinned_ipus_are_a_free_legal_block(
        PlacementCase { reference, inventory, request, .. } in placement_cases(), at in any::<Index>(), aligned in prop::bool::weighted(0.8),
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
        let placed = place(&inventory, &request, &Pinned::new(pinned.iter().rev().copied()).unwrap());
        let written = serde_json::to_string(&placed).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Placement>(&written).unwrap(), &placed);
        let pinned = Block::from_ipus(pinned).unwrap();
        let legal = reference.free_blocks(request.size, scope).contains(&pinned);
        prop_assert_eq!(placed.ok(), legal.then_some(pinned));
    }

    #[test]
    fn whole_link_domain_placements_in_one_allocation_match_the_fit_count(PlacementCase { reference, inventory, request, .. } in placement_cases()) {
        let scope = request.allocation.as_ref();
        // The exhaustive search is limited to few link domains. `PolicyCheck` covers sizes up to 64 IPUs.
        prop_assume!(scope.is_some() && reference.topology().link_domains() <= 8);
        for policy in [&FirstFit as &dyn PlacementPolicy, &BestFit] {
            let mut inventory = inventory.clone();
            let mut placed = 0;
            while let Ok(block) = place(&inventory, &request, policy) {
                placed += 1;
                let holder = format!("new-{placed}").parse().unwrap();
                prop_assert_eq!(inventory.occupy(holder, block), Ok(()));
            }
            prop_assert_eq!(placed, reference.fit_count(request.size, scope));
        }
    }
}
