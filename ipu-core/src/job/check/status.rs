//! Invariants of the recorded status, the reasons and the requeue time.

use alloc::vec::Vec;
use core::time::Duration;

use super::BrokenPlan;
use super::effects::instance_of;
use super::facts::AttemptFacts;
use crate::job::RestartPolicy;
use crate::job::observation::PartitionFacts;
use crate::job::plan::Plan;
use crate::job::status::JobPhase;

pub(super) fn check(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    let checks: [(bool, &'static str); 10] = [
        (is_ordered(plan), "its instances are not sorted by index"),
        (keeps_attempts(facts, plan), "an attempt or an outcome is lost"),
        (keeps_job_end(facts, plan), "a finished job is no longer finished"),
        (
            has_complete_end(facts, plan),
            "the finished job lacks an outcome of every instance, a time, a code or a reason",
        ),
        (
            counts_restarts(facts, plan),
            "its restart count exceeds the limit or has decreased",
        ),
        (counts_ipus(facts, plan), "its number of held IPUs is wrong"),
        (
            plan.status.desired_instances == facts.job.instances()
                && plan.status.current_instances <= facts.job.instances(),
            "its number of instances is wrong",
        ),
        (!plan.status.message.is_empty(), "its message is empty"),
        (
            phase_matches_request(facts, plan),
            "its phase contradicts a requested deletion or suspension",
        ),
        (
            runs_with_partitions(facts, plan),
            "its phase is Running and an instance has no partition for its attempt",
        ),
    ];
    for (holds, detail) in checks {
        if !holds {
            broken.push(BrokenPlan::Status { detail });
        }
    }
    let empty = |reason: &crate::Reason| reason.message.is_empty();
    if plan.reasons.is_empty() || plan.reasons.iter().any(empty) {
        broken.push(BrokenPlan::NoReason);
    }
    check_verdicts(facts, plan, broken);
    check_requeue(facts, plan, broken);
}

fn phase_matches_request(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let phase = plan.status.phase;
    let suspended = facts.job.suspend() && !facts.observation.deleted && !phase.is_finished();
    (phase == JobPhase::Terminating) == facts.observation.deleted
        && (phase == JobPhase::Suspended) == suspended
}

fn runs_with_partitions(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
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

fn keeps_job_end(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let before = &facts.observation.status;
    !facts.is_finished()
        || ((facts.observation.deleted || plan.status.phase == before.phase)
            && plan.status.finished == before.finished
            && plan.status.exit_code == before.exit_code)
}

fn has_complete_end(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
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
        && now.finished == Some(facts.observation.now)
        && now.conclusion.is_some()
        && now
            .exit_code
            .is_some_and(|code| (code == 0) == (now.phase == JobPhase::Completed))
}

fn counts_restarts(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let (before, now) = (&facts.observation.status, &plan.status);
    let limit = match facts.job.restart() {
        RestartPolicy::Never => 0,
        RestartPolicy::Always { back_off_limit }
        | RestartPolicy::OnFailure { back_off_limit }
        | RestartPolicy::ExitCode { back_off_limit, .. } => *back_off_limit,
    };
    let increased = now.restarts_after_failure > before.restarts_after_failure;
    let is_monotonic =
        now.restarts >= before.restarts && now.restarts_after_failure >= before.restarts_after_failure;
    let may_increase = *facts.job.restart() != RestartPolicy::Never || now.restarts == before.restarts;
    is_monotonic && may_increase && (!increased || now.restarts_after_failure <= limit)
}

fn counts_ipus(facts: &AttemptFacts<'_>, plan: &Plan) -> bool {
    let mut indices: Vec<u32> = facts
        .observation
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

/// Checks that instances with a new verdict have no effects and that the job is requeued immediately.
fn check_verdicts(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    if facts.observation.deleted {
        return;
    }
    for effect in &plan.effects {
        if instance_of(effect).is_some_and(|index| facts.has_verdict(plan, index)) {
            broken.push(BrokenPlan::ActedBeforeRecord {
                effect: effect.clone(),
            });
        }
    }
    let any = plan
        .status
        .instances
        .iter()
        .any(|now| facts.has_verdict(plan, now.index));
    if any && plan.requeue_after != Some(Duration::ZERO) {
        broken.push(BrokenPlan::NoRequeue { awaited: "a verdict" });
    }
}

fn check_requeue(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    let now = facts.observation.now;
    let within = |time: crate::Timestamp| {
        plan.requeue_after
            .is_some_and(|requeue| requeue <= time.since(now))
    };
    if plan.effects.iter().any(|effect| {
        use crate::job::plan::Effect as E;
        matches!(
            effect,
            E::EnsurePartition { .. } | E::ResetPartition { .. } | E::ReleasePartition { .. }
        )
    }) && plan.requeue_after.is_none()
    {
        broken.push(BrokenPlan::NoRequeue {
            awaited: "a partition in transition",
        });
    }
    let runs = !facts.observation.deleted && !facts.job.suspend() && !plan.status.phase.is_finished();
    for instance in plan.status.instances.iter().filter(|_| runs) {
        let pauses = instance
            .retry_at
            .filter(|retry| *retry > now && !facts.is_surplus(instance.index));
        let ended = instance.outcome.is_some();
        if pauses.is_some_and(|retry| !within(retry)) && !ended {
            broken.push(BrokenPlan::NoRequeue {
                awaited: "a back-off",
            });
        }
    }
    let has_instances = facts.job.instances() > 0;
    if let (true, Some(limit), Some(started)) = (
        runs && has_instances,
        facts.job.max_runtime(),
        plan.status.started,
    ) && !within(started.plus(limit))
    {
        broken.push(BrokenPlan::NoRequeue {
            awaited: "the deadline of the job",
        });
    }
    let finished = plan.status.phase.is_finished();
    if let (true, Some(ttl), Some(ended)) = (finished, facts.job.ttl_after_finished(), plan.status.finished)
        && ended.plus(ttl) > now
        && !within(ended.plus(ttl))
    {
        broken.push(BrokenPlan::NoRequeue {
            awaited: "the end of the retention",
        });
    }
}
