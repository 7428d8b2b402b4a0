//! The hardware: which IPUs an IPU-POD has, which are free, and the partitions of a V-IPU controller.
//!
//! A [`Topology`] is the shape of an IPU-POD; an [`Inventory`] adds the holders of its IPUs. A [`Block`] is a
//! set of IPUs that can become a [`Partition`].
//!
//! ```
//! use ipu_core::hardware::{Inventory, Topology};
//!
//! let inventory = Inventory::new(&Topology::pod64());
//! assert_eq!(inventory.free(), 64);
//! ```

pub(crate) mod inventory;
pub(crate) mod partition;
pub(crate) mod topology;

pub use self::inventory::{
    Block, BlockError, Blockers, FreeIndex, Inventory, InventoryError, InventoryView, ListedInventory,
    ListingConflict, UnknownAllocation,
};
pub use self::partition::{IpuPlace, Partition, PartitionSpec, PartitionState, SpecError};
pub use self::topology::{
    AgentAttributes, Allocation, Cluster, DiscoveredTopology, IpuAddress, LinkDomain, Topology, TopologyError,
};
