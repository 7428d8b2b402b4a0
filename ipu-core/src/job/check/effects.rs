//! Invariants of the effects and their order.

use alloc::vec::Vec;

use super::BrokenPlan;
use super::facts::{AttemptFacts, ProcessRole};
use crate::job::CleanPodPolicy;
use crate::job::observation::{PartitionFacts, ProcessFacts, ProcessPhase};
use crate::job::plan::{Effect, Plan};

pub(super) fn check(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    for (index, effect) in plan.effects.iter().enumerate() {
        let earlier = &plan.effects[..index];
        if earlier.contains(effect) {
            broken.push(BrokenPlan::Duplicate {
                effect: effect.clone(),
            });
        }
        if is_out_of_order(facts, earlier, effect) {
            broken.push(BrokenPlan::OutOfOrder {
                effect: effect.clone(),
            });
        }
        if !is_of_job_spec(facts, effect) {
            broken.push(BrokenPlan::NotOfJob {
                effect: effect.clone(),
            });
        }
        broken.extend(check_one(facts, effect));
    }
    check_requests(facts, plan, broken);
    check_remaining_resources(facts, plan, broken);
}

/// Checks that new requests do not exceed the limit of concurrent requests.
fn check_requests(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    let (mut requested, limit) = (facts.requested(), facts.job.max_requested());
    for effect in &plan.effects {
        let Effect::EnsurePartition { instance, .. } = effect else {
            continue;
        };
        let mut partitions = facts.partitions(*instance);
        if partitions.any(|partition| *partition != PartitionFacts::Absent) {
            continue;
        }
        if requested >= limit {
            broken.push(BrokenPlan::TooManyRequests {
                effect: effect.clone(),
                requested,
                limit,
            });
        }
        requested = requested.saturating_add(1);
    }
}

/// Returns the first violation of a single effect.
fn check_one(facts: &AttemptFacts<'_>, effect: &Effect) -> Option<BrokenPlan> {
    match effect {
        Effect::EnsurePartition {
            instance, attempt, ..
        }
        | Effect::ResetPartition {
            instance, attempt, ..
        } => check_attempt(facts, effect, *instance, *attempt).or_else(|| {
            if facts.has_live_process(*instance) {
                Some(BrokenPlan::UnderProcesses {
                    effect: effect.clone(),
                })
            } else if facts.backs_off_without_partition(*instance) {
                Some(BrokenPlan::DuringBackOff {
                    effect: effect.clone(),
                })
            } else {
                check_remedy(facts, effect, *instance, *attempt)
            }
        }),
        Effect::StartWorker {
            instance,
            worker,
            attempt,
            ..
        } => check_attempt(facts, effect, *instance, *attempt)
            .or_else(|| check_start(facts, effect, *instance, *attempt, ProcessRole::Worker(*worker))),
        Effect::StartLauncher {
            instance, attempt, ..
        } => check_attempt(facts, effect, *instance, *attempt)
            .or_else(|| check_start(facts, effect, *instance, *attempt, ProcessRole::Launcher)),
        Effect::StopWorker {
            instance,
            worker,
            attempt,
        } => check_stop(facts, effect, *instance, *attempt, ProcessRole::Worker(*worker)),
        Effect::StopLauncher { instance, attempt } => {
            check_stop(facts, effect, *instance, *attempt, ProcessRole::Launcher)
        }
        Effect::ReleasePartition {
            instance, attempt, ..
        } => check_release(facts, effect, *instance, *attempt),
        Effect::Finalize => None,
    }
}

/// Checks that exactly the partitions in error since an earlier attempt are reset.
fn check_remedy(
    facts: &AttemptFacts<'_>,
    effect: &Effect,
    instance: u32,
    attempt: u32,
) -> Option<BrokenPlan> {
    let mut partitions = facts.partitions(instance);
    let (first, is_ambiguous) = (partitions.next(), partitions.next().is_some());
    let is_stale = matches!(first, Some(PartitionFacts::Failed { attempt: failed, .. }) if *failed < attempt);
    let is_reset = matches!(effect, Effect::ResetPartition { .. });
    let effect = effect.clone();
    (is_stale != is_reset && !is_ambiguous).then_some(BrokenPlan::WrongRemedy { effect })
}

fn check_attempt(
    facts: &AttemptFacts<'_>,
    effect: &Effect,
    instance: u32,
    attempt: u32,
) -> Option<BrokenPlan> {
    let newest = facts.attempt(instance);
    if !facts.must_run(instance) {
        return Some(BrokenPlan::UnexpectedStart {
            effect: effect.clone(),
        });
    }
    (newest != attempt).then(|| BrokenPlan::WrongAttempt {
        effect: effect.clone(),
        attempt: newest,
    })
}

fn check_start(
    facts: &AttemptFacts<'_>,
    effect: &Effect,
    instance: u32,
    attempt: u32,
    role: ProcessRole,
) -> Option<BrokenPlan> {
    let effect = effect.clone();
    let active = facts.partitions(instance).any(
        |partition| matches!(partition, PartitionFacts::Active { attempt: created_for, .. } if *created_for == attempt),
    );
    let recorded = facts
        .recorded(instance)
        .filter(|_| facts.is_newest_attempt_recorded(instance));
    let is_done = recorded.is_some_and(|recorded| match role {
        ProcessRole::Worker(worker) => !facts.has_launcher() && recorded.done.contains(&worker),
        ProcessRole::Launcher => recorded.launched.is_some(),
    });
    let old_alive = facts.processes(instance).any(|(other, process)| {
        process.phase.is_alive() && (process.attempt != attempt || !facts.is_of_job(other))
    });
    if !active {
        Some(BrokenPlan::WithoutPartition { effect })
    } else if is_done || !facts.is_of_job(role) || facts.processes(instance).any(|(other, _)| other == role) {
        Some(BrokenPlan::AlreadyStarted { effect })
    } else if old_alive {
        Some(BrokenPlan::BesideOldProcesses { effect })
    } else if facts.is_backing_off(instance) {
        Some(BrokenPlan::DuringBackOff { effect })
    } else if role == ProcessRole::Launcher
        && !(0..facts.job.workers_per_instance())
            .all(|worker| facts.is_worker_running(instance, worker, attempt))
    {
        Some(BrokenPlan::LauncherBeforeWorkers { effect })
    } else {
        None
    }
}

fn check_stop(
    facts: &AttemptFacts<'_>,
    effect: &Effect,
    instance: u32,
    attempt: u32,
    role: ProcessRole,
) -> Option<BrokenPlan> {
    let effect = effect.clone();
    let stoppable = || {
        let matching = facts
            .processes(instance)
            .filter(move |(other, process)| *other == role && process.attempt == attempt);
        matching
            .map(|(_, process)| &process.phase)
            .filter(|phase| **phase != ProcessPhase::Stopping)
    };
    if stoppable().next().is_none() {
        return Some(BrokenPlan::UnexpectedStop { effect });
    }
    let misplaced = attempt != facts.attempt(instance) || !facts.is_of_job(role);
    let closed =
        misplaced || facts.observation.deleted || facts.is_finished() || facts.outcome(instance).is_some();
    if !closed {
        return Some(BrokenPlan::StoppedBeforeVerdict { effect });
    }
    if misplaced || facts.must_hold_nothing(instance) {
        return None;
    }
    // The instance has ended, and the clean-up policy of its job applies.
    let does_work = role == ProcessRole::Launcher || !facts.has_launcher();
    let straggler = does_work && stoppable().any(ProcessPhase::is_alive);
    let removed_by_policy = facts.is_finished()
        && facts.job.clean_pod_policy() == CleanPodPolicy::Workers
        && role != ProcessRole::Launcher;
    let releases_for_peer = facts.may_release_for_peer(instance) && stoppable().any(ProcessPhase::is_alive);
    (!straggler && !removed_by_policy && !releases_for_peer).then_some(BrokenPlan::UnexpectedStop { effect })
}

fn check_release(
    facts: &AttemptFacts<'_>,
    effect: &Effect,
    instance: u32,
    attempt: u32,
) -> Option<BrokenPlan> {
    let newest = facts.attempt(instance);
    let effect = effect.clone();
    let held = facts
        .partitions(instance)
        .any(|partition| !matches!(partition, PartitionFacts::Absent | PartitionFacts::Releasing));
    let is_due = facts.must_hold_nothing(instance)
        || facts.backs_off_without_partition(instance)
        || facts.may_release_for_peer(instance)
        || facts.is_queued_after_end(instance);
    if facts.has_live_process(instance) {
        Some(BrokenPlan::UnderProcesses { effect })
    } else if !held || !is_due {
        Some(BrokenPlan::UnexpectedRelease { effect })
    } else if attempt != newest {
        Some(BrokenPlan::WrongAttempt {
            effect,
            attempt: newest,
        })
    } else {
        None
    }
}

/// Checks that the effects cover all resources that a deleted job or an ended instance must release.
fn check_remaining_resources(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    let mut has_resources = false;
    for (index, instance_facts) in facts.observation.instances.iter().enumerate() {
        let instance = instance_facts.index;
        if facts.observation.instances[..index]
            .iter()
            .any(|other| other.index == instance)
        {
            continue;
        }
        let held = facts
            .partitions(instance)
            .any(|partition| *partition != PartitionFacts::Absent);
        has_resources |= held || facts.processes(instance).next().is_some();
        let released = plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::ReleasePartition { instance: released, .. } if *released == instance));
        let releasing = facts
            .partitions(instance)
            .any(|partition| *partition == PartitionFacts::Releasing);
        let is_unreleased = held && !releasing && !released && !facts.has_live_process(instance);
        // The next reconciliation acts upon the verdicts of this one.
        let is_due = facts.observation.deleted || !facts.has_verdict(plan, instance);
        let any = |_, _: &_| true;
        let must_release = facts.must_release_for_peer(plan, instance);
        if is_due && facts.must_hold_nothing(instance) {
            if is_unreleased || is_unstopped(facts, plan, instance, any) {
                broken.push(BrokenPlan::ResourcesRemain { instance });
            }
        } else if is_due
            && is_unstopped(facts, plan, instance, |role, process| {
                must_stop(facts, instance, role, process) || (must_release && process.phase.is_alive())
            })
        {
            broken.push(BrokenPlan::ProcessesRemain { instance });
        } else if is_due && (must_release || facts.is_queued_after_end(instance)) && is_unreleased {
            broken.push(BrokenPlan::BlocksQueue { instance });
        }
    }
    let finalized = plan.effects.contains(&Effect::Finalize);
    if finalized && (has_resources || !facts.observation.deleted || plan.effects.len() > 1) {
        broken.push(BrokenPlan::FinalizedEarly);
    }
    if facts.observation.deleted && !has_resources && !finalized {
        broken.push(BrokenPlan::NotFinalized);
    }
    let is_done = facts.is_finished() && facts.is_retention_over() && !facts.observation.deleted;
    if plan.expired != (is_done && !has_resources) {
        broken.push(BrokenPlan::WrongExpiry);
    }
}

/// Returns whether a process must be stopped although its instance may keep other resources.
fn must_stop(facts: &AttemptFacts<'_>, instance: u32, role: ProcessRole, process: &ProcessFacts) -> bool {
    let misplaced = process.attempt != facts.attempt(instance) || !facts.is_of_job(role);
    let does_work = role == ProcessRole::Launcher || !facts.has_launcher();
    let straggler = facts.outcome(instance).is_some() && does_work && process.phase.is_alive();
    let removed_by_policy = facts.is_finished()
        && facts.job.clean_pod_policy() == CleanPodPolicy::Workers
        && role != ProcessRole::Launcher;
    misplaced || straggler || removed_by_policy
}

/// Returns whether a selected process is neither stopping nor stopped by the plan.
fn is_unstopped(
    facts: &AttemptFacts<'_>,
    plan: &Plan,
    instance: u32,
    is_selected: impl Fn(ProcessRole, &ProcessFacts) -> bool,
) -> bool {
    let selected = |(role, process): &(ProcessRole, &ProcessFacts)| is_selected(*role, process);
    facts.processes(instance).filter(selected).any(|(role, process)| {
        let attempt = process.attempt;
        let stop = match role {
            ProcessRole::Worker(worker) => Effect::StopWorker {
                instance,
                worker,
                attempt,
            },
            ProcessRole::Launcher => Effect::StopLauncher { instance, attempt },
        };
        process.phase != ProcessPhase::Stopping && !plan.effects.contains(&stop)
    })
}

/// Returns whether `effect` must precede one of the `earlier` effects.
fn is_out_of_order(facts: &AttemptFacts<'_>, earlier: &[Effect], effect: &Effect) -> bool {
    let Some(instance) = instance_of(effect) else {
        return false;
    };
    let is_stop = matches!(effect, Effect::StopWorker { .. } | Effect::StopLauncher { .. });
    earlier.iter().any(|before| {
        let Some(other) = instance_of(before) else {
            return true;
        };
        let lower_first = facts.is_surplus(instance) && other < instance;
        let stop_is_late = other == instance
            && is_stop
            && !matches!(before, Effect::StopWorker { .. } | Effect::StopLauncher { .. });
        lower_first || stop_is_late
    })
}

pub(super) const fn instance_of(effect: &Effect) -> Option<u32> {
    match effect {
        Effect::EnsurePartition { instance, .. }
        | Effect::ResetPartition { instance, .. }
        | Effect::StartWorker { instance, .. }
        | Effect::StartLauncher { instance, .. }
        | Effect::StopWorker { instance, .. }
        | Effect::StopLauncher { instance, .. }
        | Effect::ReleasePartition { instance, .. } => Some(*instance),
        Effect::Finalize => None,
    }
}

fn is_of_job_spec(facts: &AttemptFacts<'_>, effect: &Effect) -> bool {
    match effect {
        Effect::EnsurePartition {
            instance,
            partition,
            spec,
            ..
        } => *partition == facts.job.partition_id(*instance) && spec == facts.job.partition(),
        Effect::ResetPartition {
            instance, partition, ..
        }
        | Effect::StartWorker {
            instance, partition, ..
        }
        | Effect::StartLauncher {
            instance, partition, ..
        }
        | Effect::ReleasePartition {
            instance, partition, ..
        } => *partition == facts.job.partition_id(*instance),
        Effect::StopWorker { .. } | Effect::StopLauncher { .. } | Effect::Finalize => true,
    }
}
