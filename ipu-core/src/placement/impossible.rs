//! Reasons that a partition cannot be placed, as data and as a sentence.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::hardware::inventory::{Block, InventoryError};
use crate::ids::{AllocationId, CordonOwner};
use crate::reason::{Reason, ReasonCode};
use crate::units::IpuCount;

/// The reason that a partition cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all_fields = "camelCase", tag = "why")]
pub enum Impossible {
    /// There is no such allocation.
    #[error("there is no allocation {allocation}")]
    UnknownAllocation {
        /// The requested allocation.
        allocation: AllocationId,
    },
    /// It would not fit even if all IPUs were free.
    #[error("cannot fit {size} IPUs: the largest partition that {} can form is of {capacity}", format_allocation(.allocation.as_ref()))]
    TooLarge {
        /// The requested size.
        size: IpuCount,
        /// The largest size that fits if all IPUs are free; 0 if there are none.
        capacity: u32,
        /// The requested allocation.
        allocation: Option<AllocationId>,
    },
    /// Fewer IPUs are free than requested.
    #[error("cannot fit {size} IPUs: {}", format_free(*.free))]
    NotEnoughFree {
        /// The requested size.
        size: IpuCount,
        /// Number of free IPUs.
        free: u32,
        /// The largest size that fits now; 0 if none does.
        largest_block: u32,
    },
    /// Enough IPUs are free, but no free block is large enough.
    #[error("cannot fit {size} IPUs: {} but the largest free block is {largest_block}", format_free(*.free))]
    Fragmented {
        /// The requested size.
        size: IpuCount,
        /// Number of free IPUs.
        free: u32,
        /// The largest size that fits now.
        largest_block: u32,
    },
    /// It would fit now without cordons.
    #[error("cannot fit {size} IPUs: {} and {cordoned} that would serve are cordoned (by {})", format_free(*.free), format_owners(.owners))]
    Cordoned {
        /// The requested size.
        size: IpuCount,
        /// Number of free IPUs.
        free: u32,
        /// The largest size that fits now; 0 if none does.
        largest_block: u32,
        /// Number of IPUs that are cordoned and not held.
        cordoned: u32,
        /// Owners of these cordons.
        owners: Vec<CordonOwner>,
    },
    /// It fits, but the policy declines.
    #[error("cannot fit {size} IPUs: the policy {policy} declines, although {} and the largest free block is {largest_block}", format_free(*.free))]
    Declined {
        /// The requested size.
        size: IpuCount,
        /// The policy.
        policy: String,
        /// Number of free IPUs.
        free: u32,
        /// The largest size that fits now.
        largest_block: u32,
    },
    /// The policy chose an illegal partition.
    #[error("cannot fit {size} IPUs on {block}, the choice of the policy {policy}: {rule}")]
    Illegal {
        /// The requested size.
        size: IpuCount,
        /// The policy.
        policy: String,
        /// Its choice.
        block: Block,
        /// The broken rule.
        rule: IllegalChoice,
    },
}

/// The rule that a policy's choice breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum IllegalChoice {
    /// Not aligned.
    #[error(
        "a partition is 1 to 64 IPUs of one link domain from a multiple of its size on, or 2, 4, ... whole link domains"
    )]
    NotABlock,
    /// Not of the requested size.
    #[error("that is {0} IPUs")]
    WrongSize(u32),
    /// Held, cordoned or missing.
    #[error("{0}")]
    Unavailable(InventoryError),
    /// Not in one allocation, or not in the requested one.
    #[error("a partition draws from one allocation, the requested one if any")]
    OutsideAllocation,
}

impl Impossible {
    /// Returns the code of the [`Reason`]: the name of the variant.
    #[must_use]
    pub const fn code(&self) -> ReasonCode {
        match self {
            Self::UnknownAllocation { .. } => ReasonCode::UnknownAllocation,
            Self::TooLarge { .. } => ReasonCode::TooLarge,
            Self::NotEnoughFree { .. } => ReasonCode::NotEnoughFree,
            Self::Fragmented { .. } => ReasonCode::Fragmented,
            Self::Cordoned { .. } => ReasonCode::Cordoned,
            Self::Declined { .. } => ReasonCode::Declined,
            Self::Illegal { .. } => ReasonCode::Illegal,
        }
    }
}

impl From<Impossible> for Reason {
    /// Uses [`Impossible::code`]; the numbers are `size`, `free`, `largestBlock`, `capacity`, `cordoned`, as
    /// far as known.
    fn from(why: Impossible) -> Self {
        let reason = Self::new(why.code(), alloc::format!("{why}"));
        match why {
            Impossible::UnknownAllocation { .. } => reason,
            Impossible::TooLarge { size, capacity, .. } => {
                reason.with("size", size.get()).with("capacity", capacity)
            }
            Impossible::NotEnoughFree {
                size,
                free,
                largest_block,
            }
            | Impossible::Fragmented {
                size,
                free,
                largest_block,
            }
            | Impossible::Declined {
                size,
                free,
                largest_block,
                ..
            } => with_space(reason, size, free, largest_block),
            Impossible::Cordoned {
                size,
                free,
                largest_block,
                cordoned,
                ..
            } => with_space(reason, size, free, largest_block).with("cordoned", cordoned),
            Impossible::Illegal { size, .. } => reason.with("size", size.get()),
        }
    }
}

fn with_space(reason: Reason, size: IpuCount, free: u32, largest_block: u32) -> Reason {
    let reason = reason.with("size", size.get()).with("free", free);
    reason.with("largestBlock", largest_block)
}

fn format_allocation(allocation: Option<&AllocationId>) -> String {
    match allocation {
        Some(allocation) => alloc::format!("allocation {allocation}"),
        None => String::from("one allocation"),
    }
}

fn format_free(free: u32) -> String {
    match free {
        0 => String::from("none is free"),
        1 => String::from("1 is free"),
        more => alloc::format!("{more} are free"),
    }
}

fn format_owners(owners: &[CordonOwner]) -> String {
    let names: Vec<&str> = owners.iter().map(CordonOwner::as_str).collect();
    names.join(", ")
}
