//! What goes wrong with calls to a fake controller.

use std::time::Duration;

use crate::random::Random;

/// The longest that a random late call comes late: within what [`settle`](ipu_ledger::LedgerOptions::settle) allows by
/// default, 30 s, and beyond the deadline of a call.
const LATEST: u32 = 15_000;

/// The longest that a random slow answer takes: beyond the deadline of a call, 10 s.
const MAX_DELAY_MS: u32 = 12_000;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing is done and the connection breaks.
    Broken,
    /// Nothing is done and the answer is that the controller failed (gRPC INTERNAL).
    Failed,
    /// Nothing is done and the answer is that the request is refused (gRPC FAILED_PRECONDITION); of a create, in half of
    /// the cases, that there is no room (gRPC RESOURCE_EXHAUSTED).
    Refused,
    /// It is done and the answer is that the controller failed (gRPC INTERNAL). Never drawn: to a ledger it is what a lost
    /// reply is.
    FailedAfter,
    /// It is done and the reply is lost.
    LostReply,
    /// It arrives twice, such as from a proxy that tried again; the reply to the second is heard.
    Duplicate,
    /// The caller hears that the connection broke, and it is done this much later.
    Late(Duration),
    /// It is done and answered this much later.
    Slow(Duration),
}

impl Fault {
    /// The words for those that are drawn, in the order of their declaration.
    pub const LABELS: [&'static str; 7] = [
        "broken",
        "failed",
        "refused",
        "lost reply",
        "duplicate",
        "late",
        "slow",
    ];

    /// The word that people read.
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

/// How likely a fault is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultRates {
    /// In percent of calls.
    pub(super) percent: u32,
}

impl FaultRates {
    pub(super) const fn none() -> Self {
        Self { percent: 0 }
    }

    /// What happens to one call.
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
            5 => Fault::Late(Duration::from_millis(u64::from(random.below(LATEST)))),
            _ => Fault::Slow(Duration::from_millis(u64::from(random.below(MAX_DELAY_MS)))),
        })
    }
}
