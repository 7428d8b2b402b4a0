//! In-memory model of one job without controller, ledger or processes. It rejects effects that would share a
//! device.

use std::time::Duration;

use ipu_core::job::{
    Effect, Exit, InstanceFacts, JobSpec, MissingProcess, Observation, PartitionFacts, Plan, ProcessFacts,
    ProcessPhase,
};
use ipu_core::{ControllerName, Reason, ReasonCode, Timestamp};

use ipu_testkit::job_from_dsl;

/// Observed state of one job, which effects and events change. Fast: a whole history takes microseconds.
#[derive(Clone, Debug)]
pub(crate) struct JobWorld {
    /// Current job spec.
    pub(crate) job: JobSpec,
    /// Current observation, including the status of the last reconciliation.
    pub(crate) observation: Observation,
    /// Whether capacity for another partition is available.
    pub(crate) capacity: CapacityState,
    /// Whether the job was finalized.
    pub(crate) finalized: bool,
    fields: Vec<String>,
}

/// Capacity for another partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CapacityState {
    /// Capacity is available.
    #[default]
    Free,
    /// No capacity: requests are queued.
    Full,
}

/// Role of a process of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessRole {
    /// Worker with this index.
    Worker(u32),
    /// Launcher.
    Launcher,
}

impl JobWorld {
    /// Creates the model of a new job in the job DSL ([`ipu_testkit::raw_job_from_dsl`]).
    pub(crate) fn new<W: Into<String>>(fields: impl IntoIterator<Item = W>) -> Result<Self, String> {
        let fields: Vec<String> = fields.into_iter().map(Into::into).collect();
        Ok(Self {
            job: job_from_dsl(fields.iter().map(String::as_str))?,
            observation: Observation::for_new_job(Timestamp::from_millis(0)),
            capacity: CapacityState::Free,
            finalized: false,
            fields,
        })
    }

    /// Returns the fields of the job.
    pub(crate) fn text(&self) -> &[String] {
        &self.fields
    }

    /// Edits the job as its owner would: appends fields to its description.
    pub(crate) fn change<'a>(&mut self, fields: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        let mut all = self.fields.clone();
        all.extend(fields.into_iter().map(String::from));
        self.job = job_from_dsl(all.iter().map(String::as_str))?;
        self.fields = all;
        Ok(())
    }

    /// Applies the effects of `plan`, in order, and records its status.
    pub(crate) fn reconcile(&mut self, plan: &Plan) -> Result<(), String> {
        plan.effects.iter().try_for_each(|effect| self.apply(effect))?;
        self.observation.status = plan.status.clone();
        Ok(())
    }

    /// Advances time.
    pub(crate) fn after(&mut self, time: Duration) {
        self.observation.now = self.observation.now.plus(time);
    }

    /// Returns the facts about instance `index`; it is reported from now on, even without resources.
    pub(crate) fn instance(&mut self, index: u32) -> &mut InstanceFacts {
        let instances = &mut self.observation.instances;
        let at = instances.partition_point(|facts| facts.index < index);
        if instances.get(at).is_none_or(|facts| facts.index != index) {
            instances.insert(at, InstanceFacts::empty(index));
        }
        &mut instances[at]
    }

    /// Returns the facts about a process, if it exists.
    pub(crate) fn process(&mut self, instance: u32, role: ProcessRole) -> Option<&mut ProcessFacts> {
        let facts = self.instance(instance);
        match role {
            ProcessRole::Launcher => facts.launcher.as_mut(),
            ProcessRole::Worker(number) => facts.workers.iter_mut().find(|worker| worker.index == number),
        }
    }

    /// Removes a process without a trace.
    pub(crate) fn delete_process(&mut self, instance: u32, role: ProcessRole) {
        let facts = self.instance(instance);
        match role {
            ProcessRole::Launcher => facts.launcher = None,
            ProcessRole::Worker(number) => facts.workers.retain(|worker| worker.index != number),
        }
    }

    /// Deletes a process by a third party; it is reported as missing before its end.
    pub(crate) fn disrupt(&mut self, instance: u32, role: ProcessRole) {
        let process = self
            .process(instance, role)
            .filter(|process| process.phase.is_alive());
        let missing = process.map(|process| MissingProcess {
            worker: (role != ProcessRole::Launcher).then_some(process.index),
            attempt: process.attempt,
        });
        self.instance(instance).missing.extend(missing);
        self.delete_process(instance, role);
    }

    /// Ends a process by itself, if it is starting or running.
    pub(crate) fn exits(&mut self, instance: u32, role: ProcessRole, code: u8) {
        let at = self.observation.now;
        if let Some(process) = self.process(instance, role)
            && matches!(
                process.phase,
                ProcessPhase::Starting { .. } | ProcessPhase::Running { .. }
            )
        {
            process.phase = ProcessPhase::Exited {
                exit: Exit::Code(code),
                at,
                last_lines: String::new(),
                cause: String::new(),
            };
        }
    }

    /// Applies an effect.
    pub(crate) fn apply(&mut self, effect: &Effect) -> Result<(), String> {
        match effect {
            Effect::EnsurePartition {
                instance, attempt, ..
            } => return self.ensure(*instance, *attempt, effect),
            Effect::ResetPartition {
                instance, attempt, ..
            } => {
                let facts = self.instance(*instance);
                check_unused(facts, effect)?;
                facts.partition = PartitionFacts::Pending { attempt: *attempt };
            }
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                ..
            } => return self.start(*instance, ProcessRole::Worker(*worker), *attempt, effect),
            Effect::StartLauncher {
                instance, attempt, ..
            } => return self.start(*instance, ProcessRole::Launcher, *attempt, effect),
            Effect::StopWorker { instance, worker, .. } => self.stop(*instance, ProcessRole::Worker(*worker)),
            Effect::StopLauncher { instance, .. } => self.stop(*instance, ProcessRole::Launcher),
            Effect::ReleasePartition { instance, .. } => {
                let facts = self.instance(*instance);
                check_unused(facts, effect)?;
                facts.partition = match facts.partition {
                    PartitionFacts::Absent | PartitionFacts::Waiting { .. } => PartitionFacts::Absent,
                    _ => PartitionFacts::Releasing,
                };
                facts.preempted = None;
            }
            Effect::Finalize => self.finalized = true,
        }
        Ok(())
    }

    fn ensure(&mut self, instance: u32, attempt: u32, effect: &Effect) -> Result<(), String> {
        let capacity = self.capacity;
        let facts = self.instance(instance);
        let made = PartitionFacts::Pending { attempt };
        facts.partition = match &facts.partition {
            PartitionFacts::Absent | PartitionFacts::Waiting { .. } if capacity == CapacityState::Full => {
                PartitionFacts::Waiting {
                    reason: Reason::new(ReasonCode::NotEnoughFree, "4 IPUs are requested and 2 are free"),
                    attempt,
                }
            }
            PartitionFacts::Active {
                attempt: made_for, ..
            } if *made_for == attempt => return Ok(()),
            PartitionFacts::Releasing => return Ok(()),
            PartitionFacts::Absent | PartitionFacts::Waiting { .. } => made,
            _ => {
                check_unused(facts, effect)?;
                made
            }
        };
        Ok(())
    }

    fn start(
        &mut self,
        instance: u32,
        role: ProcessRole,
        attempt: u32,
        effect: &Effect,
    ) -> Result<(), String> {
        let since = self.observation.now;
        let facts = self.instance(instance);
        let fresh = matches!(facts.partition, PartitionFacts::Active { attempt: made_for, .. } if made_for == attempt);
        if !fresh {
            return Err(format!("{effect:?} while the partition is {:?}", facts.partition));
        }
        let index = match role {
            ProcessRole::Worker(number) => number,
            ProcessRole::Launcher => 0,
        };
        let process = ProcessFacts {
            index,
            attempt,
            phase: ProcessPhase::Starting {
                since,
                cause: String::new(),
            },
        };
        match role {
            ProcessRole::Worker(_) if facts.workers.iter().any(|facts| facts.index == index) => {}
            ProcessRole::Worker(_) => facts.workers.push(process),
            ProcessRole::Launcher if facts.launcher.is_some() => {}
            ProcessRole::Launcher => facts.launcher = Some(process),
        }
        Ok(())
    }

    fn stop(&mut self, instance: u32, role: ProcessRole) {
        match self.process(instance, role) {
            Some(process) if process.phase.is_alive() => process.phase = ProcessPhase::Stopping,
            _ => self.delete_process(instance, role),
        }
    }

    /// Completes partition operations in progress; processes do not change.
    pub(crate) fn partitions_progress(&mut self) {
        let since = self.observation.now;
        for facts in &mut self.observation.instances {
            match &facts.partition {
                PartitionFacts::Pending { attempt } => {
                    facts.partition = PartitionFacts::Active {
                        attempt: *attempt,
                        since,
                        controller: ControllerName::new("vipu:8090").expect("a valid controller name"),
                    };
                }
                PartitionFacts::Releasing => facts.partition = PartitionFacts::Absent,
                _ => {}
            }
        }
    }

    /// Completes operations in progress: partitions become active or are deleted, processes run or are
    /// deleted.
    pub(crate) fn progress(&mut self) {
        let since = self.observation.now;
        self.partitions_progress();
        for facts in &mut self.observation.instances {
            for process in facts.workers.iter_mut().chain(&mut facts.launcher) {
                if matches!(process.phase, ProcessPhase::Starting { .. }) {
                    process.phase = ProcessPhase::Running { since };
                }
            }
            facts
                .workers
                .retain(|worker| worker.phase != ProcessPhase::Stopping);
            facts
                .launcher
                .take_if(|launcher| launcher.phase == ProcessPhase::Stopping);
        }
    }

    /// Returns whether nothing exists of the job.
    pub(crate) fn is_empty(&self) -> bool {
        let mut instances = self.observation.instances.iter();
        instances.all(|facts| {
            // Missing processes do not exist.
            let left = InstanceFacts {
                missing: Vec::new(),
                ..facts.clone()
            };
            left == InstanceFacts::empty(facts.index)
        })
    }
}

fn check_unused(facts: &InstanceFacts, effect: &Effect) -> Result<(), String> {
    let mut processes = facts.workers.iter().chain(&facts.launcher);
    if processes.any(|process| process.phase.is_alive()) {
        return Err(format!("{effect:?} while processes of the instance are alive"));
    }
    Ok(())
}
