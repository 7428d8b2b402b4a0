//! Options of an allocator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::ControllerName;
use ipu_core::allocator::{CallTimes, Entry, OwnerLiveness, Policy};
use ipu_core::hardware::Topology;
use ipu_core::placement::PlacementMode;

use crate::clock::{Clock, system_clock};
use crate::guarded_policy::guarded;
use crate::liveness::Liveness;

/// Options of an allocator.
///
/// ```
/// use std::time::Duration;
///
/// use ipu_allocator::Options;
/// use ipu_allocator::process::ProcessLiveness;
///
/// let mut options = Options::default();
/// options.policy.preemption = true;
/// options.compare_interval = Duration::from_secs(10);
/// options.liveness = std::sync::Arc::new(ProcessLiveness);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Queue, quotas and preemption.
    pub policy: Policy,
    /// Durations of calls to controllers.
    pub times: CallTimes,
    /// Interval of the listings of each controller; 1 s unless set.
    pub listing_interval: Duration,
    /// Time after which a controller without a reply to a listing counts as unavailable. The default, 1 s, is
    /// hundreds of times the duration of a healthy listing.
    pub listing_timeout: Duration,
    /// Maximum age of the reported hardware and its health; 10 s unless set.
    pub hardware_age: Duration,
    /// Interval of comparisons of record, controllers and owners; 30 s unless set. The partition of an owner
    /// that ended without a release is held until the next one.
    pub compare_interval: Duration,
    /// The hardware of controllers that do not report it.
    pub topologies: BTreeMap<ControllerName, Topology>,
    /// Origin of the IPUs of new partitions, at controllers whose hardware is known. Other controllers choose
    /// the IPUs themselves.
    pub placement: PlacementMode,
    /// Placement modes of single controllers, which override `placement`.
    pub placements: BTreeMap<ControllerName, PlacementMode>,
    /// The liveness of owners. By default it is unknown: nothing is released without a command.
    pub liveness: Arc<dyn Liveness>,
    /// The time of day, to which all times of entries refer.
    pub clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            times: CallTimes::default(),
            listing_interval: Duration::from_secs(1),
            listing_timeout: Duration::from_secs(1),
            hardware_age: Duration::from_secs(10),
            compare_interval: Duration::from_secs(30),
            topologies: BTreeMap::new(),
            placement: PlacementMode::default(),
            placements: BTreeMap::new(),
            liveness: Arc::new(|_: &Entry| OwnerLiveness::Unknown),
            clock: system_clock(),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("policy", &self.policy)
            .field("times", &self.times)
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Returns the placement mode of the controller `name`.
    pub(crate) fn placement_of(&self, name: &ControllerName) -> PlacementMode {
        guarded(self.placements.get(name).unwrap_or(&self.placement).clone())
    }
}
