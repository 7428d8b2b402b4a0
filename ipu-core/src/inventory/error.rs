//! Errors of blocks and of inventory changes.

use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

use super::Block;
use crate::ids::{ClusterId, CordonOwner, PartitionId};
use crate::partition::IpuPlace;
use crate::topology::IpuAddress;

/// The reason that something is not a [`Block`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Not a power of two, too large for a link domain, or not aligned to its size.
    #[error("IPUs {first} to {} are not a block: a block has 1, 2, 4, ... 64 IPUs and starts at a multiple of its size", u32::from(*.first) + .size.saturating_sub(1))]
    Unaligned {
        /// The first IPU in its link domain.
        first: u8,
        /// Number of IPUs.
        size: u32,
    },
    /// Not 2, 4, 8, ... different link domains.
    #[error("{given} whole link domains are not a block: it takes 2, 4, 8, ... different ones")]
    LinkDomains {
        /// Number of given link domains.
        given: usize,
    },
    /// No IPUs, a repeated one, or an invalid number.
    #[error("{ipus} is not a set of IPUs: name at least one, none twice, 0 to 63 in each link domain")]
    Ipus {
        /// The given IPUs.
        ipus: String,
    },
    /// An IPU that does not exist.
    #[error("cluster {cluster} has no IPU {} in a link domain {}", .place.ipu, .place.link_domain)]
    UnknownIpu {
        /// The first IPU that does not exist.
        place: IpuPlace,
        /// The cluster of the lookup.
        cluster: ClusterId,
    },
}

/// The reason that the inventory rejects a change. The inventory is unchanged then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum InventoryError {
    /// No such IPU.
    #[error("there is no {at}")]
    Unknown {
        /// The first one that does not exist.
        at: IpuAddress,
    },
    /// The IPU is held.
    #[error("{at} is held by {holder}; no IPU is ever held twice")]
    Held {
        /// The first one that is held.
        at: IpuAddress,
        /// Its holder.
        holder: PartitionId,
    },
    /// The IPU is cordoned.
    #[error("{at} is cordoned by {owner}; only {owner} can remove the cordon")]
    Cordoned {
        /// The first one that is cordoned.
        at: IpuAddress,
        /// Owner of the cordon; the first one by name.
        owner: CordonOwner,
    },
    /// The holder holds a block already.
    #[error("{holder} holds {block} already; vacate it first")]
    HoldsAlready {
        /// The holder.
        holder: PartitionId,
        /// Its block.
        block: Block,
    },
    /// The holder holds nothing.
    #[error("{holder} holds nothing")]
    HoldsNothing {
        /// The holder.
        holder: PartitionId,
    },
    /// The holder holds another block.
    #[error("{holder} holds {held}, not {block}")]
    HoldsOther {
        /// The holder.
        holder: PartitionId,
        /// Its block.
        held: Block,
        /// The block to vacate.
        block: Block,
    },
    /// The cordon has another owner.
    #[error("{at} is not cordoned by {owner}; only the owner of a cordon can remove it")]
    #[serde(rename = "notExcluded")]
    NotCordoned {
        /// The first IPU.
        at: IpuAddress,
        /// The owner that requested the removal.
        owner: CordonOwner,
        /// Owners of cordons of the IPU; empty if it is not cordoned.
        owners: Vec<CordonOwner>,
    },
}
