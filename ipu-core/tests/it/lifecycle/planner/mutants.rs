//! Planner mutants that break one rule each: the planner of the core with modified observations or plans.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipu_core::Timestamp;
use ipu_core::job::{
    Effect, Exit, InstanceOutcome, JobKind, JobSpec, Observation, PartitionFacts, Plan, ProcessFacts,
    ProcessPhase, RestartPolicy, plan,
};

/// Planner that breaks a rule.
pub(super) struct PlannerMutant {
    /// Rule, by its file.
    pub(super) rule: &'static str,
    /// Description of the mutation.
    pub(super) mutation: &'static str,
    pub(super) planner: fn(&JobSpec, &Observation) -> Plan,
    /// Expected part of the failure message; alternatives are separated by bars.
    pub(super) expected: &'static str,
}

const fn mutant(
    rule: &'static str,
    mutation: &'static str,
    planner: fn(&JobSpec, &Observation) -> Plan,
    expected: &'static str,
) -> PlannerMutant {
    PlannerMutant {
        rule,
        mutation,
        planner,
        expected,
    }
}

#[rustfmt::skip]
pub(super) const MUTANTS: [PlannerMutant; 35] = [
    mutant("backoff", "no back-off", no_pause, "the back-off of the restarted instances is wrong|its back-off is not the expected one"),
    mutant("backoff", "the back-off never grows", constant_pause, "the back-off of the restarted instances is wrong"),
    mutant("backoff", "the back-off is ignored", ignores_back_off, "before the back-off is over"),
    mutant("backoff", "no requeue after the back-off", never_requeues, "no requeue for"),
    mutant("cleanup", "None removes everything", removes_everything, "must be kept"),
    mutant("cleanup", "nothing is ever removed", removes_nothing, "no effect ends them|no effect stops|still waits for a partition"),
    mutant("cleanup", "Workers keeps the workers", keeps_workers, "no effect ends them|no effect stops"),
    mutant("deadline", "the limit is ignored", no_deadline, "the job has exceeded its deadline"),
    mutant("deadline", "every attempt restarts the clock", loses_start_time, "its start time is not"),
    mutant("finalize", "released under processes", releases_early, "while a process may still use the partition"),
    mutant("finalize", "finalized first", finalizes_first, "finalized with remaining resources"),
    mutant("finalize", "never finalized", never_finalizes, "and is not finalized"),
    mutant("first_failure", "the last failure is named", blames_the_last, "wrong first failure"),
    mutant("first_failure", "the launcher is named", blames_the_launcher, "wrong first failure"),
    mutant("interactive", "the session never ends", endless_session, "the time of its session is over"),
    mutant("interactive", "queue time counts", short_session, "wrong verdict on instance"),
    mutant("orphan", "processes of another attempt are adopted", adopts_stale_processes, "another attempt may still run|no effect stops a process|its attempt has not ended|wrong status of instance"),
    mutant("orphan", "processes of another attempt are kept", keeps_orphans, "no effect stops a process|must have no process or partition"),
    mutant("orphan", "other processes of a failed instance continue", keeps_other_processes, "no effect stops a process|must have no process or partition"),
    mutant("preempt", "a demand is ignored", ignores_preemption, "its partition is preempted|must have no process or partition"),
    mutant("request", "all instances request at once", requests_all, "instances are in the queue"),
    mutant("request", "other instances never request", requests_only_the_first, "Quiesces is violated|the plan has no reason"),
    mutant("reset", "a stale partition is used", uses_stale_partitions, "without a partition that is active for it|although its attempt has failed|its attempt continues|its back-off is not the expected one"),
    mutant("reset", "a partition in error is not reset", requests_instead_of_reset, "does not match the state of the partition"),
    mutant("reset", "nothing is ever reset", never_resets, "Quiesces is violated"),
    mutant("restart", "the limit is exceeded", restarts_for_ever, "its restart count exceeds the limit"),
    mutant("restart", "restarts are not counted", counts_no_restart, "do not match the restarted instances"),
    mutant("restart", "the exit code is ignored", restarts_whatever_the_code, "a failure that is not retryable"),
    mutant("scale", "surplus instances are kept", keeps_surplus, "must have no process or partition"),
    mutant("scale", "the first instance is removed with the last", drops_the_first_too, "before its attempt was closed|must be kept"),
    mutant("start_deadline", "the limit is ignored", no_start_deadline, "no process can start on its partition"),
    mutant("suspend", "resources are kept", keeps_resources, "must have no process or partition"),
    mutant("", "the planner panics", panics, "Total is violated"),
    mutant("", "the plan is nondeterministic", nondeterministic, "Deterministic is violated"),
    mutant("", "no reason is returned", returns_no_reason, "the plan has no reason"),
];

fn no_pause(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    for instance in &mut plan.status.instances {
        let before = observation
            .status
            .instance(instance.index)
            .map_or(0, |recorded| recorded.attempt);
        if instance.attempt > before && instance.retry_at.is_some_and(|retry| retry > observation.now) {
            instance.retry_at = Some(observation.now);
        }
    }
    plan
}

fn constant_pause(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if plan.status.restarts_after_failure > observation.status.restarts_after_failure {
        for instance in &mut plan.status.instances {
            let recorded = observation.status.instance(instance.index);
            let same = recorded.is_some_and(|recorded| recorded.retry_at == instance.retry_at);
            if !same && instance.unused_releases == 0 && instance.retry_at.is_some() {
                instance.retry_at = Some(observation.now.plus(job.back_off()));
            }
        }
    }
    plan
}

fn ignores_back_off(job: &JobSpec, observation: &Observation) -> Plan {
    let correct = plan(job, observation);
    let mut facts = observation.clone();
    for instance in &mut facts.status.instances {
        instance.retry_at = None;
    }
    let mut answer = plan(job, &facts);
    if [correct.requeue_after, answer.requeue_after].contains(&Some(Duration::ZERO)) {
        return correct;
    }
    answer.status = correct.status;
    answer.requeue_after = Some(Duration::ZERO);
    answer
}

fn never_requeues(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    plan.requeue_after = plan.requeue_after.filter(Duration::is_zero);
    plan
}

fn removes_everything(job: &JobSpec, observation: &Observation) -> Plan {
    let mut answer = plan(job, observation);
    if observation.status.phase.is_finished() {
        let mut facts = observation.clone();
        facts.deleted = true;
        answer.effects = plan(job, &facts).effects;
        answer
            .effects
            .retain(|effect| observation.deleted || *effect != Effect::Finalize);
        answer.requeue_after.get_or_insert(Duration::from_secs(1));
    }
    answer
}

fn is_removal(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::StopWorker { .. } | Effect::StopLauncher { .. } | Effect::ReleasePartition { .. }
    )
}

fn removes_nothing(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if observation.status.phase.is_finished() && !observation.deleted {
        plan.effects.retain(|effect| !is_removal(effect));
    }
    plan
}

fn keeps_workers(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if observation.status.phase.is_finished()
        && !observation.deleted
        && job.clean_pod_policy() == ipu_core::job::CleanPodPolicy::Workers
    {
        plan.effects
            .retain(|effect| !matches!(effect, Effect::StopWorker { .. }));
    }
    plan
}

/// Returns the observation as if every process had started only now.
fn as_if_started_now(observation: &Observation) -> Observation {
    let mut facts = observation.clone();
    facts.status.started = None;
    for process in processes(&mut facts) {
        match &mut process.phase {
            ProcessPhase::Running { since } => *since = observation.now,
            ProcessPhase::Exited { at, .. } => *at = observation.now,
            _ => {}
        }
    }
    facts
}

fn processes(observation: &mut Observation) -> impl Iterator<Item = &mut ProcessFacts> {
    let instances = observation.instances.iter_mut();
    instances.flat_map(|facts| facts.workers.iter_mut().chain(&mut facts.launcher))
}

fn no_deadline(job: &JobSpec, observation: &Observation) -> Plan {
    let answer = plan(job, observation);
    if !answer
        .reasons
        .iter()
        .any(|reason| reason.code == "DeadlineExceeded")
    {
        return answer;
    }
    let mut late = plan(job, &as_if_started_now(observation));
    late.status.started = answer.status.started;
    late
}

fn loses_start_time(job: &JobSpec, observation: &Observation) -> Plan {
    let mut facts = observation.clone();
    facts.status.started = None;
    plan(job, &facts)
}

fn releases_early(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    let stops = plan.effects.iter().filter_map(|effect| match effect {
        Effect::StopWorker {
            instance, attempt, ..
        } if observation.deleted => Some((*instance, *attempt)),
        _ => None,
    });
    let releases: Vec<Effect> = stops
        .map(|(instance, attempt)| Effect::ReleasePartition {
            instance,
            attempt,
            partition: job.partition_id(instance),
        })
        .collect();
    plan.effects.extend(releases);
    plan
}

fn finalizes_first(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if observation.deleted {
        plan.effects = vec![Effect::Finalize];
    }
    plan
}

fn never_finalizes(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    plan.effects.retain(|effect| *effect != Effect::Finalize);
    plan
}

/// Returns the observation with the order of all ends reversed.
fn reversed(observation: &Observation) -> Observation {
    let mut facts = observation.clone();
    for process in processes(&mut facts) {
        if let ProcessPhase::Exited { at, .. } | ProcessPhase::Lost { at, .. } = &mut process.phase {
            *at = mirrored(*at);
        }
    }
    facts
}

fn mirrored(at: Timestamp) -> Timestamp {
    // Later than any time of the random cases.
    Timestamp::from_millis(1_000_000_000_u64.saturating_sub(at.as_millis()))
}

fn blames_the_last(job: &JobSpec, observation: &Observation) -> Plan {
    let mut answer = plan(job, observation);
    let other = plan(job, &reversed(observation)).status.first_failure;
    if answer.status.first_failure != observation.status.first_failure
        && other != observation.status.first_failure
    {
        answer.status.first_failure = other.map(|mut last| {
            last.at = mirrored(last.at);
            last
        });
    }
    answer
}

fn blames_the_launcher(job: &JobSpec, observation: &Observation) -> Plan {
    let mut answer = plan(job, observation);
    let is_new = answer.status.first_failure != observation.status.first_failure;
    if let Some(first) = answer.status.first_failure.as_mut().filter(|_| is_new) {
        let launchers = observation
            .instances
            .iter()
            .filter(|facts| facts.index == first.instance);
        let mut ended = launchers.filter_map(|facts| match facts.launcher.as_ref()?.phase {
            ProcessPhase::Exited { exit, at, .. } if !exit.is_success() => Some((exit, at)),
            _ => None,
        });
        if let (Some((exit, at)), JobKind::Launcher { .. }) = (ended.next(), job.shape()) {
            first.component = ipu_core::job::FailedComponent::Launcher;
            first.exit = Some(exit);
            first.at = at;
        }
    }
    answer
}

fn endless_session(job: &JobSpec, observation: &Observation) -> Plan {
    let answer = plan(job, observation);
    let over = answer.reasons.iter().any(|reason| reason.code == "SessionOver");
    if !over || job.max_runtime().is_some() {
        return answer;
    }
    let mut facts = as_if_started_now(observation);
    for instance in &mut facts.status.instances {
        instance.launched = instance.launched.map(|_| observation.now);
    }
    let mut late = plan(job, &facts);
    late.status.started = answer.status.started;
    for instance in &mut late.status.instances {
        let recorded = observation.status.instance(instance.index);
        instance.launched = recorded
            .and_then(|recorded| recorded.launched)
            .or(instance.launched);
    }
    late
}

fn short_session(job: &JobSpec, observation: &Observation) -> Plan {
    let mut answer = plan(job, observation);
    let JobKind::Interactive { ttl } = job.shape() else {
        return answer;
    };
    let over = observation.submitted.plus(*ttl) <= observation.now;
    for instance in &mut answer.status.instances {
        let recorded = observation.status.instance(instance.index);
        let same_attempt = recorded.is_some_and(|recorded| recorded.attempt == instance.attempt);
        if over && same_attempt && instance.outcome.is_none() && instance.launched.is_some() {
            instance.outcome = Some(InstanceOutcome::SessionOver);
            answer.effects.clear();
            answer.requeue_after = Some(Duration::ZERO);
        }
    }
    answer
}

/// Returns the newest recorded attempt, if the instance should run.
fn runs(job: &JobSpec, observation: &Observation, instance: u32) -> Option<u32> {
    let recorded = observation.status.instance(instance);
    let runs = !observation.deleted
        && !job.suspend()
        && !observation.status.phase.is_finished()
        && instance < job.instances()
        && recorded.is_none_or(|recorded| recorded.outcome.is_none());
    runs.then(|| recorded.map_or(0, |recorded| recorded.attempt))
}

fn adopts_stale_processes(job: &JobSpec, observation: &Observation) -> Plan {
    let mut facts = observation.clone();
    for instance in &mut facts.instances {
        let recorded = runs(job, observation, instance.index).unwrap_or(0);
        for process in instance.workers.iter_mut().chain(&mut instance.launcher) {
            if process.phase.is_alive() {
                process.attempt = process.attempt.max(recorded);
            }
        }
    }
    plan(job, &facts)
}

fn keeps_orphans(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    plan.effects.retain(|effect| match effect {
        Effect::StopWorker {
            instance, attempt, ..
        }
        | Effect::StopLauncher { instance, attempt } => {
            runs(job, observation, *instance).is_none_or(|recorded| *attempt >= recorded)
        }
        _ => true,
    });
    plan
}

fn keeps_other_processes(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if !observation.deleted && !job.suspend() && !observation.status.phase.is_finished() {
        plan.effects.retain(|effect| match effect {
            Effect::StopWorker { instance, .. } | Effect::StopLauncher { instance, .. } => {
                let recorded = observation
                    .status
                    .instance(*instance)
                    .and_then(|recorded| recorded.outcome);
                !matches!(recorded, Some(InstanceOutcome::Failed(_))) || *instance >= job.instances()
            }
            _ => true,
        });
    }
    plan
}

fn requests_all(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if plan.reasons.iter().any(|reason| reason.code == "NotRequested") {
        let requests = |plan: &Plan, of: u32| {
            let requests = |effect: &Effect| matches!(effect, Effect::EnsurePartition { instance, .. } if *instance == of);
            plan.effects.iter().any(requests)
        };
        for instance in 0..job.instances() {
            let mut recorded = observation
                .instances
                .iter()
                .filter(|facts| facts.index == instance);
            let attempt = runs(job, observation, instance);
            if let Some(attempt) = attempt.filter(|_| recorded.next().is_none() && !requests(&plan, instance))
            {
                plan.effects.push(Effect::EnsurePartition {
                    instance,
                    attempt,
                    partition: job.partition_id(instance),
                    spec: job.partition().clone(),
                });
            }
        }
    }
    plan
}

fn requests_only_the_first(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    plan.effects
        .retain(|effect| !matches!(effect, Effect::EnsurePartition { instance: 1.., .. }));
    plan
}

fn uses_stale_partitions(job: &JobSpec, observation: &Observation) -> Plan {
    let mut facts = observation.clone();
    for instance in &mut facts.instances {
        let recorded = runs(job, observation, instance.index).unwrap_or(0);
        if let PartitionFacts::Active { attempt, .. } = &mut instance.partition {
            *attempt = recorded.max(*attempt);
        }
    }
    plan(job, &facts)
}

fn requests_instead_of_reset(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    for effect in &mut plan.effects {
        if let Effect::ResetPartition {
            instance,
            attempt,
            partition,
        } = effect
        {
            *effect = Effect::EnsurePartition {
                instance: *instance,
                attempt: *attempt,
                partition: partition.clone(),
                spec: job.partition().clone(),
            };
        }
    }
    plan
}

fn never_resets(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    plan.effects.retain(|effect| match effect {
        Effect::ResetPartition { .. } => false,
        Effect::EnsurePartition { attempt, .. } => *attempt == 0,
        _ => true,
    });
    plan
}

fn restarts_for_ever(job: &JobSpec, observation: &Observation) -> Plan {
    let correct = plan(job, observation);
    if !correct
        .reasons
        .iter()
        .any(|reason| reason.code == "BackOffLimitReached")
    {
        return correct;
    }
    let mut facts = observation.clone();
    facts.status.restarts_after_failure = 0;
    let mut plan = plan(job, &facts);
    plan.status.restarts_after_failure += observation.status.restarts_after_failure;
    plan
}

fn counts_no_restart(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    plan.status.restarts_after_failure = observation.status.restarts_after_failure;
    plan
}

fn restarts_whatever_the_code(job: &JobSpec, observation: &Observation) -> Plan {
    let correct = plan(job, observation);
    let mut facts = observation.clone();
    for process in processes(&mut facts) {
        if let ProcessPhase::Exited { exit, .. } = &mut process.phase
            && !exit.is_success()
        {
            *exit = Exit::Code(130);
        }
    }
    let mut answer = plan(job, &facts);
    let restarts = answer.status.restarts > correct.status.restarts;
    if !restarts || !matches!(job.restart(), RestartPolicy::ExitCode { .. }) {
        return correct;
    }
    answer.status.first_failure = correct.status.first_failure;
    answer
}

fn keeps_surplus(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if !observation.deleted {
        plan.effects.retain(|effect| match effect {
            Effect::StopWorker { instance, .. }
            | Effect::StopLauncher { instance, .. }
            | Effect::ReleasePartition { instance, .. } => *instance < job.instances(),
            _ => true,
        });
    }
    plan
}

fn drops_the_first_too(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    let surplus = |effect: &Effect| matches!(effect, Effect::StopWorker { instance, .. } if *instance >= job.instances());
    let wanted = runs(job, observation, 0).filter(|_| plan.effects.iter().any(surplus));
    if let Some(attempt) = wanted {
        let first = observation.instances.iter().filter(|facts| facts.index == 0);
        let workers = first.flat_map(|facts| &facts.workers);
        let workers = workers.filter(|worker| {
            worker.attempt == attempt && matches!(worker.phase, ProcessPhase::Running { .. })
        });
        plan.effects.extend(workers.map(|worker| Effect::StopWorker {
            instance: 0,
            worker: worker.index,
            attempt: worker.attempt,
        }));
    }
    plan
}

fn ignores_preemption(job: &JobSpec, observation: &Observation) -> Plan {
    let mut facts = observation.clone();
    for instance in &mut facts.instances {
        instance.preempted = None;
    }
    plan(job, &facts)
}

fn no_start_deadline(job: &JobSpec, observation: &Observation) -> Plan {
    let mut facts = observation.clone();
    for instance in &mut facts.instances {
        if let PartitionFacts::Active { since, .. } = &mut instance.partition {
            *since = observation.now;
        }
    }
    plan(job, &facts)
}

fn keeps_resources(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    if job.suspend() && !observation.deleted && !observation.status.phase.is_finished() {
        plan.effects.retain(|effect| !is_removal(effect));
    }
    plan
}

fn panics(job: &JobSpec, observation: &Observation) -> Plan {
    let workers = observation.instances.iter().flat_map(|facts| &facts.workers);
    for worker in workers {
        if matches!(worker.phase, ProcessPhase::Lost { .. }) {
            // A panic without output.
            std::panic::resume_unwind(Box::new("a worker is lost"));
        }
    }
    plan(job, observation)
}

fn nondeterministic(job: &JobSpec, observation: &Observation) -> Plan {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut plan = plan(job, observation);
    plan.status.message = format!("call {}", CALLS.fetch_add(1, Ordering::Relaxed));
    plan
}

fn returns_no_reason(job: &JobSpec, observation: &Observation) -> Plan {
    let mut plan = plan(job, observation);
    plan.reasons.retain(|reason| reason.code != "StoppingProcesses");
    plan
}
