//! Statistics of the whole system: IPUs used, by namespace, available, and unavailable by cause.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::allocator::capacity::{Hardware, ServiceState};
use crate::allocator::entry::Entry;
use crate::allocator::holders::{capacities, reserve_recorded};
use crate::allocator::state::State;
use crate::ids::{ControllerName, Namespace};

/// IPUs of the whole system by use.
///
/// Source: V-IPU guide §6.8.1 (`/stats`): of 32 IPUs with 4 used 28 are available.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Stats {
    /// IPUs that the ledger holds, by the namespace of the owner; namespaces without any are left out.
    pub by_namespace: BTreeMap<Namespace, u32>,
    /// IPUs that the ledger holds in total, including controllers that cannot be queried. The sum of
    /// `by_namespace` and `quarantined`.
    pub used: u32,
    /// Of `used`, IPUs without a known owner.
    pub quarantined: u32,
    /// IPUs available for placement now, at all open controllers that can be queried and report their
    /// hardware: the sum of the free IPUs that a query returns.
    pub available: u32,
    /// IPUs free and healthy, but cordoned, or at a draining controller.
    pub cordoned: u32,
    /// IPUs held at controllers by partitions that the ledger does not hold.
    pub foreign: u32,
    /// Of `foreign`, IPUs of partitions with a derived id. They are released only after repair adopts or
    /// quarantines them.
    #[serde(default)]
    pub leaked: u32,
    /// IPUs not held and unhealthy.
    pub unhealthy: u32,
    /// All IPUs of the controllers that can be queried and report their hardware.
    pub ipus: u32,
    /// Controllers that cannot be queried or do not report their hardware; their free IPUs are unknown.
    pub unknown: Vec<ControllerName>,
}

impl Stats {
    /// Counts the IPUs that `entry` holds.
    fn count_held(&mut self, entry: &Entry) {
        self.used = self.used.saturating_add(entry.size());
        let total = match &entry.owner {
            Some(owner) => self.by_namespace.entry(owner.job.namespace.clone()).or_default(),
            None => &mut self.quarantined,
        };
        *total = total.saturating_add(entry.size());
    }

    fn add(&mut self, other: Self) {
        for (namespace, used) in other.by_namespace {
            let total = self.by_namespace.entry(namespace).or_default();
            *total = total.saturating_add(used);
        }
        for (total, number) in [
            (&mut self.used, other.used),
            (&mut self.quarantined, other.quarantined),
            (&mut self.available, other.available),
            (&mut self.cordoned, other.cordoned),
            (&mut self.foreign, other.foreign),
            (&mut self.leaked, other.leaked),
            (&mut self.unhealthy, other.unhealthy),
            (&mut self.ipus, other.ipus),
        ] {
            *total = total.saturating_add(number);
        }
        self.unknown.extend(other.unknown);
    }
}

impl State {
    /// Computes the statistics of the whole system. A partition counts as used from its intent until the
    /// controller confirms its removal, even if the controller does not list it.
    #[must_use]
    pub fn stats(&self, hardware: &Hardware) -> Stats {
        let mut all = Stats::default();
        for stats in self.stats_by_controller(hardware).into_values() {
            all.add(stats);
        }
        all
    }

    /// Computes the statistics of each controller that is known or has a partition in the ledger. Their sums
    /// are those of [`stats`](Self::stats).
    #[must_use]
    pub fn stats_by_controller(&self, hardware: &Hardware) -> BTreeMap<ControllerName, Stats> {
        let mut all = BTreeMap::<ControllerName, Stats>::new();
        for entry in self.entries().filter(|entry| entry.phase.holds()) {
            // Every phase that holds IPUs has a controller.
            if let Some(controller) = &entry.controller {
                all.entry(controller.clone()).or_default().count_held(entry);
            }
        }
        let capacities = capacities(self, hardware);
        for view in &hardware.controllers {
            let stats = all.entry(view.name.clone()).or_default();
            let Ok(listing) = &view.listing else {
                stats.unknown.push(view.name.clone());
                continue;
            };
            for partition in listing.partitions().values() {
                let holds = |id| self.get(id).is_some_and(|entry| entry.phase.holds());
                if !holds(&partition.id) {
                    let size = partition.spec.size.get();
                    stats.foreign = stats.foreign.saturating_add(size);
                    if partition.id.is_derived() {
                        stats.leaked = stats.leaked.saturating_add(size);
                    }
                }
            }
            let current = capacities.iter().find(|capacity| capacity.name == view.name);
            let counts = match current {
                Some(capacity) => capacity.current.counts(),
                None => {
                    let mut capacity = listing.capacity().boxed_clone();
                    reserve_recorded(self, &view.name, &mut *capacity);
                    capacity.counts()
                }
            };
            let Some(counts) = counts else {
                stats.unknown.push(view.name.clone());
                continue;
            };
            stats.ipus = stats.ipus.saturating_add(counts.ipus);
            stats.unhealthy = stats.unhealthy.saturating_add(counts.unhealthy);
            stats.cordoned = stats.cordoned.saturating_add(counts.cordoned);
            let free = match view.service {
                ServiceState::Open => &mut stats.available,
                ServiceState::Draining => &mut stats.cordoned,
            };
            *free = free.saturating_add(counts.free);
        }
        all
    }
}
