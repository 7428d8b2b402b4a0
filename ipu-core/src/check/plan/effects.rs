//! Invariants of the effects, one after the other.

use alloc::vec::Vec;

use super::BrokenPlan;
use super::facts::{AttemptFacts, ProcessRole};
use crate::job::CleanPodPolicy;
use crate::observation::{PartitionFacts, ProcessFacts, ProcessPhase};
use crate::plan::{Effect, Plan};

pub(super) fn check(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    for (position, effect) in plan.effects.iter().enumerate() {
        let earlier = &plan.effects[..position];
        if earlier.contains(effect) {
            broken.push(BrokenPlan::Twice {
                effect: effect.clone(),
            });
        }
        if is_out_of_order(facts, earlier, effect) {
            broken.push(BrokenPlan::OutOfOrder {
                effect: effect.clone(),
            });
        }
        if !is_the_jobs(facts, effect) {
            broken.push(BrokenPlan::NotTheJobs {
                effect: effect.clone(),
            });
        }
        broken.extend(check_one(facts, effect));
    }
    check_requests(facts, plan, broken);
    check_leftovers(facts, plan, broken);
}

/// No more instances are in the queue at once than may be.
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

/// The first thing that is wrong with one effect by itself.
fn check_one(facts: &AttemptFacts<'_>, effect: &Effect) -> Option<BrokenPlan> {
    match effect {
        Effect::EnsurePartition {
            instance, attempt, ..
        }
        | Effect::ResetPartition {
            instance, attempt, ..
        } => check_begin(facts, effect, *instance, *attempt).or_else(|| {
            if facts.any_alive(*instance) {
                Some(BrokenPlan::UnderProcesses {
                    effect: effect.clone(),
                })
            } else if facts.is_given_back(*instance) {
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
        } => check_begin(facts, effect, *instance, *attempt)
            .or_else(|| check_start(facts, effect, *instance, *attempt, ProcessRole::Worker(*worker))),
        Effect::StartLauncher {
            instance, attempt, ..
        } => check_begin(facts, effect, *instance, *attempt)
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

/// A partition in error since an earlier attempt is reset, and no other.
fn check_remedy(
    facts: &AttemptFacts<'_>,
    effect: &Effect,
    instance: u32,
    attempt: u32,
) -> Option<BrokenPlan> {
    let mut partitions = facts.partitions(instance);
    let (first, contradicted) = (partitions.next(), partitions.next().is_some());
    let stale = matches!(first, Some(PartitionFacts::Failed { attempt: of, .. }) if *of < attempt);
    let resets = matches!(effect, Effect::ResetPartition { .. });
    let effect = effect.clone();
    (stale != resets && !contradicted).then_some(BrokenPlan::WrongRemedy { effect })
}

fn check_begin(facts: &AttemptFacts<'_>, effect: &Effect, instance: u32, attempt: u32) -> Option<BrokenPlan> {
    let newest = facts.attempt(instance);
    if !facts.is_to_run(instance) {
        return Some(BrokenPlan::StartedForNothing {
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
    who: ProcessRole,
) -> Option<BrokenPlan> {
    let effect = effect.clone();
    let active = facts.partitions(instance).any(
        |partition| matches!(partition, PartitionFacts::Active { attempt: made_for, .. } if *made_for == attempt),
    );
    let known = facts
        .recorded(instance)
        .filter(|_| facts.attempt_is_recorded(instance));
    let over = known.is_some_and(|known| match who {
        ProcessRole::Worker(worker) => !facts.has_launcher() && known.done.contains(&worker),
        ProcessRole::Launcher => known.launched.is_some(),
    });
    let old_alive = facts.processes(instance).any(|(other, process)| {
        process.phase.is_alive() && (process.attempt != attempt || !facts.is_of_the_job(other))
    });
    if !active {
        Some(BrokenPlan::WithoutPartition { effect })
    } else if over || !facts.is_of_the_job(who) || facts.processes(instance).any(|(other, _)| other == who) {
        Some(BrokenPlan::StartedTwice { effect })
    } else if old_alive {
        Some(BrokenPlan::BesideOldProcesses { effect })
    } else if facts.is_pausing(instance) {
        Some(BrokenPlan::DuringBackOff { effect })
    } else if who == ProcessRole::Launcher
        && !(0..facts.job.workers_per_instance()).all(|worker| facts.runs(instance, worker, attempt))
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
    who: ProcessRole,
) -> Option<BrokenPlan> {
    let effect = effect.clone();
    let stoppable = || {
        let same = facts
            .processes(instance)
            .filter(move |(other, process)| *other == who && process.attempt == attempt);
        same.map(|(_, process)| &process.phase)
            .filter(|phase| **phase != ProcessPhase::Stopping)
    };
    if stoppable().next().is_none() {
        return Some(BrokenPlan::StoppedForNothing { effect });
    }
    let recorded = facts.recorded(instance).map_or(0, |known| known.attempt);
    let misplaced = attempt != facts.attempt(instance) || !facts.is_of_the_job(who);
    let closed = misplaced
        || facts.seen.deleted
        || facts.is_finished()
        || facts.outcome(instance).is_some()
        || attempt < recorded;
    if !closed {
        return Some(BrokenPlan::StoppedBeforeVerdict { effect });
    }
    if misplaced || facts.is_to_have_nothing(instance) {
        return None;
    }
    // The instance has ended, and its job's clean-up policy says what stays.
    let works = who == ProcessRole::Launcher || !facts.has_launcher();
    let straggler = works && stoppable().any(ProcessPhase::is_alive);
    let cleaned = facts.is_finished()
        && facts.job.clean_pod_policy() == CleanPodPolicy::Workers
        && who != ProcessRole::Launcher;
    let yielded = facts.may_yield(instance) && stoppable().any(ProcessPhase::is_alive);
    (!straggler && !cleaned && !yielded).then_some(BrokenPlan::StoppedForNothing { effect })
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
    let due = facts.is_to_have_nothing(instance)
        || facts.is_given_back(instance)
        || facts.may_yield(instance)
        || facts.waits_for_nothing(instance);
    if facts.any_alive(instance) {
        Some(BrokenPlan::UnderProcesses { effect })
    } else if !held || !due {
        Some(BrokenPlan::ReleasedForNothing { effect })
    } else if attempt != newest {
        Some(BrokenPlan::WrongAttempt {
            effect,
            attempt: newest,
        })
    } else {
        None
    }
}

/// What is forgotten: of a deleted job, and of an instance that has ended.
fn check_leftovers(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    let mut anything = false;
    for (position, seen) in facts.seen.instances.iter().enumerate() {
        let instance = seen.index;
        if facts.seen.instances[..position]
            .iter()
            .any(|other| other.index == instance)
        {
            continue;
        }
        let held = facts
            .partitions(instance)
            .any(|partition| *partition != PartitionFacts::Absent);
        anything |= held || facts.processes(instance).next().is_some();
        let released = plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::ReleasePartition { instance: of, .. } if *of == instance));
        let releasing = facts
            .partitions(instance)
            .any(|partition| *partition == PartitionFacts::Releasing);
        let stuck = held && !releasing && !released && !facts.any_alive(instance);
        // What is judged in this pass is acted upon in the next.
        let due = facts.seen.deleted || !facts.is_judged(plan, instance);
        let any = |_, _: &_| true;
        let yields = facts.must_yield(plan, instance);
        if due && facts.is_to_have_nothing(instance) {
            if stuck || is_unstopped(facts, plan, instance, any) {
                broken.push(BrokenPlan::LeftBehind { instance });
            }
        } else if due
            && is_unstopped(facts, plan, instance, |who, process| {
                is_to_go(facts, instance, who, process) || (yields && process.phase.is_alive())
            })
        {
            broken.push(BrokenPlan::LeftRunning { instance });
        } else if due && (yields || facts.waits_for_nothing(instance)) && stuck {
            broken.push(BrokenPlan::LeftInLine { instance });
        }
    }
    let finalized = plan.effects.contains(&Effect::Finalize);
    if finalized && (anything || !facts.seen.deleted || plan.effects.len() > 1) {
        broken.push(BrokenPlan::FinalizedEarly);
    }
    if facts.seen.deleted && !anything && !finalized {
        broken.push(BrokenPlan::NotFinalized);
    }
    let over = facts.is_finished() && facts.is_retention_over() && !facts.seen.deleted;
    if plan.expired != (over && !anything) {
        broken.push(BrokenPlan::WrongExpiry);
    }
}

/// Whether a process is not to stay although its instance may keep something.
fn is_to_go(facts: &AttemptFacts<'_>, instance: u32, who: ProcessRole, process: &ProcessFacts) -> bool {
    let misplaced = process.attempt != facts.attempt(instance) || !facts.is_of_the_job(who);
    let works = who == ProcessRole::Launcher || !facts.has_launcher();
    let straggler = facts.outcome(instance).is_some() && works && process.phase.is_alive();
    let cleaned = facts.is_finished()
        && facts.job.clean_pod_policy() == CleanPodPolicy::Workers
        && who != ProcessRole::Launcher;
    misplaced || straggler || cleaned
}

/// Whether a process that `counts` is neither stopping nor told to stop.
fn is_unstopped(
    facts: &AttemptFacts<'_>,
    plan: &Plan,
    instance: u32,
    counts: impl Fn(ProcessRole, &ProcessFacts) -> bool,
) -> bool {
    let counted = |(who, process): &(ProcessRole, &ProcessFacts)| counts(*who, process);
    facts.processes(instance).filter(counted).any(|(who, process)| {
        let attempt = process.attempt;
        let stop = match who {
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

/// Whether `effect` should have come before one of `earlier`.
fn is_out_of_order(facts: &AttemptFacts<'_>, earlier: &[Effect], effect: &Effect) -> bool {
    let Some(instance) = instance_of(effect) else {
        return false;
    };
    let surplus = |instance: u32| facts.is_surplus(instance);
    let stops = matches!(effect, Effect::StopWorker { .. } | Effect::StopLauncher { .. });
    earlier.iter().any(|before| {
        let Some(other) = instance_of(before) else {
            return true;
        };
        let lower_first = surplus(instance) && surplus(other) && other < instance;
        let stop_is_late = other == instance
            && stops
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

fn is_the_jobs(facts: &AttemptFacts<'_>, effect: &Effect) -> bool {
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
