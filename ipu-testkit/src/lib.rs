//! Test kit for custom placement policies, allocator stores, controller transports and planning rules.
//!
//! The tests of this workspace use the same tools. Each check is one call in a test. It panics with the
//! broken rule and, where there is one, the smallest failing case. The checks, in the order in which a system
//! is built:
//!
//! 1. [`check_policy`] compares every decision of a [`PlacementPolicy`](ipu_core::PlacementPolicy) with brute
//!    force ([`ReferenceInventory`]); [`score_policy`] measures the policy on a [`Trace`] of jobs.
//! 2. [`check_planner`] runs a function like [`plan`](ipu_core::plan()) through random job histories
//!    ([`JobWorld`]); [`rules_reached`] returns the rule verdicts that a test covers.
//! 3. [`store_suite`] tests a [`Store`](ipu_allocator::Store).
//! 4. [`controller_suite`] tests a [`VipuController`](ipu_vipu_client::VipuController), with concurrent calls
//!    and lost replies.
//!
//! [`strategies`] contains the `proptest` strategies of these checks.
//!
//! Add it as a development dependency and call it from `tests/`.

mod conformance;
mod controller_suite;
mod planner;
mod policies;
mod policy;
mod random;
mod reference_inventory;
mod rule_coverage;
mod score;
mod store_suite;
pub mod strategies;

pub use conformance::{BrokenRule, SkippedCase, SuiteFailure, SuiteReport};
pub use controller_suite::{
    CallFault, CallKind, ControllerBench, FaultSupport, Persistence, Setup, controller_suite,
    try_controller_suite,
};
pub use planner::{
    CapacityState, EventEffect, JobEvent, JobWorld, PlannerFailure, PlannerOptions, PlannerProperty,
    PlannerReport, ProcessEnd, ProcessRole, SafetyViolation, check_planner, job_from_dsl, raw_job_from_dsl,
    try_check_planner,
};
pub use policies::{TestPolicy, placement_mode};
pub use policy::{PolicyCheck, PolicyFailure, PolicyProperty, PolicyReport, check_policy, check_policy_with};
pub use random::Random;
pub use reference_inventory::ReferenceInventory;
pub use rule_coverage::{RuleVerdict, rule_verdicts, rules_reached};
pub use score::{
    CauseStats, Comparison, Fragmentation, JobClass, JobOutcome, Replay, Score, ScoreOptions, SkipReason,
    SwfError, SwfHeader, SwfOptions, SyntheticOptions, Trace, TraceJob, WaitReason, WaitStats, replay_trace,
    score_policy,
};
pub use store_suite::{store_suite, try_store_suite};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
