//! Which controller is asked first when several have room: pure.

use core::cmp::Reverse;

use ipu_core::{ControllerName, IpuCount};

/// In which order controllers are asked for a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SelectionOrder {
    /// In the order of the list, until one has space: the documented rule (seed 000 §6.4).
    #[default]
    Serial,
    /// The one whose largest free block is the smallest that still fits, which keeps large blocks whole.
    Tightest,
    /// The one with the most free IPUs, which spreads the load.
    MostFree,
}

/// What is free at a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Which controller.
    pub name: ControllerName,
    /// Its free IPUs.
    pub free: u32,
    /// The IPUs of its largest free block.
    pub largest_block: u32,
}

impl SelectionOrder {
    /// The controllers of `facts`, which stand in the order of the list, in the order in which to ask them for `size`
    /// IPUs.
    ///
    /// None is left out: facts may be out of date, and only the controller knows. Where an order depends on them, those
    /// that seem to have no room come last. Ties are broken by the order of the list.
    #[must_use]
    pub fn order(self, size: IpuCount, facts: &[Capacity]) -> Vec<ControllerName> {
        let mut facts: Vec<&Capacity> = facts.iter().collect();
        let full = |fact: &Capacity| fact.largest_block < size.get();
        match self {
            Self::Serial => {}
            Self::Tightest => facts.sort_by_key(|fact| {
                // Among those without room no block is tighter than another.
                (
                    full(fact),
                    if full(fact) {
                        (0, 0)
                    } else {
                        (fact.largest_block, fact.free)
                    },
                )
            }),
            Self::MostFree => {
                facts.sort_by_key(|fact| (full(fact), Reverse(if full(fact) { 0 } else { fact.free })));
            }
        }
        facts.into_iter().map(|fact| fact.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(order: SelectionOrder, size: u32, expected: &str) {
        // name, free, largest block
        let facts = [
            ("a", 40, 32),
            ("b", 16, 4),
            ("c", 24, 8),
            ("d", 60, 8),
            ("e", 0, 0),
        ];
        let facts = facts.map(|(name, free, largest_block)| Capacity {
            name: ControllerName::new(name).unwrap(),
            free,
            largest_block,
        });
        let found: String = order
            .order(IpuCount::try_from(size).unwrap(), &facts)
            .iter()
            .map(ControllerName::as_str)
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn serial_is_the_order_of_the_list() {
        check(SelectionOrder::Serial, 8, "abcde");
        check(SelectionOrder::default(), 64, "abcde");
    }

    #[test]
    fn tightest_takes_the_smallest_block_that_fits() {
        check(SelectionOrder::Tightest, 8, "cdabe");
        check(SelectionOrder::Tightest, 2, "bcdae");
        check(SelectionOrder::Tightest, 16, "abcde");
    }

    #[test]
    fn most_free_takes_the_emptiest_that_fits() {
        check(SelectionOrder::MostFree, 8, "dacbe");
        check(SelectionOrder::MostFree, 16, "abcde");
        check(SelectionOrder::MostFree, 1, "dacbe");
    }

    proptest! {
        #[test]
        fn every_controller_is_asked_once_and_none_without_room_before_one_with(
            facts in proptest::collection::vec((0_u32..70, 0_u32..70), 0..8), order in 0_u32..7, rule in 0..3_usize,
        ) {
            let facts: Vec<_> = facts.iter().enumerate().map(|(n, &(free, largest_block))| Capacity {
                name: ControllerName::new(format!("c{n}")).unwrap(), free, largest_block,
            }).collect();
            let size = IpuCount::from_order(order).unwrap();
            let rule = [SelectionOrder::Serial, SelectionOrder::Tightest, SelectionOrder::MostFree][rule];
            let found = rule.order(size, &facts);
            let mut sorted = found.clone();
            sorted.sort();
            let mut names: Vec<_> = facts.iter().map(|fact| fact.name.clone()).collect();
            names.sort();
            prop_assert_eq!(sorted, names);
            if rule != SelectionOrder::Serial {
                let room = |name: &ControllerName| {
                    facts.iter().any(|fact| fact.name == *name && fact.largest_block >= size.get())
                };
                prop_assert!(found.is_sorted_by_key(|name| !room(name)));
            }
        }
    }
}
