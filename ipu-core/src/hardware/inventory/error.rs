//! Errors of inventory changes.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Block;
use crate::hardware::topology::IpuAddress;
use crate::ids::{CordonOwner, PartitionId};

/// The reason that the inventory rejects a change. The inventory is unchanged then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
