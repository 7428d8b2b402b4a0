//! The index of free space: finds a free aligned block in a time that does not depend on how many link domains there are.

use alloc::vec;
use alloc::vec::Vec;

use super::bits::BitSet;
use super::words;
use crate::units::IpuCount;

/// Free space of rows of up to 64 IPUs, found by the size of its largest and of its tightest blocks.
///
/// A row is a link domain, or the part of it that an allocation has. No operation allocates, and none looks at more than
/// a handful of words, however many rows there are: this is the part of the [`Inventory`](crate::Inventory) that can be
/// compared with a plain buddy allocator. It knows no holders and no exclusions.
///
/// ```
/// use ipu_core::{FreeIndex, IpuCount};
///
/// let eight = IpuCount::try_from(8)?;
/// let mut index = FreeIndex::new([u64::MAX, u64::MAX]);
/// let (row, first) = index.take_first(eight).ok_or("full")?;
/// assert_eq!((row, first, index.free()), (0, 0, 120));
/// index.give(row, first, eight);
/// assert_eq!(index.free(), 128);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeIndex {
    /// IPUs that each row has.
    rows: Vec<u64>,
    /// Free IPUs of each row.
    free: Vec<u64>,
    /// The orders of the maximal free blocks of each row.
    signatures: Vec<u8>,
    /// Entry k: rows that have a maximal free block of 2^k IPUs.
    tightest: [BitSet; 7],
    /// Entry k: rows whose largest free block has at least 2^k IPUs.
    fitting: [BitSet; 7],
    total: u32,
}

impl FreeIndex {
    /// An index of rows that have these IPUs, all of them free; bit i of a word for IPU i.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = u64>) -> Self {
        let rows: Vec<u64> = rows.into_iter().collect();
        let empty = || core::array::from_fn(|_| BitSet::below(rows.len()));
        let mut index = Self {
            free: vec![0; rows.len()],
            signatures: vec![0; rows.len()],
            tightest: empty(),
            fitting: empty(),
            total: 0,
            rows,
        };
        for row in 0..index.rows.len() {
            index.set(row, index.rows[row]);
        }
        index
    }

    /// How many IPUs are free.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.total
    }

    /// The free IPUs of a row; 0 if there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> u64 {
        self.free.get(row).copied().unwrap_or(0)
    }

    /// The size of the largest free block; none if nothing is free.
    #[must_use]
    pub fn largest(&self) -> Option<IpuCount> {
        let order = (0..7_u32)
            .rev()
            .find(|order| self.fitting[*order as usize].len() > 0)?;
        IpuCount::from_order(order)
    }

    /// The free block of `size` at the lowest address: row and first IPU.
    #[must_use]
    pub fn first_fit(&self, size: IpuCount) -> Option<(usize, u8)> {
        let row = self.fitting.get(size.order() as usize)?.first()?;
        Some((row, first_start(words::starts(self.row(row), size.order()))))
    }

    /// The block of `size` at the start of the smallest maximal free block that it fits into, the lowest of them: row
    /// and first IPU. This is what splits as little free space as possible.
    #[must_use]
    pub fn best_fit(&self, size: IpuCount) -> Option<(usize, u8)> {
        let (order, row) = self.tightest_order(size)?;
        Some((row, first_start(words::maximal(self.row(row), order))))
    }

    /// The order of the smallest maximal free block that `size` fits into, and the first row that has one.
    pub(super) fn tightest_order(&self, size: IpuCount) -> Option<(u32, usize)> {
        (size.order()..7).find_map(|order| Some((order, self.tightest[order as usize].first()?)))
    }

    /// Takes the block of [`first_fit`](Self::first_fit).
    pub fn take_first(&mut self, size: IpuCount) -> Option<(usize, u8)> {
        let (row, first) = self.first_fit(size)?;
        self.take(row, first, size).then_some((row, first))
    }

    /// Takes the block of [`best_fit`](Self::best_fit).
    pub fn take_best(&mut self, size: IpuCount) -> Option<(usize, u8)> {
        let (row, first) = self.best_fit(size)?;
        self.take(row, first, size).then_some((row, first))
    }

    /// Takes the block of `size` at `first`. Answers whether all of it was free; if not, nothing changes.
    pub fn take(&mut self, row: usize, first: u8, size: IpuCount) -> bool {
        let Some(block) = self.block(row, first, size) else {
            return false;
        };
        let free = self.row(row);
        if free & block == block {
            self.set(row, free & !block);
        }
        free & block == block
    }

    /// Gives the block of `size` at `first` back. Answers whether all of it was taken; if not, nothing changes.
    pub fn give(&mut self, row: usize, first: u8, size: IpuCount) -> bool {
        let Some(block) = self.block(row, first, size) else {
            return false;
        };
        let free = self.row(row);
        if free & block == 0 {
            self.set(row, free | block);
        }
        free & block == 0
    }

    /// The IPUs of an aligned block, all of which the row has.
    fn block(&self, row: usize, first: u8, size: IpuCount) -> Option<u64> {
        if size > IpuCount::LINK_DOMAIN || !u32::from(first).is_multiple_of(size.get()) || first > 63 {
            return None;
        }
        let block = words::block(u32::from(first), size.order());
        (self.rows.get(row)? & block == block).then_some(block)
    }

    /// Rows that are free as a whole link domain.
    pub(super) fn whole(&self) -> &BitSet {
        &self.fitting[6]
    }

    /// Makes exactly `free` the free IPUs of a row that exists.
    pub(super) fn set(&mut self, row: usize, free: u64) {
        let old = core::mem::replace(&mut self.free[row], free);
        self.total = self.total - old.count_ones() + free.count_ones();
        let signature = words::signature(free);
        let before = core::mem::replace(&mut self.signatures[row], signature);
        let mut changed = before ^ signature;
        while changed != 0 {
            let order = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            if signature >> order & 1 == 1 {
                self.tightest[order].insert(row);
            } else {
                self.tightest[order].remove(row);
            }
        }
        // Largest blocks as numbers of orders that fit: none is 0, a whole link domain is 7.
        let fitting = |signature: u8| words::top(signature).map_or(0, |order| order as usize + 1);
        let (was, is) = (fitting(before), fitting(signature));
        for order in is..was {
            self.fitting[order].remove(row);
        }
        for order in was..is {
            self.fitting[order].insert(row);
        }
    }
}

/// The lowest start of a non-empty set of starts.
const fn first_start(starts: u64) -> u8 {
    (starts.trailing_zeros() & 63) as u8
}
