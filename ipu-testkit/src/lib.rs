//! Test kit for custom placement policies, allocator stores, controller transports and schedulers.
//!
//! ```
//! use ipu_core::hardware::Topology;
//! use ipu_core::placement::BestFit;
//! use ipu_testkit::{SyntheticOptions, Trace, check_policy, score_policy};
//!
//! println!("{}", check_policy::<BestFit>());
//!
//! let trace = Trace::synthetic(&SyntheticOptions::mixed(1, 200, 256));
//! let score = score_policy::<BestFit>(&trace, &Topology::pod256());
//! assert_eq!((score.ran, score.stranded), (200, 0), "{score}");
//! ```
//!
//! The tests of this workspace use the same tools. Each check is one call in a test. It panics with the
//! broken rule and, where there is one, the smallest failing case. The checks, in the order in which a system
//! is built:
//!
//! 1. [`check_policy`] compares every decision of a [`PlacementPolicy`](ipu_core::placement::PlacementPolicy)
//!    with brute force ([`ReferenceInventory`]); [`score_policy`] measures the policy on a [`Trace`] of jobs.
//! 2. [`check_plan`](ipu_core::job::check_plan) of `ipu-core` checks plans of your own rules, over the jobs
//!    and observations of [`strategies`].
//! 3. [`store_suite`] tests a [`Store`](ipu_allocator::Store), and [`liveness_suite`] a
//!    [`Liveness`](ipu_allocator::Liveness).
//! 4. `transport_suite` tests a transport with a simulated controller at its other end, and
//!    [`controller_suite`] any other [`VipuController`](ipu_vipu_client::VipuController): with concurrent
//!    calls, callers that crash, and lost, repeated and late replies.
//! 5. `scheduler_suite` tests a whole scheduler: while it submits and ends jobs, it kills the scheduler and
//!    breaks calls, and it judges by the state of a simulated controller.
//!
//! [`strategies`] contains the `proptest` strategies of these checks.
//!
//! Add it as a development dependency and call it from `tests/`, as [the
//! guide](https://docs.rs/ipu-allocator/latest/ipu_allocator/guide/proof/) does.
//!
//! # Features
//!
//! - `simulator`: `transport_suite` and `scheduler_suite`, which bring in `vipu-sim`.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod conformance;
mod controller_suite;
mod job_dsl;
mod liveness_suite;
mod policy;
mod random;
mod reference_inventory;
#[cfg(feature = "simulator")]
mod scheduler_suite;
mod score;
mod store_suite;
pub mod strategies;

pub use conformance::{BrokenRule, SkippedCase, SuiteFailure, SuiteReport};
#[cfg(feature = "simulator")]
pub use controller_suite::transport_suite;
pub use controller_suite::{
    CallFault, CallKind, ControllerBench, FaultSupport, Persistence, Setup, controller_suite,
    try_controller_suite,
};
pub use job_dsl::{job_from_dsl, raw_job_from_dsl};
pub use liveness_suite::{LivenessBench, liveness_suite};
pub use policy::{PolicyCheck, PolicyFailure, PolicyProperty, PolicyReport, check_policy, check_policy_with};
pub use random::Random;
pub use reference_inventory::ReferenceInventory;
#[cfg(feature = "simulator")]
pub use scheduler_suite::{
    RunningProcess, SchedulerUnderTest, SubmittedJob, scheduler_suite, try_scheduler_suite,
};
pub use score::{
    CauseStats, Comparison, Fragmentation, JobClass, JobOutcome, Replay, Score, ScoreOptions, SkipReason,
    SwfError, SwfOptions, SyntheticOptions, Trace, TraceJob, WaitStats, replay_trace, score_policy,
};
pub use store_suite::{store_suite, try_store_suite};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
