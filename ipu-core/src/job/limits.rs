//! What an installation allows, and whether a job is new or has been accepted before.

use crate::units::IpuCount;

/// Limits of policy, as opposed to what can never run.
///
/// ```
/// use ipu_core::{IpuCount, Limits};
///
/// let limits = Limits::default().with_max_ipus("256".parse::<IpuCount>()?);
/// assert_eq!(limits.max_ipus().get(), 256);
/// # Ok::<(), ipu_core::IpuCountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    max_ipus: IpuCount,
    max_requested: u32,
    origin: JobOrigin,
}

/// Where a job that is parsed comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobOrigin {
    /// It is being submitted: what breaks a limit of policy is refused.
    #[default]
    New,
    /// It was accepted before, perhaps under other limits: what breaks a limit of policy is accepted with a warning,
    /// so that a new limit never strands a job that already exists. Only what cannot run is refused.
    Stored,
}

impl Default for Limits {
    /// New jobs of at most 64 IPUs an instance: larger partitions are a documented limitation (seed 000 §6.11). At most
    /// [`Limits::MAX_REQUESTED`] of their instances are in the queue at once.
    fn default() -> Self {
        Self {
            max_ipus: IpuCount::LINK_DOMAIN,
            max_requested: Self::MAX_REQUESTED,
            origin: JobOrigin::New,
        }
    }
}

impl Limits {
    /// How many instances of one job are in the queue, or have their partition made ready, at once unless set: as many as the
    /// operator asks for in one pass, so that a job that fits is not slower for it, and few beside the thousands that the
    /// queue has room for.
    pub const MAX_REQUESTED: u32 = 64;

    /// Returns these limits with at most `max_requested` instances of a job in the queue, or with their partition being made ready,
    /// at once; 0 counts as 1.
    #[must_use]
    pub const fn with_max_requested(mut self, max_requested: u32) -> Self {
        self.max_requested = if max_requested == 0 { 1 } else { max_requested };
        self
    }

    /// The most instances of a job that are in the queue, or have their partition made ready, at once.
    #[must_use]
    pub const fn max_requested(&self) -> u32 {
        self.max_requested
    }

    /// The same limits with at most `max_ipus` IPUs an instance.
    #[must_use]
    pub const fn with_max_ipus(mut self, max_ipus: IpuCount) -> Self {
        self.max_ipus = max_ipus;
        self
    }

    /// The same limits for a job that was accepted before.
    #[must_use]
    pub const fn for_stored(mut self) -> Self {
        self.origin = JobOrigin::Stored;
        self
    }

    /// The most IPUs that one instance may ask for.
    #[must_use]
    pub const fn max_ipus(&self) -> IpuCount {
        self.max_ipus
    }

    /// Whether the job is new.
    #[must_use]
    pub const fn origin(&self) -> JobOrigin {
        self.origin
    }
}
