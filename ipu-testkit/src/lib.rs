//! What proves a placement policy, a ledger store or a controller transport, also one that is not ours.

mod controller_suite;
mod fake;
mod planner;
mod policy;
mod random;
mod reference;
mod rules;
mod score;
mod store_suite;
pub mod strategies;
mod suite;

pub use controller_suite::{
    CallFault, CallKind, ControllerBench, Injected, Memory, Setup, controller_suite, try_controller_suite,
};
pub use fake::{BlockChoice, FakeController, Fault};
pub use planner::{
    Fate, Happening, Hit, JobWorld, PlannerFailure, PlannerOptions, PlannerProperty, PlannerReport, Room,
    Trespass, Who, check_planner, job_from_words, raw_job_from_words, try_check_planner,
};
pub use policy::{PolicyCheck, PolicyFailure, PolicyProperty, PolicyReport, check_policy, check_policy_with};
pub use random::Random;
pub use reference::ReferenceInventory;
pub use rules::{RuleVerdict, rule_verdicts, rules_reached};
pub use score::{
    Cause, CauseStats, Comparison, Fragmentation, JobClass, JobOutcome, Replay, Score, ScoreOptions, Skip,
    SwfError, SwfHeader, SwfOptions, SyntheticOptions, Trace, TraceJob, WaitStats, replay_trace,
    score_policy,
};
pub use store_suite::{StoreHome, ledger_store_suite, try_ledger_store_suite};
pub use suite::{BrokenRule, SkippedCase, SuiteFailure, SuiteReport};
