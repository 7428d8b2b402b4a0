//! Random operations on an inventory and its reference, and random requests.

use std::collections::BTreeSet;
use std::fmt;

use ipu_core::hardware::{Block, Inventory, IpuAddress, Topology};
use ipu_core::placement::PlacementRequest;
use ipu_core::{AllocationId, CordonOwner, IpuCount, PartitionId};
use proptest::prelude::*;
use proptest::sample::Index;

use super::{topologies, vast_topologies, wide_topologies};
use crate::reference_inventory::ReferenceInventory;

/// Operation on an inventory, legal or not. Indexes choose among what exists when it is applied.
#[derive(Clone, Debug)]
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
    /// Occupy 2^`order` consecutive link domains, free or not, existing or not.
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
        indexes: Vec<Index>,
        /// The number of the holder.
        holder: u8,
    },
    /// Occupy every free aligned block of 2^`order` IPUs, each by its own holder, except those around
    /// `spared` IPUs.
    Fill {
        /// 0 to 6.
        order: u32,
        /// The IPUs.
        spared: Vec<Index>,
    },
    /// Vacate the block of a holder, which may hold nothing.
    Vacate {
        /// The number of the holder.
        holder: u8,
    },
    /// Vacate the block of an existing holder.
    VacateAny {
        /// Chooses among the existing holders.
        which: Index,
    },
    /// Cordon IPUs.
    Cordon {
        /// The number of the owner.
        owner: u8,
        /// The IPUs.
        indexes: Vec<Index>,
    },
    /// Lift cordons that may not exist.
    Lift {
        /// The number of the owner.
        owner: u8,
        /// The IPUs.
        indexes: Vec<Index>,
    },
    /// Lift all cordons of the owner.
    LiftAll {
        /// The number of the owner.
        owner: u8,
    },
}

/// A call that changes an inventory, legal or not.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Occupies `block` for `holder`, which must be a valid partition id.
    pub(crate) fn occupy(holder: &str, block: Block) -> Self {
        let holder = holder.parse().expect("a valid partition id");
        Self::Occupy(holder, block)
    }

    /// Applies the change to both inventories and returns whether it was legal. An illegal change has no
    /// effect.
    ///
    /// # Panics
    ///
    /// If one accepts the change and the other rejects it, or if their results differ.
    pub fn apply(&self, reference: &mut ReferenceInventory, inventory: &mut Inventory) -> bool {
        match self {
            Self::Occupy(holder, block) => {
                let legal = reference.occupy(holder.clone(), block);
                let occupied = inventory.occupy(holder.clone(), block.clone());
                assert_eq!(occupied.is_ok(), legal, "{self:?}: {occupied:?}");
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

impl fmt::Display for InventoryChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ipus: &BTreeSet<IpuAddress>| {
            let texts: Vec<_> = ipus.iter().map(ToString::to_string).collect();
            texts.join(", ")
        };
        match self {
            Self::Occupy(holder, block) => write!(f, "{holder} occupies {block}"),
            Self::Vacate(holder) => write!(f, "{holder} vacates"),
            Self::Cordon(owner, ipus) => write!(f, "{owner} cordons {}", list(ipus)),
            Self::Lift(owner, ipus) => write!(f, "{owner} lifts the cordon of {}", list(ipus)),
        }
    }
}

impl Operation {
    /// Returns the calls that the operation stands for in the state of `reference`.
    #[must_use]
    pub fn changes(&self, reference: &ReferenceInventory) -> Vec<InventoryChange> {
        let topology = reference.topology();
        let all = ipus_of(topology);
        let pick =
            |indexes: &[Index]| -> BTreeSet<IpuAddress> { indexes.iter().map(|at| *at.get(&all)).collect() };
        let change = match self {
            Self::Occupy { at, order, holder } => {
                InventoryChange::Occupy(holder_id(*holder), around(*at.get(&all), *order))
            }
            Self::OccupyWhole { from, order, holder } => {
                let from = from.index(topology.link_domains() as usize) as u32;
                let block =
                    Block::whole(from..from + (1 << order)).expect("2 or 4 whole link domains are a block");
                InventoryChange::Occupy(holder_id(*holder), block)
            }
            Self::OccupyAny { indexes, holder } => {
                let block = Block::from_ipus(pick(indexes)).expect("distinct IPUs are a block");
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
            Self::Cordon { owner, indexes } => InventoryChange::Cordon(owner_id(*owner), pick(indexes)),
            Self::Lift { owner, indexes } => InventoryChange::Lift(owner_id(*owner), pick(indexes)),
            Self::LiftAll { owner } => {
                let owner = owner_id(*owner);
                let own = reference.cordons().into_iter();
                let ipus = own.filter(|(other, _)| *other == owner).map(|(_, at)| at);
                InventoryChange::Lift(owner.clone(), ipus.collect())
            }
        };
        vec![change]
    }

    /// Applies the operation to both inventories.
    ///
    /// # Panics
    ///
    /// If one accepts a change and the other rejects it, or if their results differ.
    pub fn apply(&self, reference: &mut ReferenceInventory, inventory: &mut Inventory) {
        for change in self.changes(reference) {
            change.apply(reference, inventory);
        }
    }
}

/// Returns sequences of fewer than `max` operations.
pub fn operations(max: usize) -> impl Strategy<Value = Vec<Operation>> {
    let indexes = |max| prop::collection::vec(any::<Index>(), 1..max);
    let holder = || 0_u8..24;
    let owner = || 0_u8..3;
    let operation = prop_oneof![
        8 => (any::<Index>(), 0_u32..=6, holder())
            .prop_map(|(at, order, holder)| Operation::Occupy { at, order, holder }),
        2 => (any::<Index>(), 1_u32..=2, holder())
            .prop_map(|(from, order, holder)| Operation::OccupyWhole { from, order, holder }),
        1 => (indexes(4), holder()).prop_map(|(indexes, holder)| Operation::OccupyAny { indexes, holder }),
        1 => (0_u32..=6, prop::collection::vec(any::<Index>(), 0..12))
            .prop_map(|(order, spared)| Operation::Fill { order, spared }),
        4 => holder().prop_map(|holder| Operation::Vacate { holder }),
        2 => any::<Index>().prop_map(|which| Operation::VacateAny { which }),
        2 => (owner(), indexes(4)).prop_map(|(owner, indexes)| Operation::Cordon { owner, indexes }),
        1 => (owner(), indexes(4)).prop_map(|(owner, indexes)| Operation::Lift { owner, indexes }),
        1 => owner().prop_map(|owner| Operation::LiftAll { owner }),
    ];
    prop::collection::vec(operation, 0..max)
}

/// Topology with a history of changes, and a request for a partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlacementCase {
    /// State according to the reference.
    pub reference: ReferenceInventory,
    /// Inventory in the state of `reference`.
    pub inventory: Inventory,
    /// Request for 1 to 1,024 IPUs of any allocation, of one, or (rarely) of an unknown one.
    pub request: PlacementRequest,
    /// Legal changes that led to this state, in order.
    pub history: Vec<InventoryChange>,
}

/// Returns placement cases, mostly on small topologies so that brute force is possible: a request of more
/// than 64 IPUs has at most a few hundred choices.
///
/// ```
/// use ipu_core::placement::{FirstFit, place};
/// use proptest::prelude::*;
///
/// let cases = ipu_testkit::strategies::placement_cases();
/// proptest!(ProptestConfig::with_cases(16), |(case in cases)| {
///     // Brute force and first fit agree on whether there is a place.
///     let impossible = case.reference.impossibility(&case.request);
///     let placed = place(&case.inventory, &case.request, &FirstFit);
///     prop_assert_eq!(matches!(placed, Ok(_)), impossible.is_none());
/// });
/// ```
pub fn placement_cases() -> impl Strategy<Value = PlacementCase> {
    prop_oneof![
        10 => placement_cases_on(topologies().boxed(), 24, prop_oneof![4 => 0_u32..=6, 1 => 0_u32..=10].boxed()),
        2 => placement_cases_on(wide_topologies().boxed(), 3, (6_u32..=10).boxed()),
        2 => placement_cases_on(vast_topologies().boxed(), 2, (9_u32..=10).boxed()),
    ]
}

/// Returns cases on these topologies after fewer than `max` operations, with requests of 2^`orders` IPUs.
fn placement_cases_on(
    topologies: BoxedStrategy<Topology>,
    max: usize,
    orders: BoxedStrategy<u32>,
) -> impl Strategy<Value = PlacementCase> {
    (topologies, operations(max), orders, request_scopes())
        .prop_map(|(topology, operations, order, scope)| placement_case(&topology, &operations, order, scope))
}

/// Allocation that a request names.
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
            Self::Unknown => Some("nowhere".parse().expect("a valid allocation id")),
        }
    }
}

pub(crate) fn request_scopes() -> impl Strategy<Value = Scope> {
    prop_oneof![
        10 => Just(Scope::Any),
        9 => any::<Index>().prop_map(Scope::One),
        1 => Just(Scope::Unknown),
    ]
}

fn placement_case(topology: &Topology, operations: &[Operation], order: u32, scope: Scope) -> PlacementCase {
    let (mut reference, mut inventory) = (ReferenceInventory::new(topology), Inventory::new(topology));
    let mut history = Vec::new();
    for operation in operations {
        let changes = operation.changes(&reference).into_iter();
        history.extend(changes.filter(|change| change.apply(&mut reference, &mut inventory)));
    }
    let size = tractable_size(&reference, order);
    PlacementCase {
        reference,
        inventory,
        request: PlacementRequest::of_size(size).in_allocation(scope.of(topology)),
        history,
    }
}

/// Limit on choices of whole link domains that are tried: 16 link domains have 12,870 for 512 IPUs.
const MAX_CHOICES: u64 = 500;

/// Returns 2^`order` IPUs, or the next larger size that has at most [`MAX_CHOICES`] choices.
pub(crate) fn tractable_size(reference: &ReferenceInventory, order: u32) -> IpuCount {
    let free = |(_, scope): (&AllocationId, &BTreeSet<IpuAddress>)| {
        scope.iter().filter(|at| reference.is_free(**at)).count() / 64
    };
    let max = if order > 6 {
        reference.scopes(None).map(free).max().unwrap_or(0) as u64
    } else {
        0
    };
    let choices = |order: u32| {
        let chosen = 1_u64 << (order - 6);
        (0..chosen).fold(1, |product, i| product * max.saturating_sub(i) / (i + 1))
    };
    let order = (order..10)
        .find(|order| *order <= 6 || choices(*order) <= MAX_CHOICES)
        .unwrap_or(order.max(10));
    IpuCount::from_order(order).expect("2^10 is an IPU count")
}

fn ipus_of(topology: &Topology) -> Vec<IpuAddress> {
    let domains = 0..topology.link_domains();
    let all = domains.flat_map(|link_domain| (0..64).map(move |ipu| IpuAddress { link_domain, ipu }));
    all.filter(|at| topology.contains(*at)).collect()
}

fn around(at: IpuAddress, order: u32) -> Block {
    let size = IpuCount::from_order(order).expect("2^6 is an IPU count");
    let first = at.ipu / size.get() as u8 * size.get() as u8;
    Block::within(at.link_domain, first, size).expect("the block starts at a multiple of its size")
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
    format!("holder-{number}").parse().expect("a valid partition id")
}

fn owner_id(number: u8) -> CordonOwner {
    CordonOwner::new(format!("owner-{number}")).expect("a valid owner name")
}
