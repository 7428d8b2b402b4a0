//! What a status says of a pass: counts, instances, conditions, the first failure, and what hinders.

use std::collections::BTreeSet;

use ipu_core::{Effect, JobPhase, Plan, Reason, Timestamp};
use ipu_proxy_client::{HoldState, PartitionDocument};
use serde_json::Value;

use super::mpirun_output::RankFailure;
use super::observation::ObservedJob;
use super::pod_state::{KubePod, PodOutcome};
use crate::crd::{
    AttemptReport, Condition, FailureReport, InstanceReport, IpuJobStatus, PhaseSeconds, Time, WorkersStatus,
};
use crate::resources::{ResourceBuilder, selector};

/// What a status says of a pass, with what was said `before`.
pub(super) fn report(
    blueprint: &ResourceBuilder<'_>,
    object: &Value,
    before: &IpuJobStatus,
    plan: &Plan,
    seen: &ObservedJob,
    begun: Timestamp,
) -> IpuJobStatus {
    let mut after = before.clone();
    after.remember(&plan.status);
    after.start_time.get_or_insert(Time(begun));
    after.observed_generation = object["metadata"]["generation"].as_i64();
    after.selector = Some(selector(blueprint.spec.key().name.as_str()));
    after.workers_status = count(&seen.pods);
    report_instances(&mut after, blueprint, plan, seen);
    after.ipu_partition_created = all_granted(&after, blueprint, seen);
    report_failure(&mut after, before, blueprint, seen);
    if before.phase.is_none() && plan.status.phase == JobPhase::Running {
        // It was on its way until now, which nobody was told.
        report_condition(&mut after, blueprint, JobPhase::Pending, plan, begun);
    }
    report_condition(&mut after, blueprint, plan.status.phase, plan, seen.now);
    if plan.status.phase == JobPhase::Running && after.phase_seconds.is_none() {
        after.phase_seconds = Some(phase_seconds(seen));
    }
    if let Some(held_up) = start_blocker(plan.status.phase, seen) {
        after.last_message = format!("{}; {held_up}", after.last_message);
    }
    after
}

fn count(pods: &[KubePod]) -> WorkersStatus {
    let of = |what: PodOutcome| {
        let counted = pods
            .iter()
            .filter(|pod| pod.worker.is_some() && pod.count() == what)
            .count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    };
    WorkersStatus::new(
        of(PodOutcome::Active),
        of(PodOutcome::Succeeded),
        of(PodOutcome::Failed),
    )
}

fn report_instances(
    after: &mut IpuJobStatus,
    blueprint: &ResourceBuilder<'_>,
    plan: &Plan,
    seen: &ObservedJob,
) {
    let not_requested = plan.reasons.iter().find(|reason| reason.code == "NotRequested");
    let requested = requested(plan);
    for report in &mut after.instances {
        let index = report.index;
        let document = seen.partitions.get(&index);
        report.partition = document
            .filter(|document| document.state.holds())
            .map(|document| blueprint.spec.partition_id(document.instance).to_string());
        let controller = document.and_then(|document| document.controller.as_ref());
        report.controller = controller.map(|controller| controller.name.to_string());
        report.node_label = controller.and_then(|controller| controller.node_label.clone());
        let workers = seen
            .pods
            .iter()
            .filter(|pod| pod.instance == index && pod.worker.is_some() && !pod.deleted);
        report.workers = workers.map(|pod| pod.name.clone()).collect();
        let about = |reason: &&Reason| reason.numbers.get("instance") == Some(&u64::from(index));
        let reason = plan.reasons.iter().find(about).map(ToString::to_string);
        let put_off = not_requested.filter(|_| document.is_none() && !requested.contains(&index));
        report.reason = reason
            .or_else(|| put_off.map(put_off_reason))
            .filter(|_| !report.has_ended());
        if !report.has_ended() {
            report.state = state_of(report, document, put_off.is_some()).to_owned();
        }
    }
}

/// The instances whose partition the plan asks for.
fn requested(plan: &Plan) -> BTreeSet<u32> {
    let instance = |effect: &Effect| match effect {
        Effect::EnsurePartition { instance, .. } => Some(*instance),
        _ => None,
    };
    plan.effects.iter().filter_map(instance).collect()
}

/// The reason of an instance whose partition is not requested yet. It does not change as long as the instance waits.
fn put_off_reason(why: &Reason) -> String {
    let limit = why.numbers.get("limit").copied().unwrap_or_default();
    format!(
        "{}: {limit} instances of the job are queued or have their partition made ready, which is the limit",
        why.code
    )
}

fn state_of(report: &InstanceReport, document: Option<&PartitionDocument>, is_put_off: bool) -> &'static str {
    match document.map(|document| document.state) {
        Some(HoldState::Active) if report.running_time.is_some() => "Running",
        Some(HoldState::Active) => "Starting",
        Some(HoldState::Releasing) => "Releasing",
        Some(HoldState::Waiting | HoldState::Quarantined) => "Waiting",
        None if is_put_off => "Waiting",
        _ => "Preparing",
    }
}

/// Whether every instance has its partition, for its attempt.
fn all_granted(after: &IpuJobStatus, blueprint: &ResourceBuilder<'_>, seen: &ObservedJob) -> bool {
    let wanted = blueprint.spec.instances();
    let granted = |index: u32| {
        let report = after.instances.iter().find(|report| report.index == index);
        let document = seen.partitions.get(&index);
        report.zip(document).is_some_and(|(report, document)| {
            document.attempt == report.attempt && document.state == HoldState::Active
        })
    };
    wanted > 0 && (0..wanted).all(granted)
}

/// Says of a failure that is new whose it was and where it ran, while that is known.
fn report_failure(
    after: &mut IpuJobStatus,
    before: &IpuJobStatus,
    blueprint: &ResourceBuilder<'_>,
    seen: &ObservedJob,
) {
    let Some(failure) = after
        .first_failure
        .as_mut()
        .filter(|failure| failure.name.is_empty())
    else {
        return;
    };
    let spec = blueprint.spec;
    if let Some((worker, told)) = blamed_by_launcher(failure, blueprint, seen) {
        failure.worker = Some(worker);
        "Worker".clone_into(&mut failure.kind);
        failure.reason = format!("{} of rank {}, as the launcher tells", told.exit, told.rank);
    }
    failure.name = match (failure.worker, failure.kind.as_str()) {
        (Some(worker), _) => spec.worker_name(failure.instance, worker),
        (None, "Launcher") => spec.launcher_name(failure.instance),
        (None, _) => spec.partition_id(failure.instance).to_string(),
    };
    let pod = seen
        .pods
        .iter()
        .find(|pod| pod.name == failure.name && pod.attempt == failure.attempt);
    failure.node = pod.and_then(|pod| pod.node.clone());
    let attempt = attempt_of(failure);
    if before.attempts.last() != Some(&attempt) {
        after.attempts.push(attempt);
    }
    let surplus = after.attempts.len().saturating_sub(IpuJobStatus::MAX_ATTEMPTS);
    after.attempts.drain(..surplus);
}

/// The worker that a launcher, which failed, says was the first to, and what it says of it.
fn blamed_by_launcher(
    failure: &FailureReport,
    blueprint: &ResourceBuilder<'_>,
    seen: &ObservedJob,
) -> Option<(u32, RankFailure)> {
    if failure.kind != "Launcher" {
        return None;
    }
    let mut launchers = seen.pods.iter().filter(|pod| {
        pod.worker.is_none() && pod.instance == failure.instance && pod.attempt == failure.attempt
    });
    let told = seen.ends.told(launchers.next()?)?;
    let worker = told.worker(blueprint.job, blueprint.spec, failure.instance)?;
    Some((worker, told))
}

fn attempt_of(failure: &FailureReport) -> AttemptReport {
    AttemptReport {
        instance: failure.instance,
        attempt: failure.attempt,
        name: failure.name.clone(),
        reason: failure.reason.clone(),
        time: failure.time,
    }
}

/// One condition for each phase that was reached; the one that the job is in is true (seed 000 §6.6).
fn report_condition(
    after: &mut IpuJobStatus,
    blueprint: &ResourceBuilder<'_>,
    phase: JobPhase,
    plan: &Plan,
    now: Timestamp,
) {
    let kind = format!("{phase:?}");
    let key = blueprint.spec.key();
    let why = plan
        .status
        .conclusion
        .as_ref()
        .map(|why| format!(": {}", why.message));
    let what = match phase {
        JobPhase::Pending => "is waiting for resources to be ready.".to_owned(),
        JobPhase::Running => "is running.".to_owned(),
        JobPhase::Restarting => "is restarting.".to_owned(),
        JobPhase::Suspended => "is suspended.".to_owned(),
        JobPhase::Completed => "has completed.".to_owned(),
        JobPhase::Failed => format!("has failed{}.", why.unwrap_or_default()),
        JobPhase::Terminating => "is being deleted.".to_owned(),
        other => format!("is in phase {other:?}."),
    };
    let message = format!("IPUJob {}/{} {what}", key.namespace, key.name);
    let now = Some(Time(now));
    for condition in &mut after.conditions {
        if condition.kind != kind && condition.status != "False" {
            condition.status = "False".to_owned();
            condition.last_transition_time = now;
        }
    }
    if !after.conditions.iter().any(|condition| condition.kind == kind) {
        after.conditions.push(Condition {
            reason: format!("IPUJob{kind}"),
            kind: kind.clone(),
            ..Condition::default()
        });
    }
    let current = after
        .conditions
        .iter_mut()
        .find(|condition| condition.kind == kind);
    if let Some(condition) = current {
        if condition.status != "True" {
            condition.status = "True".to_owned();
            condition.last_transition_time = now;
        }
        if condition.message != message {
            condition.message = message;
            condition.last_update_time = now;
        }
    }
}

/// How long the job was in each part of its way: each begins where the one before it ended.
fn phase_seconds(seen: &ObservedJob) -> PhaseSeconds {
    let documents = || seen.partitions.values();
    let granted = documents().filter_map(|document| document.held_since).max();
    let active = documents().map(|document| document.since).max();
    let placed = seen
        .pods
        .iter()
        .filter(|pod| pod.worker.is_some())
        .filter_map(|pod| pod.scheduled)
        .max();
    let mut from = seen.submitted;
    let mut until = |end: Option<Timestamp>| {
        let end = end.unwrap_or(from).max(from).min(seen.now.max(from));
        let millis = u32::try_from(end.since(from).as_millis()).unwrap_or(u32::MAX);
        from = end;
        f64::from(millis) / 1000.0
    };
    PhaseSeconds::new(
        until(granted),
        until(active),
        until(placed),
        until(Some(seen.now)),
    )
}

/// What is to be said of the first of the job's processes that does not go, does not start, or is not ready.
pub(super) fn start_blocker(phase: JobPhase, seen: &ObservedJob) -> Option<String> {
    let (starts, runs) = match phase {
        phase if phase.is_finished() => return None,
        JobPhase::Pending | JobPhase::Restarting => (true, false),
        JobPhase::Running => (true, true),
        _ => (false, false),
    };
    let said = |why: &dyn Fn(&KubePod) -> Option<String>| {
        let mut pods = seen.pods.iter();
        pods.find_map(|pod| Some(format!("{}: {}", pod.name, why(pod)?)))
    };
    said(&|pod| pod.overdue(seen.now))
        .or_else(|| said(&|pod| pod.start_blocker.clone().filter(|_| starts)))
        .or_else(|| said(&|pod| pod.not_ready(seen.now).filter(|_| runs)))
}
