//! What people and machines are told: phase, counts, message, reasons, wake.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use crate::observation::PartitionFacts;
use crate::plan::context::{Instance, InstanceStage, PlanContext};
use crate::plan::{InstanceOutcome, JobPhase, Plan};
use crate::reason::Reason;
use crate::rules::{scale, suspend};

/// The documented text of a job that does what it should (seed 000 §6.7).
const RECONCILED: &str = "Successfully reconciled IPUJob";
/// The documented text of an instance without partition (seed 000 §6.7).
const NOT_READY: &str = "partition not ready yet!";
/// The documented text of a job that has completed.
const ALL_DONE: &str = "All instances done";
/// Why an instance has ended while others go on.
const FAILED_FOR_GOOD: &str = "InstanceFailed";
/// How often [`NOT_READY`] is repeated at most: the documented form says it once for each instance, and a status is no
/// place for a thousand of them.
const MAX_REPEATS: usize = 16;
/// The code of the reason of instances that do not ask for their partition yet.
const NOT_REQUESTED: &str = "NotRequested";
/// The most reasons of a plan: what concerns more instances than that is said by number.
const MAX_REASONS: usize = 32;

impl<'a> PlanContext<'a> {
    pub(super) fn tell(mut self) -> Plan {
        let instances = core::mem::take(&mut self.instances);
        self.status.phase = self.phase(&instances);
        self.status.desired_instances = self.job.instances();
        self.status.current_instances = self.count(&instances, |pass, instance| pass.is_current(instance));
        let size = self.job.ipus_per_instance().get();
        let held = self.count(&instances, |_, instance| instance.holds_ipus());
        self.status.ipus_held = held.saturating_mul(size);
        self.explain(&instances);
        if !self.status.phase.is_finished() || self.status.message.is_empty() || self.is_new_conclusion() {
            self.status.message = self.message(&instances);
        }
        self.status.instances = instances
            .iter()
            .filter(|instance| {
                self.wanted(instance) == scale::ScaleDecision::Keep || instance.stage != InstanceStage::Gone
            })
            .map(|instance| instance.memory.clone())
            .collect();
        Plan {
            effects: self.effects,
            status: self.status,
            reasons: self.reasons,
            requeue_after: self.wake_at.map(|at| at.since(self.seen.now)),
            expired: self.expired,
        }
    }

    fn is_new_conclusion(&self) -> bool {
        self.concluded == super::context::Persisted::No
    }

    fn count(&self, instances: &[Instance<'a>], counts: impl Fn(&Self, &Instance<'a>) -> bool) -> u32 {
        let counted = instances.iter().filter(|instance| counts(self, instance)).count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    }

    fn phase(&self, instances: &[Instance<'a>]) -> JobPhase {
        if self.seen.deleted {
            return JobPhase::Terminating;
        }
        match self.suspension() {
            suspend::SuspendDecision::Finished => return self.status.phase,
            suspend::SuspendDecision::HoldNothing => return JobPhase::Suspended,
            suspend::SuspendDecision::GoOn => {}
        }
        let mut phase = JobPhase::Running;
        let serves = instances
            .iter()
            .any(|instance| instance.stage == InstanceStage::Running);
        for instance in instances {
            if self.wanted(instance) == scale::ScaleDecision::Remove {
                continue;
            }
            let between_attempts = instance.memory.retry_at.is_some() && instance.memory.unused_releases == 0;
            match instance.stage {
                InstanceStage::Running | InstanceStage::Ended | InstanceStage::Gone => {}
                // An instance that has ended while others run on: the job still runs.
                InstanceStage::Judged if instance.memory.outcome.is_some() => {}
                InstanceStage::Stopping | InstanceStage::Releasing if instance.memory.outcome.is_some() => {}
                _ if between_attempts => return JobPhase::Restarting,
                // A job that is scaled runs once the workers are there, before they do (seed 000 §6.7).
                InstanceStage::Starting(_) if serves && !self.has_launcher() && self.all_there(instance) => {}
                InstanceStage::Judged
                | InstanceStage::Stopping
                | InstanceStage::Releasing
                | InstanceStage::BackingOff
                | InstanceStage::GivenBack
                | InstanceStage::InLine(_)
                | InstanceStage::NotRequested
                | InstanceStage::Preparing
                | InstanceStage::Starting(_)
                | InstanceStage::Launching => phase = JobPhase::Pending,
            }
        }
        phase
    }

    fn is_current(&self, instance: &Instance<'a>) -> bool {
        let active = matches!(instance.partition, PartitionFacts::Active { attempt, .. } if *attempt == instance.memory.attempt);
        active
            && self.wanted(instance) == scale::ScaleDecision::Keep
            && instance.memory.outcome.is_none()
            && self.all_there(instance)
    }

    /// Says why every instance is where it is.
    fn explain(&mut self, instances: &[Instance<'a>]) {
        if let Some(conclusion) = self
            .status
            .conclusion
            .clone()
            .filter(|_| self.status.phase.is_finished())
        {
            self.push_reason(conclusion);
            self.explain_what_is_kept(instances);
        }
        if self.status.phase == JobPhase::Running {
            self.explain_running(instances);
        }
        if self.status.phase == JobPhase::Suspended {
            self.push_reason(Reason::new(
                "Suspended",
                "the job is suspended and is to hold nothing",
            ));
        }
        if self.status.phase == JobPhase::Terminating {
            self.push_reason(Reason::new(
                "Deleted",
                "the job is deleted and gives everything back",
            ));
        }
        let about = instances.iter().filter_map(|instance| self.reason_of(instance));
        let mut about: Vec<Reason> = about.collect();
        if about.len() > MAX_REASONS {
            let more = about.split_off(MAX_REASONS).len();
            about.push(
                Reason::new("More", format!("{more} more instances are not running yet"))
                    .with("instances", more as u64),
            );
        }
        self.reasons.extend(about);
        self.explain_requests(instances);
        let mut told: Vec<Reason> = Vec::new();
        for reason in core::mem::take(&mut self.reasons) {
            if !told.contains(&reason) {
                told.push(reason);
            }
        }
        self.reasons = told;
    }

    /// Says once how many instances do not ask for their partition yet, and why.
    fn explain_requests(&mut self, instances: &[Instance<'a>]) {
        let not_yet = self.count(instances, |_, instance| {
            instance.stage == InstanceStage::NotRequested
        });
        if not_yet == 0 {
            return;
        }
        let (requested, limit) = (self.requested, self.job.max_requested());
        self.push_reason(
            Reason::new(
                NOT_REQUESTED,
                format!(
                    "the partitions of {not_yet} instances are not requested yet: {limit} instances of a job may be in the queue at once, and {requested} are"
                ),
            )
            .with("instances", not_yet)
            .with("requested", requested)
            .with("limit", limit),
        );
    }

    fn explain_running(&mut self, instances: &[Instance<'a>]) {
        let wanted = self.job.instances();
        let running = self.count(instances, |_, instance| instance.stage == InstanceStage::Running);
        let reason = if wanted == 0 {
            Reason::new("ScaledToZero", "the job is scaled to 0 instances")
        } else {
            Reason::new("Running", format!("{running} of {wanted} instances run"))
                .with("running", running)
                .with("instances", wanted)
        };
        self.push_reason(reason);
    }

    /// A finished job that holds IPUs says so: nobody else would.
    fn explain_what_is_kept(&mut self, instances: &[Instance<'a>]) {
        let keeps = |_: &Self, instance: &Instance<'a>| {
            instance.stage == InstanceStage::Ended && instance.holds_ipus()
        };
        let kept = self
            .count(instances, keeps)
            .saturating_mul(self.job.ipus_per_instance().get());
        if kept == 0 {
            return;
        }
        let until = match self.job.ttl_after_finished() {
            None => "until it is deleted".to_string(),
            Some(ttl) => format!("until it is deleted, or {} s after it finished", ttl.as_secs()),
        };
        let plural = if kept == 1 { "IPU" } else { "IPUs" };
        self.push_reason(
            Reason::new(
                "FinishedHoldsIpus",
                format!("the finished job still holds {kept} {plural} {until}"),
            )
            .with("ipusHeld", kept),
        );
    }

    fn reason_of(&self, instance: &Instance<'a>) -> Option<Reason> {
        let index = instance.index;
        let all = self.job.workers_per_instance();
        let attempt = instance.memory.attempt;
        let reason = match &instance.stage {
            // One reason tells of all that are not requested.
            InstanceStage::Judged
            | InstanceStage::Gone
            | InstanceStage::Running
            | InstanceStage::NotRequested => return None,
            // Of a finished job, the conclusion says it.
            InstanceStage::Ended if self.status.phase.is_finished() => return None,
            InstanceStage::Ended => match instance.memory.outcome? {
                InstanceOutcome::Failed(code) => Reason::new(
                    FAILED_FOR_GOOD,
                    format!("instance {index} has failed for good with code {code}; the others go on"),
                )
                .with("code", code),
                InstanceOutcome::Succeeded | InstanceOutcome::SessionOver => Reason::new(
                    "InstanceDone",
                    format!("instance {index} has ended well; the others go on"),
                ),
            },
            InstanceStage::InLine(reason) => return Some(reason.clone().with("instance", index)),
            InstanceStage::Stopping => Reason::new(
                "StoppingProcesses",
                format!("processes of instance {index} are ending"),
            ),
            InstanceStage::Releasing => Reason::new(
                "ReleasingPartition",
                format!("the partition of instance {index} is given back"),
            ),
            InstanceStage::BackingOff => Reason::new(
                "BackingOff",
                format!("attempt {attempt} of instance {index} waits for its back-off"),
            ),
            InstanceStage::GivenBack => {
                let unknown = || {
                    Reason::new(
                        "WorkersUnschedulable",
                        format!("nothing could run on the partition of instance {index}"),
                    )
                };
                let why = instance
                    .memory
                    .unused_release_reason
                    .clone()
                    .unwrap_or_else(unknown);
                let message = format!("{}; it waits before it asks for another", why.message);
                Reason { message, ..why }.with("givenBack", instance.memory.unused_releases)
            }
            InstanceStage::Preparing => Reason::new(
                "PreparingPartition",
                format!("the partition of instance {index} is being made ready for attempt {attempt}"),
            ),
            InstanceStage::Starting(ready) => Reason::new(
                "StartingWorkers",
                format!("{ready} of {all} workers of instance {index} run"),
            )
            .with("ready", *ready)
            .with("workers", all),
            InstanceStage::Launching => Reason::new(
                "StartingLauncher",
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
                let why = self.status.conclusion.as_ref();
                format!(
                    "IPUJob {key} failed: {}",
                    why.map_or(first, |why| why.message.as_str())
                )
            }
            JobPhase::Terminating => format!("IPUJob {key} is being deleted"),
            JobPhase::Suspended => format!("IPUJob {key} is suspended"),
            JobPhase::Running => {
                let failed = self.reasons.iter().find(|reason| reason.code == FAILED_FOR_GOOD);
                failed.map_or_else(
                    || RECONCILED.to_string(),
                    |failed| format!("{RECONCILED}: {}", failed.message),
                )
            }
            JobPhase::Pending | JobPhase::Restarting => {
                let lacks = |instance: &&Instance<'a>| {
                    matches!(
                        instance.stage,
                        InstanceStage::InLine(_)
                            | InstanceStage::NotRequested
                            | InstanceStage::Preparing
                            | InstanceStage::GivenBack
                    )
                };
                let lacking = instances.iter().filter(lacks).count();
                if lacking == 0 && self.status.phase == JobPhase::Restarting {
                    return format!("IPUJob {key} restarts: {first}");
                }
                if lacking == 0 {
                    return format!("{RECONCILED}: {first}");
                }
                let why = instances.iter().find_map(|instance| match &instance.stage {
                    InstanceStage::InLine(reason) => Some(reason.message.clone()),
                    InstanceStage::GivenBack => self.reason_of(instance).map(|reason| reason.message),
                    InstanceStage::Judged
                    | InstanceStage::Stopping
                    | InstanceStage::Releasing
                    | InstanceStage::Gone
                    | InstanceStage::BackingOff
                    | InstanceStage::NotRequested
                    | InstanceStage::Preparing
                    | InstanceStage::Starting(_)
                    | InstanceStage::Launching
                    | InstanceStage::Running
                    | InstanceStage::Ended => None,
                });
                let repeated = NOT_READY.repeat(lacking.min(MAX_REPEATS));
                let not_requested = self.reasons.iter().find(|reason| reason.code == NOT_REQUESTED);
                let not_requested = not_requested.map(|reason| reason.message.clone());
                let said: Vec<String> = why.into_iter().chain(not_requested).collect();
                match said.is_empty() {
                    true => repeated,
                    false => format!("{repeated} {}", said.join("; ")),
                }
            }
        }
    }
}
