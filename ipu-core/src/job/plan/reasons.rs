//! Derives the phase, the counts, the message and the reasons of a plan.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use crate::job::observation::PartitionFacts;
use crate::job::plan::Plan;
use crate::job::plan::context::{Instance, InstanceStage, PlanContext};
use crate::job::rules::{scale, suspend};
use crate::job::status::{InstanceOutcome, JobPhase};
use crate::reason::{Reason, ReasonCode};

/// The documented message of a healthy job (V-IPU guide §6.7).
const RECONCILED: &str = "Successfully reconciled IPUJob";
/// The documented message of an instance without partition (V-IPU guide §6.7).
const NOT_READY: &str = "partition not ready yet!";
/// The documented message of a completed job.
const ALL_DONE: &str = "All instances done";
/// The maximum number of repetitions of [`NOT_READY`]. The documented form has one for each instance, which
/// does not suit a status of a thousand instances.
const MAX_NOT_READY_REPEATS: usize = 16;
/// The maximum number of per-instance reasons of a plan; one further reason carries the number of the others.
const MAX_REASONS: usize = 32;

impl<'a> PlanContext<'a> {
    pub(super) fn into_plan(mut self) -> Plan {
        let instances = core::mem::take(&mut self.instances);
        self.status.phase = self.phase(&instances);
        self.status.desired_instances = self.job.instances();
        self.status.current_instances =
            self.count(&instances, |context, instance| context.is_current(instance));
        let size = self.job.ipus_per_instance().get();
        let held = self.count(&instances, |_, instance| instance.holds_ipus());
        self.status.ipus_held = held.saturating_mul(size);
        self.add_reasons(&instances);
        self.status.message = self.message(&instances);
        self.status.instances = instances
            .iter()
            .filter(|instance| {
                self.scale_decision(instance) == scale::ScaleDecision::Keep
                    || instance.stage != InstanceStage::Removed
            })
            .map(|instance| instance.status.clone())
            .collect();
        Plan {
            effects: self.effects,
            status: self.status,
            reasons: self.reasons,
            requeue_after: self.requeue_time.map(|at| at.since(self.observation.now)),
            expired: self.expired,
        }
    }

    fn count(&self, instances: &[Instance<'a>], counts: impl Fn(&Self, &Instance<'a>) -> bool) -> u32 {
        let counted = instances.iter().filter(|instance| counts(self, instance)).count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    }

    fn phase(&self, instances: &[Instance<'a>]) -> JobPhase {
        if self.observation.deleted {
            return JobPhase::Terminating;
        }
        match self.suspend_decision() {
            suspend::SuspendDecision::Finished => return self.status.phase,
            suspend::SuspendDecision::ReleaseAll => return JobPhase::Suspended,
            suspend::SuspendDecision::Continue => {}
        }
        let mut phase = JobPhase::Running;
        let any_running = instances
            .iter()
            .any(|instance| instance.stage == InstanceStage::Running);
        for instance in instances {
            if self.scale_decision(instance) == scale::ScaleDecision::Remove {
                continue;
            }
            let between_attempts = instance.status.retry_at.is_some() && instance.status.unused_releases == 0;
            match instance.stage {
                InstanceStage::Running | InstanceStage::Ended | InstanceStage::Removed => {}
                // The job still runs if an instance has ended while others continue.
                InstanceStage::Evaluated if instance.status.outcome.is_some() => {}
                InstanceStage::Stopping | InstanceStage::Releasing if instance.status.outcome.is_some() => {}
                _ if between_attempts => return JobPhase::Restarting,
                // A job that is scaled up counts as running once its workers exist, before they run (V-IPU
                // guide §6.7).
                InstanceStage::Starting(_)
                    if any_running && !self.has_launcher() && self.has_all_workers(instance) => {}
                InstanceStage::Evaluated
                | InstanceStage::Stopping
                | InstanceStage::Releasing
                | InstanceStage::BackingOff
                | InstanceStage::AwaitingRetry
                | InstanceStage::Queued(_)
                | InstanceStage::NotRequested
                | InstanceStage::Preparing
                | InstanceStage::Starting(_)
                | InstanceStage::Launching => phase = JobPhase::Pending,
            }
        }
        phase
    }

    fn is_current(&self, instance: &Instance<'a>) -> bool {
        let active = matches!(instance.partition, PartitionFacts::Active { attempt, .. } if *attempt == instance.status.attempt);
        active
            && self.scale_decision(instance) == scale::ScaleDecision::Keep
            && instance.status.outcome.is_none()
            && self.has_all_workers(instance)
    }

    /// Adds the reasons for the phase of the job and the stage of every instance, without duplicates.
    fn add_reasons(&mut self, instances: &[Instance<'a>]) {
        if let Some(conclusion) = self
            .status
            .conclusion
            .clone()
            .filter(|_| self.status.phase.is_finished())
        {
            self.push_reason(conclusion);
            self.add_held_ipus_reason(instances);
        }
        if self.status.phase == JobPhase::Running {
            self.add_running_reason(instances);
        }
        if self.status.phase == JobPhase::Suspended {
            self.push_reason(Reason::new(
                ReasonCode::Suspended,
                "the job is suspended and releases its resources",
            ));
        }
        if self.status.phase == JobPhase::Terminating {
            self.push_reason(Reason::new(
                ReasonCode::Deleted,
                "the job is being deleted and releases its resources",
            ));
        }
        let instance_reasons = instances.iter().filter_map(|instance| self.reason_of(instance));
        let mut instance_reasons: Vec<Reason> = instance_reasons.collect();
        if instance_reasons.len() > MAX_REASONS {
            let more = instance_reasons.split_off(MAX_REASONS).len();
            instance_reasons.push(
                Reason::new(
                    ReasonCode::More,
                    format!("{more} more instances are not running yet"),
                )
                .with("instances", more as u64),
            );
        }
        self.reasons.extend(instance_reasons);
        self.add_not_requested_reason(instances);
        let mut unique: Vec<Reason> = Vec::new();
        for reason in core::mem::take(&mut self.reasons) {
            if !unique.contains(&reason) {
                unique.push(reason);
            }
        }
        self.reasons = unique;
    }

    /// Adds one reason for all instances whose partition is not requested yet.
    fn add_not_requested_reason(&mut self, instances: &[Instance<'a>]) {
        let not_requested_count = self.count(instances, |_, instance| {
            instance.stage == InstanceStage::NotRequested
        });
        if not_requested_count == 0 {
            return;
        }
        let (requested, limit) = (self.requested, self.job.max_requested());
        self.push_reason(
            Reason::new(
                ReasonCode::NotRequested,
                format!(
                    "the partitions of {not_requested_count} instances are not requested yet: \
                     {limit} instances of a job may be in the queue at once, and {requested} are"
                ),
            )
            .with("instances", not_requested_count)
            .with("requested", requested)
            .with("limit", limit),
        );
    }

    fn add_running_reason(&mut self, instances: &[Instance<'a>]) {
        let desired = self.job.instances();
        let running = self.count(instances, |_, instance| instance.stage == InstanceStage::Running);
        let reason = if desired == 0 {
            Reason::new(ReasonCode::ScaledToZero, "the job is scaled to 0 instances")
        } else {
            Reason::new(
                ReasonCode::Running,
                format!("{running} of {desired} instances run"),
            )
            .with("running", running)
            .with("instances", desired)
        };
        self.push_reason(reason);
    }

    /// Adds a reason if a finished job still holds IPUs, because no other component reports it.
    fn add_held_ipus_reason(&mut self, instances: &[Instance<'a>]) {
        let has_ended_with_ipus = |_: &Self, instance: &Instance<'a>| {
            instance.stage == InstanceStage::Ended && instance.holds_ipus()
        };
        let held = self
            .count(instances, has_ended_with_ipus)
            .saturating_mul(self.job.ipus_per_instance().get());
        if held == 0 {
            return;
        }
        let until = match self.job.ttl_after_finished() {
            None => "until it is deleted".to_string(),
            Some(ttl) => format!("until it is deleted, or {} s after it finished", ttl.as_secs()),
        };
        let unit = if held == 1 { "IPU" } else { "IPUs" };
        self.push_reason(
            Reason::new(
                ReasonCode::FinishedHoldsIpus,
                format!("the finished job still holds {held} {unit} {until}"),
            )
            .with("ipusHeld", held),
        );
    }

    fn reason_of(&self, instance: &Instance<'a>) -> Option<Reason> {
        let index = instance.index;
        let workers = self.job.workers_per_instance();
        let attempt = instance.status.attempt;
        let reason = match &instance.stage {
            // One reason covers all instances that are not requested.
            InstanceStage::Evaluated
            | InstanceStage::Removed
            | InstanceStage::Running
            | InstanceStage::NotRequested => return None,
            // The conclusion covers the instances of a finished job.
            InstanceStage::Ended if self.status.phase.is_finished() => return None,
            InstanceStage::Ended => match instance.status.outcome? {
                InstanceOutcome::Failed(code) => Reason::new(
                    ReasonCode::InstanceFailed,
                    format!("instance {index} has failed permanently with code {code}; the others continue"),
                )
                .with("code", code),
                InstanceOutcome::Succeeded | InstanceOutcome::SessionOver => Reason::new(
                    ReasonCode::InstanceDone,
                    format!("instance {index} has succeeded; the others continue"),
                ),
            },
            InstanceStage::Queued(reason) => return Some(reason.clone().with("instance", index)),
            InstanceStage::Stopping | InstanceStage::Releasing if instance.preempted.is_some() => {
                preemption_reason(index, instance.preempted?)
            }
            InstanceStage::Stopping => Reason::new(
                ReasonCode::StoppingProcesses,
                format!("processes of instance {index} are ending"),
            ),
            InstanceStage::Releasing => Reason::new(
                ReasonCode::ReleasingPartition,
                format!("the partition of instance {index} is being released"),
            ),
            InstanceStage::BackingOff => Reason::new(
                ReasonCode::BackingOff,
                format!("attempt {attempt} of instance {index} waits for its back-off"),
            ),
            InstanceStage::AwaitingRetry => {
                let default_reason = || {
                    Reason::new(
                        ReasonCode::WorkersUnschedulable,
                        format!("nothing could run on the partition of instance {index}"),
                    )
                };
                let cause = instance
                    .status
                    .unused_release_reason
                    .clone()
                    .unwrap_or_else(default_reason);
                let message = format!("{}; the next request waits for the back-off", cause.message);
                Reason { message, ..cause }.with("givenBack", instance.status.unused_releases)
            }
            InstanceStage::Preparing => Reason::new(
                ReasonCode::PreparingPartition,
                format!("the partition of instance {index} is being made ready for attempt {attempt}"),
            ),
            InstanceStage::Starting(ready) => Reason::new(
                ReasonCode::StartingWorkers,
                format!("{ready} of {workers} workers of instance {index} run"),
            )
            .with("ready", *ready)
            .with("workers", workers),
            InstanceStage::Launching => Reason::new(
                ReasonCode::StartingLauncher,
                format!("the launcher of instance {index} starts"),
            ),
        };
        Some(reason.with("instance", index))
    }

    fn message(&self, instances: &[Instance<'a>]) -> String {
        let key = self.job.key();
        let first = self.reasons.first().map_or("", |reason| reason.message.as_str());
        match self.status.phase {
            JobPhase::Completed => ALL_DONE.to_string(),
            JobPhase::Failed => {
                let conclusion = self.status.conclusion.as_ref();
                format!(
                    "IPUJob {key} failed: {}",
                    conclusion.map_or(first, |reason| reason.message.as_str())
                )
            }
            JobPhase::Terminating => format!("IPUJob {key} is being deleted"),
            JobPhase::Suspended => format!("IPUJob {key} is suspended"),
            JobPhase::Running => {
                let failed = self
                    .reasons
                    .iter()
                    .find(|reason| reason.code == ReasonCode::InstanceFailed);
                failed.map_or_else(
                    || RECONCILED.to_string(),
                    |failed| format!("{RECONCILED}: {}", failed.message),
                )
            }
            JobPhase::Pending | JobPhase::Restarting => {
                let lacks_partition = |instance: &&Instance<'a>| {
                    matches!(
                        instance.stage,
                        InstanceStage::Queued(_)
                            | InstanceStage::NotRequested
                            | InstanceStage::Preparing
                            | InstanceStage::AwaitingRetry
                    )
                };
                let lacking_count = instances.iter().filter(lacks_partition).count();
                if lacking_count == 0 && self.status.phase == JobPhase::Restarting {
                    return format!("IPUJob {key} restarts: {first}");
                }
                if lacking_count == 0 {
                    return format!("{RECONCILED}: {first}");
                }
                let cause = instances.iter().find_map(|instance| match &instance.stage {
                    InstanceStage::Queued(reason) => Some(reason.message.clone()),
                    InstanceStage::AwaitingRetry => self.reason_of(instance).map(|reason| reason.message),
                    InstanceStage::Evaluated
                    | InstanceStage::Stopping
                    | InstanceStage::Releasing
                    | InstanceStage::Removed
                    | InstanceStage::BackingOff
                    | InstanceStage::NotRequested
                    | InstanceStage::Preparing
                    | InstanceStage::Starting(_)
                    | InstanceStage::Launching
                    | InstanceStage::Running
                    | InstanceStage::Ended => None,
                });
                let repeated = NOT_READY.repeat(lacking_count.min(MAX_NOT_READY_REPEATS));
                let not_requested = self
                    .reasons
                    .iter()
                    .find(|reason| reason.code == ReasonCode::NotRequested);
                let not_requested = not_requested.map(|reason| reason.message.clone());
                let parts: Vec<String> = cause.into_iter().chain(not_requested).collect();
                match parts.is_empty() {
                    true => repeated,
                    false => format!("{repeated} {}", parts.join("; ")),
                }
            }
        }
    }
}

/// Returns the reason that an instance releases its partition: the demand, with the instance.
pub(super) fn preemption_reason(instance: u32, demand: &Reason) -> Reason {
    let message = format!("instance {instance}: {}", demand.message);
    Reason {
        message,
        ..demand.clone()
    }
    .with("instance", instance)
}
