//! Faults of calls to a fake controller.

use std::time::Duration;

use crate::random::Random;

/// Maximum delay of a random late call: within the default of [`settle`](ipu_ledger::LedgerOptions::settle),
/// 30 s, and beyond the deadline of a call.
const MAX_LATE_MS: u32 = 15_000;

/// Maximum delay of a random slow reply: beyond the deadline of a call, 10 s.
const MAX_DELAY_MS: u32 = 12_000;

/// Fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call has no effect and the connection breaks.
    Broken,
    /// The call has no effect and returns a controller failure (gRPC INTERNAL).
    Failed,
    /// The call has no effect and is rejected (gRPC FAILED_PRECONDITION); half of the creates fail with a
    /// lack of capacity (gRPC RESOURCE_EXHAUSTED).
    Refused,
    /// The call takes effect and returns a controller failure (gRPC INTERNAL). Never drawn at random: to a
    /// ledger it is equivalent to a lost reply.
    FailedAfter,
    /// The call takes effect and the reply is lost.
    LostReply,
    /// The call arrives twice, such as from a proxy that retried; the caller receives the second reply.
    Duplicate,
    /// The connection breaks for the caller, and the call takes effect this much later.
    Late(Duration),
    /// The call takes effect and is answered this much later.
    Slow(Duration),
}

impl Fault {
    /// Labels of the faults that are drawn at random, in the order of their declaration.
    pub const LABELS: [&'static str; 7] = [
        "broken",
        "failed",
        "refused",
        "lost reply",
        "duplicate",
        "late",
        "slow",
    ];

    /// Returns the label for reports.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::FailedAfter => "failed after",
            Self::LostReply => "lost reply",
            Self::Duplicate => "duplicate",
            Self::Late(_) => "late",
            Self::Slow(_) => "slow",
        }
    }
}

/// Probability of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultRates {
    /// Percentage of calls.
    pub(super) percent: u32,
}

impl FaultRates {
    pub(super) const fn none() -> Self {
        Self { percent: 0 }
    }

    /// Draws the fault of a call.
    pub(super) fn draw(self, random: &mut Random) -> Option<Fault> {
        if !random.chance(self.percent) {
            return None;
        }
        Some(match random.below(7) {
            0 => Fault::Broken,
            1 => Fault::Failed,
            2 => Fault::Refused,
            3 => Fault::LostReply,
            4 => Fault::Duplicate,
            5 => Fault::Late(Duration::from_millis(u64::from(random.below(MAX_LATE_MS)))),
            _ => Fault::Slow(Duration::from_millis(u64::from(random.below(MAX_DELAY_MS)))),
        })
    }
}
