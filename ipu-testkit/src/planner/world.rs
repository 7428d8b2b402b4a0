//! A world of facts about one job: no controller, no ledger, no processes. It refuses what would share a device.

use std::time::Duration;

use ipu_core::{
    ControllerName, Effect, Exit, InstanceFacts, JobSpec, MissingProcess, Observation, PartitionFacts, Plan,
    ProcessFacts, ProcessPhase, Reason, Timestamp,
};

use super::job_dsl::job_from_dsl;

/// The facts about one job, which effects and happenings change. Fast: a whole life takes microseconds.
///
/// ```
/// use ipu_core::{JobPhase, plan};
/// use ipu_testkit::{JobWorld, Who};
///
/// let mut world = JobWorld::new(["workers=2"])?;
/// for _ in 0..4 {
///     let plan = plan(&world.job, &world.seen);
///     world.pass(&plan).expect("nothing is shared");
///     world.progress();
/// }
/// assert_eq!(world.seen.status.phase, JobPhase::Running);
/// assert!(world.process(0, Who::Worker(1)).is_some());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobWorld {
    /// The job, as its owner wants it now.
    pub job: JobSpec,
    /// What is observed of it now, the record of the last pass included.
    pub seen: Observation,
    /// Whether there is room for another partition.
    pub capacity: CapacityState,
    /// Whether the job was let go of.
    pub finalized: bool,
    words: Vec<String>,
}

/// Whether the Pod has room for another partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapacityState {
    /// It has.
    #[default]
    Free,
    /// It has not: who asks waits.
    Full,
}

/// A process of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// The worker of this number.
    Worker(u32),
    /// The launcher.
    Launcher,
}

/// An effect that no adapter could apply without sharing a device, or at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SafetyViolation {
    /// A partition is made, reset or released under a process that is alive.
    #[error("{effect:?} while processes of the instance are alive")]
    UnderProcesses {
        /// The effect.
        effect: Box<Effect>,
    },
    /// A process starts without a partition that is fresh for its attempt.
    #[error("{effect:?} while the partition is {partition:?}")]
    WithoutPartition {
        /// The effect.
        effect: Box<Effect>,
        /// What is known of the partition.
        partition: Box<PartitionFacts>,
    },
    /// An effect that this world does not know.
    #[error("{effect:?} is an effect that this world does not know")]
    Unknown {
        /// The effect.
        effect: Box<Effect>,
    },
}

impl JobWorld {
    /// The world of a new job, described by words ([`raw_job_from_words`](crate::raw_job_from_words)).
    ///
    /// # Errors
    ///
    /// What is wrong with the words, or with the job.
    pub fn new<W: Into<String>>(words: impl IntoIterator<Item = W>) -> Result<Self, String> {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        Ok(Self {
            job: job_from_dsl(words.iter().map(String::as_str))?,
            seen: Observation::for_new_job(Timestamp::from_millis(0)),
            capacity: CapacityState::Free,
            finalized: false,
            words,
        })
    }

    /// The words that describe the job.
    #[must_use]
    pub fn text(&self) -> &[String] {
        &self.words
    }

    /// Edits the job as its owner would: the words are added to those that describe it.
    ///
    /// # Errors
    ///
    /// What is wrong with the words, or with the job; then nothing has changed.
    pub fn change<'a>(&mut self, words: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        let mut all = self.words.clone();
        all.extend(words.into_iter().map(String::from));
        self.job = job_from_dsl(all.iter().map(String::as_str))?;
        self.words = all;
        Ok(())
    }

    /// One whole pass: applies the effects of `plan`, in order, and records its status.
    ///
    /// # Errors
    ///
    /// The first effect that is refused; those before it are applied, and nothing is recorded.
    pub fn reconcile(&mut self, plan: &Plan) -> Result<(), SafetyViolation> {
        plan.effects.iter().try_for_each(|effect| self.apply(effect))?;
        self.seen.status = plan.status.clone();
        Ok(())
    }

    /// Time passes.
    pub fn after(&mut self, time: Duration) {
        self.seen.now = self.seen.now.plus(time);
    }

    /// What exists of instance `index`; from now on it is reported, with nothing if it had nothing.
    pub fn instance(&mut self, index: u32) -> &mut InstanceFacts {
        let instances = &mut self.seen.instances;
        let at = instances.partition_point(|known| known.index < index);
        if instances.get(at).is_none_or(|known| known.index != index) {
            instances.insert(at, InstanceFacts::empty(index));
        }
        &mut instances[at]
    }

    /// What is known of a process, if it exists.
    pub fn process(&mut self, instance: u32, who: ProcessRole) -> Option<&mut ProcessFacts> {
        let facts = self.instance(instance);
        match who {
            ProcessRole::Launcher => facts.launcher.as_mut(),
            ProcessRole::Worker(number) => facts.workers.iter_mut().find(|worker| worker.index == number),
        }
    }

    /// A process vanishes without a trace.
    pub fn forget(&mut self, instance: u32, who: ProcessRole) {
        let facts = self.instance(instance);
        match who {
            ProcessRole::Launcher => facts.launcher = None,
            ProcessRole::Worker(number) => facts.workers.retain(|worker| worker.index != number),
        }
    }

    /// Others take a process away. That it had not ended is known of it from now on.
    pub fn reserve(&mut self, instance: u32, who: ProcessRole) {
        let process = self
            .process(instance, who)
            .filter(|process| process.phase.is_alive());
        let gone = process.map(|process| MissingProcess {
            worker: (who != ProcessRole::Launcher).then_some(process.index),
            attempt: process.attempt,
        });
        self.instance(instance).missing.extend(gone);
        self.forget(instance, who);
    }

    /// A process ends by itself, if it is starting or running.
    pub fn exits(&mut self, instance: u32, who: ProcessRole, code: u8) {
        let at = self.seen.now;
        if let Some(process) = self.process(instance, who)
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

    /// Does what an effect says.
    ///
    /// # Errors
    ///
    /// The effect, if it would share a device; then nothing has changed.
    pub fn apply(&mut self, effect: &Effect) -> Result<(), SafetyViolation> {
        match effect {
            Effect::EnsurePartition {
                instance, attempt, ..
            } => return self.ensure(*instance, *attempt, effect),
            Effect::ResetPartition {
                instance, attempt, ..
            } => {
                let facts = self.instance(*instance);
                unused(facts, effect)?;
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
                unused(facts, effect)?;
                facts.partition = match facts.partition {
                    PartitionFacts::Absent | PartitionFacts::Waiting { .. } => PartitionFacts::Absent,
                    _ => PartitionFacts::Releasing,
                };
            }
            Effect::Finalize => self.finalized = true,
            effect => {
                let effect = Box::new(effect.clone());
                return Err(SafetyViolation::Unknown { effect });
            }
        }
        Ok(())
    }

    fn ensure(&mut self, instance: u32, attempt: u32, effect: &Effect) -> Result<(), SafetyViolation> {
        let room = self.capacity;
        let facts = self.instance(instance);
        let made = PartitionFacts::Pending { attempt };
        facts.partition = match &facts.partition {
            PartitionFacts::Absent | PartitionFacts::Waiting { .. } if room == CapacityState::Full => {
                PartitionFacts::Waiting {
                    reason: Reason::new("NotEnoughFree", "4 IPUs are asked for and 2 are free"),
                    attempt,
                }
            }
            PartitionFacts::Active {
                attempt: made_for, ..
            } if *made_for == attempt => return Ok(()),
            PartitionFacts::Releasing => return Ok(()),
            PartitionFacts::Absent | PartitionFacts::Waiting { .. } => made,
            _ => {
                unused(facts, effect)?;
                made
            }
        };
        Ok(())
    }

    fn start(
        &mut self,
        instance: u32,
        who: ProcessRole,
        attempt: u32,
        effect: &Effect,
    ) -> Result<(), SafetyViolation> {
        let since = self.seen.now;
        let facts = self.instance(instance);
        let fresh = matches!(facts.partition, PartitionFacts::Active { attempt: made_for, .. } if made_for == attempt);
        if !fresh {
            return Err(SafetyViolation::WithoutPartition {
                effect: Box::new(effect.clone()),
                partition: Box::new(facts.partition.clone()),
            });
        }
        let index = match who {
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
        match who {
            ProcessRole::Worker(_) if facts.workers.iter().any(|known| known.index == index) => {}
            ProcessRole::Worker(_) => facts.workers.push(process),
            ProcessRole::Launcher if facts.launcher.is_some() => {}
            ProcessRole::Launcher => facts.launcher = Some(process),
        }
        Ok(())
    }

    fn stop(&mut self, instance: u32, who: ProcessRole) {
        match self.process(instance, who) {
            Some(process) if process.phase.is_alive() => process.phase = ProcessPhase::Stopping,
            _ => self.forget(instance, who),
        }
    }

    /// Partitions under way are there, or gone; processes are left alone.
    pub fn partitions_progress(&mut self) {
        let since = self.seen.now;
        for facts in &mut self.seen.instances {
            match &facts.partition {
                PartitionFacts::Pending { attempt } => {
                    facts.partition = PartitionFacts::Active {
                        attempt: *attempt,
                        since,
                        controller: ControllerName::new("vipu:8090").expect("this is a controller's name"),
                    };
                }
                PartitionFacts::Releasing => facts.partition = PartitionFacts::Absent,
                _ => {}
            }
        }
    }

    /// What is under way comes to its end: partitions are there or gone, processes run or are gone.
    pub fn progress(&mut self) {
        let since = self.seen.now;
        self.partitions_progress();
        for facts in &mut self.seen.instances {
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

    /// Whether nothing exists of the job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut instances = self.seen.instances.iter();
        instances.all(|facts| {
            // What was taken away is not there.
            let left = InstanceFacts {
                missing: Vec::new(),
                ..facts.clone()
            };
            left == InstanceFacts::empty(facts.index)
        })
    }
}

fn unused(facts: &InstanceFacts, effect: &Effect) -> Result<(), SafetyViolation> {
    let mut processes = facts.workers.iter().chain(&facts.launcher);
    if processes.any(|process| process.phase.is_alive()) {
        let effect = Box::new(effect.clone());
        return Err(SafetyViolation::UnderProcesses { effect });
    }
    Ok(())
}
