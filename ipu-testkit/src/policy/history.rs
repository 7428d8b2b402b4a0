//! Long lives of one inventory: a policy places, holders come and go, the reference in lock step.

use ipu_core::{Inventory, Placement, PlacementPolicy, PlacementRequest, Topology};
use proptest::prelude::*;

use super::checks::{PolicyCase, PropertyChecker};
use super::property::BrokenProperty;
use crate::reference_inventory::ReferenceInventory;
use crate::strategies::{
    InventoryChange, Operation, Scope, operations, requested, topologies, tryable, wide_topologies,
};

/// How many moves a life has at most.
const MOVES: usize = 40;

/// A topology, and what happens on it.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) topology: Topology,
    pub(super) moves: Vec<InventoryMove>,
}

#[derive(Clone, Debug)]
pub(super) enum InventoryMove {
    Place { order: u32, scope: Scope },
    Others(Vec<Operation>),
}

pub(super) fn lives() -> impl Strategy<Value = Life> {
    let place = |orders: BoxedStrategy<u32>| {
        (orders, requested()).prop_map(|(order, scope)| InventoryMove::Place { order, scope })
    };
    let moves = move |orders: BoxedStrategy<u32>| {
        let next = prop_oneof![3 => place(orders), 2 => operations(3).prop_map(InventoryMove::Others)];
        prop::collection::vec(next, 1..MOVES)
    };
    let small = moves(prop_oneof![8 => 0_u32..=6, 1 => 7_u32..=8].boxed());
    let wide = moves(prop_oneof![1 => 0_u32..=5, 3 => 6_u32..=10].boxed());
    prop_oneof![
        5 => (topologies().boxed(), small),
        1 => (wide_topologies().boxed(), wide),
    ]
    .prop_map(|(topology, moves)| Life { topology, moves })
}

/// Lives `life`: `count` is told of every placement.
pub(super) fn live(
    judge: &PropertyChecker<'_>,
    life: &Life,
    mut count: impl FnMut(&ReferenceInventory, &PlacementRequest, &Placement),
) -> Result<(), Box<BrokenProperty>> {
    let mut reference = ReferenceInventory::new(&life.topology);
    let mut inventory = Inventory::new(&life.topology);
    let mut history: Vec<InventoryChange> = Vec::new();
    let policy: Box<dyn PlacementPolicy + '_> = (judge.make)();
    for (number, next) in life.moves.iter().enumerate() {
        let changes = match next {
            InventoryMove::Place { order, scope } => {
                let size = tryable(&reference, *order);
                let request = PlacementRequest::of_size(size).in_allocation(scope.of(&life.topology));
                let scene = PolicyCase {
                    reference: &reference,
                    inventory: &inventory,
                    history: &history,
                    request: &request,
                };
                let placement = judge.answer(scene, &*policy)?;
                count(&reference, &request, &placement);
                let Placement::Fits(block) = placement else {
                    continue;
                };
                vec![InventoryChange::occupy(&format!("job-{number}"), block)]
            }
            InventoryMove::Others(operations) => operations
                .iter()
                .flat_map(|operation| operation.changes(&reference))
                .collect(),
        };
        history.extend(
            changes
                .into_iter()
                .filter(|change| change.apply(&mut reference, &mut inventory)),
        );
    }
    Ok(())
}
