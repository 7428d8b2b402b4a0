//! The numbers of the whole system: what is used, by whom, what is available, and why the rest is not.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{ControllerName, Namespace};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{ControllersSnapshot, ServiceState};
use crate::ledger::capacity_snapshot::overlays;

/// The IPUs of one controller by what is to be said of them. What nobody holds is free, unhealthy or cordoned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IpuCounts {
    /// All that there are.
    pub ipus: u32,
    /// Can be placed on.
    pub free: u32,
    /// Held by nobody, and the controller calls them unhealthy.
    pub unhealthy: u32,
    /// Held by nobody, healthy, and somebody cordons them.
    pub cordoned: u32,
}

impl IpuCounts {
    /// These many IPUs, of which none is unhealthy or cordoned and `free` are free.
    #[must_use]
    pub const fn new(ipus: u32, free: u32) -> Self {
        Self {
            ipus,
            free,
            unhealthy: 0,
            cordoned: 0,
        }
    }
}

/// How many IPUs of the whole system are used, available, or neither.
///
/// Source: seed 000 §6.8.1 (`/stats`): of 32 IPUs with 4 used 28 are available.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Stats {
    /// What the ledger holds, by the namespace of the owner; namespaces that hold nothing are left out.
    pub by_namespace: BTreeMap<Namespace, u32>,
    /// What the ledger holds in all, also at controllers that do not answer. More than the sum over the namespaces by
    /// what is quarantined.
    pub used: u32,
    /// Of those, what nobody is known to own.
    pub quarantined: u32,
    /// What can be placed on now, at all controllers that get new partitions, answer, and tell their hardware: the sum of
    /// the free IPUs that a query tells.
    pub available: u32,
    /// Free and healthy, but cordoned, or of a controller that is being drained.
    #[serde(rename = "excluded")]
    pub cordoned: u32,
    /// Held at controllers by partitions that the ledger does not hold.
    pub foreign: u32,
    /// Of those, by partitions of our form: nobody gives them back unless repair adopts or quarantines them.
    #[serde(default)]
    pub leaked: u32,
    /// Held by nobody and unhealthy.
    pub unhealthy: u32,
    /// All IPUs of the controllers that answer and tell their hardware.
    pub ipus: u32,
    /// Controllers that do not answer or do not tell their hardware: what is free there nobody knows.
    pub unknown: Vec<ControllerName>,
}

impl LedgerState {
    /// The numbers of the whole system. What the ledger holds counts as used from its intent until the controller says
    /// that it is gone, whether the controller shows it or not.
    #[must_use]
    pub fn stats(&self, world: &ControllersSnapshot) -> Stats {
        let world = &*self.by_controller(world);
        let mut stats = Stats::default();
        for entry in self.entries().filter(|entry| entry.state.holds()) {
            stats.used = stats.used.saturating_add(entry.size());
            let whose = match &entry.owner {
                Some(owner) => stats.by_namespace.entry(owner.job.namespace.clone()).or_default(),
                None => &mut stats.quarantined,
            };
            *whose = whose.saturating_add(entry.size());
        }
        let overlays = overlays(self, world);
        for view in &world.controllers {
            let Ok(listing) = &view.listing else {
                stats.unknown.push(view.name.clone());
                continue;
            };
            for partition in listing.partitions().values() {
                let holds = |id| self.get(id).is_some_and(|entry| entry.state.holds());
                if !holds(&partition.id) {
                    let size = partition.spec.size.get();
                    stats.foreign = stats.foreign.saturating_add(size);
                    if partition.id.is_derived() {
                        stats.leaked = stats.leaked.saturating_add(size);
                    }
                }
            }
            let open = overlays.iter().find(|overlay| overlay.name == view.name);
            let tally = match open {
                Some(overlay) => overlay.now.counts(),
                None => {
                    let mut room = listing.capacity().fork();
                    self.enter_holders(world, &view.name, &mut *room);
                    room.counts()
                }
            };
            let Some(tally) = tally else {
                stats.unknown.push(view.name.clone());
                continue;
            };
            stats.ipus = stats.ipus.saturating_add(tally.ipus);
            stats.unhealthy = stats.unhealthy.saturating_add(tally.unhealthy);
            stats.cordoned = stats.cordoned.saturating_add(tally.cordoned);
            let free = match view.service {
                ServiceState::Open => &mut stats.available,
                ServiceState::Draining => &mut stats.cordoned,
            };
            *free = free.saturating_add(tally.free);
        }
        stats
    }
}
