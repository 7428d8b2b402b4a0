//! The planner: derives effects, status and reasons from a job and its observation. The rules meet only in
//! this module.
//!
//! One reconciliation has five steps, each in its own file:
//!
//! | file | step |
//! |---|---|
//! | [`context`] | sorts the facts by instance |
//! | [`detect`] | detects the events since the last reconciliation |
//! | [`evaluate`] | applies the rules and writes the verdicts to the status |
//! | [`build_effects`], [`teardown`] | turn the verdicts *of earlier reconciliations* into effects |
//! | [`reasons`] | derives the phase, the counts, the message and the reasons |
//!
//! **A verdict is recorded before any process or partition that it affects is touched.** The planner closes
//! an attempt in the status first. A later reconciliation stops its processes and deletes their records. The
//! effects therefore follow from the record and the facts alone, and repeating them changes nothing. A
//! reconciliation whose record was lost is repeated.

mod build_effects;
mod context;
mod detect;
mod effect;
mod evaluate;
mod reasons;
mod teardown;

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::JobSpec;
use crate::job::observation::Observation;
use crate::job::status::JobStatus;
use crate::reason::Reason;
pub use effect::Effect;

/// The result of planning: effects, status, reasons and the time of the next reconciliation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[must_use]
pub struct Plan {
    /// The effects to apply in this order; the caller stops at the first failure. Each effect is idempotent.
    pub effects: Vec<Effect>,
    /// The status to record in one write after the effects; the next [`Observation::status`] carries it.
    pub status: JobStatus,
    /// The reasons for these effects and for waiting. Never empty.
    pub reasons: Vec<Reason>,
    /// The maximum time until the next reconciliation; none if only an event can change the plan.
    /// Zero after a verdict, because the next reconciliation acts upon it.
    #[serde(rename = "wakeMillis", with = "crate::units::millis::option", default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub requeue_after: Option<Duration>,
    /// Whether the job has finished, holds nothing, and its `ttlSecondsAfterFinished` have passed. The caller
    /// then deletes its record of the job, as Kubernetes does with a `Job`.
    #[serde(default)]
    pub expired: bool,
}

/// Returns the plan for `job` in the observed state `observation`.
///
/// *Guarantees*: `plan` is total (any observation has a plan), deterministic and level-triggered: it depends
/// only on its two arguments. Applying the effects and planning again yields no new effects. Deletion always
/// leads to [`Effect::Finalize`] if processes can be stopped and partitions released.
/// [`check_plan`](crate::job::check_plan) lists the other invariants of every plan.
///
/// *Assumptions*: a process that is observed as exited or lost no longer uses its partition. The observer
/// reports a process as alive unless it is certain of the opposite. It reports a process that was asked to
/// stop as stopping until the process is deleted, and omits it afterwards.
///
/// ```
/// use ipu_core::Timestamp;
/// use ipu_core::job::{Effect, InstanceFacts, Limits, Observation, PartitionFacts, RawJob, plan};
///
/// let raw: RawJob = serde_json::from_str(
///     r#"{"metadata": {"name": "mnist", "uid": "1"}, "spec": {"ipusPerJobInstance": "4"}}"#,
/// )?;
/// let job = raw.parse(&Limits::default())?.spec;
///
/// // The partition of the first instance is active, and nothing runs there yet.
/// let mut observation = Observation::for_new_job(Timestamp::from_millis(0));
/// let mut instance = InstanceFacts::empty(0);
/// let (since, controller) = (observation.now, "pod001:8090".parse()?);
/// instance.partition = PartitionFacts::Active { attempt: 0, since, controller };
/// observation.instances.push(instance);
/// let next = plan(&job, &observation);
/// assert!(matches!(next.effects[..], [Effect::StartWorker { instance: 0, worker: 0, .. }]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(job: &JobSpec, observation: &Observation) -> Plan {
    let mut context = context::PlanContext::new(job, observation);
    if !observation.deleted {
        context.evaluate();
    }
    context.build_effects();
    context.into_plan()
}
