//! What holds of every plan, re-derived from the job, the facts and the plan alone: nothing here asks a rule.
//!
//! A shell calls [`check_plan`] before it applies a plan and applies none that is broken; tests call it on every plan.

mod attempt_outcome;
mod effects;
mod facts;
mod status;
mod verdicts;

use alloc::vec::Vec;

use self::facts::AttemptFacts;
use crate::job::JobSpec;
use crate::observation::Observation;
use crate::plan::{Effect, Plan};

/// An invariant that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenPlan {
    /// A process or a partition of a job that is to have none.
    #[error("{effect:?} for a job, or an instance, that is deleted, suspended, finished, ended or surplus")]
    StartedForNothing {
        /// The effect.
        effect: Effect,
    },
    /// A process of another attempt than the newest.
    #[error("{effect:?} is not for attempt {attempt}")]
    WrongAttempt {
        /// The effect.
        effect: Effect,
        /// The newest attempt that the record or the facts know.
        attempt: u32,
    },
    /// A process without a partition that is active for its attempt.
    #[error("{effect:?} without a partition that is active for it")]
    WithoutPartition {
        /// The effect.
        effect: Effect,
    },
    /// A process whose place is taken, that is done, or that the job does not have.
    #[error("{effect:?}, which exists, is done, or is not of the job")]
    StartedTwice {
        /// The effect.
        effect: Effect,
    },
    /// A process beside one of another attempt.
    #[error("{effect:?} while a process of another attempt may still run")]
    BesideOldProcesses {
        /// The effect.
        effect: Effect,
    },
    /// A launcher before its workers.
    #[error("{effect:?} before all its workers run")]
    LauncherBeforeWorkers {
        /// The effect.
        effect: Effect,
    },
    /// Something before its back-off is over.
    #[error("{effect:?} before the back-off is over")]
    DuringBackOff {
        /// The effect.
        effect: Effect,
    },
    /// A partition that is taken away, or reset, under a process.
    #[error("{effect:?} while a process may still use the partition")]
    UnderProcesses {
        /// The effect.
        effect: Effect,
    },
    /// A partition released that nobody holds, or that is to stay.
    #[error("{effect:?}, which is to stay, or is not held")]
    ReleasedForNothing {
        /// The effect.
        effect: Effect,
    },
    /// A process stopped that is to stay.
    #[error("{effect:?}, which is to stay, or does not exist")]
    StoppedForNothing {
        /// The effect.
        effect: Effect,
    },
    /// A process stopped, and its evidence forgotten, before the verdict on its attempt stood in the record.
    #[error("{effect:?} before its attempt was closed in the record")]
    StoppedBeforeVerdict {
        /// The effect.
        effect: Effect,
    },
    /// An effect on an instance on which a verdict is made in the same pass.
    #[error("{effect:?} in the pass that judges its instance")]
    ActedBeforeRecord {
        /// The effect.
        effect: Effect,
    },
    /// Something that nothing ends of an instance that is to have nothing: its job is deleted or suspended, or has
    /// finished and keeps nothing; it is surplus; its session is over.
    #[error("a process or partition of instance {instance}, which is to have nothing, is left alone")]
    LeftBehind {
        /// Which instance.
        instance: u32,
    },
    /// A process that nothing ends although it is of another attempt, is none that the job has, still works in an instance
    /// that has ended, or is a worker that the clean-up policy removes.
    #[error("a process of instance {instance} that is not to stay is left alone")]
    LeftRunning {
        /// Which instance.
        instance: u32,
    },
    /// A partition in error that is not reset, or one reset that is not in error since an earlier attempt.
    #[error("{effect:?} is not what the state of the partition asks for")]
    WrongRemedy {
        /// The effect.
        effect: Effect,
    },
    /// An end that is overlooked.
    #[error("no verdict on instance {instance}, although {why}")]
    NoVerdict {
        /// Which instance.
        instance: u32,
        /// What asks for a verdict.
        why: &'static str,
    },
    /// An end that is judged otherwise than the tables say.
    #[error("a wrong verdict on instance {instance}: {what}")]
    WrongVerdict {
        /// Which instance.
        instance: u32,
        /// What is true of it.
        what: &'static str,
    },
    /// What is remembered of an instance does not follow from what was remembered and is observed.
    #[error("what is remembered of instance {instance} is wrong: {what}")]
    WrongMemory {
        /// Which instance.
        instance: u32,
        /// What of it.
        what: &'static str,
    },
    /// A first failure that is not the first.
    #[error("the wrong failure is blamed: {what}")]
    WrongBlame {
        /// Why it is wrong.
        what: &'static str,
    },
    /// An instance that has ended and stands in the line itself, or keeps a partition while another one of its job stands there.
    #[error(
        "instance {instance} has ended, and waits for a partition or keeps one that another instance waits for"
    )]
    LeftInLine {
        /// Which instance.
        instance: u32,
    },
    /// Finalized with something left, without deletion, or with more to do.
    #[error("finalized before everything was gone, without deletion, or not last")]
    FinalizedEarly,
    /// Nothing is left of a deleted job, but it is not let go of.
    #[error("nothing of the deleted job is left, but it is not finalized")]
    NotFinalized,
    /// A job is called expired that is not: it has not finished, its `ttlSecondsAfterFinished` are not over, or something of it is
    /// left; or one is not that is.
    #[error("the job expires before its time, or while something of it is left, or not although it is due")]
    WrongExpiry,
    /// More instances in the queue at once than the installation allows.
    #[error("{effect:?} while {requested} instances are in the queue, and {limit} may be")]
    TooManyRequests {
        /// The effect.
        effect: Effect,
        /// How many instances are in the queue, or have their partition made ready, without this one.
        requested: u32,
        /// How many may be.
        limit: u32,
    },
    /// The same effect twice.
    #[error("{effect:?} is planned twice")]
    Twice {
        /// The effect.
        effect: Effect,
    },
    /// Surplus instances not removed highest first, or a partition before the processes of its instance.
    #[error("{effect:?} is out of order")]
    OutOfOrder {
        /// The effect.
        effect: Effect,
    },
    /// An id or a partition that is not the one of the job.
    #[error("{effect:?} is not what the job asks for")]
    NotTheJobs {
        /// The effect.
        effect: Effect,
    },
    /// A status that forgets, contradicts itself, or restarts too often.
    #[error("the status to be recorded is wrong: {what}")]
    Status {
        /// What is wrong.
        what: &'static str,
    },
    /// Waiting without saying why.
    #[error("no reason is given")]
    NoReason,
    /// Waiting for something that no event announces, without looking again.
    #[error("nothing would ever look again: {what}")]
    SleepsForEver {
        /// What is waited for.
        what: &'static str,
    },
}

/// Every invariant that `plan` breaks as an answer to `seen` of `job`; empty for a sound plan.
///
/// ```
/// use ipu_core::{Effect, Limits, Observation, RawJob, Timestamp, check_plan, plan};
///
/// let mut raw = RawJob::default();
/// raw.metadata.name = Some("mnist-training".into());
/// raw.metadata.assign("beb81bbe-2309-494a-9e28-2a75a704be15", "");
/// raw.spec.ipus_per_job_instance = Some(4.into());
/// let job = raw.parse(&Limits::default()).unwrap().spec;
///
/// let seen = Observation::of_new_job(Timestamp::from_millis(0));
/// let mut plan = plan(&job, &seen);
/// assert_eq!(check_plan(&job, &seen, &plan), []);
/// plan.effects.push(Effect::Finalize);
/// assert_eq!(check_plan(&job, &seen, &plan)[0].to_string(), "finalized before everything was gone, without deletion, or not last");
/// ```
#[must_use]
pub fn check_plan(job: &JobSpec, seen: &Observation, plan: &Plan) -> Vec<BrokenPlan> {
    let mut broken = Vec::new();
    let facts = AttemptFacts::new(job, seen);
    effects::check(&facts, plan, &mut broken);
    status::check(&facts, plan, &mut broken);
    verdicts::check(&facts, plan, &mut broken);
    broken
}
