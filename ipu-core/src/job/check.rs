//! Invariants of every plan, derived from the job, the facts and the plan alone, without the rules.
//!
//! A caller runs [`check_plan`] before it applies a plan and rejects a broken one. Tests check every plan.

mod attempt_outcome;
mod effects;
mod facts;
mod status;
mod verdicts;

use alloc::vec::Vec;

use self::facts::AttemptFacts;
use crate::job::JobSpec;
use crate::job::observation::Observation;
use crate::job::plan::{Effect, Plan};

/// An invariant that a plan violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenPlan {
    /// A process or a partition for a job or instance that must have none.
    #[error("{effect:?} for a job, or an instance, that is deleted, suspended, finished, ended or surplus")]
    UnexpectedStart {
        /// The effect.
        effect: Effect,
    },
    /// An effect for another attempt than the newest.
    #[error("{effect:?} is not for attempt {attempt}")]
    WrongAttempt {
        /// The effect.
        effect: Effect,
        /// The newest attempt in the record or the facts.
        attempt: u32,
    },
    /// A process started without a partition that is active for its attempt.
    #[error("{effect:?} without a partition that is active for its attempt")]
    WithoutPartition {
        /// The effect.
        effect: Effect,
    },
    /// A start of a process that exists, is done, or is not part of the job.
    #[error("{effect:?}: the process exists, is done, or is not part of the job")]
    AlreadyStarted {
        /// The effect.
        effect: Effect,
    },
    /// A process started next to one of another attempt.
    #[error("{effect:?} while a process of another attempt may still run")]
    BesideOldProcesses {
        /// The effect.
        effect: Effect,
    },
    /// A launcher started before its workers run.
    #[error("{effect:?} before all its workers run")]
    LauncherBeforeWorkers {
        /// The effect.
        effect: Effect,
    },
    /// An effect before the back-off is over.
    #[error("{effect:?} before the back-off is over")]
    DuringBackOff {
        /// The effect.
        effect: Effect,
    },
    /// A partition released or reset while a process may use it.
    #[error("{effect:?} while a process may still use the partition")]
    UnderProcesses {
        /// The effect.
        effect: Effect,
    },
    /// A release of a partition that is not held or must be kept.
    #[error("{effect:?}: the partition must be kept or is not held")]
    UnexpectedRelease {
        /// The effect.
        effect: Effect,
    },
    /// A stop of a process that must be kept or does not exist.
    #[error("{effect:?}: the process must be kept or does not exist")]
    UnexpectedStop {
        /// The effect.
        effect: Effect,
    },
    /// A process stopped, and its record deleted, before the verdict on its attempt was recorded.
    #[error("{effect:?} before its attempt was closed in the record")]
    StoppedBeforeVerdict {
        /// The effect.
        effect: Effect,
    },
    /// An effect on an instance with a verdict in the same reconciliation.
    #[error("{effect:?} in the reconciliation that reaches a verdict on its instance")]
    ActedBeforeRecord {
        /// The effect.
        effect: Effect,
    },
    /// A process or partition that no effect ends, of an instance that must have none: its job is deleted,
    /// suspended, or finished without retention; the instance is surplus; its session is over.
    #[error("instance {instance} must have no process or partition, and no effect ends them")]
    ResourcesRemain {
        /// Index of the instance.
        instance: u32,
    },
    /// A process that no effect stops although it must end: it belongs to another attempt, is not part of the
    /// job, or still works in an ended instance. Or the clean-up policy removes it as a worker.
    #[error("no effect stops a process of instance {instance} that must be stopped")]
    ProcessesRemain {
        /// Index of the instance.
        instance: u32,
    },
    /// A partition in error that is not reset, or a reset of one that is not in error since an earlier
    /// attempt.
    #[error("{effect:?} does not match the state of the partition")]
    WrongRemedy {
        /// The effect.
        effect: Effect,
    },
    /// An end without a verdict.
    #[error("no verdict on instance {instance}, although {cause}")]
    NoVerdict {
        /// Index of the instance.
        instance: u32,
        /// The cause that requires a verdict.
        cause: &'static str,
    },
    /// A verdict that contradicts the documented tables.
    #[error("wrong verdict on instance {instance}: {detail}")]
    WrongVerdict {
        /// Index of the instance.
        instance: u32,
        /// The fact that contradicts the verdict.
        detail: &'static str,
    },
    /// The new status of an instance does not follow from its previous status and the observation.
    #[error("wrong status of instance {instance}: {detail}")]
    WrongInstanceStatus {
        /// Index of the instance.
        instance: u32,
        /// The wrong part of the status.
        detail: &'static str,
    },
    /// A first failure that is not the first one.
    #[error("wrong first failure: {detail}")]
    WrongFirstFailure {
        /// The error.
        detail: &'static str,
    },
    /// An ended instance that is queued, or that keeps a partition while another instance of its job is
    /// queued.
    #[error("instance {instance} has ended and is queued, or keeps a partition that a queued instance needs")]
    BlocksQueue {
        /// Index of the instance.
        instance: u32,
    },
    /// Finalized with remaining resources, without deletion, or before the last effect.
    #[error("finalized with remaining resources, without deletion, or not last")]
    FinalizedEarly,
    /// A deleted job without resources is not finalized.
    #[error("the deleted job holds no resources and is not finalized")]
    NotFinalized,
    /// The job is wrongly marked as expired, or wrongly not: it expires once it has finished, its
    /// `ttlSecondsAfterFinished` have passed, and it holds no resources.
    #[error("the job expires early, expires with remaining resources, or does not expire when due")]
    WrongExpiry,
    /// More instances requested at once than the installation allows.
    #[error("{effect:?} while {requested} of at most {limit} instances are in the queue")]
    TooManyRequests {
        /// The effect.
        effect: Effect,
        /// Number of instances that are queued or have a pending partition, without this one.
        requested: u32,
        /// Maximum number of such instances.
        limit: u32,
    },
    /// A duplicate effect.
    #[error("{effect:?} is planned twice")]
    Duplicate {
        /// The effect.
        effect: Effect,
    },
    /// An effect on a surplus instance after one on a lower instance, or a partition released before its
    /// processes are stopped.
    #[error("{effect:?} is out of order")]
    OutOfOrder {
        /// The effect.
        effect: Effect,
    },
    /// An id or a partition that differs from that of the job.
    #[error("{effect:?} does not match the job")]
    NotOfJob {
        /// The effect.
        effect: Effect,
    },
    /// A status that loses data, contradicts itself, or exceeds the restart limit.
    #[error("wrong status: {detail}")]
    Status {
        /// The error.
        detail: &'static str,
    },
    /// A plan without a reason.
    #[error("the plan has no reason")]
    NoReason,
    /// No requeue time although the job waits for something that no event announces.
    #[error("no requeue for {awaited}")]
    NoRequeue {
        /// The awaited change.
        awaited: &'static str,
    },
}

/// Returns every invariant that `plan` violates for `job` in the state `observation`; empty for a valid plan.
///
/// ```
/// use ipu_core::Timestamp;
/// use ipu_core::job::{Effect, Limits, Observation, RawJob, check_plan, plan};
///
/// let mut raw = RawJob::default();
/// raw.metadata.name = Some("mnist-training".into());
/// raw.metadata.assign("beb81bbe-2309-494a-9e28-2a75a704be15", "");
/// raw.spec.ipus_per_job_instance = Some(4.into());
/// let job = raw.parse(&Limits::default())?.spec;
///
/// let observation = Observation::for_new_job(Timestamp::from_millis(0));
/// let mut plan = plan(&job, &observation);
/// assert_eq!(check_plan(&job, &observation, &plan), []);
/// plan.effects.push(Effect::Finalize);
/// let broken = check_plan(&job, &observation, &plan)[0].to_string();
/// assert_eq!(broken, "finalized with remaining resources, without deletion, or not last");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn check_plan(job: &JobSpec, observation: &Observation, plan: &Plan) -> Vec<BrokenPlan> {
    let mut broken = Vec::new();
    let facts = AttemptFacts::new(job, observation);
    effects::check(&facts, plan, &mut broken);
    status::check(&facts, plan, &mut broken);
    verdicts::check(&facts, plan, &mut broken);
    broken
}
