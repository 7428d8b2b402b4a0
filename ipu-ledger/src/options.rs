//! What a ledger goes by, and its clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::{CallWindow, ControllerName, QueuePolicy, Timestamp, Topology};
use tokio::time::Instant;

use crate::liveness::Liveness;
use crate::usage::UsageLog;

/// Tells the time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What a ledger goes by. All processes that share a store should be given the same.
#[derive(Clone)]
#[non_exhaustive]
pub struct LedgerOptions {
    /// The rules of the waiting line: quotas, how often one may be overtaken, the order of controllers.
    pub queue: QueuePolicy,
    /// The longest that one call to a controller takes. The default, 10 s, is what a controller that resets a large
    /// partition was seen to stay silent for, doubled.
    pub call_deadline: Duration,
    /// The longest that a request or a question waits for one controller's list. Then it goes on with the other
    /// controllers, and this one counts as silent until it has answered. The default, 1 s, is hundreds of times what a
    /// controller takes that is well. Of a controller that always needs longer, an older list is used.
    pub list_timeout: Duration,
    /// How long after a call was begun its effect may still come although nobody had its answer, counted from the record
    /// of the intent: at least `call_deadline`, plus what the network and a slow controller may add. An entry whose
    /// caller died is not forgotten before. Zero only for a controller that lives and dies with the calling process.
    pub settle: Duration,
    /// The first pause between two polls of a status; the first poll is at once.
    pub first_poll: Duration,
    /// The longest pause between two polls of a status.
    pub longest_poll: Duration,
    /// The longest that one request or release polls before it answers that it goes on later.
    pub timeout: Duration,
    /// How often the queue is walked for all that wait in this process: other processes may have released something.
    pub queue_poll_interval: Duration,
    /// How old what a controller listed may be when somebody is let go by it. Safety does not rest on it.
    pub listing_age: Duration,
    /// How old what a controller tells of its hardware and its health may be.
    pub hardware_age: Duration,
    /// How long an owner must have been gone before its partition is released by repair.
    pub orphan_grace: Duration,
    /// The hardware of controllers that do not tell it themselves.
    pub topologies: BTreeMap<ControllerName, Topology>,
    /// Tells whether those ahead in the line are alive; without it the dead block the line until the next repair.
    pub liveness: Option<Arc<dyn Liveness>>,
    /// Where it is recorded who held what for how long; without it nothing is. Once there is one, a hold that cannot be
    /// recorded is not forgotten.
    pub usage: Option<Arc<dyn UsageLog>>,
    /// The time of day. All processes that share a store should agree on it within a second or so: who declared how long
    /// to run and which calls may be under way go by it, who holds what does not.
    pub clock: Clock,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            queue: QueuePolicy::default(),
            call_deadline: Duration::from_secs(10),
            list_timeout: Duration::from_secs(1),
            settle: Duration::from_secs(30),
            first_poll: Duration::from_millis(5),
            longest_poll: Duration::from_millis(500),
            timeout: Duration::from_secs(5),
            queue_poll_interval: Duration::from_millis(250),
            listing_age: Duration::from_millis(250),
            hardware_age: Duration::from_secs(10),
            orphan_grace: Duration::ZERO,
            topologies: BTreeMap::new(),
            liveness: None,
            usage: None,
            clock: Arc::new(wall_clock),
        }
    }
}

impl std::fmt::Debug for LedgerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerOptions")
            .field("line", &self.queue)
            .field("call_deadline", &self.call_deadline)
            .field("settle", &self.settle)
            .field("orphan_grace", &self.orphan_grace)
            .finish_non_exhaustive()
    }
}

impl LedgerOptions {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

/// The clock of the options beside a monotonic one: a clock that is set while a call is under way lets no fence pass
/// early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    at: Timestamp,
    since: Instant,
}

impl Anchor {
    /// Anchors `clock` now.
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            at: clock(),
            since: Instant::now(),
        }
    }

    /// The window of a call that is decided on now. A clock that is put forward moves the fences that are set, and none
    /// of them passes early; after a clock is put back, fences count from then ([`CallWindow::is_beyond`]).
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
