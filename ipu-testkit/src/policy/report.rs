//! Coverage of the cases of a check.

use std::collections::BTreeSet;
use std::fmt;

use ipu_core::IpuCount;
use ipu_core::hardware::{IpuAddress, Topology};
use ipu_core::placement::{Impossible, Placement, PlacementRequest};

use crate::reference_inventory::ReferenceInventory;

const SIZES: &[&str] = &["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024"];

/// Dimensions of placements, and the classes of each.
const DIMENSIONS: [(&str, &[&str]); 8] = [
    ("fits, by size", SIZES),
    ("does not fit, by size", SIZES),
    (
        "in use",
        &[
            "under 25 %",
            "25 to 50 %",
            "50 to 75 %",
            "75 to 90 %",
            "90 to 100 %",
            "all",
        ],
    ),
    ("fragmentation", &["none", "some", "much"]),
    ("cordons", &["none", "some"]),
    (
        "allocations",
        &["none but the clusters'", "disjoint", "nested", "overlapping"],
    ),
    ("requested allocation", &["any", "one", "an unknown one"]),
    (
        "result",
        &[
            "fits",
            "TooLarge",
            "NotEnoughFree",
            "Fragmented",
            "Cordoned",
            "UnknownAllocation",
        ],
    ),
];

const FITS: usize = 0;
const DOES_NOT_FIT: usize = 1;
const IN_USE: usize = 2;
const FRAGMENTATION: usize = 3;
const CORDONS: usize = 4;
const ALLOCATIONS: usize = 5;
const REQUESTED: usize = 6;
const RESULT: usize = 7;

/// Coverage of a policy check: the number of placements, by class. Displays as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyReport {
    pub(super) policy: String,
    pub(super) cases: u32,
    pub(super) histories: u32,
    pub(super) seed: u64,
    placements: u64,
    counts: Vec<Vec<u64>>,
}

impl PolicyReport {
    pub(super) fn new(policy: String, cases: u32, histories: u32, seed: u64) -> Self {
        Self {
            policy,
            cases,
            histories,
            seed,
            placements: 0,
            counts: DIMENSIONS
                .iter()
                .map(|(_, classes)| vec![0; classes.len()])
                .collect(),
        }
    }

    /// Returns the number of checked placements.
    #[must_use]
    pub const fn placements(&self) -> u64 {
        self.placements
    }

    /// Returns each dimension, class, and number of placements. A placement may belong to several classes of
    /// allocations.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        DIMENSIONS
            .iter()
            .zip(&self.counts)
            .flat_map(|((dimension, classes), counts)| {
                classes
                    .iter()
                    .zip(counts)
                    .map(|(class, count)| (*dimension, *class, *count))
            })
    }

    /// Returns the classes without a placement.
    pub(super) fn unreached(&self) -> Vec<String> {
        self.classes()
            .filter(|(.., count)| *count == 0)
            .map(|(dimension, class, _)| format!("{dimension}: {class}"))
            .collect()
    }

    /// Counts one placement. `allocations` are the [`kinds_of_allocations`] of the topology.
    pub(super) fn count(
        &mut self,
        reference: &ReferenceInventory,
        allocations: &BTreeSet<usize>,
        request: &PlacementRequest,
        placement: &Placement,
    ) {
        self.placements += 1;
        let by_size = if placement.is_ok() { FITS } else { DOES_NOT_FIT };
        self.add(by_size, request.size.order() as usize);
        self.add(IN_USE, fill(reference));
        self.add(FRAGMENTATION, fragmentation(reference));
        self.add(CORDONS, usize::from(!reference.cordons().is_empty()));
        for kind in allocations {
            self.add(ALLOCATIONS, *kind);
        }
        let exists = |id| reference.topology().allocation(id).is_some();
        self.add(
            REQUESTED,
            match &request.allocation {
                None => 0,
                Some(id) if exists(id) => 1,
                Some(_) => 2,
            },
        );
        let answer = match placement {
            Ok(_) => Some(0),
            Err(Impossible::TooLarge { .. }) => Some(1),
            Err(Impossible::NotEnoughFree { .. }) => Some(2),
            Err(Impossible::Fragmented { .. }) => Some(3),
            Err(Impossible::Cordoned { .. }) => Some(4),
            Err(Impossible::UnknownAllocation { .. }) => Some(5),
            _ => None,
        };
        if let Some(answer) = answer {
            self.add(RESULT, answer);
        }
    }

    fn add(&mut self, dimension: usize, class: usize) {
        if let Some(count) = self.counts.get_mut(dimension).and_then(|row| row.get_mut(class)) {
            *count += 1;
        }
    }
}

/// Returns the class of the share of IPUs that are held or cordoned.
fn fill(reference: &ReferenceInventory) -> usize {
    let topology = reference.topology();
    let domains = 0..topology.link_domains();
    let all = domains.flat_map(|link_domain| (0..64).map(move |ipu| IpuAddress { link_domain, ipu }));
    let free = all.filter(|address| reference.is_free(*address)).count();
    let ipus = topology.ipus() as usize;
    match (ipus - free) * 100 / ipus {
        _ if free == 0 => 5,
        0..25 => 0,
        25..50 => 1,
        50..75 => 2,
        75..90 => 3,
        _ => 4,
    }
}

/// Returns the fragmentation class: largest free block relative to the largest that the free IPUs could form
/// (equal, at least a quarter, or less).
fn fragmentation(reference: &ReferenceInventory) -> usize {
    let largest = reference.largest(None, |address| reference.is_free(address));
    let best = reference.free(None).checked_ilog2();
    match best.zip(largest.map(IpuCount::order)) {
        None => 0,
        Some((best, largest)) => match best - largest {
            0 => 0,
            1 | 2 => 1,
            _ => 2,
        },
    }
}

/// Returns the classes of pairs of allocations of a topology.
pub(super) fn kinds_of_allocations(reference: &ReferenceInventory) -> BTreeSet<usize> {
    let clusters = reference.topology().clusters().to_vec();
    let mut kinds = BTreeSet::new();
    if Topology::new(clusters, None).as_ref() == Ok(reference.topology()) {
        kinds.insert(0);
        return kinds;
    }
    let scopes: Vec<&BTreeSet<IpuAddress>> = reference.scopes(None).map(|(_, ipus)| ipus).collect();
    for (place, one) in scopes.iter().enumerate() {
        for other in &scopes[..place] {
            let kind = if one.is_disjoint(other) {
                1
            } else if one.is_subset(other) || other.is_subset(one) {
                2
            } else {
                3
            };
            kinds.insert(kind);
        }
    }
    kinds
}

impl fmt::Display for PolicyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "policy {}: every property holds in {} cases and {} inventory histories, {} placements (seed {})",
            self.policy, self.cases, self.histories, self.placements, self.seed
        )?;
        let width = DIMENSIONS.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for ((name, classes), counts) in DIMENSIONS.iter().zip(&self.counts) {
            write!(f, "  {name:width$} ")?;
            for (place, (class, count)) in classes.iter().zip(counts).enumerate() {
                write!(f, "{}{class}: {count}", if place > 0 { ", " } else { " " })?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
