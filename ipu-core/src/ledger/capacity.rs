//! What the ledger knows of the controllers' room when it decides: one view per controller, taken by the shell.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::ids::{ControllerName, CordonOwner, PartitionId};
use crate::ledger::cordon::CordonTarget;
use crate::ledger::location::Location;
use crate::ledger::stats::IpuCounts;
use crate::partition::{IpuPlace, Partition, PartitionSpec};
use crate::reason::Reason;
use crate::units::Timestamp;

/// The room of one controller, with everything that holds a part of it. The ledger works on a copy ([`fork`](Self::fork))
/// and places hypothetically what it knows and the controller does not show yet.
pub trait Capacity: Send + Sync {
    /// A copy to try things on.
    fn fork(&self) -> Box<dyn Capacity>;

    /// Free IPUs.
    fn free(&self) -> u32;

    /// The size of the largest partition that fits; 0 if none does.
    fn largest_block(&self) -> u32;

    /// Whether `id` has its place already.
    fn has(&self, id: &PartitionId) -> bool;

    /// Takes room for `id`: the given IPUs, or any if `places` is empty. Answers the IPUs, empty if they are not known.
    ///
    /// Whether there is room, and the error if not, depend on the size and the allocation of `spec` and on `places`, not on
    /// `id`. After another `take`, an error does not become a success: the ledger tries each kind of request only once.
    ///
    /// # Errors
    ///
    /// Why it does not fit; nothing is taken then. The code `TooLarge` means that it never can.
    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        places: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason>;

    /// Gives back what `id` has; nothing if it has nothing.
    fn release(&mut self, id: &PartitionId);

    /// Keeps the free ones of these IPUs from every later [`take`](Self::take). IPUs that do not exist are ignored.
    fn withhold(&mut self, places: &[IpuPlace]);

    /// Whether the controller has several clusters, so that the numbers of IPUs alone do not identify them.
    fn has_several_clusters(&self) -> bool {
        false
    }

    /// Has `what` get nothing new from now on, because `owner` says so. Who has a place there keeps it, and is answered.
    ///
    /// # Errors
    ///
    /// Why it cannot be cordoned. Where there is no such hardware nothing changes; who does not know his hardware takes
    /// nothing new at all from then on, because what is cordoned might get it.
    fn cordon(&mut self, owner: &CordonOwner, what: &CordonTarget) -> Result<Vec<PartitionId>, Reason>;

    /// All IPUs by what is to be said of them; none if the hardware is not known.
    fn counts(&self) -> Option<IpuCounts>;

    /// How many partitions of `spec` fit side by side now.
    fn fit_count(&self, spec: &PartitionSpec) -> u32;

    /// What would have to end for `spec` to fit: the smallest set that the implementation finds.
    fn blockers(&self, spec: &PartitionSpec) -> Vec<PartitionId>;
}

/// Room without limits, for a controller whose hardware is not known: everything fits until the controller says no.
#[derive(Clone, Debug, Default)]
pub struct Unbounded {
    taken: BTreeMap<PartitionId, u32>,
    /// Why nothing new is taken, if so.
    closed: Option<Reason>,
}

impl Capacity for Unbounded {
    fn fork(&self) -> Box<dyn Capacity> {
        Box::new(self.clone())
    }

    fn free(&self) -> u32 {
        if self.closed.is_some() { 0 } else { u32::MAX }
    }

    fn largest_block(&self) -> u32 {
        self.free()
    }

    fn has(&self, id: &PartitionId) -> bool {
        self.taken.contains_key(id)
    }

    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        places: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason> {
        if let Some(reason) = &self.closed {
            return Err(reason.clone());
        }
        self.taken.insert(id.clone(), spec.size.get());
        Ok(places.to_vec())
    }

    fn cordon(&mut self, owner: &CordonOwner, what: &CordonTarget) -> Result<Vec<PartitionId>, Reason> {
        let closed = |why: &str| Reason::new("Excluded", format!("{owner} excludes {what}{why}"));
        if *what == CordonTarget::Controller {
            self.closed = Some(closed(""));
            return Ok(self.taken.keys().cloned().collect());
        }
        self.closed = Some(closed(", and the controller does not tell its hardware"));
        Err(Reason::new(
            "HardwareUnknown",
            "the controller does not tell its hardware, so only the whole of it can be excluded",
        ))
    }

    fn release(&mut self, id: &PartitionId) {
        self.taken.remove(id);
    }

    /// Does nothing: without a topology no IPU can be kept free. [`LedgerState`](crate::LedgerState) places nothing at
    /// such a controller instead.
    fn withhold(&mut self, _: &[IpuPlace]) {}

    fn counts(&self) -> Option<IpuCounts> {
        None
    }

    fn fit_count(&self, _: &PartitionSpec) -> u32 {
        self.free()
    }

    fn blockers(&self, _: &PartitionSpec) -> Vec<PartitionId> {
        self.taken.keys().cloned().collect()
    }
}

/// What a controller listed at one moment.
pub struct Listing {
    partitions: BTreeMap<PartitionId, Arc<Partition>>,
    capacity: Box<dyn Capacity>,
    /// The digests of all ids, combined so that their order does not matter and each can be taken out again.
    ids: u64,
    asked: Option<Timestamp>,
}

impl Listing {
    /// A listing of `partitions`, all of which have their place in `capacity` already.
    #[must_use]
    pub fn new(partitions: impl IntoIterator<Item = Partition>, capacity: Box<dyn Capacity>) -> Self {
        let partitions: BTreeMap<_, _> = partitions
            .into_iter()
            .map(|p| (p.id.clone(), Arc::new(p)))
            .collect();
        let ids = partitions.keys().fold(0, |ids, id| ids ^ digest(id));
        Self {
            partitions,
            capacity,
            ids,
            asked: None,
        }
    }

    /// The same listing, with when the controller was asked for it: what became active after that is not missing in it.
    #[must_use]
    pub fn requested_at(mut self, asked: Timestamp) -> Self {
        self.asked = Some(asked);
        self
    }

    /// When the controller was asked for it, if that is known.
    #[must_use]
    pub const fn requested(&self) -> Option<Timestamp> {
        self.asked
    }

    /// The same listing without the partition `id`, which has gone since.
    #[must_use]
    pub fn without(&self, id: &PartitionId) -> Self {
        let mut partitions = self.partitions.clone();
        let mut capacity = self.capacity.fork();
        let gone = partitions.remove(id).is_some();
        capacity.release(id);
        Self {
            partitions,
            capacity,
            ids: if gone { self.ids ^ digest(id) } else { self.ids },
            asked: self.asked,
        }
    }

    /// The partitions by id.
    #[must_use]
    pub const fn partitions(&self) -> &BTreeMap<PartitionId, Arc<Partition>> {
        &self.partitions
    }

    /// The IPUs of a listed partition.
    #[must_use]
    pub fn locate(&self, partition: &Partition) -> Location {
        let cluster = partition.cluster.clone();
        Location {
            cluster: cluster.filter(|_| self.capacity.has_several_clusters()),
            ipus: partition.ipus.clone(),
        }
    }

    /// The room as observed.
    #[must_use]
    pub fn capacity(&self) -> &dyn Capacity {
        &*self.capacity
    }

    /// A number that changes when partitions come or go, or IPUs become free or cordoned.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.ids ^ u64::from(self.capacity.free()).wrapping_mul(ODD)
    }
}

/// An odd number without a pattern (2^64 divided by the golden ratio), so that a product with it uses all bits.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// FNV-1a over an id, and then mixed so that the digests of similar ids do not cancel out when they are combined.
fn digest(id: &PartitionId) -> u64 {
    let bytes = id.as_str().bytes();
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (sum ^ sum >> 32).wrapping_mul(ODD);
    mixed ^ mixed >> 29
}

/// Whether a controller gets new partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServiceState {
    /// It does.
    #[default]
    Open,
    /// It only gives back what it has.
    Draining,
}

/// One controller as seen at one moment.
#[derive(Clone)]
pub struct ControllerView {
    /// Which.
    pub name: ControllerName,
    /// Whether it gets new partitions.
    pub service: ServiceState,
    /// What it listed, or why it could not be asked.
    pub listing: Result<Arc<Listing>, Reason>,
}

/// In which order controllers are tried when several have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SelectionOrder {
    /// As they are listed: the documented rule (seed 000 §6.3.2).
    #[default]
    Serial,
    /// The one whose largest free block is the smallest that still has room, which keeps large blocks whole.
    Tightest,
    /// The one with the most free IPUs.
    MostFree,
}

/// All controllers as seen at one moment.
#[derive(Clone, Default)]
pub struct ControllersSnapshot {
    /// In the order of the configuration.
    pub controllers: Vec<ControllerView>,
    /// Pairs of names that are known to belong to one controller, such as by its address.
    pub aliases: BTreeSet<(ControllerName, ControllerName)>,
    /// Each secondary name with the primary one: see [`LedgerState::by_controller`](crate::LedgerState::by_controller).
    pub(crate) primaries: BTreeMap<ControllerName, ControllerName>,
}

impl ControllersSnapshot {
    /// A world of these controllers, none of which is known to have two names.
    #[must_use]
    pub const fn of(controllers: Vec<ControllerView>) -> Self {
        Self {
            controllers,
            aliases: BTreeSet::new(),
            primaries: BTreeMap::new(),
        }
    }
}

impl ControllersSnapshot {
    /// The controller that lists `id`, and what it lists.
    #[must_use]
    pub fn find(&self, id: &PartitionId) -> Option<(&ControllerName, &Partition)> {
        self.controllers.iter().find_map(|view| {
            let listing = view.listing.as_ref().ok()?;
            Some((&view.name, &**listing.partitions.get(id)?))
        })
    }

    /// The IPUs of a partition that `name` listed.
    pub(crate) fn locate(&self, name: &ControllerName, partition: &Partition) -> Location {
        let listing = self.listing(name);
        listing.map_or_else(Location::default, |listing| listing.locate(partition))
    }

    /// What `name` listed, if it could be asked.
    #[must_use]
    pub fn listing(&self, name: &ControllerName) -> Option<&Listing> {
        self.controllers
            .iter()
            .find(|view| view.name == *name)?
            .listing
            .as_deref()
            .ok()
    }
}
