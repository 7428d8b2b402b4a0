//! The published state, from which every view is computed on request, once for all clients.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ipu_core::allocator::{
    CapacityBySize, ControllerMap, DryRun, Entry, FreeCapacity, Hardware, Phase, Policy, QueueStatus,
    QuotaUsage, State, Stats, evaluate_queue,
};
use ipu_core::hardware::PartitionSpec;
use ipu_core::job::PartitionFacts;
use ipu_core::{ControllerName, PartitionId, Reason, Timestamp};

/// The state and the hardware at one moment.
pub struct View {
    pub(crate) generation: u64,
    pub(crate) now: Timestamp,
    pub(crate) state: State,
    pub(crate) hardware: Hardware,
    pub(crate) policy: Arc<Policy>,
    pub(crate) queue: OnceLock<BTreeMap<PartitionId, QueueStatus>>,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl View {
    /// Returns the time of the view.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the state: entries and cordons.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Returns the controllers as observed last.
    #[must_use]
    pub const fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Returns the entry of `id`.
    #[must_use]
    pub fn get(&self, id: &PartitionId) -> Option<&Arc<Entry>> {
        self.state.get(id)
    }

    /// Returns the partition of `id` as [`plan`](ipu_core::job::plan()) observes it.
    #[must_use]
    pub fn partition_facts(&self, id: &PartitionId) -> PartitionFacts {
        let Some(entry) = self.get(id) else {
            return PartitionFacts::Absent;
        };
        let attempt = entry.attempt;
        match (&entry.phase, &entry.controller) {
            (Phase::Queued, _) => match self.queue().get(id) {
                Some(status) => PartitionFacts::Waiting {
                    reason: status.reason.clone(),
                    attempt,
                },
                None => PartitionFacts::Pending { attempt },
            },
            (Phase::Active, Some(controller)) => PartitionFacts::Active {
                attempt,
                since: entry.since,
                controller: controller.clone(),
            },
            (Phase::Creating | Phase::Resetting | Phase::Active, _) => PartitionFacts::Pending { attempt },
            (Phase::Failed { errors }, _) => PartitionFacts::Failed {
                attempt,
                errors: errors.clone(),
            },
            (Phase::Releasing { .. }, _) => PartitionFacts::Releasing,
            // A request of its owner claims it.
            (Phase::Quarantined, _) => PartitionFacts::Absent,
        }
    }

    /// Returns the status of every queued request.
    #[must_use]
    pub fn queue(&self) -> &BTreeMap<PartitionId, QueueStatus> {
        self.queue.get_or_init(|| {
            let statuses = evaluate_queue(&self.state, &self.hardware, &self.policy, self.now);
            statuses.into_iter().collect()
        })
    }

    /// Returns the free capacity of each controller for partitions of `spec`, or why it is unknown.
    #[must_use]
    pub fn free_capacity(&self, spec: &PartitionSpec) -> Vec<(ControllerName, Result<FreeCapacity, Reason>)> {
        self.state.free_capacity(&self.hardware, spec)
    }

    /// Returns the free capacity of each controller for every partition size, or why it is unknown.
    #[must_use]
    pub fn capacity_by_size(&self) -> Vec<(ControllerName, Result<CapacityBySize, Reason>)> {
        self.state.capacity_by_size(&self.hardware)
    }

    /// Returns every IPU with its holder and cordons.
    #[must_use]
    pub fn map(&self) -> Vec<ControllerMap> {
        self.state.map(&self.hardware)
    }

    /// Returns the use of each quota.
    #[must_use]
    pub fn quota_usage(&self) -> Vec<QuotaUsage> {
        self.state.quota_usage(&self.policy)
    }

    /// Returns the statistics of the whole system.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.stats(&self.hardware)
    }

    /// Returns the statistics of each controller.
    #[must_use]
    pub fn stats_by_controller(&self) -> BTreeMap<ControllerName, Stats> {
        self.state.stats_by_controller(&self.hardware)
    }

    /// Places partitions of `specs` hypothetically, side by side, as if those of `ended` were released.
    #[must_use]
    pub fn dry_run(&self, specs: &[PartitionSpec], ended: &[PartitionId]) -> Vec<DryRun> {
        self.state.dry_run(&self.hardware, specs, ended)
    }
}
