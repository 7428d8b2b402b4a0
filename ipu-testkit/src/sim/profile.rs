//! Parameters of one simulation, drawn from its seed before it starts.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{ControllerName, PlacementMode, QueuePolicy, Quota, QuotaSubject, SelectionOrder, Topology};
use ipu_ledger::LedgerOptions;

use super::SimOptions;
use super::liveness::Alive;
use super::world::SimWorld;
use crate::fake::{BlockChoice, FakeController};
use crate::policies::{is_complete_mode, placement_mode};
use crate::random::Random;

/// Text forms of the controllers' topologies, small enough that jobs are queued.
const TOPOLOGIES: [&str; 6] = ["pod4", "pod4", "pod16", "pod16", "2x2", "pod64"];

#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) drivers: usize,
    topologies: Vec<Topology>,
    /// Fault percentage of controller calls.
    pub(super) call_faults: u32,
    /// Fault percentage of effects.
    pub(super) effect_faults: u32,
    /// Fault percentage of commits.
    pub(super) store_faults: u32,
    /// Percentage of commits of an intent or a grant after which the controller restarts empty.
    pub(super) empties: u32,
    /// Percentage of commits after which the process is suspended before the announced call.
    pub(super) suspends: u32,
    /// Percentage of requests that arrive late, in addition to or instead of immediately.
    pub(super) late_requests: u32,
    /// Whether an owner may flood the queue.
    pub(super) floods: bool,
    /// Maximum number of jobs.
    pub(super) jobs: usize,
    /// Largest common instance size.
    pub(super) largest: u32,
    queue_policy: QueuePolicy,
    placement: PlacementMode,
    /// Whether the placement mode places every request that fits.
    pub(super) is_placement_complete: bool,
    /// Whether the controllers refuse named IPUs, so that the ledgers fall back to delegated placement.
    pub(super) refuses_ipus: bool,
    orphan_grace: Duration,
    /// Whether queued owners are checked for liveness.
    sweeps: bool,
    /// Whether an old copy of the ledger may be restored.
    pub(super) restores: bool,
    choice: BlockChoice,
    seed: u64,
}

impl Profile {
    pub(super) fn new(options: &SimOptions, random: &mut Random) -> Self {
        let count = *random.pick(&[1, 1, 2, 3]);
        let topologies: Vec<Topology> = (0..count)
            .map(|_| {
                let text = random.pick(&TOPOLOGIES);
                text.parse().expect("the topologies of the simulator are valid")
            })
            .collect();
        let largest = topologies.iter().map(Topology::ipus).max().unwrap_or(4);
        let rate = |random: &mut Random, rates: &[u32]| {
            let drawn = *random.pick(rates);
            options.fault_percent.unwrap_or(drawn)
        };
        let mut queue_policy = QueuePolicy::default();
        queue_policy.overtake_limit = *random.pick(&[1, 3, 16]);
        queue_policy.order = *random.pick(&[
            SelectionOrder::Serial,
            SelectionOrder::Tightest,
            SelectionOrder::MostFree,
        ]);
        if random.chance(30) {
            let subject = if random.chance(50) {
                QuotaSubject::Account("red".into())
            } else {
                QuotaSubject::Namespace("ns0".parse().expect("a valid name"))
            };
            let mut quota = Quota::default();
            if random.chance(50) {
                quota.max_ipus = Some(4 + random.below(12));
            } else {
                quota.max_partitions = Some(1 + random.below(3));
            }
            queue_policy.quotas.insert(subject, quota);
        }
        let floods = random.chance(4);
        if floods && random.chance(50) {
            queue_policy.length_limit = 20 + random.below(200) as usize;
        }
        let mut profile = Self {
            drivers: *random.pick(&[1, 2, 2, 3]),
            call_faults: rate(random, &[0, 5, 15, 40]),
            effect_faults: rate(random, &[0, 3, 10, 25]),
            store_faults: rate(random, &[0, 2, 5, 20]),
            empties: *random.pick(&[0, 0, 1, 5]),
            suspends: *random.pick(&[0, 0, 1, 5]),
            late_requests: *random.pick(&[0, 0, 2, 10]),
            floods,
            jobs: 3 + random.below(6) as usize,
            largest: largest.min(16),
            topologies,
            queue_policy,
            placement: PlacementMode::default(),
            is_placement_complete: true,
            refuses_ipus: false,
            orphan_grace: Duration::from_secs(*random.pick(&[0, 5, 20])),
            sweeps: random.chance(50),
            restores: random.chance(45),
            choice: *random.pick(&[BlockChoice::Tightest, BlockChoice::Tightest, BlockChoice::Lowest]),
            seed: random.next(),
        };
        let drawn = profile.seed >> 16;
        let placement = options.placement.clone();
        profile.is_placement_complete = placement.is_some() || is_complete_mode(drawn);
        profile.queue_policy.preemption = drawn % 3 == 1;
        // A policy that declines a request never gets to a refusal.
        profile.refuses_ipus = drawn % 7 == 1 && profile.is_placement_complete;
        profile.placement = placement.unwrap_or_else(|| placement_mode(drawn));
        profile
    }

    /// Returns the placement mode of the ledgers.
    pub(super) const fn placement(&self) -> &PlacementMode {
        &self.placement
    }

    pub(super) fn controllers(&self, random: &mut Random) -> Vec<(ControllerName, FakeController)> {
        let mut controllers = Vec::new();
        for (number, topology) in self.topologies.iter().enumerate() {
            let controller = FakeController::new(topology, self.seed.wrapping_add(number as u64));
            controller.set_fault_rate(self.call_faults);
            controller.set_operation_time(Duration::from_millis(u64::from(5 + random.below(2_000))));
            controller.choose(self.choice);
            if self.seed.is_multiple_of(2) {
                controller.check_capacity_first();
            }
            controller.finish_dropped_calls(if self.call_faults > 0 { 50 } else { 0 });
            if self.refuses_ipus {
                controller.refuse_ipus();
            }
            if random.chance(15) {
                controller.create_foreign("slurm_10675", 2);
            }
            controllers.push((name_of(number), controller));
        }
        controllers
    }

    /// Returns the alias of the first controller; none in most simulations.
    pub(super) fn alias(&self) -> Option<ControllerName> {
        (self.seed % 8 == 5).then(|| ControllerName::new(ALIAS).expect("a valid controller name"))
    }

    /// Returns the options of the ledgers.
    pub(super) fn ledger_options(&self, world: &Arc<SimWorld>) -> LedgerOptions {
        let mut options = LedgerOptions::default();
        let clock = Arc::clone(world);
        options.clock = Arc::new(move || clock.now());
        options.queue = self.queue_policy.clone();
        options.orphan_grace = self.orphan_grace;
        options.placement = self.placement.clone();
        options.placement_fallback = self.refuses_ipus;
        options.usage = Some(Arc::new(world.usage.clone()));
        for (number, topology) in self.topologies.iter().enumerate() {
            options.topologies.insert(name_of(number), topology.clone());
        }
        if let Some(alias) = self.alias() {
            options.topologies.insert(alias, self.topologies[0].clone());
        }
        if self.sweeps {
            options.liveness = Some(Arc::new(Alive::new(world)));
        }
        options
    }

    /// Returns whether orphans are kept for a while.
    pub(super) const fn has_grace(&self) -> bool {
        !self.orphan_grace.is_zero()
    }

    /// Returns the queue policy, with quotas of IPUs and partitions.
    pub(super) const fn queue_policy(&self) -> &QueuePolicy {
        &self.queue_policy
    }
}

fn name_of(number: usize) -> ControllerName {
    ControllerName::new(format!("c{number}:8090")).expect("a valid controller name")
}

/// Alias of the first controller, if an administrator lists it.
const ALIAS: &str = "alias-of-c0:8090";

/// Returns the name by which the invariants identify the controller `name`.
pub(super) fn primary(name: &ControllerName) -> ControllerName {
    if name.as_str() == ALIAS {
        name_of(0)
    } else {
        name.clone()
    }
}
