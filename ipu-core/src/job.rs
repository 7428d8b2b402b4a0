//! The life of a job: a specification, observations, and the plan that follows from them.
//!
//! 1. A user writes a [`RawJob`]. [`RawJob::parse`] returns a [`JobSpec`] with warnings, or all
//!    [`Violation`]s at once. A job that parses can run.
//! 2. An adapter gathers an [`Observation`]: the observed state of the job, including the time.
//! 3. [`plan()`] returns a [`Plan`]: [`Effect`]s in order, the [`JobStatus`] to record, a
//!    [`Reason`](crate::Reason) for every decision, and the time of the next reconciliation. [`check_plan`]
//!    verifies its invariants independently.
//! 4. The first effect requests a partition for each instance. Its id is derived from the job, so that a
//!    repeated request finds the existing partition.
//! 5. Workers start, each with the variables of an [`IpuofEnv`](crate::render::IpuofEnv); a launcher finds
//!    them through a [`hostfile`](crate::render::hostfile).
//! 6. When an attempt ends, the rules determine the first failure, the time of a restart if there is one, and
//!    the cleanup. At the end processes stop, partitions are released, and the finalizer is removed, in this
//!    order.
//!
//! ```
//! use ipu_core::job::{Effect, Limits, Observation, RawJob, plan};
//! use ipu_core::{ReasonCode, Timestamp};
//!
//! let raw: RawJob = serde_json::from_str(
//!     r#"{"metadata": {"name": "mnist", "uid": "1"}, "spec": {"ipusPerJobInstance": "4"}}"#,
//! )?;
//! let job = raw.parse(&Limits::default())?.spec;
//!
//! let first = plan(&job, &Observation::for_new_job(Timestamp::from_millis(0)));
//! assert!(matches!(&first.effects[..], [Effect::EnsurePartition { instance: 0, .. }]));
//! assert_eq!(first.reasons[0].code, ReasonCode::PreparingPartition);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod error_list;
pub(crate) mod exit;
pub(crate) mod limits;
pub(crate) mod observation;
pub(crate) mod parse;
pub(crate) mod plan;
pub(crate) mod raw;
pub(crate) mod rules;
pub(crate) mod spec;
pub(crate) mod status;
pub(crate) mod violation;

pub use self::check::{BrokenPlan, check_plan};
pub use self::error_list::ErrorList;
pub use self::exit::{Exit, ExitCodeSet, ExitCodeSetError};
pub use self::limits::Limits;
pub use self::observation::{
    InstanceFacts, MissingProcess, Observation, PartitionFacts, ProcessFacts, ProcessPhase,
};
pub use self::parse::ParsedJob;
pub use self::plan::{Effect, Plan, plan};
pub use self::raw::{
    EnvVar, IntOrString, RawInteractive, RawJob, RawLauncher, RawMetadata, RawRestartPolicy, RawSpec,
    RawWorkers,
};
pub use self::spec::{CleanPodPolicy, JobKind, JobSpec, RestartPolicy};
pub use self::status::{
    FailedComponent, FirstFailure, InstanceOutcome, InstanceStatus, JobPhase, JobStatus, Preempted,
};
pub use self::violation::{Violation, Warning};
