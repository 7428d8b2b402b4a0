//! What proves a placement policy, a ledger store, a controller transport or planning rules, also those that are not ours.
//!
//! What the tests of this workspace use, your tests use. Each proof is one call in a test; it panics with the rule that is
//! broken and, where there is one, the smallest case that breaks it. In the order in which one builds a system:
//!
//! 1. [`check_policy`] holds every answer of a [`PlacementPolicy`](ipu_core::PlacementPolicy) against brute force
//!    ([`ReferenceInventory`]); [`score_policy`] tells how good it is on a [`Trace`] of jobs.
//! 2. [`check_planner`] takes a function like [`plan`](ipu_core::plan()) through random lives of jobs ([`JobWorld`]);
//!    [`rules_reached`] tells which verdicts of the rules a test of yours saw.
//! 3. [`ledger_store_suite`] proves a [`LedgerStore`](ipu_ledger::LedgerStore), with several processes and crashes.
//! 4. [`controller_suite`] proves a [`VipuController`](ipu_vipu_client::VipuController), with crowds and lost replies.
//! 5. [`simulate_many`] runs whole schedulers, with crashes and faults everywhere, and checks what they promise.
//!
//! [`strategies`] has the `proptest` strategies behind them, [`FakeController`] a controller with faults on virtual time.
//!
//! Use it from `tests/`, as a development dependency.

mod conformance;
mod controller_suite;
mod fake;
mod planner;
mod policy;
mod random;
mod reference_inventory;
mod rule_coverage;
mod score;
mod sim;
mod store_suite;
pub mod strategies;

pub use conformance::{BrokenRule, SkippedCase, SuiteFailure, SuiteReport};
pub use controller_suite::{
    CallFault, CallKind, ControllerBench, FaultSupport, Persistence, Setup, controller_suite,
    try_controller_suite,
};
pub use fake::{BlockChoice, FakeController, Fault};
pub use planner::{
    CapacityState, EventEffect, JobEvent, JobWorld, PlannerFailure, PlannerOptions, PlannerProperty,
    PlannerReport, ProcessEnd, ProcessRole, SafetyViolation, check_planner, job_from_dsl, raw_job_from_dsl,
    try_check_planner,
};
pub use policy::{PolicyCheck, PolicyFailure, PolicyProperty, PolicyReport, check_policy, check_policy_with};
pub use random::Random;
pub use reference_inventory::ReferenceInventory;
pub use rule_coverage::{RuleVerdict, rule_verdicts, rules_reached};
pub use score::{
    CauseStats, Comparison, Fragmentation, JobClass, JobOutcome, Replay, Score, ScoreOptions, SkipReason,
    SwfError, SwfHeader, SwfOptions, SyntheticOptions, Trace, TraceJob, WaitReason, WaitStats, replay_trace,
    score_policy,
};
pub use sim::{
    CordonedHook, CreateHook, PlanCheck, PlanHook, Planner, RepairPolicy, SimFailure, SimOptions, SimReplay,
    SimReport, replay_simulation, simulate, simulate_many,
};
pub use store_suite::{StoreFactory, ledger_store_suite, try_ledger_store_suite};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
