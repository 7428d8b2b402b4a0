//! The index of free space: finds a free aligned block in a time that does not depend on the number of link
//! domains.

use alloc::vec;
use alloc::vec::Vec;

use super::bitmap;
use super::free_blocks::{BlockNode, Blocks};
use crate::units::IpuCount;

/// Free space of rows of up to 64 IPUs, indexed by the size of their largest and of their tightest blocks.
///
/// A row is a link domain, or the part of it that an allocation has. No operation allocates memory, and each
/// reads only a few words, whatever the number of rows. This is the part of the
/// [`Inventory`](crate::hardware::Inventory) that is comparable to a plain buddy allocator: it has no holders
/// and no cordons.
///
/// ```
/// use ipu_core::IpuCount;
/// use ipu_core::hardware::FreeIndex;
///
/// let eight = IpuCount::try_from(8)?;
/// let mut index = FreeIndex::new([u64::MAX, u64::MAX]);
/// let (row, first) = index.take_best(eight).ok_or("full")?;
/// assert_eq!((row, first, index.free()), (0, 0, 120));
/// index.release(row, first, eight);
/// assert_eq!(index.free(), 128);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeIndex {
    rows: Vec<FreeRow>,
    /// The IPUs of each row; empty if every row has 64, which saves cache.
    ipus: Vec<u64>,
    /// A tree in which each node has [`Node::CHILDREN`] children and one byte for each. Bit k of a byte is
    /// set if there is a maximal free block of 2^k IPUs below. The root is the first node. The children of
    /// node n start at node n × `CHILDREN` + 1. The rows are the nodes of one more level.
    nodes: Vec<Node>,
    /// Union of the signatures of all children of the root.
    any: u8,
    total: u32,
}

/// The IPUs of a row that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FreeRow {
    free: u64,
    /// The maximal free blocks.
    blocks: Blocks,
}

/// The signatures of 32 children, the first in the lowest byte of the first word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
struct Node([u64; 4]);

impl Node {
    const CHILDREN: usize = 32;

    /// Returns the first child with any of `orders`, a mask; there must be one.
    #[inline]
    fn find(&self, orders: u8) -> usize {
        let wanted = u64::from(orders) * 0x0101_0101_0101_0101;
        let [a, b, c, d] = self.0.map(|word| word & wanted);
        let (ab, abase) = if a == 0 { (b, 8) } else { (a, 0) };
        let (cd, cbase) = if c == 0 { (d, 24) } else { (c, 16) };
        let (word, base) = if (a | b) == 0 { (cd, cbase) } else { (ab, abase) };
        base + word.trailing_zeros() as usize / 8
    }

    /// Sets the signature of a child, whose number counts modulo `CHILDREN`, and returns the union of all
    /// children.
    #[inline]
    fn set(&mut self, child: usize, signature: u8) -> u8 {
        let (place, shift) = ((child / 8) & 3, child % 8 * 8);
        let [o, p, q] = [1, 2, 3].map(|next| self.0[(place + next) & 3]);
        let word = self.0[place] & !(0xff << shift) | u64::from(signature) << shift;
        self.0[place] = word;
        any(word | (o | p | q))
    }
}

impl FreeIndex {
    /// Creates an index of rows that have these IPUs, all of them free; bit i of a word for IPU i.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = u64>) -> Self {
        let ipus: Vec<u64> = rows.into_iter().collect();
        let none = FreeRow {
            free: 0,
            blocks: Blocks::NONE,
        };
        let rows = vec![none; ipus.len()];
        let (mut nodes, mut level) = (1, Node::CHILDREN);
        while level < rows.len() {
            nodes += level;
            level *= Node::CHILDREN;
        }
        let mut index = Self {
            rows,
            ipus: Vec::new(),
            nodes: vec![Node::default(); nodes],
            any: 0,
            total: 0,
        };
        for (row, ipus) in ipus.iter().enumerate() {
            index.set(row, *ipus);
        }
        if ipus.iter().any(|ipus| *ipus != u64::MAX) {
            index.ipus = ipus;
        }
        index
    }

    /// Returns the number of free IPUs.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.total
    }

    /// Returns the free IPUs of a row; 0 if there is no such row.
    #[must_use]
    #[inline]
    pub fn row(&self, row: usize) -> u64 {
        self.rows.get(row).map_or(0, |row| row.free)
    }

    /// Returns the size of the largest free block; none if no IPU is free.
    #[must_use]
    pub fn largest(&self) -> Option<IpuCount> {
        bitmap::top(self.any).and_then(IpuCount::from_order)
    }

    /// Returns the free block of `size` at the lowest address: row and first IPU.
    #[must_use]
    #[inline]
    pub fn first_fit(&self, size: IpuCount) -> Option<(usize, u8)> {
        let order = size.order();
        let row = self.find(0x7f << order.min(7))?;
        Some((row, first_start(bitmap::starts(self.row(row), order))))
    }

    /// Returns the order of the smallest maximal free block that `size` fits into, and the first row that has
    /// one.
    #[inline]
    pub(super) fn tightest(&self, size: IpuCount) -> Option<(u32, usize)> {
        let wanted = size.order().min(7);
        // Isolates the lowest bit, because converting its number back to a mask takes longer.
        let fitting = u32::from(self.any) >> wanted << wanted;
        let lowest = fitting & fitting.wrapping_neg();
        let row = self.find(lowest as u8)?;
        Some(((lowest | 128).trailing_zeros(), row))
    }

    /// Returns the first row that has a maximal free block of any of `orders`, a mask.
    #[inline]
    fn find(&self, orders: u8) -> Option<usize> {
        if self.any & orders == 0 {
            return None;
        }
        let mut node = 0;
        while let Some(children) = self.nodes.get(node) {
            node = Node::CHILDREN * node + 1 + children.find(orders);
        }
        Some(node - self.nodes.len())
    }

    /// Allocates the block of `size` at the start of the smallest maximal free block that it fits into, the
    /// lowest of them: row and first IPU. This choice splits as little free space as possible.
    #[inline]
    pub fn take_best(&mut self, size: IpuCount) -> Option<(usize, u8)> {
        let (found, row) = self.tightest(size)?;
        let order = size.order();
        let row_found = self.rows.get_mut(row)?;
        let previous = row_found.blocks.signature();
        let (node, more) = row_found.blocks.split(row_found.free, order, found);
        row_found.free &= !node.ipus();
        self.total -= size.get();
        // The split leaves one block of each order below `found`. This signature does not depend on their
        // positions.
        let remainder = (1_u32 << found) - (1 << order);
        let signature = previous & !(1 << found) | u8::from(more) << found | remainder as u8;
        self.propagate(row, signature);
        Some((row, node.first(order)))
    }

    /// Allocates the block of `size` at `first`. Returns whether all of it was free; if not, nothing changes.
    #[inline]
    pub fn take(&mut self, row: usize, first: u8, size: IpuCount) -> bool {
        let (Some(node), Some(found)) = (BlockNode::new(first, size), self.rows.get_mut(row)) else {
            return false;
        };
        if !found.free & node.ipus() != 0 {
            return false;
        }
        found.free ^= node.ipus();
        found.blocks.take(node);
        self.total -= size.get();
        let signature = found.blocks.signature();
        self.propagate(row, signature);
        true
    }

    /// Releases the block of `size` at `first`. Returns whether all of it was allocated; if not, nothing
    /// changes.
    #[inline]
    pub fn release(&mut self, row: usize, first: u8, size: IpuCount) -> bool {
        let (Some(node), Some(found)) = (BlockNode::new(first, size), self.rows.get_mut(row)) else {
            return false;
        };
        let ipus = self.ipus.get(row).copied().unwrap_or(u64::MAX);
        if (found.free | !ipus) & node.ipus() != 0 {
            return false;
        }
        found.free ^= node.ipus();
        found.blocks.release(node);
        self.total += size.get();
        let signature = found.blocks.signature();
        self.propagate(row, signature);
        true
    }

    /// Iterates over the rows that are a completely free link domain.
    pub(super) fn whole(&self) -> impl Iterator<Item = usize> {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, row)| row.free == u64::MAX).map(|(row, _)| row)
    }

    /// Returns the number of rows that are a completely free link domain.
    pub(super) fn whole_count(&self) -> usize {
        self.whole().count()
    }

    /// Sets the free IPUs of a row that exists.
    pub(super) fn set(&mut self, row: usize, free: u64) {
        let found = &mut self.rows[row];
        self.total = self.total - found.free.count_ones() + free.count_ones();
        for (first, order) in bitmap::aligned(found.free & !free) {
            found.blocks.take(BlockNode::at(first, order));
        }
        for (first, order) in bitmap::aligned(free & !found.free) {
            found.blocks.release(BlockNode::at(first, order));
        }
        found.free = free;
        let signature = found.blocks.signature();
        self.propagate(row, signature);
    }

    /// Propagates the signature of a row to the nodes above it.
    #[inline]
    fn propagate(&mut self, row: usize, mut signature: u8) {
        let mut child = self.nodes.len() + row;
        while let Some(node) = child.checked_sub(1) {
            child = node / Node::CHILDREN;
            signature = self.nodes[child].set(node, signature);
        }
        self.any = signature;
    }
}

/// Returns the union of eight signatures.
#[inline]
const fn any(eight: u64) -> u8 {
    let four = eight | eight >> 32;
    let two = four | four >> 16;
    (two | two >> 8) as u8
}

/// Returns the lowest start of a non-empty set of starts.
const fn first_start(starts: u64) -> u8 {
    (starts.trailing_zeros() & 63) as u8
}
