//! What a driver does at its host: processes that are started and stopped, and the record that is written.

use std::time::Duration;

use ipu_core::{PartitionFacts, PartitionId, Plan};

use super::super::profile::primary;
use super::{Applied, JobDriver, ObservedJob, PassAborted, call};
use crate::sim::processes::{Purpose, SimRole, StartProcess};
use crate::sim::world::User;

impl JobDriver {
    /// Starts a process, if the record still wants it: what a host has to ask before it starts anything for a scheduler.
    pub(super) async fn start(
        &self,
        seen: &ObservedJob,
        (instance, role): (u32, SimRole),
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Applied, PassAborted> {
        call().await;
        let step = self.start_now(seen, (instance, role), attempt, partition);
        call().await;
        step
    }

    fn start_now(
        &self,
        seen: &ObservedJob,
        (instance, role): (u32, SimRole),
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Applied, PassAborted> {
        let facts = seen
            .observation
            .instances
            .iter()
            .find(|facts| facts.index == instance);
        let controller = match facts.map(|facts| &facts.partition) {
            Some(PartitionFacts::Active { controller, .. }) => primary(controller),
            _ => self.world.controllers[0].0.clone(),
        };
        {
            let state = self.world.state();
            let job = &state.jobs[self.job];
            let recorded = job
                .status
                .instance(instance)
                .map_or(0, |instance| instance.attempt);
            if job.gone || job.deleted || recorded > attempt {
                return Err(PassAborted(
                    "the record does not want the process any more".into(),
                ));
            }
        }
        let now = self.world.millis();
        self.world.check_grant(&controller, partition, self.job, attempt);
        let held = self
            .world
            .controller(&controller)
            .and_then(|fake| fake.held().into_iter().find(|held| held.id == *partition));
        let (generation, ipus) = held.map(|held| (held.generation, held.masks)).unzip();
        let serves = !matches!(seen.spec.shape(), ipu_core::JobKind::Workers) && role != SimRole::Launcher
            || matches!(seen.spec.shape(), ipu_core::JobKind::Interactive { .. });
        let which = (self.job, instance, role);
        let start = StartProcess {
            which,
            attempt,
            partition: partition.clone(),
            controller: controller.clone(),
            // A process whose partition is not there uses nothing: it ends soon.
            ipus: ipus.unwrap_or_default(),
            purpose: if serves { Purpose::Serve } else { Purpose::Work },
        };
        let mut processes = self.world.processes();
        let mut state = self.world.state();
        let manners = state.manners;
        let started = processes.start(start, manners, now, &mut state.random);
        if started && let Some(generation) = generation {
            let user = User {
                generation,
                job: self.job,
                attempt,
            };
            state.users.insert((controller, partition.clone()), user);
        } else if started {
            processes.end_soon(which, now);
        }
        drop((state, processes));
        if started {
            self.world.say(
                &self.name,
                format_args!("starts {role:?} of instance {instance}, attempt {attempt}"),
            );
        }
        self.world.check();
        Ok(if started { Applied::Moved } else { Applied::Same })
    }

    pub(super) async fn stop(&self, (instance, role): (u32, SimRole), attempt: u32) -> Applied {
        call().await;
        let now = self.world.millis();
        let stopped = {
            let mut processes = self.world.processes();
            let mut state = self.world.state();
            let manners = state.manners;
            let which = (self.job, instance, role);
            processes.stop(which, Some(attempt), manners, now, &mut state.random)
        };
        if stopped {
            self.world.say(
                &self.name,
                format_args!("stops {role:?} of instance {instance}, attempt {attempt}"),
            );
        }
        call().await;
        if stopped { Applied::Moved } else { Applied::Same }
    }

    /// Writes the status down.
    pub(super) async fn record(&self, plan: &Plan) -> Result<(), PassAborted> {
        const KIND: &str = "Record";
        let fault = self.world.draw_effect_fault(KIND);
        let count = |fault| self.world.count_effect_fault(fault, KIND);
        let write = || {
            let mut state = self.world.state();
            let finished = plan.status.phase.is_finished();
            let job = &mut state.jobs[self.job];
            let newly = finished && !job.status.phase.is_finished();
            job.status.clone_from(&plan.status);
            state.report.finished += u64::from(newly);
        };
        match fault {
            None => write(),
            Some(fault @ ("crash before" | "crash during")) => {
                count(fault);
                return Err(self.crash("before it records").await);
            }
            Some(fault @ "crash after") => {
                write();
                count(fault);
                return Err(self.crash("after it recorded").await);
            }
            Some(fault @ "error") => {
                count(fault);
                return Err(PassAborted("the write of the status is lost".into()));
            }
            Some(fault @ "lost reply") => {
                write();
                count(fault);
                return Err(PassAborted("the reply to the write of the status is lost".into()));
            }
            Some(fault @ "duplicate") => {
                write();
                write();
                count(fault);
            }
            Some(fault) => {
                count(fault);
                let pause = 100 + u64::from(self.world.below(4_000));
                tokio::time::sleep(Duration::from_millis(pause)).await;
                write();
            }
        }
        Ok(())
    }
}
