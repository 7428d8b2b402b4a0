//! Why a partition cannot be placed, as data and as a sentence.

use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

use crate::ids::{AllocationId, CordonOwner};
use crate::inventory::{Block, InventoryError};
use crate::reason::Reason;
use crate::units::IpuCount;

/// Why a partition cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all_fields = "camelCase", tag = "why")]
#[non_exhaustive]
pub enum Impossible {
    /// There is no such allocation.
    #[error("there is no allocation {allocation}")]
    UnknownAllocation {
        /// What was asked for.
        allocation: AllocationId,
    },
    /// It would not fit even if everything were free.
    #[error("cannot fit {size} IPUs: the largest partition that {} can form is of {capacity}", within(.allocation.as_ref()))]
    TooLarge {
        /// What was asked for.
        size: IpuCount,
        /// The largest size that fits if everything is free; 0 if there is nothing.
        capacity: u32,
        /// The allocation asked for.
        allocation: Option<AllocationId>,
    },
    /// Fewer IPUs are free than asked for.
    #[error("cannot fit {size} IPUs: {}", free_are(*.free))]
    NotEnoughFree {
        /// What was asked for.
        size: IpuCount,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now; 0 if none does.
        largest_block: u32,
    },
    /// Enough IPUs are free, but not side by side.
    #[error("cannot fit {size} IPUs: {} but the largest free block is {largest_block}", free_are(*.free))]
    Fragmented {
        /// What was asked for.
        size: IpuCount,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now.
        largest_block: u32,
    },
    /// It would fit now if nothing were cordoned.
    #[error("cannot fit {size} IPUs: {} and {cordoned} that would serve are excluded (by {})", free_are(*.free), list(.owners))]
    #[serde(rename = "Excluded")]
    Cordoned {
        /// What was asked for.
        size: IpuCount,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now; 0 if none does.
        largest_block: u32,
        /// How many IPUs are cordoned and not held.
        #[serde(rename = "excluded")]
        cordoned: u32,
        /// Who cordons them.
        owners: Vec<CordonOwner>,
    },
    /// It fits, but the policy does not want it to.
    #[error("cannot fit {size} IPUs: the policy {policy} declines, although {} and the largest free block is {largest_block}", free_are(*.free))]
    Declined {
        /// What was asked for.
        size: IpuCount,
        /// The policy.
        policy: String,
        /// How many IPUs are free.
        free: u32,
        /// The largest size that fits now.
        largest_block: u32,
    },
    /// The policy chose what is no legal partition of the size asked for.
    #[error("cannot fit {size} IPUs on {block}, the choice of the policy {policy}: {rule}")]
    Illegal {
        /// What was asked for.
        size: IpuCount,
        /// The policy.
        policy: String,
        /// What it chose.
        block: Block,
        /// The rule that this breaks.
        rule: IllegalChoice,
    },
}

/// The rule that a policy's choice breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum IllegalChoice {
    /// Not aligned.
    #[error(
        "a partition is 1 to 64 IPUs of one link domain from a multiple of its size on, or 2, 4, ... whole link domains"
    )]
    NotABlock,
    /// Another size than was asked for.
    #[error("that is {0} IPUs")]
    WrongSize(u32),
    /// Held, cordoned or not there.
    #[error("{0}")]
    Unavailable(InventoryError),
    /// Not all in one allocation, or not in the one asked for.
    #[error("a partition draws from one allocation, the one that is asked for if any")]
    OutsideAllocation,
}

impl From<Impossible> for Reason {
    /// The code is the name of the variant; the numbers are `size`, `free`, `largestBlock`, `capacity`, `excluded`, as
    /// far as known.
    fn from(why: Impossible) -> Self {
        let message = alloc::format!("{why}");
        let with = |code: &str, size: IpuCount| Self::new(code, message.clone()).with("size", size.get());
        let space =
            |reason: Self, free: u32, largest: u32| reason.with("free", free).with("largestBlock", largest);
        match why {
            Impossible::UnknownAllocation { .. } => Self::new("UnknownAllocation", message),
            Impossible::TooLarge { size, capacity, .. } => with("TooLarge", size).with("capacity", capacity),
            Impossible::NotEnoughFree {
                size,
                free,
                largest_block,
            } => space(with("NotEnoughFree", size), free, largest_block),
            Impossible::Fragmented {
                size,
                free,
                largest_block,
            } => space(with("Fragmented", size), free, largest_block),
            Impossible::Cordoned {
                size,
                free,
                largest_block,
                cordoned,
                ..
            } => space(with("Excluded", size), free, largest_block).with("excluded", cordoned),
            Impossible::Declined {
                size,
                free,
                largest_block,
                ..
            } => space(with("Declined", size), free, largest_block),
            Impossible::Illegal { size, .. } => with("Illegal", size),
        }
    }
}

fn within(allocation: Option<&AllocationId>) -> String {
    match allocation {
        Some(allocation) => alloc::format!("allocation {allocation}"),
        None => String::from("one allocation"),
    }
}

fn free_are(free: u32) -> String {
    match free {
        0 => String::from("none is free"),
        1 => String::from("1 is free"),
        more => alloc::format!("{more} are free"),
    }
}

fn list(owners: &[CordonOwner]) -> String {
    let names: Vec<&str> = owners.iter().map(CordonOwner::as_str).collect();
    names.join(", ")
}
