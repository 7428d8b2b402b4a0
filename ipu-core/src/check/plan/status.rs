//! Invariants of the status to be recorded, of the reasons and of the wake.

use alloc::vec::Vec;
use core::time::Duration;

use super::BrokenPlan;
use super::effects::instance_of;
use super::facts::AttemptFacts;
use crate::job::RestartPolicy;
use crate::observation::PartitionFacts;
use crate::plan::{JobPhase, Plan};

pub(super) fn check(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    let rules: [(bool, &'static str); 10] = [
        (is_ordered(plan), "its instances are not in order"),
        (
            keeps_attempts(facts, plan),
            "an attempt or an outcome is forgotten",
        ),
        (
            keeps_the_end(facts, plan),
            "a finished job is not finished any more",
        ),
        (
            is_a_sound_end(facts, plan),
            "it is finished without an end of all instances, a time, a code and a reason",
        ),
        (
            counts_restarts(facts, plan),
            "its restarts are more than allowed, or fewer than before",
        ),
        (counts_ipus(facts, plan), "it holds another number of IPUs"),
        (
            plan.status.desired_instances == facts.job.instances()
                && plan.status.current_instances <= facts.job.instances(),
            "it has another number of instances",
        ),
        (!plan.status.message.is_empty(), "its message is empty"),
        (
            tells_what_is_asked(facts, plan),
            "its phase is not what is asked of it: deleted, suspended",
        ),
        (
            runs_on_partitions(facts, plan),
            "it runs while an instance has no partition for its attempt",
        ),
    ];
    for (holds, what) in rules {
        if !holds {
            broken.push(BrokenPlan::Status { what });
        }
    }
    let empty = |reason: &crate::Reason| reason.code.is_empty() || reason.message.is_empty();
    if plan.reasons.is_empty() || plan.reasons.iter().any(empty) {
        broken.push(BrokenPlan::NoReason);
    }
    check_verdicts(facts, plan, broken);
    check_wake(facts, plan, broken);
}

fn tells_what_is_asked(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let phase = plan.status.phase;
    let suspended = facts.job.suspend() && !facts.seen.deleted && !phase.is_finished();
    (phase == JobPhase::Terminating) == facts.seen.deleted && (phase == JobPhase::Suspended) == suspended
}

fn runs_on_partitions(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let mut open = plan
        .status
        .instances
        .iter()
        .filter(|now| now.outcome.is_none() && !facts.is_surplus(now.index));
    plan.status.phase != JobPhase::Running
        || open.all(|now| {
            facts.partitions(now.index).any(
                |partition| matches!(partition, PartitionFacts::Active { attempt, .. } if *attempt == now.attempt),
            )
        })
}

fn is_ordered(plan: &Plan) -> bool {
    plan.status
        .instances
        .windows(2)
        .all(|pair| pair[0].index < pair[1].index)
}

fn keeps_attempts(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    plan.status.instances.iter().all(|now| {
        let before = facts.outcome(now.index);
        now.attempt >= facts.attempt(now.index)
            && (facts.is_surplus(now.index) || before.is_none() || before == now.outcome)
    })
}

fn keeps_the_end(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let before = &facts.seen.status;
    !facts.is_finished()
        || ((facts.seen.deleted || plan.status.phase == before.phase)
            && plan.status.finished == before.finished
            && plan.status.exit_code == before.exit_code)
}

fn is_a_sound_end(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let now = &plan.status;
    if facts.is_finished() || !now.phase.is_finished() {
        return true;
    }
    let ended = |index: u32| {
        now.instance(index)
            .is_some_and(|instance| instance.outcome.is_some())
    };
    facts.job.instances() > 0
        && (0..facts.job.instances()).all(ended)
        && now.finished == Some(facts.seen.now)
        && now.conclusion.is_some()
        && now
            .exit_code
            .is_some_and(|code| (code == 0) == (now.phase == JobPhase::Completed))
}

fn counts_restarts(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let (before, now) = (&facts.seen.status, &plan.status);
    let limit = match facts.job.restart() {
        RestartPolicy::Never => 0,
        RestartPolicy::Always { back_off_limit }
        | RestartPolicy::OnFailure { back_off_limit }
        | RestartPolicy::ExitCode { back_off_limit, .. } => *back_off_limit,
    };
    let grew = now.restarts_after_failure > before.restarts_after_failure;
    let rises =
        now.restarts >= before.restarts && now.restarts_after_failure >= before.restarts_after_failure;
    let may_grow = *facts.job.restart() != RestartPolicy::Never || now.restarts == before.restarts;
    rises && may_grow && (!grew || now.restarts_after_failure <= limit)
}

fn counts_ipus(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let mut indices: Vec<u32> = facts
        .seen
        .instances
        .iter()
        .map(|instance| instance.index)
        .collect();
    indices.sort_unstable();
    indices.dedup();
    let holds = |index: &u32| {
        facts
            .partitions(*index)
            .any(|partition| !matches!(partition, PartitionFacts::Absent | PartitionFacts::Waiting { .. }))
    };
    let held: u32 = indices.iter().filter(|index| holds(index)).map(|_| 1).sum();
    plan.status.ipus_held == held.saturating_mul(facts.job.ipus_per_instance().get())
}

/// What is judged in this pass is not touched in it, and looked at again at once.
fn check_verdicts(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    if facts.seen.deleted {
        return;
    }
    for effect in &plan.effects {
        if instance_of(effect).is_some_and(|index| facts.is_judged(plan, index)) {
            broken.push(BrokenPlan::ActedBeforeRecord {
                effect: effect.clone(),
            });
        }
    }
    let any = plan
        .status
        .instances
        .iter()
        .any(|now| facts.is_judged(plan, now.index));
    if any && plan.requeue_after != Some(Duration::ZERO) {
        broken.push(BrokenPlan::SleepsForEver {
            what: "a verdict to be acted upon",
        });
    }
}

fn check_wake(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    let now = facts.seen.now;
    let within = |moment: crate::Timestamp| plan.requeue_after.is_some_and(|wake| wake <= moment.since(now));
    if plan.effects.iter().any(|effect| {
        use crate::plan::Effect as E;
        matches!(
            effect,
            E::EnsurePartition { .. } | E::ResetPartition { .. } | E::ReleasePartition { .. }
        )
    }) && plan.requeue_after.is_none()
    {
        broken.push(BrokenPlan::SleepsForEver {
            what: "a partition on its way",
        });
    }
    let runs = !facts.seen.deleted && !facts.job.suspend() && !plan.status.phase.is_finished();
    for instance in plan.status.instances.iter().filter(|_| runs) {
        let pauses = instance
            .retry_at
            .filter(|retry| *retry > now && !facts.is_surplus(instance.index));
        let ended = instance.outcome.is_some();
        if pauses.is_some_and(|retry| !within(retry)) && !ended {
            broken.push(BrokenPlan::SleepsForEver { what: "a back-off" });
        }
    }
    let any = facts.job.instances() > 0;
    if let (true, Some(limit), Some(started)) = (runs && any, facts.job.max_runtime(), plan.status.started)
        && !within(started.plus(limit))
    {
        broken.push(BrokenPlan::SleepsForEver {
            what: "the job's time limit",
        });
    }
    let finished = facts.is_finished() && !facts.seen.deleted && plan.status.ipus_held > 0;
    if let (true, Some(ttl), Some(ended)) = (finished, facts.job.ttl_after_finished(), plan.status.finished)
        && ended.plus(ttl) > now
        && plan.requeue_after.is_none()
        && (0..facts.job.instances()).any(|index| !facts.is_to_have_nothing(index))
    {
        broken.push(BrokenPlan::SleepsForEver {
            what: "the end of what a finished job keeps",
        });
    }
}
