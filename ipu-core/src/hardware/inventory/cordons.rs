//! Cordoned IPUs, which take no new partitions, with the owners of the cordons.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::block::addresses;
use super::{Inventory, InventoryError};
use crate::hardware::topology::IpuAddress;
use crate::ids::{CordonOwner, PartitionId};

/// The cordoned IPUs of each owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cordons {
    /// Without empty masks and owners.
    by_owner: BTreeMap<CordonOwner, BTreeMap<u32, u64>>,
}

impl Cordons {
    /// Returns the cordoned IPUs of a link domain.
    pub(super) fn mask(&self, link_domain: u32) -> u64 {
        self.by_owner
            .values()
            .filter_map(|domains| domains.get(&link_domain))
            .fold(0, |all, mask| all | mask)
    }

    /// Iterates over the owners of cordons of an IPU.
    fn owners(&self, at: IpuAddress) -> impl Iterator<Item = &CordonOwner> {
        self.by_owner.iter().filter_map(move |(owner, domains)| {
            (domains.get(&at.link_domain)? >> at.ipu & 1 == 1).then_some(owner)
        })
    }

    fn add(&mut self, owner: &CordonOwner, masks: &BTreeMap<u32, u64>) {
        let domains = self.by_owner.entry(owner.clone()).or_default();
        for (domain, mask) in masks {
            *domains.entry(*domain).or_insert(0) |= mask;
        }
    }

    fn remove(&mut self, owner: &CordonOwner, masks: &BTreeMap<u32, u64>) {
        let Some(domains) = self.by_owner.get_mut(owner) else {
            return;
        };
        for (domain, mask) in masks {
            if let Some(cordoned) = domains.get_mut(domain) {
                *cordoned &= !mask;
            }
        }
        domains.retain(|_, cordoned| *cordoned != 0);
        if domains.is_empty() {
            self.by_owner.remove(owner);
        }
    }
}

impl Inventory {
    /// Cordons IPUs on behalf of `owner`: no new partitions are placed there. Repeating a cordon changes
    /// nothing. Returns the partitions that hold cordoned IPUs; they keep them.
    ///
    /// # Errors
    ///
    /// [`InventoryError::Unknown`] for an IPU that does not exist; nothing is cordoned then.
    ///
    /// ```
    /// use ipu_core::CordonOwner;
    /// use ipu_core::hardware::{Inventory, IpuAddress, Topology};
    ///
    /// let mut inventory = Inventory::new(&Topology::pod4());
    /// let broken = IpuAddress { link_domain: 0, ipu: 3 };
    /// inventory.cordon(&CordonOwner::health(), [broken])?;
    /// assert_eq!((inventory.free(), inventory.largest_block().map(|size| size.get())), (3, Some(2)));
    /// inventory.uncordon(&CordonOwner::health(), [broken])?;
    /// assert_eq!(inventory.free(), 4);
    /// # Ok::<(), ipu_core::hardware::InventoryError>(())
    /// ```
    pub fn cordon(
        &mut self,
        owner: &CordonOwner,
        ipus: impl IntoIterator<Item = IpuAddress>,
    ) -> Result<BTreeSet<PartitionId>, InventoryError> {
        let masks = self.to_masks(ipus)?;
        if !masks.is_empty() {
            self.cordons.add(owner, &masks);
        }
        self.refresh_cordoned(masks.keys().copied());
        let held = masks.iter().flat_map(|(domain, mask)| addresses(*domain, *mask));
        Ok(held
            .filter_map(|at| self.holder_at(at))
            .map(|(id, _)| id.clone())
            .collect())
    }

    /// Removes cordons of `owner`. An IPU that other owners cordon stays cordoned.
    ///
    /// # Errors
    ///
    /// [`InventoryError::NotCordoned`] for an IPU that `owner` does not cordon, [`InventoryError::Unknown`]
    /// for one that does not exist; nothing changes then.
    pub fn uncordon(
        &mut self,
        owner: &CordonOwner,
        ipus: impl IntoIterator<Item = IpuAddress>,
    ) -> Result<(), InventoryError> {
        let masks = self.to_masks(ipus)?;
        for at in masks.iter().flat_map(|(domain, mask)| addresses(*domain, *mask)) {
            let owners: Vec<CordonOwner> = self.cordons.owners(at).cloned().collect();
            if !owners.contains(owner) {
                return Err(InventoryError::NotCordoned {
                    at,
                    owner: owner.clone(),
                    owners,
                });
            }
        }
        self.cordons.remove(owner, &masks);
        self.refresh_cordoned(masks.keys().copied());
        Ok(())
    }

    /// Iterates over the cordons: owner and IPU, by owner and then by address.
    pub fn cordons(&self) -> impl Iterator<Item = (&CordonOwner, IpuAddress)> {
        self.cordons.by_owner.iter().flat_map(|(owner, domains)| {
            domains
                .iter()
                .flat_map(|(domain, mask)| addresses(*domain, *mask))
                .map(move |at| (owner, at))
        })
    }

    /// Iterates over the owners of cordons of an IPU; empty if it is not cordoned.
    pub fn cordoned_by(&self, at: IpuAddress) -> impl Iterator<Item = &CordonOwner> {
        self.cordons.owners(at)
    }

    /// Converts IPUs to masks, if all of them exist.
    fn to_masks(
        &self,
        ipus: impl IntoIterator<Item = IpuAddress>,
    ) -> Result<BTreeMap<u32, u64>, InventoryError> {
        let mut masks = BTreeMap::new();
        for at in ipus {
            if !self.topology().contains(at) {
                return Err(InventoryError::Unknown { at });
            }
            *masks.entry(at.link_domain).or_insert(0) |= 1_u64 << at.ipu;
        }
        Ok(masks)
    }

    fn refresh_cordoned(&mut self, domains: impl Iterator<Item = u32>) {
        for domain in domains {
            let mask = self.cordons.mask(domain);
            self.set_cordoned(domain, mask);
        }
    }
}
