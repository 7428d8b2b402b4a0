//! Options of a ledger, and its clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::{CallWindow, ControllerName, PlacementMode, QueuePolicy, Timestamp, Topology};
use tokio::time::Instant;

use crate::guarded_policy::guarded;
use crate::liveness::Liveness;
use crate::usage::UsageLog;

/// A source of the current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Options of a ledger. All processes that share a store should use the same values.
#[derive(Clone)]
#[non_exhaustive]
pub struct LedgerOptions {
    /// The queue policy: quotas, how often a request may be overtaken, the order of controllers.
    pub queue: QueuePolicy,
    /// Maximum duration of one call to a controller. The default, 10 s, is twice the longest observed silence
    /// of a controller that resets a large partition.
    pub call_deadline: Duration,
    /// Maximum time that an operation waits for the listing of one controller. It then continues with the
    /// other controllers, and this one counts as unavailable until it replies. The default, 1 s, is hundreds
    /// of times the duration of a healthy listing. For a controller that always needs longer, an older
    /// listing is used.
    pub list_timeout: Duration,
    /// Time after the record of an intent within which an unanswered call may still take effect: at least
    /// `call_deadline`, plus delays of the network and of a slow controller. An entry of a dead caller is
    /// kept until then. Zero only for a controller that shares the lifetime of the calling process.
    pub settle: Duration,
    /// The first pause between two status polls; the first poll is immediate.
    pub min_poll_interval: Duration,
    /// Maximum pause between two status polls.
    pub max_poll_interval: Duration,
    /// Maximum time that one request or release polls before it returns with the operation in progress.
    pub timeout: Duration,
    /// Interval of the queue scans for all requests that wait in this process: other processes may have
    /// released capacity.
    pub queue_poll_interval: Duration,
    /// Maximum age of a listing on which a request may start. Safety does not depend on it.
    pub listing_age: Duration,
    /// Maximum age of the reported hardware and its health.
    pub hardware_age: Duration,
    /// Time after the end of an owner before repair releases its partition.
    pub orphan_grace: Duration,
    /// The hardware of controllers that do not report it.
    pub topologies: BTreeMap<ControllerName, Topology>,
    /// Origin of the IPUs of new partitions, at controllers whose hardware is known. Other controllers choose
    /// the IPUs themselves.
    pub placement: PlacementMode,
    /// Placement modes of single controllers, which override `placement`.
    pub placements: BTreeMap<ControllerName, PlacementMode>,
    /// Whether a controller that refuses the IPUs of an explicit placement chooses them itself from then on,
    /// as long as this process runs. Otherwise the request waits, and its reason has the text of the
    /// controller. In delegated mode, such a controller is remembered in any case.
    pub placement_fallback: bool,
    /// The liveness of queued owners. Without it, dead owners block the queue until the next repair.
    pub liveness: Option<Arc<dyn Liveness>>,
    /// The log of all holds; `None` records nothing. With a log, a hold is kept until its record is written.
    pub usage: Option<Arc<dyn UsageLog>>,
    /// The time of day. All processes that share a store should agree within about a second. Declared run
    /// times and calls in flight depend on it; ownership does not.
    pub clock: Clock,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            queue: QueuePolicy::default(),
            call_deadline: Duration::from_secs(10),
            list_timeout: Duration::from_secs(1),
            settle: Duration::from_secs(30),
            min_poll_interval: Duration::from_millis(5),
            max_poll_interval: Duration::from_millis(500),
            timeout: Duration::from_secs(5),
            queue_poll_interval: Duration::from_millis(250),
            listing_age: Duration::from_millis(250),
            hardware_age: Duration::from_secs(10),
            orphan_grace: Duration::ZERO,
            topologies: BTreeMap::new(),
            placement: PlacementMode::default(),
            placements: BTreeMap::new(),
            placement_fallback: false,
            liveness: None,
            usage: None,
            clock: Arc::new(wall_clock),
        }
    }
}

impl std::fmt::Debug for LedgerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerOptions")
            .field("queue", &self.queue)
            .field("call_deadline", &self.call_deadline)
            .field("settle", &self.settle)
            .field("placement", &self.placement)
            .field("orphan_grace", &self.orphan_grace)
            .finish_non_exhaustive()
    }
}

impl LedgerOptions {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Returns the placement mode of the controller `name`.
    pub(crate) fn placement_of(&self, name: &ControllerName) -> PlacementMode {
        guarded(self.placements.get(name).unwrap_or(&self.placement).clone())
    }
}

/// The configured clock combined with a monotonic one: no fence passes early if the clock is set during a
/// call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    at: Timestamp,
    since: Instant,
}

impl Anchor {
    /// Anchors `clock` at the current time.
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            at: clock(),
            since: Instant::now(),
        }
    }

    /// Returns the window of a call that is decided on now. If the clock jumps forward, new fences move with
    /// it and none passes early. After the clock is set back, fences count from then
    /// ([`CallWindow::is_beyond`]).
    pub(crate) fn window(self, clock: &Clock, settle: Duration) -> CallWindow {
        let wall = clock();
        let now = wall.min(self.at.plus(self.since.elapsed()));
        CallWindow {
            now,
            settle: settle.saturating_add(wall.since(now)),
        }
    }
}

fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
