//! Free space of one link domain as one word: bit i is set if IPU i is free. All of the buddy model is here.

/// Bit i of entry k is set if an aligned block of 2^k IPUs may start at IPU i.
const STARTS: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    0x0000_0000_0000_0001,
];

/// The starts of the free aligned blocks of 2^`order` IPUs (`order` ≤ 6).
pub(crate) const fn starts(free: u64, order: u32) -> u64 {
    let mut blocks = free;
    let mut level = 0;
    while level < order && level < 6 {
        blocks = blocks & blocks >> (1 << level) & STARTS[level as usize + 1];
        level += 1;
    }
    blocks
}

/// The starts of the free aligned blocks of 2^`order` IPUs whose enclosing block of twice the size is not free.
pub(crate) const fn maximal(free: u64, order: u32) -> u64 {
    let blocks = starts(free, order);
    if order >= 6 {
        return blocks;
    }
    let parents = blocks & blocks >> (1 << order) & STARTS[order as usize + 1];
    blocks & !(parents | parents << (1 << order))
}

/// Bit k is set if there is a maximal free block of 2^k IPUs: the orders of the free lists of a buddy allocator.
pub(crate) const fn signature(free: u64) -> u8 {
    let mut signature = 0;
    let mut blocks = free;
    let mut order = 0;
    while order < 6 {
        let parents = blocks & blocks >> (1 << order) & STARTS[order + 1];
        if blocks & !(parents | parents << (1 << order)) != 0 {
            signature |= 1 << order;
        }
        blocks = parents;
        order += 1;
    }
    signature | ((blocks as u8) << 6)
}

/// The order of the largest free block of a signature; none if nothing is free.
pub(crate) const fn top(signature: u8) -> Option<u32> {
    if signature == 0 {
        None
    } else {
        Some(7 - signature.leading_zeros())
    }
}

/// The IPUs of the block of 2^`order` IPUs at `first`.
pub(crate) const fn block(first: u32, order: u32) -> u64 {
    u64::MAX >> (64 - (1_u32 << order)) << first
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_free(free: u64, first: u32, order: u32) -> bool {
        first.is_multiple_of(1 << order)
            && (first..first + (1 << order)).all(|ipu| ipu < 64 && free >> ipu & 1 == 1)
    }

    proptest! {
        #[test]
        fn blocks_are_those_that_one_finds_by_looking_at_each(a: u64, b: u64, c: u64, dense: bool) {
            // Random words have no large blocks; or-ing three gives words that do.
            let free = if dense { a | b | c } else { a };
            for order in 0..=6 {
                for first in 0..64 {
                    let free_here = is_free(free, first, order);
                    prop_assert_eq!(starts(free, order) >> first & 1 == 1, free_here);
                    let parent = first & !((2 << order) - 1);
                    let in_larger = order < 6 && is_free(free, parent, order + 1);
                    prop_assert_eq!(maximal(free, order) >> first & 1 == 1, free_here && !in_larger);
                }
                prop_assert_eq!(signature(free) >> order & 1 == 1, maximal(free, order) != 0);
            }
            let largest = (0..=6).rev().find(|order| starts(free, *order) != 0);
            prop_assert_eq!(top(signature(free)), largest);
        }
    }
}
