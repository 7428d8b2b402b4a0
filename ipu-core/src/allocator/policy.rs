//! Policy of the queue: overtaking, limits and quotas.

use core::time::Duration;

use crate::allocator::capacity::SelectionOrder;
use crate::allocator::namespaces::NamespaceRules;
use crate::allocator::quota::Quotas;

/// Policy of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Number of later requests that may overtake an entry before it holds them back. 16 lets small jobs
    /// backfill while a large one waits, and bounds its wait by 16 admissions plus the run time of those
    /// ahead.
    pub overtake_limit: u32,
    /// Maximum number of queued entries; further requests are rejected. 10,000 entries are about 5 MB of
    /// records.
    pub length_limit: usize,
    /// Time after which a controller that refused is tried again, even if its listing has not changed.
    pub retry_rejected_after: Duration,
    /// Order in which controllers are tried.
    pub order: SelectionOrder,
    /// Quotas in force.
    pub quotas: Quotas,
    /// Limits of namespaces in force.
    pub namespaces: NamespaceRules,
    /// Whether requests of higher priority preempt preemptible holders of lower priority. Off by default.
    pub preemption: bool,
    /// Time that a holder has to release its partition after it was asked to. The default, 10 minutes, is
    /// longer than the grace period of most Pods.
    pub preemption_grace: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            overtake_limit: 16,
            length_limit: 10_000,
            retry_rejected_after: Duration::from_secs(30),
            order: SelectionOrder::Serial,
            quotas: Quotas::new(),
            namespaces: NamespaceRules::default(),
            preemption: false,
            preemption_grace: Duration::from_secs(600),
        }
    }
}
