//! Limits of an installation.

use crate::units::IpuCount;

/// Policy limits of an installation. Rules that make a job unable to run do not depend on them.
///
/// ```
/// use ipu_core::IpuCount;
/// use ipu_core::job::Limits;
///
/// let limits = Limits::default().with_max_ipus("256".parse::<IpuCount>()?);
/// assert_eq!(limits.max_ipus().get(), 256);
/// # Ok::<(), ipu_core::IpuCountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    max_ipus: IpuCount,
    max_requested: u32,
    is_stored: bool,
}

impl Default for Limits {
    /// Limits for new jobs of at most 64 IPUs per instance: larger partitions are a documented limitation
    /// (V-IPU guide §6.11). At most [`Limits::MAX_REQUESTED`] of their instances are in the queue at once.
    fn default() -> Self {
        Self {
            max_ipus: IpuCount::LINK_DOMAIN,
            max_requested: Self::MAX_REQUESTED,
            is_stored: false,
        }
    }
}

impl Limits {
    /// Default maximum number of instances of one job that are in the queue, or have their partition made
    /// ready, at once. The operator requests as many in one reconciliation, so that the limit does not delay
    /// a job that fits. It is small compared with the thousands of requests that the queue can hold.
    pub const MAX_REQUESTED: u32 = 64;

    /// Sets the maximum number of instances of a job that are in the queue, or have their partition made
    /// ready, at once; 0 counts as 1.
    #[must_use]
    pub const fn with_max_requested(mut self, max_requested: u32) -> Self {
        self.max_requested = if max_requested == 0 { 1 } else { max_requested };
        self
    }

    /// Returns the maximum number of instances of a job that are in the queue, or have their partition made
    /// ready, at once.
    #[must_use]
    pub const fn max_requested(&self) -> u32 {
        self.max_requested
    }

    /// Sets the maximum number of IPUs per instance.
    #[must_use]
    pub const fn with_max_ipus(mut self, max_ipus: IpuCount) -> Self {
        self.max_ipus = max_ipus;
        self
    }

    /// Returns the limits for a job that was accepted before, perhaps under other limits: a violation of a
    /// limit is a warning, so that a new limit never affects an existing job. Only a job that cannot run is
    /// rejected.
    #[must_use]
    pub const fn for_stored(mut self) -> Self {
        self.is_stored = true;
        self
    }

    /// Returns the maximum number of IPUs per instance.
    #[must_use]
    pub const fn max_ipus(&self) -> IpuCount {
        self.max_ipus
    }

    /// Returns whether the limits are [for a job that was accepted before](Self::for_stored).
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        self.is_stored
    }
}
