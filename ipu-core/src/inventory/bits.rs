//! A set of small numbers that finds its smallest member in a few instructions.

use alloc::vec;
use alloc::vec::Vec;

/// A set of numbers below a fixed bound, as a bitmap with a bitmap of its non-empty words above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BitSet {
    words: Vec<u64>,
    summary: Vec<u64>,
    len: u32,
}

impl BitSet {
    /// The empty set of numbers below `bound`.
    pub(super) fn below(bound: usize) -> Self {
        let words = bound.div_ceil(64);
        Self {
            words: vec![0; words],
            summary: vec![0; words.div_ceil(64)],
            len: 0,
        }
    }

    /// How many members it has.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Adds `member`, which is not in it.
    pub(super) fn insert(&mut self, member: usize) {
        let word = member / 64;
        self.words[word] |= 1 << (member % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.len += 1;
    }

    /// Removes `member`, which is in it.
    pub(super) fn remove(&mut self, member: usize) {
        let word = member / 64;
        self.words[word] &= !(1 << (member % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.len -= 1;
    }

    /// The smallest member.
    pub(super) fn first(&self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        // At most one word for Topology::MAX_LINK_DOMAINS link domains, so this is no search in practice.
        let (index, summary) = self
            .summary
            .iter()
            .enumerate()
            .find(|(_, summary)| **summary != 0)?;
        let word = index * 64 + summary.trailing_zeros() as usize;
        Some(word * 64 + self.words.get(word)?.trailing_zeros() as usize)
    }

    /// All members, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            core::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(index * 64 + bit)
            })
        })
    }
}
