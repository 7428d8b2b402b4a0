//! Who holds which block: found by id and by IPU in a time that does not depend on how many holders there are.

use alloc::vec;
use alloc::vec::Vec;

use super::Block;
use crate::ids::PartitionId;

/// No holder, in the tables below.
const NONE: u32 = u32::MAX;

/// The holders, each with one block. There are never more than IPUs, so that all tables are made once.
#[derive(Clone, Debug)]
pub(super) struct Holders {
    /// Entries by number; the free ones are listed in `spare`.
    entries: Vec<Option<(PartitionId, Block)>>,
    spare: Vec<u32>,
    /// For each IPU (64 for each link domain) the number of its holder.
    by_ipu: Vec<u32>,
    /// Numbers by the digest of their id: open addressing, at most half full, a power of two long.
    by_id: Vec<u32>,
    len: u32,
}

impl Holders {
    /// No holders, of at most `ipus` IPUs in `link_domains` link domains.
    pub(super) fn none(link_domains: u32, ipus: u32) -> Self {
        Self {
            entries: Vec::new(),
            spare: Vec::new(),
            by_ipu: vec![NONE; link_domains as usize * 64],
            by_id: vec![NONE; (ipus.max(1) as usize * 2).next_power_of_two()],
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// The number of the holder of an IPU.
    pub(super) fn number_at(&self, link_domain: u32, ipu: u32) -> Option<u32> {
        self.by_ipu
            .get(link_domain as usize * 64 + ipu as usize)
            .copied()
            .filter(|number| *number != NONE)
    }

    /// A holder by its number.
    pub(super) fn entry(&self, number: u32) -> Option<(&PartitionId, &Block)> {
        self.entries
            .get(number as usize)?
            .as_ref()
            .map(|(id, block)| (id, block))
    }

    /// All of them, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&PartitionId, &Block)> {
        self.entries.iter().flatten().map(|(id, block)| (id, block))
    }

    /// The holder of an IPU.
    pub(super) fn at(&self, link_domain: u32, ipu: u32) -> Option<(&PartitionId, &Block)> {
        self.entry(self.number_at(link_domain, ipu)?)
    }

    /// The block of a holder.
    pub(super) fn block_of(&self, id: &PartitionId) -> Option<&Block> {
        let number = self.by_id.get(self.slot_of(id)?)?;
        self.entry(*number).map(|(_, block)| block)
    }

    /// Adds a holder that is not there, of IPUs that nobody holds.
    pub(super) fn insert(&mut self, id: PartitionId, block: Block) {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
        });
        self.mark(&block, number);
        let mut slot = self.home(&id);
        while self.by_id[slot] != NONE {
            slot = self.next(slot);
        }
        self.by_id[slot] = number;
        self.entries[number as usize] = Some((id, block));
        self.len += 1;
    }

    /// Removes a holder; none if it is not there.
    pub(super) fn remove(&mut self, id: &PartitionId) -> Option<Block> {
        let mut hole = self.slot_of(id)?;
        let number = self.by_id[hole];
        let (_, block) = self.entries.get_mut(number as usize)?.take()?;
        self.spare.push(number);
        self.mark(&block, NONE);
        self.len -= 1;
        // Close the hole, so that a search may stop at the first empty slot.
        let mut slot = hole;
        loop {
            slot = self.next(slot);
            let Some((other, _)) = self.entry(self.by_id[slot]) else {
                break;
            };
            let last = self.by_id.len() - 1;
            let distance = slot.wrapping_sub(self.home(other)) & last;
            if distance >= slot.wrapping_sub(hole) & last {
                self.by_id[hole] = self.by_id[slot];
                hole = slot;
            }
        }
        self.by_id[hole] = NONE;
        Some(block)
    }

    fn mark(&mut self, block: &Block, number: u32) {
        for at in block.addresses() {
            self.by_ipu[at.link_domain as usize * 64 + usize::from(at.ipu)] = number;
        }
    }

    /// Where `id` is in `by_id`.
    fn slot_of(&self, id: &PartitionId) -> Option<usize> {
        let mut slot = self.home(id);
        loop {
            let (other, _) = self.entry(self.by_id[slot])?;
            if other == id {
                return Some(slot);
            }
            slot = self.next(slot);
        }
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.by_id.len() - 1)
    }

    /// Where `id` belongs in `by_id`: its FNV-1a digest. Ids that collide on purpose cost time, never correctness.
    fn home(&self, id: &PartitionId) -> usize {
        let digest = id
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
                (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        (digest ^ digest >> 32) as usize & (self.by_id.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::format;

    use proptest::prelude::*;

    use super::*;
    use crate::units::IpuCount;

    proptest! {
        #[test]
        fn holders_are_found_however_their_ids_collide(
            steps in prop::collection::vec((0_u32..40, 0_u8..4), 0..60),
        ) {
            // Eight slots for up to four of forty ids: most of them meet others.
            let mut holders = Holders::none(1, 4);
            let mut model = BTreeMap::new();
            for (name, ipu) in steps {
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
