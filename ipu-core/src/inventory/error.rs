//! Why something is not a block, and why an inventory refuses a change.

use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

use super::Block;
use crate::ids::{ClusterId, CordonOwner, PartitionId};
use crate::partition::IpuPlace;
use crate::topology::IpuAddress;

/// Why something is not a [`Block`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Not a power of two, too large for a link domain, or at no multiple of its size.
    #[error("IPUs {first} to {} are no block: a block has 1, 2, 4, ... 64 IPUs and starts at a multiple of its size", u32::from(*.first) + .size.saturating_sub(1))]
    Unaligned {
        /// The first IPU in its link domain.
        first: u8,
        /// How many.
        size: u32,
    },
    /// Not 2, 4, 8, ... different link domains.
    #[error("{given} whole link domains are no block: it takes 2, 4, 8, ... different ones")]
    LinkDomains {
        /// How many were given.
        given: usize,
    },
    /// No IPUs, one of them twice, or one that cannot be.
    #[error("{ipus} is no set of IPUs: name at least one, none twice, 0 to 63 in each link domain")]
    Ipus {
        /// What was given.
        ipus: String,
    },
    /// An IPU that is not there.
    #[error("cluster {cluster} has no IPU {} in a link domain {}", .place.ipu, .place.link_domain)]
    Nowhere {
        /// The first one that is not there.
        place: IpuPlace,
        /// Where it was looked for.
        cluster: ClusterId,
    },
}

/// Why the inventory refuses a change. It is unchanged then.
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
    /// Someone holds it.
    #[error("{at} is held by {holder}; no IPU is ever held twice")]
    Held {
        /// The first one that is held.
        at: IpuAddress,
        /// By whom.
        holder: PartitionId,
    },
    /// It is cordoned.
    #[error("{at} is excluded by {owner}; only {owner} can lift that")]
    #[serde(rename = "excluded")]
    Cordoned {
        /// The first one that is cordoned.
        at: IpuAddress,
        /// By whom; the first owner in order of their names.
        owner: CordonOwner,
    },
    /// The holder holds a block already.
    #[error("{holder} holds {block} already; vacate it first")]
    HoldsAlready {
        /// Who.
        holder: PartitionId,
        /// What it holds.
        block: Block,
    },
    /// The holder holds nothing.
    #[error("{holder} holds nothing")]
    HoldsNothing {
        /// Who.
        holder: PartitionId,
    },
    /// The holder holds something else.
    #[error("{holder} holds {held}, not {block}")]
    HoldsOther {
        /// Who.
        holder: PartitionId,
        /// What it holds.
        held: Block,
        /// What it was to vacate.
        block: Block,
    },
    /// Not this owner's cordon.
    #[error("{at} is not excluded by {owner}; only who excludes an IPU can lift it")]
    #[serde(rename = "notExcluded")]
    NotCordoned {
        /// The first IPU.
        at: IpuAddress,
        /// Who wanted to lift it.
        owner: CordonOwner,
        /// Who does cordon it; empty if nobody does.
        owners: Vec<CordonOwner>,
    },
}
