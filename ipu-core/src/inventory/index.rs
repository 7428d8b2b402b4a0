//! The index of free space: finds a free aligned block in a time that does not depend on how many link domains there are.

use alloc::vec;
use alloc::vec::Vec;

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
    rows: Vec<Row>,
    /// A tree in which each node has 32 children and one byte for each. Bit k of a byte is set if there is a maximal free
    /// block of 2^k IPUs below. The root is the first; the children of node n are the nodes 32n+1 to 32n+32; the rows are
    /// where the nodes of one more level would be.
    nodes: Vec<Node>,
    /// What any child of the root has.
    any: u8,
    total: u32,
}

/// The IPUs that a row has, and those of them that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    ipus: u64,
    free: u64,
}

/// The bytes of 32 children, the first in the lowest byte of the first word. Words, because a byte that is written and at
/// once read as a part of a word makes the processor wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
struct Node([u64; 4]);

impl Node {
    /// The first child with any of `orders`, a mask.
    fn find(&self, orders: u8) -> Option<usize> {
        let [a, b, c, d] = self
            .0
            .map(|word| word & (u64::from(orders) * 0x0101_0101_0101_0101));
        // Counted instead of searched for: which word it is cannot be guessed.
        let place = u32::from(a == 0) + u32::from(a | b == 0) + u32::from(a | b | c == 0);
        let word = [a, b, c, d][place as usize & 3];
        (word != 0).then(|| place as usize * 8 + word.trailing_zeros() as usize / 8)
    }

    /// Makes `signature` what a child has, and answers what any child has then.
    fn set(&mut self, child: usize, signature: u8) -> u8 {
        let (place, shift) = ((child / 8) & 3, child % 8 * 8);
        let word = self.0[place] & !(0xff << shift) | u64::from(signature) << shift;
        // The three words that were not written, one by one: to read the one back as a part of all would have to wait.
        let [b, c, d] = [1, 2, 3].map(|next| self.0[(place + next) & 3]);
        self.0[place] = word;
        let eight = word | b | c | d;
        let four = eight | eight >> 32;
        let two = four | four >> 16;
        (two | two >> 8) as u8
    }
}

impl FreeIndex {
    /// An index of rows that have these IPUs, all of them free; bit i of a word for IPU i.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = u64>) -> Self {
        let rows: Vec<Row> = rows.into_iter().map(|ipus| Row { ipus, free: 0 }).collect();
        let (mut nodes, mut level) = (1, 32);
        while level < rows.len() {
            nodes += level;
            level *= 32;
        }
        let mut index = Self {
            rows,
            nodes: vec![Node::default(); nodes],
            any: 0,
            total: 0,
        };
        for row in 0..index.rows.len() {
            index.set(row, index.rows[row].ipus);
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
        self.rows.get(row).map_or(0, |row| row.free)
    }

    /// The size of the largest free block; none if nothing is free.
    #[must_use]
    pub fn largest(&self) -> Option<IpuCount> {
        words::top(self.any).and_then(IpuCount::from_order)
    }

    /// The free block of `size` at the lowest address: row and first IPU.
    #[must_use]
    pub fn first_fit(&self, size: IpuCount) -> Option<(usize, u8)> {
        let order = size.order();
        let row = self.find(0x7f << order.min(7))?;
        Some((row, first_start(words::starts(self.row(row), order))))
    }

    /// The block of `size` at the start of the smallest maximal free block that it fits into, the lowest of them: row
    /// and first IPU. This is what splits as little free space as possible.
    #[must_use]
    pub fn best_fit(&self, size: IpuCount) -> Option<(usize, u8)> {
        let (order, row) = self.tightest(size)?;
        Some((row, first_start(words::maximal(self.row(row), order))))
    }

    /// The order of the smallest maximal free block that `size` fits into, and the first row that has one.
    pub(super) fn tightest(&self, size: IpuCount) -> Option<(u32, usize)> {
        let fitting = self.any >> size.order().min(7);
        let order = size.order() + fitting.trailing_zeros();
        Some((order, self.find(1 << order.min(7))?))
    }

    /// The first row that has a maximal free block of any of `orders`, a mask.
    fn find(&self, orders: u8) -> Option<usize> {
        let mut node = 0;
        while let Some(children) = self.nodes.get(node) {
            node = 32 * node + 1 + children.find(orders)?;
        }
        Some(node - self.nodes.len())
    }

    /// Takes the block of [`first_fit`](Self::first_fit).
    pub fn take_first(&mut self, size: IpuCount) -> Option<(usize, u8)> {
        let (row, first) = self.first_fit(size)?;
        self.remove(row, first, size);
        Some((row, first))
    }

    /// Takes the block of [`best_fit`](Self::best_fit).
    pub fn take_best(&mut self, size: IpuCount) -> Option<(usize, u8)> {
        let (row, first) = self.best_fit(size)?;
        self.remove(row, first, size);
        Some((row, first))
    }

    /// Takes the block of `size` at `first`. Answers whether all of it was free; if not, nothing changes.
    pub fn take(&mut self, row: usize, first: u8, size: IpuCount) -> bool {
        let Some(block) = self.block(row, first, size) else {
            return false;
        };
        let free = self.row(row);
        if free & block == block {
            self.remove(row, first, size);
        }
        free & block == block
    }

    /// Takes a block that is free.
    fn remove(&mut self, row: usize, first: u8, size: IpuCount) {
        let block = words::block(u32::from(first), size.order());
        self.store(row, self.rows[row].free & !block);
        self.total -= size.get();
    }

    /// Gives the block of `size` at `first` back. Answers whether all of it was taken; if not, nothing changes.
    pub fn give(&mut self, row: usize, first: u8, size: IpuCount) -> bool {
        let Some(block) = self.block(row, first, size) else {
            return false;
        };
        let free = self.row(row);
        if free & block == 0 {
            self.store(row, free | block);
            self.total += size.get();
        }
        free & block == 0
    }

    /// The IPUs of an aligned block, all of which the row has.
    fn block(&self, row: usize, first: u8, size: IpuCount) -> Option<u64> {
        if size > IpuCount::LINK_DOMAIN || !u32::from(first).is_multiple_of(size.get()) || first > 63 {
            return None;
        }
        let block = words::block(u32::from(first), size.order());
        (self.rows.get(row)?.ipus & block == block).then_some(block)
    }

    /// The rows that are free as a whole link domain.
    pub(super) fn whole(&self) -> impl Iterator<Item = usize> {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, row)| row.free == u64::MAX).map(|(row, _)| row)
    }

    /// How many rows are free as a whole link domain.
    pub(super) fn whole_count(&self) -> usize {
        self.whole().count()
    }

    /// Makes exactly `free` the free IPUs of a row that exists.
    pub(super) fn set(&mut self, row: usize, free: u64) {
        self.total = self.total - self.rows[row].free.count_ones() + free.count_ones();
        self.store(row, free);
    }

    /// The same, but for the total.
    fn store(&mut self, row: usize, free: u64) {
        self.rows[row].free = free;
        let mut signature = words::signature(free);
        let mut child = self.nodes.len() + row;
        while let Some(node) = child.checked_sub(1) {
            child = node / 32;
            signature = self.nodes[child].set(node % 32, signature);
        }
        self.any = signature;
    }
}

/// The lowest start of a non-empty set of starts.
const fn first_start(starts: u64) -> u8 {
    (starts.trailing_zeros() & 63) as u8
}
