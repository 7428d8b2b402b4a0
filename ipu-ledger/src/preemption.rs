//! Demands of this process that owners release their partitions, and the placement that is in force.

use std::sync::atomic::{AtomicU64, Ordering};

use ipu_core::{Change, ControllerName, LedgerState, PartitionId, PlacementMode, Preemption};
use ipu_vipu_client::VipuController;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

/// Number of demands that this process has recorded.
#[derive(Debug, Default)]
pub(crate) struct PreemptionCounter(AtomicU64);

impl PreemptionCounter {
    /// Counts and logs demands that are durable.
    pub(crate) fn record(&self, demands: &[(PartitionId, Preemption)]) {
        for (id, demand) in demands {
            let owner = demand.owner.as_ref().map(ToString::to_string);
            tracing::info!(
                %id,
                by = %demand.by,
                owner = owner.unwrap_or_default(),
                priority = demand.priority,
                "a request preempts the partition: its owner is asked to release it"
            );
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the demands of `changes` for partitions of `state` that nothing demands yet.
pub(crate) fn new_demands(state: &LedgerState, changes: &[Change]) -> Vec<(PartitionId, Preemption)> {
    let demanded = |change: &Change| match change {
        Change::Put(entry) if state.preemption_of(&entry.id).is_none() => {
            let demand = entry.preemption.clone()?;
            Some((entry.id.clone(), demand))
        }
        _ => None,
    };
    changes.iter().filter_map(demanded).collect()
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Returns the number of partitions that requests have preempted through this ledger and its clones since
    /// the start of the process. A demand that ends before the owner releases the partition counts too.
    #[must_use]
    pub fn preemption_count(&self) -> u64 {
        self.driver.preemptions.0.load(Ordering::Relaxed)
    }

    /// Ends all demands if [`QueuePolicy::preemption`](ipu_core::QueuePolicy::preemption) is off. For the
    /// service that owns the ledger: it may have preempted until its last restart.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn end_disabled_preemption(&self) -> Result<(), LedgerError> {
        if !self.driver.rules().preemption {
            let end = |state: &LedgerState| ((), state.end_demands());
            self.driver.commit.transact(end).await?;
        }
        Ok(())
    }

    /// Returns the placement mode of the controller `name` by the options, or delegated after a
    /// [fallback](Self::has_placement_fallback).
    #[must_use]
    pub fn placement_of(&self, name: &ControllerName) -> PlacementMode {
        if self.has_placement_fallback(name) {
            return PlacementMode::Delegated;
        }
        self.driver.options.placement_of(name)
    }

    /// Returns whether the controller `name` chooses the IPUs because it refused those of the policy. See
    /// [`LedgerOptions::placement_fallback`](crate::LedgerOptions::placement_fallback).
    #[must_use]
    pub fn has_placement_fallback(&self, name: &ControllerName) -> bool {
        self.driver.listings.has_fallback(name)
    }
}
