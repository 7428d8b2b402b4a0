//! What one simulation is like: drawn from its seed before anything happens.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{ControllerName, QueuePolicy, Quota, QuotaSubject, SelectionOrder, Topology};
use ipu_ledger::LedgerOptions;

use super::SimOptions;
use super::liveness::Alive;
use super::world::SimWorld;
use crate::fake::{BlockChoice, FakeController};
use crate::random::Random;

/// Text forms of the Pods that controllers manage, small enough that jobs have to wait.
const TOPOLOGIES: [&str; 6] = ["pod4", "pod4", "pod16", "pod16", "2x2", "pod64"];

#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) drivers: usize,
    topologies: Vec<Topology>,
    /// Percent of calls to controllers that something happens to.
    pub(super) call_faults: u32,
    /// Percent of effects.
    pub(super) effect_faults: u32,
    /// Percent of commits.
    pub(super) store_faults: u32,
    /// Percent of commits of an intent or a grant after which the controller restarts empty.
    pub(super) empties: u32,
    /// Percent of commits after which the process is suspended before it makes the call that the commit announces.
    pub(super) suspends: u32,
    /// Percent of requests that are read late, besides or instead of at once.
    pub(super) late_requests: u32,
    /// Whether an owner may flood the queue.
    pub(super) floods: bool,
    /// The most jobs.
    pub(super) jobs: usize,
    /// The largest instance that is common.
    pub(super) largest: u32,
    line: QueuePolicy,
    orphan_grace: Duration,
    /// Whether those in the line are asked whether they live.
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
                text.parse().expect("the topologies of the simulator can be read")
            })
            .collect();
        let largest = topologies.iter().map(Topology::ipus).max().unwrap_or(4);
        let rate = |random: &mut Random, rates: &[u32]| {
            let drawn = *random.pick(rates);
            options.fault_percent.unwrap_or(drawn)
        };
        let mut line = QueuePolicy::default();
        line.overtake_limit = *random.pick(&[1, 3, 16]);
        line.order = *random.pick(&[
            SelectionOrder::Serial,
            SelectionOrder::Tightest,
            SelectionOrder::MostFree,
        ]);
        if random.chance(30) {
            let subject = if random.chance(50) {
                QuotaSubject::Account("red".into())
            } else {
                QuotaSubject::Namespace("ns0".parse().expect("a name"))
            };
            let mut quota = Quota::default();
            if random.chance(50) {
                quota.max_ipus = Some(4 + random.below(12));
            } else {
                quota.max_partitions = Some(1 + random.below(3));
            }
            line.quotas.insert(subject, quota);
        }
        let floods = random.chance(4);
        if floods && random.chance(50) {
            line.length_limit = 20 + random.below(200) as usize;
        }
        Self {
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
            line,
            orphan_grace: Duration::from_secs(*random.pick(&[0, 5, 20])),
            sweeps: random.chance(50),
            restores: random.chance(45),
            choice: *random.pick(&[BlockChoice::Tightest, BlockChoice::Tightest, BlockChoice::Lowest]),
            seed: random.next(),
        }
    }

    pub(super) fn controllers(&self, random: &mut Random) -> Vec<(ControllerName, FakeController)> {
        let mut controllers = Vec::new();
        for (number, topology) in self.topologies.iter().enumerate() {
            let controller = FakeController::new(topology, self.seed.wrapping_add(number as u64));
            controller.set_fault_rate(self.call_faults);
            controller.operation(Duration::from_millis(u64::from(5 + random.below(2_000))));
            controller.choose(self.choice);
            if self.seed.is_multiple_of(2) {
                controller.check_capacity_first();
            }
            controller.finish_dropped_calls(if self.call_faults > 0 { 50 } else { 0 });
            if random.chance(15) {
                controller.make_foreign("slurm_10675", 2);
            }
            controllers.push((name_of(number), controller));
        }
        controllers
    }

    /// The second name of the first controller; none in most lives.
    pub(super) fn alias(&self) -> Option<ControllerName> {
        (self.seed % 8 == 5).then(|| ControllerName::new(ALIAS).expect("a name of a controller"))
    }

    /// What the ledgers go by.
    pub(super) fn ledger_options(&self, world: &Arc<SimWorld>) -> LedgerOptions {
        let mut options = LedgerOptions::default();
        let clock = Arc::clone(world);
        options.clock = Arc::new(move || clock.now());
        options.queue = self.line.clone();
        options.orphan_grace = self.orphan_grace;
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

    /// Whether what an owner leaves is kept for a while.
    pub(super) const fn has_grace(&self) -> bool {
        !self.orphan_grace.is_zero()
    }

    /// The IPUs and partitions that subjects may hold.
    pub(super) const fn line(&self) -> &QueuePolicy {
        &self.line
    }
}

fn name_of(number: usize) -> ControllerName {
    ControllerName::new(format!("c{number}:8090")).expect("a name of a controller")
}

/// The second name of the first controller, as far as an administrator lists it.
const ALIAS: &str = "alias-of-c0:8090";

/// Returns the name under which the invariants know the controller `name`.
pub(super) fn primary(name: &ControllerName) -> ControllerName {
    if name.as_str() == ALIAS {
        name_of(0)
    } else {
        name.clone()
    }
}
