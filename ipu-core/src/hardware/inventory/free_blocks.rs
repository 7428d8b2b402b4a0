//! The maximal free blocks of one link domain as one word, updated in a few instructions and without
//! branches.

use crate::units::IpuCount;

/// A block of a link domain, as a node of a binary tree: all 64 IPUs are node 1, the halves of node n are the
/// nodes 2n and 2n+1, IPU i is node 64+i.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockNode(u8);

impl BlockNode {
    /// Creates the node of the block of `size` IPUs at `first`; none if a link domain has no such block.
    #[inline]
    pub(super) const fn new(first: u8, size: IpuCount) -> Option<Self> {
        // Masked instead of a remainder: a division takes as long as the rest of the function.
        if first > 63 || size.get() > 64 || first as u32 & (size.get() - 1) != 0 {
            return None;
        }
        Some(Self::at(first, size.order()))
    }

    /// Creates the node of the block of 2^`order` IPUs at `first`, which must exist.
    #[inline]
    pub(super) const fn at(first: u8, order: u32) -> Self {
        Self((64 | first) >> (order & 7))
    }

    /// Returns its first IPU, if it has 2^`order`.
    #[inline]
    pub(super) const fn first(self, order: u32) -> u8 {
        self.0 << (order & 7) & 63
    }

    /// Returns its IPUs.
    #[inline]
    pub(super) const fn ipus(self) -> u64 {
        NODE_IPUS[self.0 as usize & 127]
    }

    /// Returns the pairs of halves that contain it.
    #[inline]
    const fn path(self) -> u64 {
        PATHS[self.0 as usize & 127]
    }
}

/// The IPUs of each node. Tables, here and below, because variable shifts are slow on the baseline of
/// supported processors.
const NODE_IPUS: [u64; 128] = {
    let mut ipus = [0; 128];
    let mut node = 127;
    while node > 0 {
        ipus[node] = if node > 63 {
            1 << (node - 64)
        } else {
            ipus[2 * node] | ipus[2 * node + 1]
        };
        node -= 1;
    }
    ipus
};

/// For each node the pairs that contain it: half of its number, and so on up to 0.
const PATHS: [u64; 128] = {
    let mut paths = [0; 128];
    let mut node = 1;
    while node < 128 {
        paths[node] = paths[node / 2] | 1 << (node / 2);
        node += 1;
    }
    paths
};

/// The pairs whose halves have 2^order IPUs.
const PAIRS: [u64; 8] = [0xffff_ffff_0000_0000, 0xffff_0000, 0xff00, 0xf0, 0xc, 0x2, 0x1, 0];

/// The orders of the lowest eight pairs.
const LOW_ORDERS: [u8; 256] = {
    let mut orders = [0; 256];
    let mut pairs = 0;
    while pairs < 256 {
        let mut order = 3;
        while order < 7 {
            orders[pairs] |= ((PAIRS[order] & pairs as u64 != 0) as u8) << order;
            order += 1;
        }
        pairs += 1;
    }
    orders
};

/// The maximal free blocks of up to 64 IPUs: those that are in no larger free block.
///
/// At most one of the two halves of a node is a maximal free block, because two would form one larger block.
/// So one bit for each pair of halves is enough: bit n is set if exactly one half of node n is completely
/// free, bit 0 if node 1 is. The word of free IPUs identifies the half.
///
/// Allocating or releasing a block changes only bits on the path from it to the root, like the carries of a
/// subtraction or an addition of 1. The change ends at the first pair that has a free half (allocation) or
/// has none (release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks(u64);

impl Blocks {
    /// No IPU is free.
    pub(super) const NONE: Self = Self(0);

    /// Allocates a block that is completely free.
    #[inline]
    pub(super) const fn take(&mut self, node: BlockNode) {
        self.0 ^= up_to(node.path(), self.0);
    }

    /// Releases a block that is completely allocated.
    #[inline]
    pub(super) const fn release(&mut self, node: BlockNode) {
        self.0 ^= up_to(node.path(), !self.0);
    }

    /// Allocates the block of 2^`order` IPUs at the start of the lowest maximal block of 2^`found` IPUs,
    /// which must exist. `free` are all free IPUs. Returns the allocated block, and whether there are more
    /// maximal ones of 2^`found`.
    #[inline]
    pub(super) const fn split(&mut self, free: u64, order: u32, found: u32) -> (BlockNode, bool) {
        let candidates = self.0 & PAIRS[found as usize & 7];
        let pair = candidates.trailing_zeros();
        let node = BlockNode((free_half(free, pair) << ((found - order) & 7) & 127) as u8);
        self.0 ^= node.path() ^ BlockNode(pair as u8).path();
        (node, candidates & candidates.wrapping_sub(1) != 0)
    }

    /// Returns the orders of the maximal free blocks: bit k is set if there is one of 2^k IPUs, like the free
    /// lists of a buddy allocator.
    #[inline]
    pub(super) const fn signature(self) -> u8 {
        LOW_ORDERS[self.0 as u8 as usize]
            | ((self.0 & PAIRS[2] != 0) as u8) << 2
            | ((self.0 & PAIRS[1] != 0) as u8) << 1
            | (self.0 >> 32 != 0) as u8
    }
}

/// Returns the node of the completely free half of a pair, which must have exactly one.
#[inline]
const fn free_half(free: u64, pair: u32) -> u32 {
    let right = 2 * pair + 1;
    let ipus = NODE_IPUS[right as usize & 127];
    2 * pair + (free & ipus == ipus) as u32
}

/// Returns the part of `path` from its start up to the first pair that is in `stops`.
#[inline]
const fn up_to(path: u64, stops: u64) -> u64 {
    // The start of a path is its highest number. Pair 0 is on every path, and a stop if no other is.
    let last = (path & stops | 1).ilog2();
    path ^ PATHS[last as usize]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bitmap;
    use super::*;

    proptest! {
        #[test]
        fn blocks_are_maximal_after_any_sequence_of_allocations_and_releases(steps in prop::collection::vec((0_u8..64, 0_u32..=6), 0..80)) {
            let (mut blocks, mut free) = (Blocks::NONE, 0_u64);
            for (ipu, order) in steps {
                let first = ipu & !0 << order;
                let node = BlockNode::at(first, order);
                let block = node.ipus();
                prop_assert_eq!(block, bitmap::block(u32::from(first), order));
                if free & block == block {
                    blocks.take(node);
                    free &= !block;
                } else if free & block == 0 {
                    blocks.release(node);
                    free |= block;
                }
                prop_assert_eq!(blocks.signature(), bitmap::signature(free));
                for order in (0..=6).filter(|order| bitmap::maximal(free, *order) != 0) {
                    let lowest = bitmap::maximal(free, order).trailing_zeros();
                    for part in 0..=order {
                        let mut split = blocks;
                        let (node, more) = split.split(free, part, order);
                        prop_assert_eq!(node, BlockNode::at(lowest as u8, part));
                        prop_assert_eq!(more, bitmap::maximal(free, order).count_ones() > 1);
                        let mut taken = blocks;
                        taken.take(node);
                        prop_assert_eq!(split, taken);
                    }
                }
            }
        }
    }
}
