//! A world without processes and partitions: facts that effects and events change. It refuses what would share a device.

use std::time::Duration;

use ipu_core::{
    ControllerName, Effect, Exit, InstanceFacts, JobSpec, Observation, PartitionFacts, Plan, ProcessFacts,
    ProcessPhase, Reason, Timestamp, check_plan, plan,
};

pub(crate) struct World {
    pub(crate) job: JobSpec,
    pub(crate) seen: Observation,
    /// Whether the Pod has no room for another partition.
    pub(crate) full: bool,
    pub(crate) finalized: bool,
}

/// A process of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Worker(u32),
    Launcher,
}

impl World {
    pub(crate) fn new(job: JobSpec) -> Self {
        Self {
            job,
            seen: Observation::of_new_job(Timestamp::from_millis(0)),
            full: false,
            finalized: false,
        }
    }

    /// The plan for what is there, checked.
    pub(crate) fn plan(&self) -> Plan {
        let plan = plan(&self.job, &self.seen);
        assert_eq!(
            check_plan(&self.job, &self.seen, &plan),
            [],
            "{:#?}\n{plan:#?}",
            self.seen
        );
        plan
    }

    /// One whole pass.
    pub(crate) fn pass(&mut self) -> Plan {
        let plan = self.plan();
        plan.effects.iter().for_each(|effect| self.apply(effect));
        self.seen.status = plan.status.clone();
        plan
    }

    pub(crate) fn after(&mut self, time: Duration) {
        self.seen.now = self.seen.now.plus(time);
    }

    pub(crate) fn instance(&mut self, index: u32) -> &mut InstanceFacts {
        let at = self.seen.instances.iter().position(|known| known.index >= index);
        let at = at.unwrap_or(self.seen.instances.len());
        if self
            .seen
            .instances
            .get(at)
            .is_none_or(|known| known.index != index)
        {
            self.seen.instances.insert(at, InstanceFacts::nothing(index));
        }
        &mut self.seen.instances[at]
    }

    pub(crate) fn process(&mut self, instance: u32, who: Who) -> Option<&mut ProcessFacts> {
        let facts = self.instance(instance);
        match who {
            Who::Launcher => facts.launcher.as_mut(),
            Who::Worker(number) => facts.workers.iter_mut().find(|worker| worker.index == number),
        }
    }

    pub(crate) fn forget(&mut self, instance: u32, who: Who) {
        let facts = self.instance(instance);
        match who {
            Who::Launcher => facts.launcher = None,
            Who::Worker(number) => facts.workers.retain(|worker| worker.index != number),
        }
    }

    pub(crate) fn exits(&mut self, instance: u32, who: Who, code: u8) {
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
            };
        }
    }

    pub(crate) fn apply(&mut self, effect: &Effect) {
        let full = self.full;
        let since = self.seen.now;
        match effect {
            Effect::EnsurePartition {
                instance, attempt, ..
            } => {
                let facts = self.instance(*instance);
                let made = PartitionFacts::Pending { attempt: *attempt };
                facts.partition = match &facts.partition {
                    PartitionFacts::Absent | PartitionFacts::Waiting { .. } if full => {
                        PartitionFacts::Waiting {
                            reason: Reason::new("NotEnoughFree", "4 IPUs are asked for and 2 are free"),
                        }
                    }
                    active @ PartitionFacts::Active {
                        attempt: made_for, ..
                    } if made_for == attempt => active.clone(),
                    PartitionFacts::Releasing => PartitionFacts::Releasing,
                    PartitionFacts::Absent | PartitionFacts::Waiting { .. } => made,
                    _ => {
                        assert_unused(facts, effect);
                        made
                    }
                };
            }
            Effect::ResetPartition {
                instance, attempt, ..
            } => {
                let facts = self.instance(*instance);
                assert_unused(facts, effect);
                facts.partition = PartitionFacts::Pending { attempt: *attempt };
            }
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                ..
            } => self.start(*instance, Who::Worker(*worker), *attempt, effect),
            Effect::StartLauncher {
                instance, attempt, ..
            } => {
                self.start(*instance, Who::Launcher, *attempt, effect);
            }
            Effect::StopWorker { instance, worker, .. } => self.stop(*instance, Who::Worker(*worker)),
            Effect::StopLauncher { instance, .. } => self.stop(*instance, Who::Launcher),
            Effect::ReleasePartition { instance, .. } => {
                let facts = self.instance(*instance);
                assert_unused(facts, effect);
                facts.partition = match facts.partition {
                    PartitionFacts::Absent | PartitionFacts::Waiting { .. } => PartitionFacts::Absent,
                    _ => PartitionFacts::Releasing,
                };
            }
            Effect::Finalize => self.finalized = true,
            other => panic!("an effect that this world does not know, at {since:?}: {other:?}"),
        }
    }

    fn start(&mut self, instance: u32, who: Who, attempt: u32, effect: &Effect) {
        let since = self.seen.now;
        let facts = self.instance(instance);
        let fresh = matches!(facts.partition, PartitionFacts::Active { attempt: made_for, .. } if made_for == attempt);
        assert!(fresh, "{effect:?} on {:?}", facts.partition);
        let index = match who {
            Who::Worker(number) => number,
            Who::Launcher => 0,
        };
        let process = ProcessFacts {
            index,
            attempt,
            phase: ProcessPhase::Starting { since },
        };
        match who {
            Who::Worker(_) if facts.workers.iter().any(|known| known.index == index) => {}
            Who::Worker(_) => facts.workers.push(process),
            Who::Launcher if facts.launcher.is_some() => {}
            Who::Launcher => facts.launcher = Some(process),
        }
    }

    fn stop(&mut self, instance: u32, who: Who) {
        match self.process(instance, who) {
            Some(process) if process.phase.is_alive() => process.phase = ProcessPhase::Stopping,
            _ => self.forget(instance, who),
        }
    }

    /// Partitions under way are there, or gone.
    pub(crate) fn partitions_progress(&mut self) {
        let since = self.seen.now;
        for facts in &mut self.seen.instances {
            match &facts.partition {
                PartitionFacts::Pending { attempt } => {
                    let attempt = *attempt;
                    let controller = ControllerName::new("vipu:8090").unwrap();
                    facts.partition = PartitionFacts::Active {
                        attempt,
                        since,
                        controller,
                    };
                }
                PartitionFacts::Releasing => facts.partition = PartitionFacts::Absent,
                _ => {}
            }
        }
    }

    /// What is under way of itself comes to its end; says whether anything changed.
    pub(crate) fn progress(&mut self) -> bool {
        let since = self.seen.now;
        let before = self.seen.clone();
        self.partitions_progress();
        for facts in &mut self.seen.instances {
            let processes = facts.workers.iter_mut().chain(&mut facts.launcher);
            for process in processes.filter(|process| matches!(process.phase, ProcessPhase::Starting { .. }))
            {
                process.phase = ProcessPhase::Running { since };
            }
            facts
                .workers
                .retain(|worker| worker.phase != ProcessPhase::Stopping);
            facts
                .launcher
                .take_if(|launcher| launcher.phase == ProcessPhase::Stopping);
        }
        before != self.seen
    }
}

fn assert_unused(facts: &InstanceFacts, effect: &Effect) {
    let used = facts
        .workers
        .iter()
        .chain(&facts.launcher)
        .any(|process| process.phase.is_alive());
    assert!(!used, "{effect:?} under {facts:?}");
}
