//! Coverage of simulations.

use std::collections::BTreeMap;
use std::fmt;

/// Coverage of one or several simulations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimReport {
    /// Number of simulations.
    pub cases: u64,
    /// Number of submitted jobs.
    pub jobs: u64,
    /// Number of jobs that ended by themselves, in success or failure, before all jobs were deleted.
    pub finished: u64,
    /// Number of plans.
    pub plans: u64,
    /// Number of commits to the ledger.
    pub commits: u64,
    /// Number of partition holds, from the intent until the end of the release.
    pub holds: u64,
    /// Number of checks of all invariants.
    pub checks: u64,
    /// Virtual time, in seconds.
    pub virtual_seconds: u64,
    /// Faults by kind and effect ([`SimReport::EFFECT_FAULTS`], [`SimReport::EFFECTS`]).
    pub effect_faults: BTreeMap<(&'static str, &'static str), u64>,
    /// Faults by kind and controller call ([`Fault::LABELS`](crate::Fault::LABELS), [`SimReport::CALLS`]).
    pub call_faults: BTreeMap<(&'static str, &'static str), u64>,
    /// Faults of the ledger's store, by kind and operation.
    pub store_faults: BTreeMap<(&'static str, &'static str), u64>,
    /// Other events: crashed drivers, controller outages and state losses, deleted jobs.
    pub events: BTreeMap<&'static str, u64>,
    /// Transitions of ledger entries, from state to state; `absent` means no entry.
    pub transitions: BTreeMap<(&'static str, &'static str), u64>,
    /// Repair actions, by label.
    pub repairs: BTreeMap<&'static str, u64>,
    /// Codes of the reasons in plans and in the queue.
    pub reasons: BTreeMap<String, u64>,
}

impl SimReport {
    /// Faults of effects, and of recording the status.
    pub const EFFECT_FAULTS: [&'static str; 7] = [
        "crash before",
        "crash during",
        "crash after",
        "error",
        "lost reply",
        "duplicate",
        "delay",
    ];

    /// Effects, and `Record` for recording the status.
    pub const EFFECTS: [&'static str; 9] = [
        "EnsurePartition",
        "ResetPartition",
        "StartWorker",
        "StartLauncher",
        "StopWorker",
        "StopLauncher",
        "ReleasePartition",
        "Finalize",
        "Record",
    ];

    /// Controller calls of the ledger.
    pub const CALLS: [&'static str; 5] = ["create", "reset", "remove", "status", "list"];

    /// Legal transitions of a ledger entry. Any other violates an invariant.
    pub const TRANSITIONS: [(&'static str, &'static str); 29] = [
        ("absent", "active"),
        ("absent", "intent"),
        ("absent", "quarantined"),
        ("absent", "waiting"),
        ("active", "failed"),
        ("active", "intent"),
        ("active", "orphaned"),
        ("active", "releasing"),
        ("failed", "active"),
        ("failed", "intent"),
        ("failed", "orphaned"),
        ("failed", "releasing"),
        ("intent", "absent"),
        ("intent", "active"),
        ("intent", "failed"),
        ("intent", "releasing"),
        ("intent", "waiting"),
        ("orphaned", "active"),
        ("orphaned", "failed"),
        ("orphaned", "intent"),
        ("orphaned", "releasing"),
        ("quarantined", "absent"),
        ("quarantined", "active"),
        ("quarantined", "intent"),
        ("quarantined", "releasing"),
        ("releasing", "absent"),
        ("waiting", "absent"),
        ("waiting", "intent"),
        ("waiting", "quarantined"),
    ];

    /// Adds the coverage of `other`. The order does not matter.
    pub fn merge(&mut self, other: &Self) {
        self.cases += other.cases;
        self.jobs += other.jobs;
        self.finished += other.finished;
        self.plans += other.plans;
        self.commits += other.commits;
        self.holds += other.holds;
        self.checks += other.checks;
        self.virtual_seconds += other.virtual_seconds;
        add(&mut self.effect_faults, &other.effect_faults);
        add(&mut self.call_faults, &other.call_faults);
        add(&mut self.store_faults, &other.store_faults);
        add(&mut self.events, &other.events);
        add(&mut self.transitions, &other.transitions);
        add(&mut self.repairs, &other.repairs);
        add(&mut self.reasons, &other.reasons);
    }
}

pub(super) fn add<K: Ord + Clone>(sum: &mut BTreeMap<K, u64>, more: &BTreeMap<K, u64>) {
    for (key, count) in more {
        *sum.entry(key.clone()).or_default() += count;
    }
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |counts: &BTreeMap<_, u64>| counts.values().sum::<u64>();
        write!(
            f,
            "{} simulations: {} jobs, {} plans, {} commits, {} checks, {} faults, {} virtual hours",
            self.cases,
            self.jobs,
            self.plans,
            self.commits,
            self.checks,
            sum(&self.effect_faults) + sum(&self.call_faults) + sum(&self.store_faults),
            self.virtual_seconds / 3600
        )
    }
}
