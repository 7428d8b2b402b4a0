//! What simulations have covered.

use std::collections::BTreeMap;
use std::fmt;

/// What one simulation, or many together, have done and seen: the measure of what their success is worth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimReport {
    /// Simulations.
    pub cases: u64,
    /// Jobs that were submitted.
    pub jobs: u64,
    /// Jobs that came to an end by themselves, well or badly, before everybody was told to go.
    pub finished: u64,
    /// Plans that were made.
    pub plans: u64,
    /// Commits to the ledger.
    pub commits: u64,
    /// Holds of partitions, from the intent until they were gone.
    pub holds: u64,
    /// How often all invariants were checked.
    pub checks: u64,
    /// Virtual time, in seconds.
    pub virtual_seconds: u64,
    /// Faults by what was injected and the effect that it was injected at ([`SimReport::EFFECT_FAULTS`],
    /// [`SimReport::EFFECTS`]).
    pub effect_faults: BTreeMap<(&'static str, &'static str), u64>,
    /// Faults by what was injected and the call to a controller ([`Fault::LABELS`](crate::Fault::LABELS),
    /// [`SimReport::CALLS`]).
    pub call_faults: BTreeMap<(&'static str, &'static str), u64>,
    /// Faults of the ledger's store, by what was injected and the operation.
    pub store_faults: BTreeMap<(&'static str, &'static str), u64>,
    /// What happened besides: drivers that crashed, controllers that went down or lost their state, jobs deleted.
    pub events: BTreeMap<&'static str, u64>,
    /// Moves of entries of the ledger, from state to state; `absent` is no entry.
    pub transitions: BTreeMap<(&'static str, &'static str), u64>,
    /// What repair did, by the action's label.
    pub repairs: BTreeMap<&'static str, u64>,
    /// Codes of the reasons in plans and in the line.
    pub reasons: BTreeMap<String, u64>,
}

impl SimReport {
    /// What is injected at effects, and at the write of the status.
    pub const EFFECT_FAULTS: [&'static str; 7] = [
        "crash before",
        "crash during",
        "crash after",
        "error",
        "lost reply",
        "duplicate",
        "delay",
    ];

    /// The effects, and `Record`, the write of the status.
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

    /// The calls to controllers that the ledger makes.
    pub const CALLS: [&'static str; 5] = ["create", "reset", "remove", "status", "list"];

    /// Every move that an entry of the ledger may make. Any other breaks an invariant.
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

    /// Adds what `other` has done and seen. The order does not matter.
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
