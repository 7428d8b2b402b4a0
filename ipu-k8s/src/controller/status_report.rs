//! The status report of a reconcile: counts, instances, conditions, the first failure, and blocking
//! conditions.

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

/// Returns the status after a reconcile, based on the status `before`.
pub(super) fn report(
    builder: &ResourceBuilder<'_>,
    object: &Value,
    before: &IpuJobStatus,
    plan: &Plan,
    observed: &ObservedJob,
    started: Timestamp,
) -> IpuJobStatus {
    let mut after = before.clone();
    after.record(&plan.status);
    after.start_time.get_or_insert(Time(started));
    after.observed_generation = object["metadata"]["generation"].as_i64();
    after.selector = Some(selector(builder.spec.key().name.as_str()));
    after.workers_status = count(&observed.pods);
    report_instances(&mut after, builder, plan, observed);
    after.ipu_partition_created = all_granted(&after, builder, observed);
    report_failure(&mut after, before, builder, observed);
    if before.phase.is_none() && plan.status.phase == JobPhase::Running {
        // It was pending until now, which no status has recorded.
        report_condition(&mut after, builder, JobPhase::Pending, plan, started);
    }
    report_condition(&mut after, builder, plan.status.phase, plan, observed.now);
    if plan.status.phase == JobPhase::Running && after.phase_seconds.is_none() {
        after.phase_seconds = Some(phase_seconds(observed));
    }
    if let Some(blocker) = start_blocker(plan.status.phase, observed) {
        after.last_message = format!("{}; {blocker}", after.last_message);
    }
    after
}

fn count(pods: &[KubePod]) -> WorkersStatus {
    let of = |outcome: PodOutcome| {
        let counted = pods
            .iter()
            .filter(|pod| pod.worker.is_some() && pod.outcome_category() == outcome)
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
    builder: &ResourceBuilder<'_>,
    plan: &Plan,
    observed: &ObservedJob,
) {
    let not_requested = plan.reasons.iter().find(|reason| reason.code == "NotRequested");
    let requested = requested(plan);
    for report in &mut after.instances {
        let index = report.index;
        let document = observed.partitions.get(&index);
        report.partition = document
            .filter(|document| document.state.holds())
            .map(|document| builder.spec.partition_id(document.instance).to_string());
        let controller = document.and_then(|document| document.controller.as_ref());
        report.controller = controller.map(|controller| controller.name.to_string());
        report.node_label = controller.and_then(|controller| controller.node_label.clone());
        let workers = observed
            .pods
            .iter()
            .filter(|pod| pod.instance == index && pod.worker.is_some() && !pod.deleted);
        report.workers = workers.map(|pod| pod.name.clone()).collect();
        let about = |reason: &&Reason| reason.numbers.get("instance") == Some(&u64::from(index));
        let reason = plan.reasons.iter().find(about).map(ToString::to_string);
        let deferral = not_requested.filter(|_| document.is_none() && !requested.contains(&index));
        report.reason = reason
            .or_else(|| deferral.map(deferral_reason))
            .filter(|_| !report.has_ended());
        if !report.has_ended() {
            report.state = instance_state(report, document, deferral.is_some()).to_owned();
        }
    }
}

/// Returns the instances whose partition the plan requests.
fn requested(plan: &Plan) -> BTreeSet<u32> {
    let instance = |effect: &Effect| match effect {
        Effect::EnsurePartition { instance, .. } => Some(*instance),
        _ => None,
    };
    plan.effects.iter().filter_map(instance).collect()
}

/// Returns the reason of an instance whose partition is not requested yet. It does not change while the
/// instance waits.
fn deferral_reason(reason: &Reason) -> String {
    let limit = reason.numbers.get("limit").copied().unwrap_or_default();
    format!(
        "{}: {limit} instances of the job are queued or have their partition made ready, which is the limit",
        reason.code
    )
}

fn instance_state(
    report: &InstanceReport,
    document: Option<&PartitionDocument>,
    is_deferred: bool,
) -> &'static str {
    match document.map(|document| document.state) {
        Some(HoldState::Active) if report.running_time.is_some() => "Running",
        Some(HoldState::Active) => "Starting",
        Some(HoldState::Releasing) => "Releasing",
        Some(HoldState::Waiting | HoldState::Quarantined) => "Waiting",
        None if is_deferred => "Waiting",
        _ => "Preparing",
    }
}

/// Returns whether every instance has its partition for its current attempt.
fn all_granted(after: &IpuJobStatus, builder: &ResourceBuilder<'_>, observed: &ObservedJob) -> bool {
    let wanted = builder.spec.instances();
    let granted = |index: u32| {
        let report = after.instances.iter().find(|report| report.index == index);
        let document = observed.partitions.get(&index);
        report.zip(document).is_some_and(|(report, document)| {
            document.attempt == report.attempt && document.state == HoldState::Active
        })
    };
    wanted > 0 && (0..wanted).all(granted)
}

/// Adds the process and node to a new failure while they are known.
fn report_failure(
    after: &mut IpuJobStatus,
    before: &IpuJobStatus,
    builder: &ResourceBuilder<'_>,
    observed: &ObservedJob,
) {
    let Some(failure) = after
        .first_failure
        .as_mut()
        .filter(|failure| failure.name.is_empty())
    else {
        return;
    };
    let spec = builder.spec;
    if let Some((worker, rank_failure)) = worker_reported_by_launcher(failure, builder, observed) {
        failure.worker = Some(worker);
        "Worker".clone_into(&mut failure.kind);
        failure.reason = format!(
            "{} of rank {}, as the launcher reports",
            rank_failure.exit, rank_failure.rank
        );
    }
    failure.name = match (failure.worker, failure.kind.as_str()) {
        (Some(worker), _) => spec.worker_name(failure.instance, worker),
        (None, "Launcher") => spec.launcher_name(failure.instance),
        (None, _) => spec.partition_id(failure.instance).to_string(),
    };
    let pod = observed
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

/// Returns the worker that a failed launcher reports as the first failure, and the report.
fn worker_reported_by_launcher(
    failure: &FailureReport,
    builder: &ResourceBuilder<'_>,
    observed: &ObservedJob,
) -> Option<(u32, RankFailure)> {
    if failure.kind != "Launcher" {
        return None;
    }
    let mut launchers = observed.pods.iter().filter(|pod| {
        pod.worker.is_none() && pod.instance == failure.instance && pod.attempt == failure.attempt
    });
    let failure_report = observed.failure_evidence.exit_from_log(launchers.next()?)?;
    let worker = failure_report.worker(builder.job, builder.spec, failure.instance)?;
    Some((worker, failure_report))
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

/// Sets one condition for each phase that was reached; that of the current phase is true (seed 000 §6.6).
fn report_condition(
    after: &mut IpuJobStatus,
    builder: &ResourceBuilder<'_>,
    phase: JobPhase,
    plan: &Plan,
    now: Timestamp,
) {
    let kind = format!("{phase:?}");
    let key = builder.spec.key();
    let conclusion = plan
        .status
        .conclusion
        .as_ref()
        .map(|conclusion| format!(": {}", conclusion.message));
    let description = match phase {
        JobPhase::Pending => "is waiting for resources to be ready.".to_owned(),
        JobPhase::Running => "is running.".to_owned(),
        JobPhase::Restarting => "is restarting.".to_owned(),
        JobPhase::Suspended => "is suspended.".to_owned(),
        JobPhase::Completed => "has completed.".to_owned(),
        JobPhase::Failed => format!("has failed{}.", conclusion.unwrap_or_default()),
        JobPhase::Terminating => "is being deleted.".to_owned(),
    };
    let message = format!("IPUJob {}/{} {description}", key.namespace, key.name);
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

/// Returns the duration of each part of the start; each begins where the previous one ended.
fn phase_seconds(observed: &ObservedJob) -> PhaseSeconds {
    let documents = || observed.partitions.values();
    let granted = documents().filter_map(|document| document.held_since).max();
    let active = documents().map(|document| document.since).max();
    let scheduled = observed
        .pods
        .iter()
        .filter(|pod| pod.worker.is_some())
        .filter_map(|pod| pod.scheduled)
        .max();
    let mut from = observed.submitted;
    let mut until = |end: Option<Timestamp>| {
        let end = end.unwrap_or(from).max(from).min(observed.now.max(from));
        let millis = u32::try_from(end.since(from).as_millis()).unwrap_or(u32::MAX);
        from = end;
        f64::from(millis) / 1000.0
    };
    PhaseSeconds::new(
        until(granted),
        until(active),
        until(scheduled),
        until(Some(observed.now)),
    )
}

/// Returns a message about the first process of the job that does not terminate, does not start, or is not
/// ready.
pub(super) fn start_blocker(phase: JobPhase, observed: &ObservedJob) -> Option<String> {
    let (starts, runs) = match phase {
        phase if phase.is_finished() => return None,
        JobPhase::Pending | JobPhase::Restarting => (true, false),
        JobPhase::Running => (true, true),
        _ => (false, false),
    };
    let first_message = |message_of: &dyn Fn(&KubePod) -> Option<String>| {
        let mut pods = observed.pods.iter();
        pods.find_map(|pod| Some(format!("{}: {}", pod.name, message_of(pod)?)))
    };
    first_message(&|pod| pod.overdue(observed.now))
        .or_else(|| first_message(&|pod| pod.start_blocker.clone().filter(|_| starts)))
        .or_else(|| first_message(&|pod| pod.not_ready(observed.now).filter(|_| runs)))
}
