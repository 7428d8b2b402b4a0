//! Reference inventory that is too simple to be wrong: maps of single IPUs and brute-force queries. It shares
//! no code with `ipu-core` beyond value types.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::hardware::{Block, Inventory, IpuAddress, Topology};
use ipu_core::placement::{Impossible, PlacementRequest};
use ipu_core::{AllocationId, CordonOwner, IpuCount, PartitionId};

/// Topology, holders and cordons, one IPU at a time.
///
/// Every query tries all possibilities, so its result is right by construction, but slow: use it on
/// topologies of a few hundred IPUs.
///
/// ```
/// use ipu_core::IpuCount;
/// use ipu_core::hardware::{Block, Topology};
/// use ipu_core::placement::PlacementRequest;
/// use ipu_testkit::ReferenceInventory;
///
/// let four = IpuCount::try_from(4)?;
/// let mut reference = ReferenceInventory::new(&Topology::pod16());
/// assert!(reference.occupy("p1".parse()?, &Block::within(0, 8, four)?));
/// assert_eq!(reference.fit_count(four, None), 3);
/// assert_eq!(reference.impossibility(&PlacementRequest::of_size(four)), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceInventory {
    topology: Topology,
    /// IPUs of each allocation, in the order of the topology.
    allocations: Vec<(AllocationId, BTreeSet<IpuAddress>)>,
    held: BTreeMap<IpuAddress, PartitionId>,
    cordoned: BTreeMap<IpuAddress, BTreeSet<CordonOwner>>,
}

impl ReferenceInventory {
    /// Creates a reference of `topology` with all IPUs free.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let ipus = |agents: &BTreeSet<_>| {
            agents
                .iter()
                .filter_map(|agent| topology.agent_ipus(agent))
                .flatten()
                .collect()
        };
        Self {
            topology: topology.clone(),
            allocations: topology
                .allocations()
                .iter()
                .map(|allocation| (allocation.id.clone(), ipus(&allocation.agents)))
                .collect(),
            held: BTreeMap::new(),
            cordoned: BTreeMap::new(),
        }
    }

    /// The hardware.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Occupies `block` for `holder`. Returns false, without a change, if the holder already holds something
    /// or an IPU of the block is not free.
    pub fn occupy(&mut self, holder: PartitionId, block: &Block) -> bool {
        let legal = !self.holds(&holder) && block.addresses().all(|address| self.is_free(address));
        if legal {
            self.held
                .extend(block.addresses().map(|address| (address, holder.clone())));
        }
        legal
    }

    /// Vacates the block of `holder` and returns its IPUs; empty if it holds nothing.
    pub fn vacate(&mut self, holder: &PartitionId) -> BTreeSet<IpuAddress> {
        let ipus = self.held_by(holder);
        self.held.retain(|_, other| other != holder);
        ipus
    }

    /// Cordons IPUs on behalf of `owner` and returns their holders. Returns none, without a change, if an IPU
    /// does not exist.
    pub fn cordon(
        &mut self,
        owner: &CordonOwner,
        ipus: &BTreeSet<IpuAddress>,
    ) -> Option<BTreeSet<PartitionId>> {
        if !ipus.iter().all(|address| self.topology.contains(*address)) {
            return None;
        }
        for address in ipus {
            self.cordoned.entry(*address).or_default().insert(owner.clone());
        }
        Some(
            ipus.iter()
                .filter_map(|address| self.holder(*address))
                .cloned()
                .collect(),
        )
    }

    /// Lifts cordons of `owner`. Returns false, without a change, if it does not cordon all of `ipus`.
    pub fn lift(&mut self, owner: &CordonOwner, ipus: &BTreeSet<IpuAddress>) -> bool {
        let legal = ipus.iter().all(|address| {
            self.cordoned
                .get(address)
                .is_some_and(|owners| owners.contains(owner))
        });
        if legal {
            for address in ipus {
                if let Some(owners) = self.cordoned.get_mut(address) {
                    owners.remove(owner);
                }
            }
            self.cordoned.retain(|_, owners| !owners.is_empty());
        }
        legal
    }

    /// Returns the holder of an IPU.
    #[must_use]
    pub fn holder(&self, address: IpuAddress) -> Option<&PartitionId> {
        self.held.get(&address)
    }

    /// Returns whether an IPU is cordoned.
    #[must_use]
    pub fn is_cordoned(&self, address: IpuAddress) -> bool {
        self.cordoned.contains_key(&address)
    }

    /// Returns whether an IPU exists, is not held and is not cordoned.
    #[must_use]
    pub fn is_free(&self, address: IpuAddress) -> bool {
        self.topology.contains(address) && self.holder(address).is_none() && !self.is_cordoned(address)
    }

    /// Returns whether `holder` holds anything.
    #[must_use]
    pub fn holds(&self, holder: &PartitionId) -> bool {
        self.held.values().any(|other| other == holder)
    }

    /// Returns the IPUs of `holder`.
    #[must_use]
    pub fn held_by(&self, holder: &PartitionId) -> BTreeSet<IpuAddress> {
        let ipus = self.held.iter().filter(|(_, other)| *other == holder);
        ipus.map(|(address, _)| *address).collect()
    }

    /// Returns the IPUs of each holder.
    #[must_use]
    pub fn holders(&self) -> BTreeMap<PartitionId, BTreeSet<IpuAddress>> {
        let mut holders = BTreeMap::<_, BTreeSet<_>>::new();
        for (address, holder) in &self.held {
            holders.entry(holder.clone()).or_default().insert(*address);
        }
        holders
    }

    /// Returns the cordons: owner and IPU.
    #[must_use]
    pub fn cordons(&self) -> BTreeSet<(CordonOwner, IpuAddress)> {
        let pairs = self
            .cordoned
            .iter()
            .flat_map(|(address, owners)| owners.iter().map(|owner| (owner.clone(), *address)));
        pairs.collect()
    }

    /// Returns the IPUs of each allocation of the scope: of `allocation` alone, or of all.
    pub fn scopes(
        &self,
        allocation: Option<&AllocationId>,
    ) -> impl Iterator<Item = (&AllocationId, &BTreeSet<IpuAddress>)> {
        let all = self.allocations.iter().map(|(id, ipus)| (id, ipus));
        all.filter(move |(id, _)| allocation.is_none_or(|wanted| wanted == *id))
    }

    /// Returns all IPUs of the scope.
    #[must_use]
    pub fn ipus(&self, allocation: Option<&AllocationId>) -> BTreeSet<IpuAddress> {
        self.scopes(allocation)
            .flat_map(|(_, ipus)| ipus.iter().copied())
            .collect()
    }

    /// Returns the number of free IPUs of the scope.
    #[must_use]
    pub fn free(&self, allocation: Option<&AllocationId>) -> u32 {
        let ipus = self.ipus(allocation);
        count(ipus.iter().filter(|address| self.is_free(**address)))
    }

    /// Returns every legal block of `size` in one allocation of the scope all of whose IPUs are `usable`, by
    /// address.
    ///
    /// More than 64 IPUs: every choice of link domains, which may be very many.
    pub fn blocks(
        &self,
        size: IpuCount,
        allocation: Option<&AllocationId>,
        usable: impl Fn(IpuAddress) -> bool,
    ) -> BTreeSet<Block> {
        let mut found = BTreeSet::new();
        for (_, scope) in self.scopes(allocation) {
            if size <= IpuCount::LINK_DOMAIN {
                let starts = scope.iter().filter_map(|address| aligned(*address, size));
                found.extend(starts.filter(|block| is_filled_by(block, scope, &usable)));
            } else {
                let domains = self.whole_domains(scope, &usable);
                let chosen = choices(&domains, domain_count(size)).into_iter();
                found.extend(chosen.filter_map(|chosen| Block::whole(chosen).ok()));
            }
        }
        found
    }

    /// Returns every free legal block of `size` in one allocation of the scope, by address.
    #[must_use]
    pub fn free_blocks(&self, size: IpuCount, allocation: Option<&AllocationId>) -> BTreeSet<Block> {
        self.blocks(size, allocation, |address| self.is_free(address))
    }

    /// Returns whether a legal block of `size` exists in one allocation of the scope all of whose IPUs are
    /// `usable`.
    pub fn has_block(
        &self,
        size: IpuCount,
        allocation: Option<&AllocationId>,
        usable: impl Fn(IpuAddress) -> bool,
    ) -> bool {
        self.scopes(allocation).any(|(_, scope)| {
            if size <= IpuCount::LINK_DOMAIN {
                let mut starts = scope.iter().filter_map(|address| aligned(*address, size));
                return starts.any(|block| is_filled_by(&block, scope, &usable));
            }
            self.whole_domains(scope, &usable).len() >= domain_count(size)
        })
    }

    /// Returns the size of the largest legal block in one allocation of the scope all of whose IPUs are
    /// `usable`.
    pub fn largest(
        &self,
        allocation: Option<&AllocationId>,
        usable: impl Fn(IpuAddress) -> bool,
    ) -> Option<IpuCount> {
        let sizes = (0..=IpuCount::MAX.order()).map_while(IpuCount::from_order);
        sizes
            .take_while(|size| self.has_block(*size, allocation, &usable))
            .last()
    }

    /// Returns the maximum number of partitions of `size` that fit at once. Above 64 IPUs the time grows
    /// exponentially with the choices.
    #[must_use]
    pub fn fit_count(&self, size: IpuCount, allocation: Option<&AllocationId>) -> u32 {
        let blocks = self.free_blocks(size, allocation);
        if size <= IpuCount::LINK_DOMAIN {
            // Aligned blocks of one size never overlap.
            return count(blocks.iter());
        }
        let blocks: Vec<BTreeSet<u32>> = blocks
            .into_iter()
            .map(|block| block.masks().map(|(domain, _)| domain).collect())
            .collect();
        most_disjoint(&blocks, &BTreeSet::new())
    }

    /// Returns the minimum number of holders to evict for `size` to fit, then the minimum number of their
    /// IPUs; none if eviction cannot help.
    #[must_use]
    pub fn blockers(&self, size: IpuCount, allocation: Option<&AllocationId>) -> Option<(usize, u32)> {
        let held = self.holders();
        let blocks = self.blocks(size, allocation, |address| !self.is_cordoned(address));
        let costs = blocks.iter().map(|block| {
            let holders: BTreeSet<&PartitionId> = block
                .addresses()
                .filter_map(|address| self.holder(address))
                .collect();
            let ipus = holders.iter().map(|holder| count(held[*holder].iter())).sum();
            (holders.len(), ipus)
        });
        costs.min()
    }

    /// Returns the reason for which `request` is impossible now; none if a legal free block exists.
    /// [`place`](ipu_core::placement::place) must return the same with any policy that does not decline.
    #[must_use]
    pub fn impossibility(&self, request: &PlacementRequest) -> Option<Impossible> {
        let (size, scope) = (request.size, request.allocation.as_ref());
        if let Some(allocation) = scope.filter(|id| self.topology.allocation(id).is_none()) {
            let allocation = allocation.clone();
            return Some(Impossible::UnknownAllocation { allocation });
        }
        if self.has_block(size, scope, |address| self.is_free(address)) {
            return None;
        }
        if !self.has_block(size, scope, |_| true) {
            return Some(Impossible::TooLarge {
                size,
                capacity: self.largest(scope, |_| true).map_or(0, IpuCount::get),
                allocation: scope.cloned(),
            });
        }
        let free = self.free(scope);
        let largest_block = self
            .largest(scope, |address| self.is_free(address))
            .map_or(0, IpuCount::get);
        Some(
            if self.has_block(size, scope, |address| self.holder(address).is_none()) {
                let (cordoned, owners) = self.idle_cordons(scope);
                Impossible::Cordoned {
                    size,
                    free,
                    largest_block,
                    cordoned,
                    owners,
                }
            } else if free < size.get() {
                Impossible::NotEnoughFree {
                    size,
                    free,
                    largest_block,
                }
            } else {
                Impossible::Fragmented {
                    size,
                    free,
                    largest_block,
                }
            },
        )
    }

    /// Returns the number of cordoned IPUs of the scope without a holder, and the owners of those cordons.
    #[must_use]
    pub fn idle_cordons(&self, allocation: Option<&AllocationId>) -> (u32, Vec<CordonOwner>) {
        let ipus = self.ipus(allocation);
        let idle = || {
            let in_scope = self
                .cordoned
                .iter()
                .filter(|(address, _)| ipus.contains(*address));
            in_scope.filter(|(address, _)| self.holder(**address).is_none())
        };
        let owners: BTreeSet<&CordonOwner> = idle().flat_map(|(_, owners)| owners).collect();
        (count(idle()), owners.into_iter().cloned().collect())
    }

    /// Builds an [`Inventory`] from scratch with the same holders and cordons.
    ///
    /// # Panics
    ///
    /// If the inventory rejects a legal state, a bug of either.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::new(&self.topology);
        for (holder, ipus) in self.holders() {
            let block = Block::from_ipus(ipus).expect("the IPUs of a holder are distinct");
            inventory
                .occupy(holder, block)
                .expect("the reference holds no IPU twice");
        }
        for (owner, address) in self.cordons() {
            inventory
                .cordon(&owner, [address])
                .expect("the reference cordons existing IPUs");
        }
        inventory
    }

    /// Returns the link domains whose 64 IPUs are all in `scope` and usable.
    fn whole_domains(&self, scope: &BTreeSet<IpuAddress>, usable: impl Fn(IpuAddress) -> bool) -> Vec<u32> {
        let all = 0..self.topology.link_domains();
        all.filter(|domain| {
            (0..64).all(|ipu| {
                let link_domain = *domain;
                let address = IpuAddress { link_domain, ipu };
                scope.contains(&address) && usable(address)
            })
        })
        .collect()
    }
}

/// Returns the aligned block of `size` that starts at `at`, if one may start there.
fn aligned(address: IpuAddress, size: IpuCount) -> Option<Block> {
    Block::within(address.link_domain, address.ipu, size).ok()
}

fn is_filled_by(block: &Block, scope: &BTreeSet<IpuAddress>, usable: impl Fn(IpuAddress) -> bool) -> bool {
    block
        .addresses()
        .all(|address| scope.contains(&address) && usable(address))
}

/// Returns the number of whole link domains of a partition of more than 64 IPUs.
fn domain_count(size: IpuCount) -> usize {
    (size.get() / IpuCount::LINK_DOMAIN.get()) as usize
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// Returns every choice of `count` elements of `from`.
fn choices(from: &[u32], count: usize) -> Vec<Vec<u32>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    if from.len() < count {
        return Vec::new();
    }
    let Some((first, rest)) = from.split_first() else {
        return Vec::new();
    };
    let with = choices(rest, count - 1).into_iter().map(|mut choice| {
        choice.insert(0, *first);
        choice
    });
    with.chain(choices(rest, count)).collect()
}

fn most_disjoint(blocks: &[BTreeSet<u32>], used: &BTreeSet<u32>) -> u32 {
    let Some((first, rest)) = blocks.split_first() else {
        return 0;
    };
    let without = most_disjoint(rest, used);
    if first.is_disjoint(used) {
        without.max(1 + most_disjoint(rest, &(used | first)))
    } else {
        without
    }
}
