//! Free space available to a request: of one allocation, or of all.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::FreeIndex;
use crate::hardware::topology::Topology;

/// Free space of one allocation, or of all: a row for each of its link domains.
///
/// The pool of all allocations has a row for each part of a link domain that an allocation has and no larger
/// one covers. That is one per link domain, unless allocations partly overlap inside it.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) index: FreeIndex,
    /// Link domain and IPUs of each row, ascending.
    rows: Vec<(u32, u64)>,
    /// Set if a link domain has several rows.
    pub(super) crossing: bool,
}

impl Pool {
    /// Creates one pool for each allocation, in their order; then one of all if there is not exactly one
    /// allocation.
    pub(super) fn all(topology: &Topology) -> Vec<Self> {
        let mut pools = Vec::new();
        let mut parts: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for allocation in topology.allocations() {
            let rows: Vec<(u32, u64)> = topology.masks(allocation).into_iter().collect();
            for (domain, mask) in &rows {
                parts.entry(*domain).or_default().push(*mask);
            }
            pools.push(Self::from_rows(rows));
        }
        if pools.len() != 1 {
            let rows = parts.into_iter().flat_map(|(domain, mut masks)| {
                masks.sort_unstable();
                masks.dedup();
                let covered = |mask: u64| masks.iter().any(|other| *other != mask && mask & !other == 0);
                let kept: Vec<u64> = masks.iter().copied().filter(|mask| !covered(*mask)).collect();
                kept.into_iter().map(move |mask| (domain, mask))
            });
            pools.push(Self::from_rows(rows.collect()));
        }
        pools
    }

    fn from_rows(rows: Vec<(u32, u64)>) -> Self {
        Self {
            index: FreeIndex::new(rows.iter().map(|(_, mask)| *mask)),
            crossing: rows.windows(2).any(|pair| pair[0].0 == pair[1].0),
            rows,
        }
    }

    /// Iterates over the rows: link domain and IPUs.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u32, u64)> {
        self.rows.iter().copied()
    }

    /// Returns the link domain of a row.
    pub(super) fn domain(&self, row: usize) -> u32 {
        self.rows.get(row).map_or(0, |(domain, _)| *domain)
    }

    /// Iterates over the rows of the same link domain, starting with `row`.
    pub(super) fn siblings(&self, row: usize) -> impl Iterator<Item = usize> {
        let domain = self.domain(row);
        (row..self.rows.len()).take_while(move |row| self.domain(*row) == domain)
    }

    /// Iterates over the link domains with their rows.
    pub(super) fn by_domain(&self) -> impl Iterator<Item = (u32, &[(u32, u64)])> {
        self.rows
            .chunk_by(|a, b| a.0 == b.0)
            .filter_map(|rows| Some((rows.first()?.0, rows)))
    }
}
