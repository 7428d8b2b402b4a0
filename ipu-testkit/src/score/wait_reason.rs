//! Reasons for which jobs wait or never run.

use std::fmt;

use ipu_core::placement::Impossible;
use serde::Serialize;

/// Reason for which a job waits or never runs: the codes of [`Impossible`], and one from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum WaitReason {
    /// Fewer IPUs are free than requested.
    NotEnoughFree,
    /// Enough IPUs are free, but not contiguous.
    Fragmented,
    /// The job would fit without cordons.
    Cordoned,
    /// The job fits, but the policy declines it.
    Declined,
    /// The policy chose IPUs that are not a free legal partition of that size.
    Illegal,
    /// An earlier job reached its overtake limit and goes first.
    HeldBackForEarlier,
    /// The job is larger than the hardware can form.
    TooLarge,
    /// Reason from a later version of the core.
    Other,
}

impl WaitReason {
    pub(super) const fn of(impossible: &Impossible) -> Self {
        match impossible {
            Impossible::NotEnoughFree { .. } => Self::NotEnoughFree,
            Impossible::Fragmented { .. } => Self::Fragmented,
            Impossible::Cordoned { .. } => Self::Cordoned,
            Impossible::Declined { .. } => Self::Declined,
            Impossible::Illegal { .. } => Self::Illegal,
            Impossible::TooLarge { .. } => Self::TooLarge,
            _ => Self::Other,
        }
    }

    /// Returns whether only released IPUs can resolve the cause, whatever the policy.
    pub(super) const fn is_capacity_shortage(self) -> bool {
        matches!(
            self,
            Self::NotEnoughFree | Self::Fragmented | Self::Cordoned | Self::TooLarge
        )
    }

    /// Returns the code of the [`Reason`](ipu_core::Reason) that a user would see.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotEnoughFree => "NotEnoughFree",
            Self::Fragmented => "Fragmented",
            Self::Cordoned => "Cordoned",
            Self::Declined => "Declined",
            Self::Illegal => "Illegal",
            Self::HeldBackForEarlier => "HeldBackForEarlier",
            Self::TooLarge => "TooLarge",
            Self::Other => "Other",
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}
