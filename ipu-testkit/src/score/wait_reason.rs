//! Why jobs wait or never run.

use std::fmt;

use ipu_core::Impossible;
use serde::Serialize;

/// Why a job waits or never runs: the codes of [`Impossible`], and the one that the waiting line adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum WaitReason {
    /// Fewer IPUs are free than it wants.
    NotEnoughFree,
    /// Enough are free, but not side by side.
    Fragmented,
    /// It would fit if nothing were cordoned.
    #[serde(rename = "Excluded")]
    Cordoned,
    /// It fits, and the policy does not want it to.
    Declined,
    /// The policy chose IPUs that are no free legal partition of that size.
    Illegal,
    /// One ahead of it has been passed as often as is allowed, and goes first now.
    HeldBackForEarlier,
    /// It is larger than what the hardware can form.
    TooLarge,
    /// Anything that a later version of the core says.
    Other,
}

impl WaitReason {
    pub(super) const COUNT: usize = 8;
    pub(super) const ALL: [Self; Self::COUNT] = [
        Self::NotEnoughFree,
        Self::Fragmented,
        Self::Cordoned,
        Self::Declined,
        Self::Illegal,
        Self::HeldBackForEarlier,
        Self::TooLarge,
        Self::Other,
    ];

    pub(super) const fn of(why: &Impossible) -> Self {
        match why {
            Impossible::NotEnoughFree { .. } => Self::NotEnoughFree,
            Impossible::Fragmented { .. } => Self::Fragmented,
            Impossible::Cordoned { .. } => Self::Cordoned,
            Impossible::Declined { .. } => Self::Declined,
            Impossible::Illegal { .. } => Self::Illegal,
            Impossible::TooLarge { .. } => Self::TooLarge,
            _ => Self::Other,
        }
    }

    /// Whether the cause can go away only when somebody ends: it is a fact of the free space, whatever the policy.
    pub(super) const fn is_want_of_room(self) -> bool {
        matches!(
            self,
            Self::NotEnoughFree | Self::Fragmented | Self::Cordoned | Self::TooLarge
        )
    }

    /// The code of the [`Reason`](ipu_core::Reason) that a person would be told.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotEnoughFree => "NotEnoughFree",
            Self::Fragmented => "Fragmented",
            Self::Cordoned => "Excluded",
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
