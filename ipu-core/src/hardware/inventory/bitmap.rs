//! Free space of one link domain as one word: bit i is set if IPU i is free. Implements the buddy model.

/// Returns at entry k the starts of the free aligned blocks of 2^k IPUs: bit i for IPU i. The last entry is
/// empty.
///
/// Without branches and of a fixed length, here and below: one branch misprediction costs more than the whole
/// function.
const fn levels(free: u64) -> [u64; 8] {
    let one = free & free >> 1 & 0x5555_5555_5555_5555;
    let two = one & one >> 2 & 0x1111_1111_1111_1111;
    let three = two & two >> 4 & 0x0101_0101_0101_0101;
    let four = three & three >> 8 & 0x0001_0001_0001_0001;
    let five = four & four >> 16 & 0x0000_0001_0000_0001;
    let six = five & five >> 32 & 1;
    [free, one, two, three, four, five, six, 0]
}

/// Returns those of `blocks`, starts of free blocks of 2^`order` IPUs, that are in none of `parents`, free
/// blocks of twice that size.
const fn orphans(blocks: u64, parents: u64, order: u32) -> u64 {
    // In two halves, because a shift by all 64 IPUs of a link domain overflows.
    let size = 1 << order;
    let children = parents | parents << (size / 2) << (size - size / 2);
    blocks & !children
}

/// Returns the starts of the free aligned blocks of 2^`order` IPUs; none for an order over 6.
pub(crate) const fn starts(free: u64, order: u32) -> u64 {
    if order > 6 {
        0
    } else {
        levels(free)[order as usize]
    }
}

/// Returns the starts of the free aligned blocks of 2^`order` IPUs whose enclosing block of twice the size is
/// not free.
pub(crate) const fn maximal(free: u64, order: u32) -> u64 {
    if order > 6 {
        return 0;
    }
    let levels = levels(free);
    orphans(levels[order as usize], levels[order as usize + 1], order)
}

/// Returns the orders of the maximal free blocks: bit k is set if there is one of 2^k IPUs, like the free
/// lists of a buddy allocator.
pub(crate) const fn signature(free: u64) -> u8 {
    let levels = levels(free);
    ((orphans(levels[0], levels[1], 0) != 0) as u8)
        | ((orphans(levels[1], levels[2], 1) != 0) as u8) << 1
        | ((orphans(levels[2], levels[3], 2) != 0) as u8) << 2
        | ((orphans(levels[3], levels[4], 3) != 0) as u8) << 3
        | ((orphans(levels[4], levels[5], 4) != 0) as u8) << 4
        | ((orphans(levels[5], levels[6], 5) != 0) as u8) << 5
        | (levels[6] as u8) << 6
}

/// Returns the order of the largest free block of a signature; none if no IPU is free.
pub(crate) const fn top(signature: u8) -> Option<u32> {
    if signature == 0 {
        None
    } else {
        Some(7 - signature.leading_zeros())
    }
}

/// Returns the IPUs of the block of 2^`order` IPUs at `first`.
pub(crate) const fn block(first: u32, order: u32) -> u64 {
    u64::MAX >> (64 - (1_u32 << order)) << first
}

/// Splits a word into the fewest aligned blocks, ascending: first IPU and order.
pub(crate) fn aligned(word: u64) -> impl Iterator<Item = (u8, u32)> {
    let mut rest = word;
    core::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros() & 63;
        let run = (!(rest >> first)).trailing_zeros();
        let order = (first | 64).trailing_zeros().min(run.ilog2());
        rest &= !block(first, order);
        Some((first as u8, order))
    })
}

/// Iterates over the bits that are set, ascending.
pub(crate) fn bits(word: u64) -> impl Iterator<Item = u32> {
    let mut rest = word;
    core::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros())?;
        rest &= rest - 1;
        Some(bit)
    })
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
        fn blocks_match_a_scan_of_every_position(a: u64, b: u64, c: u64, dense: bool) {
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
            let mut rest = free;
            for (first, order) in aligned(free) {
                prop_assert!(is_free(rest, u32::from(first), order));
                rest &= !block(u32::from(first), order);
            }
            prop_assert_eq!(rest, 0);
            let largest = (0..=6).rev().find(|order| starts(free, *order) != 0);
            prop_assert_eq!(top(signature(free)), largest);
        }
    }
}
