//! Host operations of a driver: it starts and stops processes, and records the status.

use std::time::Duration;

use ipu_core::{PartitionFacts, PartitionId, Plan};

use super::super::profile::primary;
use super::{Applied, JobDriver, ObservedJob, ReconcileAborted, call};
use crate::sim::processes::{Purpose, SimRole, StartProcess};
use crate::sim::world::User;

impl JobDriver {
    /// Starts a process, if the recorded status still requires it: a host must check this before it starts a
    /// process.
    pub(super) async fn start(
        &self,
        observed: &ObservedJob,
        (instance, role): (u32, SimRole),
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Applied, ReconcileAborted> {
        call().await;
        let step = self.start_now(observed, (instance, role), attempt, partition);
        call().await;
        step
    }

    fn start_now(
        &self,
        observed: &ObservedJob,
        (instance, role): (u32, SimRole),
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Applied, ReconcileAborted> {
        let facts = observed
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
            if job.removed || job.deleted || recorded > attempt {
                return Err(ReconcileAborted(
                    "the recorded status no longer requires the process".into(),
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
        let serves = !matches!(observed.spec.shape(), ipu_core::JobKind::Workers)
            && role != SimRole::Launcher
            || matches!(observed.spec.shape(), ipu_core::JobKind::Interactive { .. });
        let which = (self.job, instance, role);
        let start = StartProcess {
            which,
            attempt,
            partition: partition.clone(),
            controller: controller.clone(),
            // A process without an existing partition uses nothing: it ends soon.
            ipus: ipus.unwrap_or_default(),
            purpose: if serves { Purpose::Serve } else { Purpose::Work },
        };
        let mut processes = self.world.processes();
        let mut state = self.world.state();
        let behaviour = state.behaviour;
        let started = processes.start(start, behaviour, now, &mut state.random);
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
            self.world.log(
                &self.name,
                format_args!("starts {role:?} of instance {instance}, attempt {attempt}"),
            );
        }
        self.world.check();
        Ok(if started {
            Applied::Changed
        } else {
            Applied::Unchanged
        })
    }

    pub(super) async fn stop(&self, (instance, role): (u32, SimRole), attempt: u32) -> Applied {
        call().await;
        let now = self.world.millis();
        let stopped = {
            let mut processes = self.world.processes();
            let mut state = self.world.state();
            let behaviour = state.behaviour;
            let which = (self.job, instance, role);
            processes.stop(which, Some(attempt), behaviour, now, &mut state.random)
        };
        if stopped {
            self.world.log(
                &self.name,
                format_args!("stops {role:?} of instance {instance}, attempt {attempt}"),
            );
        }
        call().await;
        if stopped {
            Applied::Changed
        } else {
            Applied::Unchanged
        }
    }

    /// Records the status.
    pub(super) async fn record(&self, plan: &Plan) -> Result<(), ReconcileAborted> {
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
                return Err(ReconcileAborted("the write of the status is lost".into()));
            }
            Some(fault @ "lost reply") => {
                write();
                count(fault);
                return Err(ReconcileAborted(
                    "the reply to the write of the status is lost".into(),
                ));
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
