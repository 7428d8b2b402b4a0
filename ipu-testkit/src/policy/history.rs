//! Histories of one inventory: the policy places, holders come and go, the reference follows in lock step.

use ipu_core::hardware::{Inventory, Topology};
use ipu_core::placement::{Placement, PlacementPolicy, PlacementRequest};
use proptest::prelude::*;

use super::checks::{PolicyCase, PropertyChecker};
use super::property::BrokenProperty;
use crate::reference_inventory::ReferenceInventory;
use crate::strategies::{
    InventoryChange, Operation, Scope, operations, request_scopes, topologies, tractable_size,
    wide_topologies,
};

/// Maximum number of moves of a history.
const MAX_MOVES: usize = 40;

/// Topology with a sequence of moves.
#[derive(Clone, Debug)]
pub(super) struct InventoryHistory {
    pub(super) topology: Topology,
    pub(super) moves: Vec<InventoryMove>,
}

#[derive(Clone, Debug)]
pub(super) enum InventoryMove {
    Place { order: u32, scope: Scope },
    Others(Vec<Operation>),
}

pub(super) fn histories() -> impl Strategy<Value = InventoryHistory> {
    let place = |orders: BoxedStrategy<u32>| {
        (orders, request_scopes()).prop_map(|(order, scope)| InventoryMove::Place { order, scope })
    };
    let moves = move |orders: BoxedStrategy<u32>| {
        let next = prop_oneof![3 => place(orders), 2 => operations(3).prop_map(InventoryMove::Others)];
        prop::collection::vec(next, 1..MAX_MOVES)
    };
    let small = moves(prop_oneof![8 => 0_u32..=6, 1 => 7_u32..=8].boxed());
    let wide = moves(prop_oneof![1 => 0_u32..=5, 3 => 6_u32..=10].boxed());
    prop_oneof![
        5 => (topologies().boxed(), small),
        1 => (wide_topologies().boxed(), wide),
    ]
    .prop_map(|(topology, moves)| InventoryHistory { topology, moves })
}

/// Replays `history` and calls `count` for every placement.
pub(super) fn replay(
    checker: &PropertyChecker<'_>,
    history: &InventoryHistory,
    mut count: impl FnMut(&ReferenceInventory, &PlacementRequest, &Placement),
) -> Result<(), Box<BrokenProperty>> {
    let mut reference = ReferenceInventory::new(&history.topology);
    let mut inventory = Inventory::new(&history.topology);
    let mut applied: Vec<InventoryChange> = Vec::new();
    let policy: Box<dyn PlacementPolicy + '_> = (checker.make)();
    for (number, next) in history.moves.iter().enumerate() {
        let changes = match next {
            InventoryMove::Place { order, scope } => {
                let size = tractable_size(&reference, *order);
                let request = PlacementRequest::of_size(size).in_allocation(scope.of(&history.topology));
                let case = PolicyCase {
                    reference: &reference,
                    inventory: &inventory,
                    history: &applied,
                    request: &request,
                };
                let placement = checker.check_decision(case, &*policy)?;
                count(&reference, &request, &placement);
                let Ok(block) = placement else {
                    continue;
                };
                vec![InventoryChange::occupy(&format!("job-{number}"), block)]
            }
            InventoryMove::Others(operations) => operations
                .iter()
                .flat_map(|operation| operation.changes(&reference))
                .collect(),
        };
        applied.extend(
            changes
                .into_iter()
                .filter(|change| change.apply(&mut reference, &mut inventory)),
        );
    }
    Ok(())
}
