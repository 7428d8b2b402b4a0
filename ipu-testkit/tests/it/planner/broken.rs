//! Planners that break one rule each: the planner of the core, asked about other facts than there are, or with its answer
//! changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipu_core::{
    Effect, Exit, InstanceOutcome, JobKind, JobSpec, Observation, PartitionFacts, Plan, ProcessFacts,
    ProcessPhase, RestartPolicy, Timestamp, plan,
};

/// A planner that breaks a rule.
pub(super) struct Broken {
    /// The rule, by its file.
    pub(super) rule: &'static str,
    /// How it is broken.
    pub(super) what: &'static str,
    pub(super) planner: fn(&JobSpec, &Observation) -> Plan,
    /// What a failure says of it; one of several, between bars.
    pub(super) told: &'static str,
}

const fn broken(
    rule: &'static str,
    what: &'static str,
    planner: fn(&JobSpec, &Observation) -> Plan,
    told: &'static str,
) -> Broken {
    Broken {
        rule,
        what,
        planner,
        told,
    }
}

#[rustfmt::skip]
pub(super) const BROKEN: [Broken; 34] = [
    broken("backoff", "no pause at all", no_pause, "do not pause as long as is due|its back-off is not the one that is due"),
    broken("backoff", "the pause never grows", constant_pause, "do not pause as long as is due"),
    broken("backoff", "the pause is not waited for", impatient, "before the back-off is over"),
    broken("backoff", "nothing looks after the pause", sleepy, "nothing would ever look again"),
    broken("cleanup", "None removes everything", removes_everything, "which is to stay"),
    broken("cleanup", "nothing is ever removed", removes_nothing, "is left alone|still waits for a partition"),
    broken("cleanup", "Workers keeps the workers", keeps_workers, "is left alone"),
    broken("deadline", "it is ignored", no_deadline, "the job has run for longer than it may"),
    broken("deadline", "the count begins anew with every attempt", forgets_the_start, "since when it runs"),
    broken("finalize", "released under processes", releases_early, "while a process may still use the partition"),
    broken("finalize", "let go of first", finalizes_first, "finalized before everything was gone"),
    broken("finalize", "never let go of", never_finalizes, "but it is not finalized"),
    broken("first_failure", "the last is blamed", blames_the_last, "the wrong failure is blamed"),
    broken("first_failure", "the launcher is blamed", blames_the_launcher, "the wrong failure is blamed"),
    broken("interactive", "the session never ends", endless_session, "the time of its session is over"),
    broken("interactive", "waiting costs time", short_session, "a wrong verdict on instance"),
    broken("orphan", "processes of another attempt are adopted", adopts, "another attempt may still run|that is not to stay is left alone|nothing of it has ended|what is remembered of instance"),
    broken("orphan", "processes of another attempt are left alone", keeps_orphans, "that is not to stay is left alone"),
    broken("orphan", "the others of a failed instance go on", keeps_stragglers, "is not to stay is left alone"),
    broken("request", "all instances ask at once", floods, "instances are in the queue, and"),
    broken("request", "the others never ask", asks_for_the_first, "neither runs nor has finished|no reason is given"),
    broken("reset", "a stale partition is used", uses_stale_partitions, "without a partition that is active for it|although its attempt has failed|its attempt goes on"),
    broken("reset", "a partition in error is not reset", asks_instead_of_reset, "is not what the state of the partition"),
    broken("reset", "nothing is ever reset", never_resets, "neither runs nor has finished"),
    broken("restart", "beyond the limit", restarts_for_ever, "its restarts are more than allowed"),
    broken("restart", "restarts are not counted", counts_no_restart, "are not how many instances restart"),
    broken("restart", "whatever the code", restarts_whatever_the_code, "a failure that is not retryable"),
    broken("scale", "what is surplus stays", keeps_surplus, "which is to have nothing, is left alone"),
    broken("scale", "the first goes with the last", drops_the_first_too, "before its attempt was closed|which is to stay"),
    broken("start_deadline", "it is ignored", no_start_deadline, "nothing can run on its partition"),
    broken("suspend", "it holds on", holds_on, "which is to have nothing, is left alone"),
    broken("", "an answer is a panic", panics, "the planner panicked"),
    broken("", "two answers to the same question", undecided, "in two ways"),
    broken("", "it says nothing", says_nothing, "no reason is given"),
];

fn no_pause(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    for instance in &mut plan.status.instances {
        let before = seen
            .status
            .instance(instance.index)
            .map_or(0, |known| known.attempt);
        if instance.attempt > before && instance.retry_at.is_some_and(|retry| retry > seen.now) {
            instance.retry_at = Some(seen.now);
        }
    }
    plan
}

fn constant_pause(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if plan.status.restarts_after_failure > seen.status.restarts_after_failure {
        for instance in &mut plan.status.instances {
            let known = seen.status.instance(instance.index);
            let same = known.is_some_and(|known| known.retry_at == instance.retry_at);
            if !same && instance.unused_releases == 0 && instance.retry_at.is_some() {
                instance.retry_at = Some(seen.now.plus(job.back_off()));
            }
        }
    }
    plan
}

fn impatient(job: &JobSpec, seen: &Observation) -> Plan {
    let truth = plan(job, seen);
    let mut facts = seen.clone();
    for instance in &mut facts.status.instances {
        instance.retry_at = None;
    }
    let mut answer = plan(job, &facts);
    if [truth.requeue_after, answer.requeue_after].contains(&Some(Duration::ZERO)) {
        return truth;
    }
    answer.status = truth.status;
    answer.requeue_after = Some(Duration::ZERO);
    answer
}

fn sleepy(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    plan.requeue_after = plan.requeue_after.filter(Duration::is_zero);
    plan
}

fn removes_everything(job: &JobSpec, seen: &Observation) -> Plan {
    let mut answer = plan(job, seen);
    if seen.status.phase.is_finished() {
        let mut facts = seen.clone();
        facts.deleted = true;
        answer.effects = plan(job, &facts).effects;
        answer
            .effects
            .retain(|effect| seen.deleted || *effect != Effect::Finalize);
        answer.requeue_after.get_or_insert(Duration::from_secs(1));
    }
    answer
}

fn takes_away(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::StopWorker { .. } | Effect::StopLauncher { .. } | Effect::ReleasePartition { .. }
    )
}

fn removes_nothing(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if seen.status.phase.is_finished() && !seen.deleted {
        plan.effects.retain(|effect| !takes_away(effect));
    }
    plan
}

fn keeps_workers(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if seen.status.phase.is_finished()
        && !seen.deleted
        && job.clean_pod_policy() == ipu_core::CleanPodPolicy::Workers
    {
        plan.effects
            .retain(|effect| !matches!(effect, Effect::StopWorker { .. }));
    }
    plan
}

/// The facts as if every process had begun only now.
fn as_if_begun_now(seen: &Observation) -> Observation {
    let mut facts = seen.clone();
    facts.status.started = None;
    for process in processes(&mut facts) {
        match &mut process.phase {
            ProcessPhase::Running { since } => *since = seen.now,
            ProcessPhase::Exited { at, .. } => *at = seen.now,
            _ => {}
        }
    }
    facts
}

fn processes(seen: &mut Observation) -> impl Iterator<Item = &mut ProcessFacts> {
    let instances = seen.instances.iter_mut();
    instances.flat_map(|facts| facts.workers.iter_mut().chain(&mut facts.launcher))
}

fn no_deadline(job: &JobSpec, seen: &Observation) -> Plan {
    let answer = plan(job, seen);
    if !answer
        .reasons
        .iter()
        .any(|reason| reason.code == "DeadlineExceeded")
    {
        return answer;
    }
    let mut late = plan(job, &as_if_begun_now(seen));
    late.status.started = answer.status.started;
    late
}

fn forgets_the_start(job: &JobSpec, seen: &Observation) -> Plan {
    let mut facts = seen.clone();
    facts.status.started = None;
    plan(job, &facts)
}

fn releases_early(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    let stops = plan.effects.iter().filter_map(|effect| match effect {
        Effect::StopWorker {
            instance, attempt, ..
        } if seen.deleted => Some((*instance, *attempt)),
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

fn finalizes_first(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if seen.deleted {
        plan.effects = vec![Effect::Finalize];
    }
    plan
}

fn never_finalizes(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    plan.effects.retain(|effect| *effect != Effect::Finalize);
    plan
}

/// The facts with the order of all ends reversed.
fn reversed(seen: &Observation) -> Observation {
    let mut facts = seen.clone();
    for process in processes(&mut facts) {
        if let ProcessPhase::Exited { at, .. } | ProcessPhase::Lost { at, .. } = &mut process.phase {
            *at = mirrored(*at);
        }
    }
    facts
}

fn mirrored(at: Timestamp) -> Timestamp {
    // Later than any moment of the random cases.
    Timestamp::from_millis(1_000_000_000_u64.saturating_sub(at.as_millis()))
}

fn blames_the_last(job: &JobSpec, seen: &Observation) -> Plan {
    let mut answer = plan(job, seen);
    let other = plan(job, &reversed(seen)).status.first_failure;
    if answer.status.first_failure != seen.status.first_failure && other != seen.status.first_failure {
        answer.status.first_failure = other.map(|mut last| {
            last.at = mirrored(last.at);
            last
        });
    }
    answer
}

fn blames_the_launcher(job: &JobSpec, seen: &Observation) -> Plan {
    let mut answer = plan(job, seen);
    let news = answer.status.first_failure != seen.status.first_failure;
    if let Some(first) = answer.status.first_failure.as_mut().filter(|_| news) {
        let launchers = seen
            .instances
            .iter()
            .filter(|facts| facts.index == first.instance);
        let mut ended = launchers.filter_map(|facts| match facts.launcher.as_ref()?.phase {
            ProcessPhase::Exited { exit, at, .. } if !exit.is_success() => Some((exit, at)),
            _ => None,
        });
        if let (Some((exit, at)), JobKind::Launcher { .. }) = (ended.next(), job.shape()) {
            first.culprit = ipu_core::FailedComponent::Launcher;
            first.exit = Some(exit);
            first.at = at;
        }
    }
    answer
}

fn endless_session(job: &JobSpec, seen: &Observation) -> Plan {
    let answer = plan(job, seen);
    let over = answer.reasons.iter().any(|reason| reason.code == "SessionOver");
    if !over || job.max_runtime().is_some() {
        return answer;
    }
    let mut facts = as_if_begun_now(seen);
    for instance in &mut facts.status.instances {
        instance.launched = instance.launched.map(|_| seen.now);
    }
    let mut late = plan(job, &facts);
    late.status.started = answer.status.started;
    for instance in &mut late.status.instances {
        let known = seen.status.instance(instance.index);
        instance.launched = known.and_then(|known| known.launched).or(instance.launched);
    }
    late
}

fn short_session(job: &JobSpec, seen: &Observation) -> Plan {
    let mut answer = plan(job, seen);
    let JobKind::Interactive { ttl } = job.shape() else {
        return answer;
    };
    let over = seen.submitted.plus(*ttl) <= seen.now;
    for instance in &mut answer.status.instances {
        let known = seen.status.instance(instance.index);
        let goes_on = known.is_some_and(|known| known.attempt == instance.attempt);
        if over && goes_on && instance.outcome.is_none() && instance.launched.is_some() {
            instance.outcome = Some(InstanceOutcome::SessionOver);
            answer.effects.clear();
            answer.requeue_after = Some(Duration::ZERO);
        }
    }
    answer
}

/// The newest attempt that is recorded, if the instance is to run.
fn runs(job: &JobSpec, seen: &Observation, instance: u32) -> Option<u32> {
    let known = seen.status.instance(instance);
    let runs = !seen.deleted
        && !job.suspend()
        && !seen.status.phase.is_finished()
        && instance < job.instances()
        && known.is_none_or(|known| known.outcome.is_none());
    runs.then(|| known.map_or(0, |known| known.attempt))
}

fn adopts(job: &JobSpec, seen: &Observation) -> Plan {
    let mut facts = seen.clone();
    for instance in &mut facts.instances {
        let known = runs(job, seen, instance.index).unwrap_or(0);
        for process in instance.workers.iter_mut().chain(&mut instance.launcher) {
            if process.phase.is_alive() {
                process.attempt = process.attempt.max(known);
            }
        }
    }
    plan(job, &facts)
}

fn keeps_orphans(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    plan.effects.retain(|effect| match effect {
        Effect::StopWorker {
            instance, attempt, ..
        }
        | Effect::StopLauncher { instance, attempt } => {
            runs(job, seen, *instance).is_none_or(|known| *attempt >= known)
        }
        _ => true,
    });
    plan
}

fn keeps_stragglers(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if !seen.deleted && !job.suspend() && !seen.status.phase.is_finished() {
        plan.effects.retain(|effect| match effect {
            Effect::StopWorker { instance, .. } | Effect::StopLauncher { instance, .. } => {
                let known = seen.status.instance(*instance).and_then(|known| known.outcome);
                !matches!(known, Some(InstanceOutcome::Failed(_))) || *instance >= job.instances()
            }
            _ => true,
        });
    }
    plan
}

fn floods(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if plan.reasons.iter().any(|reason| reason.code == "NotRequested") {
        let asks = |plan: &Plan, of: u32| {
            let asks = |effect: &Effect| matches!(effect, Effect::EnsurePartition { instance, .. } if *instance == of);
            plan.effects.iter().any(asks)
        };
        for instance in 0..job.instances() {
            let mut known = seen.instances.iter().filter(|facts| facts.index == instance);
            let attempt = runs(job, seen, instance);
            if let Some(attempt) = attempt.filter(|_| known.next().is_none() && !asks(&plan, instance)) {
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

fn asks_for_the_first(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    plan.effects
        .retain(|effect| !matches!(effect, Effect::EnsurePartition { instance: 1.., .. }));
    plan
}

fn uses_stale_partitions(job: &JobSpec, seen: &Observation) -> Plan {
    let mut facts = seen.clone();
    for instance in &mut facts.instances {
        let known = runs(job, seen, instance.index).unwrap_or(0);
        if let PartitionFacts::Active { attempt, .. } = &mut instance.partition {
            *attempt = known.max(*attempt);
        }
    }
    plan(job, &facts)
}

fn asks_instead_of_reset(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
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

fn never_resets(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    plan.effects.retain(|effect| match effect {
        Effect::ResetPartition { .. } => false,
        Effect::EnsurePartition { attempt, .. } => *attempt == 0,
        _ => true,
    });
    plan
}

fn restarts_for_ever(job: &JobSpec, seen: &Observation) -> Plan {
    let truth = plan(job, seen);
    if !truth
        .reasons
        .iter()
        .any(|reason| reason.code == "BackOffLimitReached")
    {
        return truth;
    }
    let mut facts = seen.clone();
    facts.status.restarts_after_failure = 0;
    let mut plan = plan(job, &facts);
    plan.status.restarts_after_failure += seen.status.restarts_after_failure;
    plan
}

fn counts_no_restart(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    plan.status.restarts_after_failure = seen.status.restarts_after_failure;
    plan
}

fn restarts_whatever_the_code(job: &JobSpec, seen: &Observation) -> Plan {
    let truth = plan(job, seen);
    let mut facts = seen.clone();
    for process in processes(&mut facts) {
        if let ProcessPhase::Exited { exit, .. } = &mut process.phase
            && !exit.is_success()
        {
            *exit = Exit::Code(130);
        }
    }
    let mut answer = plan(job, &facts);
    let restarts = answer.status.restarts > truth.status.restarts;
    if !restarts || !matches!(job.restart(), RestartPolicy::ExitCode { .. }) {
        return truth;
    }
    answer.status.first_failure = truth.status.first_failure;
    answer
}

fn keeps_surplus(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if !seen.deleted {
        plan.effects.retain(|effect| match effect {
            Effect::StopWorker { instance, .. }
            | Effect::StopLauncher { instance, .. }
            | Effect::ReleasePartition { instance, .. } => *instance < job.instances(),
            _ => true,
        });
    }
    plan
}

fn drops_the_first_too(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    let surplus = |effect: &Effect| matches!(effect, Effect::StopWorker { instance, .. } if *instance >= job.instances());
    let wanted = runs(job, seen, 0).filter(|_| plan.effects.iter().any(surplus));
    if let Some(attempt) = wanted {
        let first = seen.instances.iter().filter(|facts| facts.index == 0);
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

fn no_start_deadline(job: &JobSpec, seen: &Observation) -> Plan {
    let mut facts = seen.clone();
    for instance in &mut facts.instances {
        if let PartitionFacts::Active { since, .. } = &mut instance.partition {
            *since = seen.now;
        }
    }
    plan(job, &facts)
}

fn holds_on(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    if job.suspend() && !seen.deleted && !seen.status.phase.is_finished() {
        plan.effects.retain(|effect| !takes_away(effect));
    }
    plan
}

fn panics(job: &JobSpec, seen: &Observation) -> Plan {
    let workers = seen.instances.iter().flat_map(|facts| &facts.workers);
    for worker in workers {
        if matches!(worker.phase, ProcessPhase::Lost { .. }) {
            // A panic without the output of one.
            std::panic::resume_unwind(Box::new("who has ever lost a worker?"));
        }
    }
    plan(job, seen)
}

fn undecided(job: &JobSpec, seen: &Observation) -> Plan {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let mut plan = plan(job, seen);
    plan.status.message = format!("asked {} times", ASKED.fetch_add(1, Ordering::Relaxed));
    plan
}

fn says_nothing(job: &JobSpec, seen: &Observation) -> Plan {
    let mut plan = plan(job, seen);
    plan.reasons.retain(|reason| reason.code != "StoppingProcesses");
    plan
}
