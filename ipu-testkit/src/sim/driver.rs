//! Driver: observe, plan, check, apply, record, requeue, with faults in between.

mod host;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    Effect, InstanceFacts, IpuPlace, JobSpec, Observation, PartitionFacts, PartitionId, Plan, Request,
    Timestamp, check_plan,
};
use ipu_ledger::{EnsureOutcome, Ledger, LedgerError, Owner, Pending, Released};

use super::PlanCheck;
use super::invariants::{
    invariant_a_reason_is_complete, invariant_every_plan_has_a_reason, invariant_plans_are_legal,
};
use super::late::deliver_late;
use super::processes::SimRole;
use super::store::SimStore;
use super::world::SimWorld;
use crate::fake::FakeController;

pub(super) type SimLedger = Ledger<FakeController, SimStore>;

/// Maximum interval between two checks of a running partition, in milliseconds.
const MAX_CHECK_INTERVAL_MS: u64 = 5_000;

/// Reconciliation of one job by one driver.
pub(super) struct JobDriver {
    pub(super) world: Arc<SimWorld>,
    pub(super) ledger: SimLedger,
    pub(super) driver: usize,
    pub(super) job: usize,
    pub(super) name: String,
}

/// Result of an effect: whether it changed anything, so that another reconciliation follows at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applied {
    Changed,
    Unchanged,
}

/// Outcome of a reconciliation.
enum ReconcileOutcome {
    Finalized,
    Changed,
    Requeue(Option<Duration>),
}

/// Reason for an incomplete reconciliation.
struct ReconcileAborted(String);

impl From<LedgerError> for ReconcileAborted {
    fn from(error: LedgerError) -> Self {
        Self(error.to_string())
    }
}

/// Observation of a driver at the beginning of a reconciliation.
struct ObservedJob {
    spec: JobSpec,
    observation: Observation,
}

impl JobDriver {
    /// Reconciles the job until it is finalized.
    pub(super) async fn drive(self) {
        let mut quiet = 0_u32;
        loop {
            if self.is_finished() {
                return;
            }
            let pause = match self.reconcile().await {
                Ok(ReconcileOutcome::Finalized) => return,
                Ok(ReconcileOutcome::Changed) => {
                    quiet = 0;
                    u64::from(self.world.below(40))
                }
                Ok(ReconcileOutcome::Requeue(wake)) => {
                    quiet = (quiet + 1).min(6);
                    self.requeue_delay(wake, quiet)
                }
                Err(ReconcileAborted(reason)) => {
                    self.world.log(&self.name, format_args!("aborts: {reason}"));
                    200 + u64::from(self.world.below(800))
                }
            };
            tokio::time::sleep(Duration::from_millis(pause.max(1))).await;
        }
    }

    fn is_finished(&self) -> bool {
        let state = self.world.state();
        state.jobs[self.job].removed || state.broken.is_some()
    }

    /// Returns the requeue delay: until the time in the plan, a process change, or the next check of the
    /// partition.
    fn requeue_delay(&self, wake: Option<Duration>, quiet: u32) -> u64 {
        let now = self.world.millis();
        let next_process_change = self
            .world
            .processes()
            .next_change(self.job, now)
            .map(|at| at - now);
        let planned = wake.map(|wake| u64::try_from(wake.as_millis()).unwrap_or(u64::MAX));
        let longest = (100_u64 << quiet).min(MAX_CHECK_INTERVAL_MS);
        // A wait for a controller or in the queue is polled with growing intervals; the plan's delay is at
        // most a second then.
        let planned = planned.map(|planned| {
            if planned == 1_000 {
                planned.max(longest)
            } else {
                planned
            }
        });
        next_process_change
            .unwrap_or(MAX_CHECK_INTERVAL_MS)
            .min(planned.unwrap_or(MAX_CHECK_INTERVAL_MS))
            .min(MAX_CHECK_INTERVAL_MS)
    }

    async fn crash(&self, reason: &str) -> ReconcileAborted {
        self.world.crash(self.driver, reason);
        std::future::pending().await
    }

    async fn reconcile(&self) -> Result<ReconcileOutcome, ReconcileAborted> {
        let observed = self.observe().await?;
        let plan = (self.world.options.planner)(&observed.spec, &observed.observation);
        self.check_plan_and_record(&observed, &plan)?;
        let mut changed = Applied::Unchanged;
        for effect in &plan.effects {
            if self.apply(&observed, effect).await? == Applied::Changed {
                changed = Applied::Changed;
            }
            self.world.check();
            if matches!(effect, Effect::Finalize) {
                return Ok(ReconcileOutcome::Finalized);
            }
        }
        self.record(&plan).await?;
        if changed == Applied::Changed || plan.status != observed.observation.status {
            return Ok(ReconcileOutcome::Changed);
        }
        Ok(ReconcileOutcome::Requeue(plan.requeue_after))
    }

    /// Checks the plan, counts its reasons, and passes it to the plan hook.
    fn check_plan_and_record(&self, observed: &ObservedJob, plan: &Plan) -> Result<(), ReconcileAborted> {
        let ObservedJob { spec, observation } = observed;
        if let Some(hook) = &self.world.options.on_plan {
            hook(spec, observation, plan);
        }
        let effects: Vec<_> = plan.effects.iter().map(effect_text).collect();
        let codes: Vec<String> = plan.reasons.iter().map(|reason| reason.code.clone()).collect();
        let changed = {
            let mut state = self.world.state();
            state.report.plans += 1;
            for code in &codes {
                *state.report.reasons.entry(code.clone()).or_default() += 1;
            }
            let job = &mut state.jobs[self.job];
            let changed = job.reasons != codes;
            job.reasons.clone_from(&codes);
            changed
        };
        if changed || !effects.is_empty() {
            let message = format!("plans {:?} because {}", effects, codes.join(", "));
            self.world.log(&self.name, message);
        }
        self.world
            .expect(invariant_every_plan_has_a_reason(self.job, plan));
        if self.world.options.plan_check == PlanCheck::Check {
            let found = check_plan(spec, observation, plan);
            self.world.expect(invariant_plans_are_legal(self.job, &found));
            if !found.is_empty() {
                return Err(ReconcileAborted("the plan is broken".into()));
            }
        }
        Ok(())
    }

    async fn observe(&self) -> Result<ObservedJob, ReconcileAborted> {
        let (spec, owner, mut observation) = {
            let state = self.world.state();
            let job = &state.jobs[self.job];
            let mut observation = Observation::for_new_job(Timestamp::from_millis(0));
            observation.submitted = job.submitted;
            observation.deleted = job.deleted;
            observation.status = job.status.clone();
            (job.spec.clone(), job.owner.clone(), observation)
        };
        let mut facts_by_index: BTreeMap<u32, InstanceFacts> = BTreeMap::new();
        let facts_of = |facts_by_index: &mut BTreeMap<u32, InstanceFacts>, index: u32| {
            facts_by_index
                .entry(index)
                .or_insert_with(|| InstanceFacts::empty(index));
        };
        (0..spec.instances()).for_each(|index| facts_of(&mut facts_by_index, index));
        let recorded = observation.status.instances.iter().map(|instance| instance.index);
        recorded.for_each(|index| facts_of(&mut facts_by_index, index));
        let entries = self.ledger.list().await?;
        for entry in entries
            .iter()
            .filter(|entry| entry.owner.as_ref() == Some(&owner))
        {
            facts_of(&mut facts_by_index, entry.instance);
        }
        for (index, facts) in &mut facts_by_index {
            let id = spec.partition_id(*index);
            if entries.iter().any(|entry| entry.id == id) {
                let recorded = observation.status.instance(*index);
                let attempt = recorded.map_or(0, |recorded| recorded.attempt);
                facts.partition = self.observe_partition(&id, &owner, attempt).await?;
                let preemption = self.ledger.preemption_of(&id).await?;
                facts.preempted = preemption.map(|preemption| preemption.reason());
            }
        }
        // The clock and the processes last: no await follows them.
        let now = self.world.millis();
        for (instance, role, process) in self.world.processes().facts(self.job, now) {
            let facts = facts_by_index
                .entry(instance)
                .or_insert_with(|| InstanceFacts::empty(instance));
            match role {
                SimRole::Launcher => facts.launcher = Some(process),
                SimRole::Worker(_) => facts.workers.push(process),
            }
        }
        observation.now = Timestamp::from_millis(now);
        let something = |facts: &InstanceFacts| *facts != InstanceFacts::empty(facts.index);
        observation.instances = facts_by_index.into_values().filter(something).collect();
        Ok(ObservedJob { spec, observation })
    }

    async fn observe_partition(
        &self,
        id: &PartitionId,
        owner: &Owner,
        recorded: u32,
    ) -> Result<PartitionFacts, ReconcileAborted> {
        let facts = self.ledger.observe(id).await?;
        match &facts {
            // A release in progress continues with every observation.
            PartitionFacts::Releasing => Ok(match self.ledger.release(id, owner, Some(recorded)).await? {
                Released::InProgress { .. } => PartitionFacts::Releasing,
                _ => PartitionFacts::Absent,
            }),
            PartitionFacts::Active {
                attempt, controller, ..
            } if *attempt == recorded => {
                self.world.check_grant(controller, id, self.job, *attempt);
                Ok(facts)
            }
            PartitionFacts::Waiting { reason, .. } => {
                self.world
                    .expect(invariant_a_reason_is_complete(self.job, reason));
                Ok(facts)
            }
            _ => Ok(facts),
        }
    }

    /// Applies an effect with an injected fault, if one is drawn.
    async fn apply(&self, observed: &ObservedJob, effect: &Effect) -> Result<Applied, ReconcileAborted> {
        let kind = kind_of(effect);
        let fault = self.world.draw_effect_fault(kind);
        let count = |fault| self.world.count_effect_fault(fault, kind);
        match fault {
            None => self.perform(observed, effect).await,
            Some(fault @ "crash before") => {
                count(fault);
                Err(self.crash(&format!("before {kind}")).await)
            }
            Some(fault @ "crash during") => {
                // Long enough for it to start, and mostly too short for it to end.
                let longest = match effect {
                    Effect::ResetPartition { .. } => 4,
                    _ if is_local(effect) => 2,
                    _ => 30,
                };
                let within = Duration::from_millis(u64::from(self.world.below(longest)));
                match tokio::time::timeout(within, self.perform(observed, effect)).await {
                    Ok(done) => done,
                    Err(_) => {
                        count(fault);
                        Err(self.crash(&format!("during {kind}")).await)
                    }
                }
            }
            Some(fault @ "crash after") => {
                self.perform(observed, effect).await?;
                count(fault);
                Err(self.crash(&format!("after {kind}")).await)
            }
            Some(fault @ "error") => {
                count(fault);
                Err(ReconcileAborted(format!("{kind} failed")))
            }
            Some(fault @ "lost reply") => {
                self.perform(observed, effect).await?;
                count(fault);
                Err(ReconcileAborted(format!("the reply to {kind} is lost")))
            }
            Some(fault @ "duplicate") => {
                self.perform(observed, effect).await?;
                count(fault);
                self.perform(observed, effect).await
            }
            Some(fault) => {
                count(fault);
                let pause = 100 + u64::from(self.world.below(4_000));
                tokio::time::sleep(Duration::from_millis(pause)).await;
                self.perform(observed, effect).await
            }
        }
    }

    async fn perform(&self, observed: &ObservedJob, effect: &Effect) -> Result<Applied, ReconcileAborted> {
        match effect {
            Effect::EnsurePartition {
                instance, attempt, ..
            } => self.ensure(observed, *instance, *attempt).await,
            Effect::ResetPartition {
                instance,
                attempt,
                partition,
            } => {
                let owner = self.world.state().jobs[self.job].owner.clone();
                let answer = self.ledger.reset(partition, &owner, *attempt).await?;
                Ok(self.record_answer(*instance, *attempt, &answer))
            }
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                partition,
            } => {
                self.start(
                    observed,
                    (*instance, SimRole::Worker(*worker)),
                    *attempt,
                    partition,
                )
                .await
            }
            Effect::StartLauncher {
                instance,
                attempt,
                partition,
            } => {
                self.start(observed, (*instance, SimRole::Launcher), *attempt, partition)
                    .await
            }
            Effect::StopWorker {
                instance,
                worker,
                attempt,
            } => Ok(self.stop((*instance, SimRole::Worker(*worker)), *attempt).await),
            Effect::StopLauncher { instance, attempt } => {
                Ok(self.stop((*instance, SimRole::Launcher), *attempt).await)
            }
            Effect::ReleasePartition {
                partition, attempt, ..
            } => {
                let owner = self.world.state().jobs[self.job].owner.clone();
                self.world.state().wanted.release(partition);
                match self.ledger.release(partition, &owner, Some(*attempt)).await? {
                    Released::InProgress { .. } => Ok(Applied::Unchanged),
                    _ => Ok(Applied::Changed),
                }
            }
            Effect::Finalize => {
                call().await;
                self.world.log(&self.name, "finalizes the job");
                self.world.state().jobs[self.job].removed = true;
                call().await;
                Ok(Applied::Changed)
            }
        }
    }

    async fn ensure(
        &self,
        observed: &ObservedJob,
        instance: u32,
        attempt: u32,
    ) -> Result<Applied, ReconcileAborted> {
        let request = {
            let state = self.world.state();
            let job = &state.jobs[self.job];
            let mut request =
                Request::of_instance(job.owner.clone(), instance, observed.spec.partition().clone());
            request.attempt = attempt;
            request.priority = observed.spec.priority();
            request.max_runtime = observed.spec.max_runtime();
            request.account = observed.spec.account().map(str::to_owned);
            request.preemptible = observed.spec.preemptible();
            request.holder.clone_from(&self.name);
            request.on_no_capacity = job.on_no_capacity;
            if instance == 0 && job.pins_ipus && !self.world.profile.refuses_ipus {
                let ipus = 0..observed.spec.ipus_per_instance().get();
                request.pin.ipus = ipus.map(|ipu| IpuPlace { link_domain: 0, ipu }).collect();
            }
            request
        };
        self.world.state().wanted.request(&request.id);
        if self.world.is_wild() && self.world.chance(self.world.profile.late_requests) {
            deliver_late(&self.world, request.clone());
            if self.world.chance(50) {
                return Err(ReconcileAborted("a request gets no reply".into()));
            }
        }
        let answer = self.ledger.ensure(request).await?;
        Ok(self.record_answer(instance, attempt, &answer))
    }

    fn record_answer(&self, instance: u32, attempt: u32, answer: &EnsureOutcome) -> Applied {
        match answer {
            EnsureOutcome::Active(grant) => {
                self.world
                    .check_grant(&grant.controller, &grant.id, self.job, attempt);
                let message = format!("is granted {} for attempt {}", grant.id, grant.attempt);
                self.world.log(&self.name, message);
                Applied::Changed
            }
            EnsureOutcome::Refused(waiting) => {
                self.world
                    .expect(invariant_a_reason_is_complete(self.job, &waiting.reason));
                let message = format!("does not queue instance {instance}: {}", waiting.reason);
                self.world.log(&self.name, message);
                self.world.count_event("rejected at once");
                let mut state = self.world.state();
                *state
                    .report
                    .reasons
                    .entry(waiting.reason.code.clone())
                    .or_default() += 1;
                state.jobs[self.job].deleted = true;
                Applied::Changed
            }
            EnsureOutcome::Waiting(waiting) => {
                self.world
                    .expect(invariant_a_reason_is_complete(self.job, &waiting.reason));
                Applied::Unchanged
            }
            EnsureOutcome::Pending(Pending::Failed { .. }) => Applied::Changed,
            _ => Applied::Unchanged,
        }
    }
}

/// Simulates a host call, during which the driver may crash.
async fn call() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

const fn is_local(effect: &Effect) -> bool {
    !matches!(
        effect,
        Effect::EnsurePartition { .. } | Effect::ResetPartition { .. } | Effect::ReleasePartition { .. }
    )
}

const fn kind_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::EnsurePartition { .. } => "EnsurePartition",
        Effect::ResetPartition { .. } => "ResetPartition",
        Effect::StartWorker { .. } => "StartWorker",
        Effect::StartLauncher { .. } => "StartLauncher",
        Effect::StopWorker { .. } => "StopWorker",
        Effect::StopLauncher { .. } => "StopLauncher",
        Effect::ReleasePartition { .. } => "ReleasePartition",
        Effect::Finalize => "Finalize",
    }
}

/// Returns a short description of an effect for the log.
fn effect_text(effect: &Effect) -> String {
    let kind = kind_of(effect);
    match effect {
        Effect::EnsurePartition {
            instance, attempt, ..
        }
        | Effect::ResetPartition {
            instance, attempt, ..
        }
        | Effect::StartLauncher {
            instance, attempt, ..
        }
        | Effect::StopLauncher { instance, attempt }
        | Effect::ReleasePartition {
            instance, attempt, ..
        } => format!("{kind} {instance}, attempt {attempt}"),
        Effect::StartWorker {
            instance,
            worker,
            attempt,
            ..
        }
        | Effect::StopWorker {
            instance,
            worker,
            attempt,
        } => {
            format!("{kind} {instance}/{worker}, attempt {attempt}")
        }
        _ => kind.to_owned(),
    }
}
