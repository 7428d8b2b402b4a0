//! A driver: observe, plan, check, apply, record, wake, with everything that can happen in between.

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
    invariant_a_reason_is_whole, invariant_every_plan_says_why, invariant_plans_are_legal,
};
use super::late::deliver_late;
use super::processes::SimRole;
use super::store::SimStore;
use super::world::SimWorld;
use crate::fake::FakeController;

pub(super) type SimLedger = Ledger<FakeController, SimStore>;

/// The longest pause between two looks at a partition that runs.
const CHECK: u64 = 5_000;

/// One job in the hands of one driver.
pub(super) struct JobDriver {
    pub(super) world: Arc<SimWorld>,
    pub(super) ledger: SimLedger,
    pub(super) driver: usize,
    pub(super) job: usize,
    pub(super) name: String,
}

/// Whether an effect changed anything, so that it is worth looking again at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applied {
    Moved,
    Same,
}

/// What a pass came to.
enum PassOutcome {
    Finalized,
    Moved,
    Rests(Option<Duration>),
}

/// Why a pass did not come to its end.
struct PassAborted(String);

impl From<LedgerError> for PassAborted {
    fn from(error: LedgerError) -> Self {
        Self(error.to_string())
    }
}

/// What a driver has seen at the beginning of a pass.
struct ObservedJob {
    spec: JobSpec,
    observation: Observation,
}

impl JobDriver {
    /// Works on the job until it is gone.
    pub(super) async fn drive(self) {
        let mut quiet = 0_u32;
        loop {
            if self.is_over() {
                return;
            }
            let pause = match self.pass().await {
                Ok(PassOutcome::Finalized) => return,
                Ok(PassOutcome::Moved) => {
                    quiet = 0;
                    u64::from(self.world.below(40))
                }
                Ok(PassOutcome::Rests(wake)) => {
                    quiet = (quiet + 1).min(6);
                    self.patience(wake, quiet)
                }
                Err(PassAborted(why)) => {
                    self.world.say(&self.name, format_args!("stops: {why}"));
                    200 + u64::from(self.world.below(800))
                }
            };
            tokio::time::sleep(Duration::from_millis(pause.max(1))).await;
        }
    }

    fn is_over(&self) -> bool {
        let state = self.world.state();
        state.jobs[self.job].gone || state.broken.is_some()
    }

    /// How long to rest: until the plan says, or a process is heard of, or the partition has to be looked at again.
    fn patience(&self, wake: Option<Duration>, quiet: u32) -> u64 {
        let now = self.world.millis();
        let heard = self
            .world
            .processes()
            .next_change(self.job, now)
            .map(|at| at - now);
        let told = wake.map(|wake| u64::try_from(wake.as_millis()).unwrap_or(u64::MAX));
        let longest = (100_u64 << quiet).min(CHECK);
        // Whoever waits for a controller or in the line polls ever less often; the plan's wake is at most a second then.
        let told = told.map(|told| if told == 1_000 { told.max(longest) } else { told });
        heard.unwrap_or(CHECK).min(told.unwrap_or(CHECK)).min(CHECK)
    }

    async fn crash(&self, why: &str) -> PassAborted {
        self.world.crash(self.driver, why);
        std::future::pending().await
    }

    async fn pass(&self) -> Result<PassOutcome, PassAborted> {
        let seen = self.observe().await?;
        let plan = (self.world.options.planner)(&seen.spec, &seen.observation);
        self.look_at(&seen, &plan)?;
        let mut moved = Applied::Same;
        for effect in &plan.effects {
            if self.apply(&seen, effect).await? == Applied::Moved {
                moved = Applied::Moved;
            }
            self.world.check();
            if matches!(effect, Effect::Finalize) {
                return Ok(PassOutcome::Finalized);
            }
        }
        self.record(&plan).await?;
        if moved == Applied::Moved || plan.status != seen.observation.status {
            return Ok(PassOutcome::Moved);
        }
        Ok(PassOutcome::Rests(plan.requeue_after))
    }

    /// Checks the plan, counts its reasons, and shows it to whoever wants to see it.
    fn look_at(&self, seen: &ObservedJob, plan: &Plan) -> Result<(), PassAborted> {
        let ObservedJob { spec, observation } = seen;
        if let Some(hook) = &self.world.options.on_plan {
            hook(spec, observation, plan);
        }
        let effects: Vec<_> = plan.effects.iter().map(told).collect();
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
            let what = format!("plans {:?} because {}", effects, codes.join(", "));
            self.world.say(&self.name, what);
        }
        self.world.expect(invariant_every_plan_says_why(self.job, plan));
        if self.world.options.plan_check == PlanCheck::Check {
            let found = check_plan(spec, observation, plan);
            self.world.expect(invariant_plans_are_legal(self.job, &found));
            if !found.is_empty() {
                return Err(PassAborted("the plan is broken".into()));
            }
        }
        Ok(())
    }

    async fn observe(&self) -> Result<ObservedJob, PassAborted> {
        let (spec, owner, mut observation) = {
            let state = self.world.state();
            let job = &state.jobs[self.job];
            let mut observation = Observation::for_new_job(Timestamp::from_millis(0));
            observation.submitted = job.submitted;
            observation.deleted = job.deleted;
            observation.status = job.status.clone();
            (job.spec.clone(), job.owner.clone(), observation)
        };
        let mut known: BTreeMap<u32, InstanceFacts> = BTreeMap::new();
        let facts_of = |known: &mut BTreeMap<u32, InstanceFacts>, index: u32| {
            known.entry(index).or_insert_with(|| InstanceFacts::empty(index));
        };
        (0..spec.instances()).for_each(|index| facts_of(&mut known, index));
        let recorded = observation.status.instances.iter().map(|instance| instance.index);
        recorded.for_each(|index| facts_of(&mut known, index));
        let entries = self.ledger.list().await?;
        for entry in entries
            .iter()
            .filter(|entry| entry.owner.as_ref() == Some(&owner))
        {
            facts_of(&mut known, entry.instance);
        }
        for (index, facts) in &mut known {
            let id = spec.partition_id(*index);
            if entries.iter().any(|entry| entry.id == id) {
                let recorded = observation.status.instance(*index);
                let attempt = recorded.map_or(0, |recorded| recorded.attempt);
                facts.partition = self.observe_partition(&id, &owner, attempt).await?;
            }
        }
        // The clock and the processes last: nothing is waited for after them.
        let now = self.world.millis();
        for (instance, role, process) in self.world.processes().facts(self.job, now) {
            let facts = known
                .entry(instance)
                .or_insert_with(|| InstanceFacts::empty(instance));
            match role {
                SimRole::Launcher => facts.launcher = Some(process),
                SimRole::Worker(_) => facts.workers.push(process),
            }
        }
        observation.now = Timestamp::from_millis(now);
        let something = |facts: &InstanceFacts| *facts != InstanceFacts::empty(facts.index);
        observation.instances = known.into_values().filter(something).collect();
        Ok(ObservedJob { spec, observation })
    }

    async fn observe_partition(
        &self,
        id: &PartitionId,
        owner: &Owner,
        recorded: u32,
    ) -> Result<PartitionFacts, PassAborted> {
        let facts = self.ledger.observe(id).await?;
        match &facts {
            // What is on its way back is gone on with by whoever looks.
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
                self.world.expect(invariant_a_reason_is_whole(self.job, reason));
                Ok(facts)
            }
            _ => Ok(facts),
        }
    }

    /// Applies an effect, and whatever happens to it.
    async fn apply(&self, seen: &ObservedJob, effect: &Effect) -> Result<Applied, PassAborted> {
        let kind = kind_of(effect);
        let fault = self.world.draw_effect_fault(kind);
        let count = |fault| self.world.count_effect_fault(fault, kind);
        match fault {
            None => self.perform(seen, effect).await,
            Some(fault @ "crash before") => {
                count(fault);
                Err(self.crash(&format!("before {kind}")).await)
            }
            Some(fault @ "crash during") => {
                // Long enough for it to begin, and mostly too short for it to end.
                let longest = match effect {
                    Effect::ResetPartition { .. } => 4,
                    _ if is_local(effect) => 2,
                    _ => 30,
                };
                let within = Duration::from_millis(u64::from(self.world.below(longest)));
                match tokio::time::timeout(within, self.perform(seen, effect)).await {
                    Ok(done) => done,
                    Err(_) => {
                        count(fault);
                        Err(self.crash(&format!("during {kind}")).await)
                    }
                }
            }
            Some(fault @ "crash after") => {
                self.perform(seen, effect).await?;
                count(fault);
                Err(self.crash(&format!("after {kind}")).await)
            }
            Some(fault @ "error") => {
                count(fault);
                Err(PassAborted(format!("{kind} failed")))
            }
            Some(fault @ "lost reply") => {
                self.perform(seen, effect).await?;
                count(fault);
                Err(PassAborted(format!("the reply to {kind} is lost")))
            }
            Some(fault @ "duplicate") => {
                self.perform(seen, effect).await?;
                count(fault);
                self.perform(seen, effect).await
            }
            Some(fault) => {
                count(fault);
                let pause = 100 + u64::from(self.world.below(4_000));
                tokio::time::sleep(Duration::from_millis(pause)).await;
                self.perform(seen, effect).await
            }
        }
    }

    async fn perform(&self, seen: &ObservedJob, effect: &Effect) -> Result<Applied, PassAborted> {
        match effect {
            Effect::EnsurePartition {
                instance, attempt, ..
            } => self.ensure(seen, *instance, *attempt).await,
            Effect::ResetPartition {
                instance,
                attempt,
                partition,
            } => {
                let owner = self.world.state().jobs[self.job].owner.clone();
                let answer = self.ledger.reset(partition, &owner, *attempt).await?;
                Ok(self.take_in(*instance, *attempt, &answer))
            }
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                partition,
            } => {
                self.start(seen, (*instance, SimRole::Worker(*worker)), *attempt, partition)
                    .await
            }
            Effect::StartLauncher {
                instance,
                attempt,
                partition,
            } => {
                self.start(seen, (*instance, SimRole::Launcher), *attempt, partition)
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
                self.world.state().wanted.releases(partition);
                match self.ledger.release(partition, &owner, Some(*attempt)).await? {
                    Released::InProgress { .. } => Ok(Applied::Same),
                    _ => Ok(Applied::Moved),
                }
            }
            Effect::Finalize => {
                call().await;
                self.world.say(&self.name, "lets go of the job");
                self.world.state().jobs[self.job].gone = true;
                call().await;
                Ok(Applied::Moved)
            }
            other => Err(PassAborted(format!("an effect that is not known: {other:?}"))),
        }
    }

    async fn ensure(&self, seen: &ObservedJob, instance: u32, attempt: u32) -> Result<Applied, PassAborted> {
        let request = {
            let state = self.world.state();
            let job = &state.jobs[self.job];
            let mut request =
                Request::of_instance(job.owner.clone(), instance, seen.spec.partition().clone());
            request.attempt = attempt;
            request.priority = seen.spec.priority();
            request.max_runtime = seen.spec.max_runtime();
            request.account = seen.spec.account().map(str::to_owned);
            request.preemptible = seen.spec.preemptible();
            request.holder.clone_from(&self.name);
            request.line = job.line;
            if instance == 0 && job.pins_ipus {
                let ipus = 0..seen.spec.ipus_per_instance().get();
                request.pin.ipus = ipus.map(|ipu| IpuPlace { link_domain: 0, ipu }).collect();
            }
            request
        };
        self.world.state().wanted.asks(&request.id);
        if self.world.is_wild() && self.world.chance(self.world.profile.late_requests) {
            deliver_late(&self.world, request.clone());
            if self.world.chance(50) {
                return Err(PassAborted("a request is not answered".into()));
            }
        }
        let answer = self.ledger.ensure(request).await?;
        Ok(self.take_in(instance, attempt, &answer))
    }

    fn take_in(&self, instance: u32, attempt: u32, answer: &EnsureOutcome) -> Applied {
        match answer {
            EnsureOutcome::Active(grant) => {
                self.world
                    .check_grant(&grant.controller, &grant.id, self.job, attempt);
                let what = format!("is granted {} for attempt {}", grant.id, grant.attempt);
                self.world.say(&self.name, what);
                Applied::Moved
            }
            EnsureOutcome::Refused(waiting) => {
                self.world
                    .expect(invariant_a_reason_is_whole(self.job, &waiting.reason));
                let what = format!("does not wait with instance {instance}: {}", waiting.reason);
                self.world.say(&self.name, what);
                self.world.count_event("refused at once");
                let mut state = self.world.state();
                *state
                    .report
                    .reasons
                    .entry(waiting.reason.code.clone())
                    .or_default() += 1;
                state.jobs[self.job].deleted = true;
                Applied::Moved
            }
            EnsureOutcome::Waiting(waiting) => {
                self.world
                    .expect(invariant_a_reason_is_whole(self.job, &waiting.reason));
                Applied::Same
            }
            EnsureOutcome::Pending(Pending::Failed { .. }) => Applied::Moved,
            _ => Applied::Same,
        }
    }
}

/// A call of the driver to its host takes a moment, in which the driver may die.
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
        _ => "unknown",
    }
}

/// An effect in a few words, for the log.
fn told(effect: &Effect) -> String {
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
