//! Random things done to an inventory and to its reference alike, and random requests.

use std::collections::BTreeSet;

use ipu_core::{
    AllocationId, Block, CordonOwner, Inventory, IpuAddress, IpuCount, PartitionId, PlacementRequest,
    Topology,
};
use proptest::prelude::*;
use proptest::sample::Index;

use super::{topologies, vast_topologies, wide_topologies};
use crate::reference_inventory::ReferenceInventory;

/// Something to do to an inventory, legal or not. Indexes choose among what exists when it is done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Occupy the aligned block of 2^`order` IPUs around an IPU, free or not.
    Occupy {
        /// The IPU.
        at: Index,
        /// 0 to 6.
        order: u32,
        /// The number of the holder.
        holder: u8,
    },
    /// Occupy 2^`order` link domains from one on, free or not, there or not.
    OccupyWhole {
        /// The link domain.
        from: Index,
        /// 1 or 2.
        order: u32,
        /// The number of the holder.
        holder: u8,
    },
    /// Occupy any IPUs, as a controller could that does not place aligned blocks.
    OccupyAny {
        /// The IPUs.
        ats: Vec<Index>,
        /// The number of the holder.
        holder: u8,
    },
    /// Occupy every free aligned block of 2^`order` IPUs, each by a holder of its own, but those around `spared` IPUs.
    Fill {
        /// 0 to 6.
        order: u32,
        /// The IPUs.
        spared: Vec<Index>,
    },
    /// End the hold of a holder that may hold nothing.
    Vacate {
        /// The number of the holder.
        holder: u8,
    },
    /// End the hold of some holder.
    VacateAny {
        /// Which one of those that there are.
        which: Index,
    },
    /// Cordon IPUs.
    Cordon {
        /// The number of the owner.
        owner: u8,
        /// The IPUs.
        ats: Vec<Index>,
    },
    /// Lift cordons that may not be there.
    Lift {
        /// The number of the owner.
        owner: u8,
        /// The IPUs.
        ats: Vec<Index>,
    },
    /// Lift all that the owner cordons.
    LiftAll {
        /// The number of the owner.
        owner: u8,
    },
}

/// A call that changes an inventory, legal or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InventoryChange {
    /// [`Inventory::occupy`].
    Occupy(PartitionId, Block),
    /// [`Inventory::vacate`].
    Vacate(PartitionId),
    /// [`Inventory::cordon`].
    Cordon(CordonOwner, BTreeSet<IpuAddress>),
    /// [`Inventory::uncordon`].
    Lift(CordonOwner, BTreeSet<IpuAddress>),
}

impl InventoryChange {
    /// A holder of this name, which must be a partition id, occupies `block`.
    pub(crate) fn occupy(holder: &str, block: Block) -> Self {
        let holder = holder.parse().expect("letters, dashes and digits are an id");
        Self::Occupy(holder, block)
    }

    /// Does it to both; whether it was legal. What is not legal changes nothing.
    ///
    /// # Panics
    ///
    /// If one takes it and the other refuses it, or if they answer differently.
    pub fn apply(&self, reference: &mut ReferenceInventory, inventory: &mut Inventory) -> bool {
        match self {
            Self::Occupy(holder, block) => {
                let legal = reference.occupy(holder.clone(), block);
                let taken = inventory.occupy(holder.clone(), block.clone());
                assert_eq!(taken.is_ok(), legal, "{self:?}: {taken:?}");
                legal
            }
            Self::Vacate(holder) => {
                let held = reference.vacate(holder);
                let vacated = inventory.vacate(holder);
                let ipus: BTreeSet<IpuAddress> = vacated.iter().flat_map(Block::addresses).collect();
                assert_eq!(ipus, held, "{self:?}");
                !held.is_empty()
            }
            Self::Cordon(owner, ipus) => {
                let holders = reference.cordon(owner, ipus);
                let cordoned = inventory.cordon(owner, ipus.iter().copied());
                assert_eq!(cordoned.ok(), holders, "{self:?}");
                holders.is_some()
            }
            Self::Lift(owner, ipus) => {
                let legal = reference.lift(owner, ipus);
                let lifted = inventory.uncordon(owner, ipus.iter().copied());
                assert_eq!(lifted.is_ok(), legal, "{self:?}: {lifted:?}");
                legal
            }
        }
    }
}

impl Operation {
    /// The calls that it stands for where things are as `reference` says.
    #[must_use]
    pub fn changes(&self, reference: &ReferenceInventory) -> Vec<InventoryChange> {
        let topology = reference.topology();
        let all = all_ipus(topology);
        let pick = |ats: &[Index]| -> BTreeSet<IpuAddress> { ats.iter().map(|at| *at.get(&all)).collect() };
        let change = match self {
            Self::Occupy { at, order, holder } => {
                InventoryChange::Occupy(holder_id(*holder), around(*at.get(&all), *order))
            }
            Self::OccupyWhole { from, order, holder } => {
                let from = from.index(topology.link_domains() as usize) as u32;
                let block = Block::whole(from..from + (1 << order)).expect("2 or 4 are whole link domains");
                InventoryChange::Occupy(holder_id(*holder), block)
            }
            Self::OccupyAny { ats, holder } => {
                let block = Block::of_ipus(pick(ats)).expect("different IPUs are a block");
                InventoryChange::Occupy(holder_id(*holder), block)
            }
            Self::Fill { order, spared } => return fill(reference, &all, *order, &pick(spared)),
            Self::Vacate { holder } => InventoryChange::Vacate(holder_id(*holder)),
            Self::VacateAny { which } => {
                let holders: Vec<PartitionId> = reference.holders().into_keys().collect();
                if holders.is_empty() {
                    return Vec::new();
                }
                InventoryChange::Vacate(which.get(&holders).clone())
            }
            Self::Cordon { owner, ats } => InventoryChange::Cordon(owner_id(*owner), pick(ats)),
            Self::Lift { owner, ats } => InventoryChange::Lift(owner_id(*owner), pick(ats)),
            Self::LiftAll { owner } => {
                let owner = owner_id(*owner);
                let own = reference.cordons().into_iter();
                let ipus = own.filter(|(other, _)| *other == owner).map(|(_, at)| at);
                InventoryChange::Lift(owner.clone(), ipus.collect())
            }
        };
        vec![change]
    }

    /// Does it to both.
    ///
    /// # Panics
    ///
    /// If one takes it and the other refuses it, or if they answer differently.
    pub fn apply(&self, reference: &mut ReferenceInventory, inventory: &mut Inventory) {
        for change in self.changes(reference) {
            change.apply(reference, inventory);
        }
    }
}

/// Up to `most - 1` operations in a row.
pub fn operations(most: usize) -> impl Strategy<Value = Vec<Operation>> {
    let ats = |most| prop::collection::vec(any::<Index>(), 1..most);
    let holder = || 0_u8..24;
    let owner = || 0_u8..3;
    let operation = prop_oneof![
        8 => (any::<Index>(), 0_u32..=6, holder())
            .prop_map(|(at, order, holder)| Operation::Occupy { at, order, holder }),
        2 => (any::<Index>(), 1_u32..=2, holder())
            .prop_map(|(from, order, holder)| Operation::OccupyWhole { from, order, holder }),
        1 => (ats(4), holder()).prop_map(|(ats, holder)| Operation::OccupyAny { ats, holder }),
        1 => (0_u32..=6, prop::collection::vec(any::<Index>(), 0..12))
            .prop_map(|(order, spared)| Operation::Fill { order, spared }),
        4 => holder().prop_map(|holder| Operation::Vacate { holder }),
        2 => any::<Index>().prop_map(|which| Operation::VacateAny { which }),
        2 => (owner(), ats(4)).prop_map(|(owner, ats)| Operation::Cordon { owner, ats }),
        1 => (owner(), ats(4)).prop_map(|(owner, ats)| Operation::Lift { owner, ats }),
        1 => owner().prop_map(|owner| Operation::LiftAll { owner }),
    ];
    prop::collection::vec(operation, 0..most)
}

/// A topology to which things were done, and a request for a partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlacementCase {
    /// Where things are, by the reference.
    pub reference: ReferenceInventory,
    /// The same as an inventory.
    pub inventory: Inventory,
    /// What is to be placed: 1 to 1,024 IPUs of any allocation, of one, or (rarely) of one that is not there.
    pub request: PlacementRequest,
    /// The legal changes that led here, in order.
    pub history: Vec<InventoryChange>,
}

/// Situations, mostly of small topologies, so that everything can be tried: a request of more than 64 IPUs has at most a
/// few hundred choices.
pub fn situations() -> impl Strategy<Value = PlacementCase> {
    prop_oneof![
        10 => situations_on(topologies().boxed(), 24, prop_oneof![4 => 0_u32..=6, 1 => 0_u32..=10].boxed()),
        2 => situations_on(wide_topologies().boxed(), 3, (6_u32..=10).boxed()),
        2 => situations_on(vast_topologies().boxed(), 2, (9_u32..=10).boxed()),
    ]
}

/// Situations on these topologies after up to `most - 1` operations, with requests of 2^`orders` IPUs.
fn situations_on(
    topologies: BoxedStrategy<Topology>,
    most: usize,
    orders: BoxedStrategy<u32>,
) -> impl Strategy<Value = PlacementCase> {
    (topologies, operations(most), orders, requested())
        .prop_map(|(topology, operations, order, scope)| situation(&topology, &operations, order, scope))
}

/// The allocation to ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    Any,
    One(Index),
    Unknown,
}

impl Scope {
    pub(crate) fn of(self, topology: &Topology) -> Option<AllocationId> {
        match self {
            Self::Any => None,
            Self::One(which) if !topology.allocations().is_empty() => {
                Some(which.get(topology.allocations()).id.clone())
            }
            Self::One(_) => None,
            Self::Unknown => Some("nowhere".parse().expect("letters are an id")),
        }
    }
}

pub(crate) fn requested() -> impl Strategy<Value = Scope> {
    prop_oneof![
        10 => Just(Scope::Any),
        9 => any::<Index>().prop_map(Scope::One),
        1 => Just(Scope::Unknown),
    ]
}

fn situation(topology: &Topology, operations: &[Operation], order: u32, scope: Scope) -> PlacementCase {
    let (mut reference, mut inventory) = (ReferenceInventory::new(topology), Inventory::new(topology));
    let mut history = Vec::new();
    for operation in operations {
        let changes = operation.changes(&reference).into_iter();
        history.extend(changes.filter(|change| change.apply(&mut reference, &mut inventory)));
    }
    let size = tryable(&reference, order);
    PlacementCase {
        reference,
        inventory,
        request: PlacementRequest::of_size(size).in_allocation(scope.of(topology)),
        history,
    }
}

/// More choices than this of whole link domains are not tried: 16 link domains have 12,870 for 512 IPUs.
const CHOICES: u64 = 500;

/// 2^`order` IPUs, or the next larger size that has few enough choices.
pub(crate) fn tryable(reference: &ReferenceInventory, order: u32) -> IpuCount {
    let free = |(_, scope): (&AllocationId, &BTreeSet<IpuAddress>)| {
        scope.iter().filter(|at| reference.is_free(**at)).count() / 64
    };
    let most = if order > 6 {
        reference.scopes(None).map(free).max().unwrap_or(0) as u64
    } else {
        0
    };
    let choices = |order: u32| {
        let chosen = 1_u64 << (order - 6);
        (0..chosen).fold(1, |product, i| product * most.saturating_sub(i) / (i + 1))
    };
    let order = (order..10)
        .find(|order| *order <= 6 || choices(*order) <= CHOICES)
        .unwrap_or(order.max(10));
    IpuCount::from_order(order).expect("2^10 is a number of IPUs")
}

fn all_ipus(topology: &Topology) -> Vec<IpuAddress> {
    let domains = 0..topology.link_domains();
    let all = domains.flat_map(|link_domain| (0..64).map(move |ipu| IpuAddress { link_domain, ipu }));
    all.filter(|at| topology.contains(*at)).collect()
}

fn around(at: IpuAddress, order: u32) -> Block {
    let size = IpuCount::from_order(order).expect("2^6 is a number of IPUs");
    let first = at.ipu / size.get() as u8 * size.get() as u8;
    Block::within(at.link_domain, first, size).expect("it starts at a multiple of its size")
}

fn fill(
    reference: &ReferenceInventory,
    all: &[IpuAddress],
    order: u32,
    spared: &BTreeSet<IpuAddress>,
) -> Vec<InventoryChange> {
    let blocks: BTreeSet<Block> = all.iter().map(|at| around(*at, order)).collect();
    let free = blocks.into_iter().filter(|block| {
        block
            .addresses()
            .all(|at| reference.is_free(at) && !spared.contains(&at))
    });
    free.map(|block| {
        let at = block.first();
        InventoryChange::occupy(&format!("fill-{}-{}", at.link_domain, at.ipu), block)
    })
    .collect()
}

fn holder_id(number: u8) -> PartitionId {
    format!("holder-{number}")
        .parse()
        .expect("letters, digits and dashes are an id")
}

fn owner_id(number: u8) -> CordonOwner {
    CordonOwner::new(format!("owner-{number}")).expect("letters, digits and dashes are a name")
}
