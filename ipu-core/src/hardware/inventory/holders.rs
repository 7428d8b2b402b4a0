//! Holders and their blocks, found by id and by IPU in a time that does not depend on the number of holders.

use alloc::vec;
use alloc::vec::Vec;

use super::{Block, bitmap};
use crate::ids::PartitionId;

/// No holder, in the tables below.
const NO_HOLDER: u32 = u32::MAX;

/// Initial length of the table of ids.
const INITIAL_SLOTS: usize = 8;

/// The holders, each with one block.
#[derive(Clone, Debug)]
pub(super) struct Holders {
    /// Entries by number; the free ones are listed in `spare`.
    entries: Vec<Option<(PartitionId, Block)>>,
    spare: Vec<u32>,
    /// For each IPU (64 for each link domain) the number of its holder.
    by_ipu: Vec<u32>,
    /// Numbers by the digest of their id: open addressing, at most half full, a power of two long. Sized for
    /// the largest number of holders so far: large partitions have few holders, and a short table stays in
    /// the cache.
    by_id: Vec<HashSlot>,
    len: u32,
}

/// A slot of the table of ids. It contains the digest, so that a lookup reads only the entry that it finds.
#[derive(Clone, Copy, Debug)]
struct HashSlot {
    digest: u32,
    /// [`NO_HOLDER`] if the slot is free.
    number: u32,
}

impl HashSlot {
    const FREE: Self = Self {
        digest: 0,
        number: NO_HOLDER,
    };
}

impl Holders {
    /// Creates an empty table for `link_domains` link domains.
    pub(super) fn new(link_domains: u32) -> Self {
        Self {
            entries: Vec::new(),
            spare: Vec::new(),
            by_ipu: vec![NO_HOLDER; link_domains as usize * 64],
            by_id: vec![HashSlot::FREE; INITIAL_SLOTS],
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of the holder of an IPU.
    pub(super) fn number_at(&self, link_domain: u32, ipu: u32) -> Option<u32> {
        self.by_ipu
            .get(link_domain as usize * 64 + ipu as usize)
            .copied()
            .filter(|number| *number != NO_HOLDER)
    }

    /// Returns a holder by its number.
    pub(super) fn holder(&self, number: u32) -> Option<(&PartitionId, &Block)> {
        self.entries
            .get(number as usize)?
            .as_ref()
            .map(|(id, block)| (id, block))
    }

    /// Returns the holder of an IPU.
    pub(super) fn at(&self, link_domain: u32, ipu: u32) -> Option<(&PartitionId, &Block)> {
        self.holder(self.number_at(link_domain, ipu)?)
    }

    /// Returns the block of a holder.
    pub(super) fn block_of(&self, id: &PartitionId) -> Option<&Block> {
        let slot = self.slot_of(id)?;
        self.holder(self.by_id[slot].number).map(|(_, block)| block)
    }

    /// Adds a new holder of IPUs that are not held.
    pub(super) fn insert(&mut self, id: PartitionId, block: Block) {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or(NO_HOLDER)
        });
        self.set_holder(&block, number);
        self.len += 1;
        if self.len as usize * 2 > self.by_id.len() {
            self.grow();
        }
        self.add(HashSlot {
            digest: digest(&id),
            number,
        });
        self.entries[number as usize] = Some((id, block));
    }

    /// Adds a number to the table of ids, which must have a free slot.
    fn add(&mut self, added: HashSlot) {
        let mut slot = self.home(added.digest);
        while self.by_id[slot].number != NO_HOLDER {
            slot = self.next(slot);
        }
        self.by_id[slot] = added;
    }

    /// Doubles the table of ids.
    #[cold]
    fn grow(&mut self) {
        let longer = vec![HashSlot::FREE; self.by_id.len() * 2];
        let shorter = core::mem::replace(&mut self.by_id, longer);
        for slot in shorter.into_iter().filter(|slot| slot.number != NO_HOLDER) {
            self.add(slot);
        }
    }

    /// Removes a holder and returns its block; none if it does not exist.
    pub(super) fn remove(&mut self, id: &PartitionId) -> Option<Block> {
        let mut hole = self.slot_of(id)?;
        let number = self.by_id[hole].number;
        let (_, block) = self.entries.get_mut(number as usize)?.take()?;
        self.spare.push(number);
        self.set_holder(&block, NO_HOLDER);
        self.len -= 1;
        // Close the hole, so that a lookup may stop at the first empty slot.
        let last = self.by_id.len() - 1;
        let mut slot = self.next(hole);
        while self.by_id[slot].number != NO_HOLDER {
            let distance = slot.wrapping_sub(self.home(self.by_id[slot].digest)) & last;
            if distance >= slot.wrapping_sub(hole) & last {
                self.by_id[hole] = self.by_id[slot];
                hole = slot;
            }
            slot = self.next(slot);
        }
        self.by_id[hole] = HashSlot::FREE;
        Some(block)
    }

    fn set_holder(&mut self, block: &Block, number: u32) {
        for (domain, mask) in block.masks() {
            for (first, order) in bitmap::aligned(mask) {
                let start = domain as usize * 64 + usize::from(first);
                self.by_ipu[start..start + (1 << order)].fill(number);
            }
        }
    }

    /// Returns the slot of `id` in `by_id`.
    fn slot_of(&self, id: &PartitionId) -> Option<usize> {
        let digest = digest(id);
        let mut slot = self.home(digest);
        loop {
            let candidate = self.by_id[slot];
            if candidate.number == NO_HOLDER {
                return None;
            }
            if candidate.digest == digest
                && self
                    .holder(candidate.number)
                    .is_some_and(|(other, _)| other == id)
            {
                return Some(slot);
            }
            slot = self.next(slot);
        }
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.by_id.len() - 1)
    }

    /// Returns the home slot of a digest in `by_id`.
    fn home(&self, digest: u32) -> usize {
        digest as usize & (self.by_id.len() - 1)
    }
}

/// Computes a digest of an id, eight bytes at a time. Deliberate collisions cost time, never correctness.
fn digest(id: &PartitionId) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |digest: u64, word: u64| {
        let product = (digest ^ word).wrapping_mul(ODD);
        product ^ product >> 32
    };
    let bytes = id.as_str().as_bytes();
    let (words, rest) = bytes.as_chunks::<8>();
    let digest = words.iter().fold(bytes.len() as u64, |digest, word| {
        mix(digest, u64::from_le_bytes(*word))
    });
    let tail = rest.iter().fold(0, |tail, byte| tail << 8 | u64::from(*byte));
    mix(digest, tail) as u32
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::format;

    use proptest::prelude::*;

    use super::*;
    use crate::units::IpuCount;

    #[test]
    fn two_ids_of_one_digest_are_two_holders() {
        let mut ids = (0..).map(|number| PartitionId::new(format!("p-{number}")).unwrap());
        let mut by_digest = BTreeMap::new();
        let pair = ids.find_map(|id| Some((by_digest.insert(digest(&id), id.clone())?, id)));
        let (one, other) = pair.unwrap();
        let mut holders = Holders::new(1);
        holders.insert(one, Block::within(0, 0, IpuCount::ONE).unwrap());
        assert_eq!(holders.block_of(&other), None);
    }

    proptest! {
        #[test]
        fn holders_are_found_despite_digest_collisions(
            ipus in 1_u8..24,
            steps in prop::collection::vec((0_u32..40, 0_u8..24), 0..60),
        ) {
            // At most twice as many slots as holders, for forty ids: most of them collide.
            let mut holders = Holders::new(1);
            let mut model = BTreeMap::new();
            for (name, ipu) in steps {
                let ipu = ipu % ipus;
                let id = PartitionId::new(format!("p-{name}")).unwrap();
                let block = Block::within(0, ipu, IpuCount::ONE).unwrap();
                let held = model.remove(&id);
                prop_assert_eq!(holders.remove(&id), held.clone());
                if held.is_none() && holders.at(0, u32::from(ipu)).is_none() {
                    holders.insert(id.clone(), block.clone());
                    model.insert(id, block);
                }
                for name in 0..40 {
                    let id = PartitionId::new(format!("p-{name}")).unwrap();
                    prop_assert_eq!(holders.block_of(&id), model.get(&id));
                }
                prop_assert_eq!(holders.len() as usize, model.len());
            }
        }
    }
}
