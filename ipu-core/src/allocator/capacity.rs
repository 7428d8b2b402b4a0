//! Capacity of the controllers, the input of the ledger's decisions: one view per controller, which the
//! caller observes.

mod inventory_capacity;
pub(crate) mod machines;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, ClusterId, ControllerName, CordonOwner, PartitionId};
pub use inventory_capacity::InventoryCapacity;
pub(crate) use inventory_capacity::cordoned_ipus;
pub use machines::{MachinesError, PlacementConstraint};

use crate::hardware::inventory::Inventory;
use crate::hardware::partition::{IpuPlace, Partition, PartitionSpec};
use crate::reason::{Reason, ReasonCode};
use crate::units::Timestamp;

/// The capacity of one controller, with everything that holds a part of it. The ledger works on a copy
/// ([`boxed_clone`](Self::boxed_clone)) and reserves IPUs for partitions that it records and the controller
/// does not list yet.
pub trait Capacity: Send + Sync {
    /// Returns a copy for hypothetical placements.
    fn boxed_clone(&self) -> Box<dyn Capacity>;

    /// Returns the hardware with its holders; none if it is not known.
    fn inventory(&self) -> Option<&Inventory> {
        None
    }

    /// Returns the number of free IPUs.
    fn free(&self) -> u32;

    /// Returns the size of the largest partition that fits; 0 if none does.
    fn largest_block(&self) -> u32;

    /// Returns whether `id` has its IPUs already.
    fn has(&self, id: &PartitionId) -> bool;

    /// Reserves capacity for `id`: any IPUs if `places` is empty, exactly `places` if their number is the
    /// size of `spec`, and a block among them if there are more. Returns the IPUs, empty if they are not
    /// known.
    ///
    /// Success, and the error otherwise, depend on the size and the allocation of `spec` and on `places`, not
    /// on `id`. After another `reserve`, an error does not become a success: the ledger tries each request
    /// shape only once.
    ///
    /// # Errors
    ///
    /// The reason that it does not fit; nothing is reserved then. The code `TooLarge` means that it never
    /// fits.
    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        places: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason>;

    /// Releases the IPUs of `id`, if any.
    fn release(&mut self, id: &PartitionId);

    /// Keeps the free ones of these IPUs from every later [`reserve`](Self::reserve). IPUs that do not exist
    /// are ignored.
    fn withhold(&mut self, places: &[IpuPlace]);

    /// Returns whether the controller chooses the IPUs of new partitions, although `reserve` returns some.
    fn is_delegated(&self) -> bool {
        false
    }

    /// Cordons `target` on behalf of `owner`: no new partitions are placed there. Returns the holders, which
    /// keep their IPUs.
    ///
    /// # Errors
    ///
    /// The reason that it cannot be cordoned. If there is no such hardware, nothing changes. An
    /// implementation of unknown hardware takes no new partitions at all from then on, because they might get
    /// the cordoned IPUs.
    fn cordon(&mut self, owner: &CordonOwner, target: &CordonTarget) -> Result<Vec<PartitionId>, Reason>;

    /// Returns the IPUs by availability; none if the hardware is not known.
    fn counts(&self) -> Option<IpuCounts>;

    /// Returns the number of partitions of `spec` that fit side by side now.
    fn fit_count(&self, spec: &PartitionSpec) -> u32;

    /// Returns the partitions that would have to end for `spec` to fit on `places`, as in
    /// [`reserve`](Self::reserve): the smallest set that the implementation finds.
    fn blockers(&self, spec: &PartitionSpec, places: &[IpuPlace]) -> Vec<PartitionId>;

    /// Returns the machines, by the name of their agents; empty if they are not known.
    fn machines(&self) -> Vec<AgentId> {
        Vec::new()
    }

    /// Returns all IPUs of `machines`, each of which exists, if a partition of `spec` can lie on them.
    ///
    /// # Errors
    ///
    /// The rule that the machines break.
    fn places_on(&self, machines: &[AgentId], spec: &PartitionSpec) -> Result<Vec<IpuPlace>, MachinesError> {
        let _ = (machines, spec);
        Err(MachinesError::HardwareUnknown)
    }
}

/// The part of a controller that is cordoned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CordonTarget {
    /// All of it. The only target at a controller whose hardware is not known.
    Controller,
    /// The machine of this agent.
    Machine(AgentId),
    /// One IPU of the machine of this agent: 0 to 3, by its number in the machine.
    Ipu(AgentId, u32),
}

impl fmt::Display for CordonTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str("the whole controller"),
            Self::Machine(agent) => write!(f, "machine {agent}"),
            Self::Ipu(agent, ipu) => write!(f, "IPU {ipu} of machine {agent}"),
        }
    }
}

/// IPUs of one controller by availability. An IPU that is not held is free, unhealthy or cordoned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IpuCounts {
    /// All IPUs.
    pub ipus: u32,
    /// IPUs available for placement.
    pub free: u32,
    /// IPUs not held that the controller reports unhealthy.
    pub unhealthy: u32,
    /// IPUs not held, healthy and cordoned.
    pub cordoned: u32,
}

impl IpuCounts {
    /// Creates counts without unhealthy and cordoned IPUs.
    #[must_use]
    pub const fn new(ipus: u32, free: u32) -> Self {
        Self {
            ipus,
            free,
            unhealthy: 0,
            cordoned: 0,
        }
    }
}

/// Unlimited capacity, for a controller whose hardware is not known: everything fits until the controller
/// refuses.
#[derive(Clone, Debug, Default)]
pub struct Unbounded {
    taken: BTreeSet<PartitionId>,
    /// The reason that no new partitions are taken, if any.
    closed: Option<Reason>,
}

impl Capacity for Unbounded {
    fn boxed_clone(&self) -> Box<dyn Capacity> {
        Box::new(self.clone())
    }

    fn free(&self) -> u32 {
        if self.closed.is_some() { 0 } else { u32::MAX }
    }

    fn largest_block(&self) -> u32 {
        self.free()
    }

    fn has(&self, id: &PartitionId) -> bool {
        self.taken.contains(id)
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
        if places.len() > spec.size.get() as usize {
            let message = "the controller does not report its hardware, so that no block of the requested IPUs can be chosen";
            return Err(Reason::new(ReasonCode::HardwareUnknown, message));
        }
        self.taken.insert(id.clone());
        Ok(places.to_vec())
    }

    fn cordon(&mut self, owner: &CordonOwner, target: &CordonTarget) -> Result<Vec<PartitionId>, Reason> {
        let closed =
            |detail: &str| Reason::new(ReasonCode::Cordoned, format!("{owner} cordons {target}{detail}"));
        if *target == CordonTarget::Controller {
            self.closed = Some(closed(""));
            return Ok(self.taken.iter().cloned().collect());
        }
        self.closed = Some(closed(", and the controller does not report its hardware"));
        Err(Reason::new(
            ReasonCode::HardwareUnknown,
            "the controller does not report its hardware, so only the whole controller can be cordoned",
        ))
    }

    fn release(&mut self, id: &PartitionId) {
        self.taken.remove(id);
    }

    /// Does nothing: without a topology no IPU can be kept free. [`State`](crate::allocator::State) places
    /// nothing at such a controller instead.
    fn withhold(&mut self, _: &[IpuPlace]) {}

    fn counts(&self) -> Option<IpuCounts> {
        None
    }

    fn fit_count(&self, _: &PartitionSpec) -> u32 {
        self.free()
    }

    fn blockers(&self, _: &PartitionSpec, _: &[IpuPlace]) -> Vec<PartitionId> {
        self.taken.iter().cloned().collect()
    }
}

/// The partitions that a controller listed at one moment.
pub struct Listing {
    partitions: BTreeMap<PartitionId, Arc<Partition>>,
    capacity: Box<dyn Capacity>,
    requested: Option<Timestamp>,
}

impl Listing {
    /// Creates a listing of `partitions`, all of which have their IPUs in `capacity` already.
    #[must_use]
    pub fn new(partitions: impl IntoIterator<Item = Partition>, capacity: Box<dyn Capacity>) -> Self {
        let partitions = partitions.into_iter();
        Self {
            partitions: partitions.map(|p| (p.id.clone(), Arc::new(p))).collect(),
            capacity,
            requested: None,
        }
    }

    /// Returns the listing with the time of the request to the controller: a partition that became active
    /// after it may be absent.
    #[must_use]
    pub fn requested_at(mut self, requested: Timestamp) -> Self {
        self.requested = Some(requested);
        self
    }

    /// Returns the time of the request to the controller, if known.
    #[must_use]
    pub const fn requested(&self) -> Option<Timestamp> {
        self.requested
    }

    /// Returns the listing without the partition `id`, which was removed since.
    #[must_use]
    pub fn without(&self, id: &PartitionId) -> Self {
        let mut partitions = self.partitions.clone();
        let mut capacity = self.capacity.boxed_clone();
        partitions.remove(id);
        capacity.release(id);
        Self {
            partitions,
            capacity,
            requested: self.requested,
        }
    }

    /// Returns the partitions by id.
    #[must_use]
    pub const fn partitions(&self) -> &BTreeMap<PartitionId, Arc<Partition>> {
        &self.partitions
    }

    /// Returns the cluster that the numbers of the partition's IPUs belong to; none if the controller has
    /// only one.
    #[must_use]
    pub fn cluster_of(&self, partition: &Partition) -> Option<ClusterId> {
        let topology = self.capacity.inventory()?.topology();
        let cluster = partition.cluster.clone();
        cluster.filter(|_| topology.clusters().len() > 1)
    }

    /// Returns the observed capacity.
    #[must_use]
    pub fn capacity(&self) -> &dyn Capacity {
        &*self.capacity
    }
}

/// Readiness of a controller for new partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceState {
    /// Takes new partitions.
    #[default]
    Open,
    /// Takes no new partitions, and releases existing ones.
    Draining,
}

/// One controller as observed at one moment.
#[derive(Clone)]
pub struct ControllerView {
    /// Name of the controller.
    pub name: ControllerName,
    /// Readiness for new partitions.
    pub service: ServiceState,
    /// Its listing, or the reason that it could not be queried.
    pub listing: Result<Arc<Listing>, Reason>,
    /// The first name of the same controller, if this is a second one. Then it has no listing.
    pub alias_of: Option<ControllerName>,
}

/// Order in which controllers are tried when several have capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SelectionOrder {
    /// Order of the configuration: the documented rule (V-IPU guide §6.3.2).
    #[default]
    Serial,
    /// First the controller whose largest free block is the smallest, which keeps large blocks whole.
    Tightest,
    /// First the controller with the most free IPUs.
    MostFree,
}

/// All controllers as observed last.
#[derive(Clone, Default)]
pub struct Hardware {
    /// Views in the order of the configuration.
    pub controllers: Vec<ControllerView>,
}

impl Hardware {
    /// Creates the view of these controllers.
    #[must_use]
    pub const fn new(controllers: Vec<ControllerView>) -> Self {
        Self { controllers }
    }

    /// Returns the controller that lists `id`, with the listed partition.
    #[must_use]
    pub fn find(&self, id: &PartitionId) -> Option<(&ControllerName, &Partition)> {
        self.controllers.iter().find_map(|view| {
            let listing = view.listing.as_ref().ok()?;
            Some((&view.name, &**listing.partitions.get(id)?))
        })
    }

    /// Returns the listing of `name`, if it could be queried.
    #[must_use]
    pub fn listing(&self, name: &ControllerName) -> Option<&Listing> {
        self.view(name)?.listing.as_deref().ok()
    }

    /// Returns why the controller `name` was not listed; none if it was, or if it is not on the list.
    #[must_use]
    pub fn listing_error(&self, name: &ControllerName) -> Option<&Reason> {
        self.view(name)?.listing.as_ref().err()
    }

    /// Returns the first name of the controller of which `name` is a second one.
    pub(crate) fn first_name_of(&self, name: &ControllerName) -> Option<&ControllerName> {
        self.view(name)?.alias_of.as_ref()
    }

    /// Returns the first name of the controller `name`.
    pub(crate) fn canonical<'h>(&'h self, name: &'h ControllerName) -> &'h ControllerName {
        self.first_name_of(name).unwrap_or(name)
    }

    /// Returns whether there are controllers, and all of them were listed.
    pub(crate) fn is_complete(&self) -> bool {
        let is_listed = |view: &ControllerView| view.listing.is_ok() || view.alias_of.is_some();
        !self.controllers.is_empty() && self.controllers.iter().all(is_listed)
    }

    fn view(&self, name: &ControllerName) -> Option<&ControllerView> {
        self.controllers.iter().find(|view| view.name == *name)
    }
}
