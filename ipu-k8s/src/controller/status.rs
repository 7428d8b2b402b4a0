//! The status of a job after a reconciliation: counts, instances, conditions, the first failure, and what
//! blocks it. One write, unless it can wait.

use std::collections::BTreeSet;
use std::time::Duration;

use ipu_core::job::{CleanPodPolicy, Effect, JobPhase, JobSpec, Plan};
use ipu_core::{JobKey, Reason, ReasonCode, Timestamp};
use ipu_proxy_client::{HoldState, PartitionDocument};
use kube::ResourceExt as _;
use kube::api::Api;

use super::context::Context;
use super::error::ReconcileError;
use super::objects::post_params;
use super::observe::ObservedJob;
use super::pod::{JobPod, PodOutcome};
use crate::crd::{
    AttemptReport, Condition, InstanceReport, IpuJob, IpuJobSpec, IpuJobStatus, PhaseSeconds, Time,
    WorkersStatus,
};
use crate::resources::selector;

/// Minimum interval between status writes of a pending job that change only messages, or the step of a start:
/// with a thousand queued jobs, each start changes the messages of all others.
const MESSAGE_WRITE_INTERVAL: Duration = Duration::from_secs(15);
/// Age of the last step of a start, or of a deletion, below which the status is not written: a job that makes
/// the transition in such steps needs a single write.
const TRANSIENT_TIME: Duration = Duration::from_secs(2);
/// Maximum length of a message, in characters.
const MAX_MESSAGE_CHARS: usize = 1024;

/// Result of a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusWrite {
    Written,
    /// The stored status is up to date.
    Unchanged,
    /// The write can wait for this long.
    Deferred(Duration),
}

/// State of an instance that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstanceState {
    /// Its request is queued, refused, or not sent yet.
    Waiting,
    /// V-IPU creates or resets its partition.
    Preparing,
    /// Its processes start.
    Starting,
    Running,
    /// Its processes end.
    Stopping,
    /// Its partition is being released.
    Releasing,
    /// The instance waits for its next attempt.
    BackingOff,
    /// The instance holds nothing, as the user requests.
    Suspended,
}

impl InstanceState {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Preparing => "Preparing",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::Releasing => "Releasing",
            Self::BackingOff => "BackingOff",
            Self::Suspended => "Suspended",
        }
    }
}

/// Returns the recorded status of a job.
pub(super) fn recorded_status(job: &IpuJob) -> IpuJobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    // Version 1.2.0 of Graphcore's operator writes no phase: a job that has finished is not run again.
    status.phase = status.phase.or(match status.launcher_status.as_deref() {
        Some("Completed") => Some(JobPhase::Completed),
        Some("Failed") => Some(JobPhase::Failed),
        _ => None,
    });
    status
}

/// Returns the status after a reconciliation, based on the status `before`.
pub(super) fn report(
    job: &IpuJob,
    spec: &JobSpec,
    before: &IpuJobStatus,
    plan: &Plan,
    observed: &ObservedJob,
    blocker: Option<&ReconcileError>,
) -> IpuJobStatus {
    let mut after = before.clone();
    after.record(&plan.status);
    let transient = u64::try_from(TRANSIENT_TIME.as_millis()).unwrap_or_default();
    let earliest = Timestamp::from_millis(observed.now.as_millis().saturating_sub(transient));
    let started = observed.submitted.max(earliest);
    after.start_time.get_or_insert(Time(started));
    after.observed_generation = job.metadata.generation;
    after.selector = Some(selector(spec.key().name.as_str()));
    after.workers_status = count(&observed.pods);
    after.ready_replicas = ready_instances(&after, spec, &observed.pods);
    report_instances(&mut after, spec, plan, observed, blocker);
    after.ipu_partition_created = all_granted(&after, before, spec, observed);
    report_failure(&mut after, before, job, spec, observed);
    if before.phase.is_none() && plan.status.phase == JobPhase::Running {
        // It was pending until now, which no status has recorded.
        report_condition(&mut after, spec, JobPhase::Pending, plan, started);
    }
    report_condition(&mut after, spec, plan.status.phase, plan, observed.now);
    if plan.status.phase == JobPhase::Running && after.phase_seconds.is_none() {
        after.phase_seconds = Some(phase_seconds(observed));
    }
    if let Some(problem) = pod_problem(plan.status.phase, observed) {
        after.last_message = joined(&after.last_message, &problem);
    }
    if let Some(hold) = &observed.hold {
        after.last_message = joined(&after.last_message, hold);
    }
    if let Some(blocker) = blocker.filter(|blocker| blocker.is_reported_in(plan.status.phase)) {
        after.last_message = joined(&after.last_message, &blocker.to_string());
    }
    after
}

/// Appends a detail to a message. The documented messages end with an exclamation mark.
pub(super) fn joined(message: &str, detail: &str) -> String {
    let separator = if message.ends_with('!') { "" } else { ";" };
    format!("{message}{separator} {detail}")
}

fn count(pods: &[JobPod]) -> WorkersStatus {
    let count_of = |outcome: PodOutcome| {
        let counted = pods
            .iter()
            .filter(|pod| pod.worker.is_some() && pod.outcome() == outcome)
            .count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    };
    WorkersStatus::new(
        count_of(PodOutcome::Active),
        count_of(PodOutcome::Succeeded),
        count_of(PodOutcome::Failed),
    )
}

/// Returns the number of instances of which all workers are ready.
fn ready_instances(after: &IpuJobStatus, spec: &JobSpec, pods: &[JobPod]) -> u32 {
    let ready_workers = |report: &InstanceReport| {
        let is_ready = |pod: &&JobPod| {
            pod.worker.is_some()
                && (pod.instance, pod.attempt) == (report.index, report.attempt)
                && pod.is_ready()
        };
        pods.iter().filter(is_ready).count()
    };
    let all = usize::try_from(spec.workers_per_instance()).unwrap_or(usize::MAX);
    let ready = after
        .instances
        .iter()
        .filter(|report| ready_workers(report) == all)
        .count();
    u32::try_from(ready).unwrap_or(u32::MAX)
}

fn report_instances(
    after: &mut IpuJobStatus,
    spec: &JobSpec,
    plan: &Plan,
    observed: &ObservedJob,
    blocker: Option<&ReconcileError>,
) {
    let not_requested = plan
        .reasons
        .iter()
        .find(|reason| reason.code == ReasonCode::NotRequested);
    let requested = requested(plan);
    for report in &mut after.instances {
        let index = report.index;
        let document = observed.partitions.get(&index);
        if !observed.unknown.contains_key(&index) {
            let held = document.filter(|document| document.state.holds());
            report.partition = held.map(|document| spec.partition_id(document.instance).to_string());
            let controller = document.and_then(|document| document.controller.as_ref());
            report.controller = controller.map(|controller| controller.name.to_string());
            report.node_label = controller.and_then(|controller| controller.node_label.clone());
        }
        let workers = observed
            .pods
            .iter()
            .filter(|pod| pod.instance == index && pod.worker.is_some());
        report.workers = workers.map(|pod| pod.name.clone()).collect();
        if report.has_ended() {
            report.reason = None;
            continue;
        }
        let is_about = |reason: &&Reason| reason.numbers.get("instance") == Some(&u64::from(index));
        let reason = plan.reasons.iter().find(is_about).map(ToString::to_string);
        let is_unrequested = document.is_none() && !requested.contains(&index);
        let deferral = not_requested.filter(|_| is_unrequested).map(deferral_reason);
        // The request for its partition is refused: nothing is being prepared.
        let refusal = blocker.filter(|blocker| {
            matches!(blocker, ReconcileError::Refused { .. })
                && document.is_none()
                && requested.contains(&index)
        });
        // A controller that does not respond says more than that its call is open.
        let unavailable = document
            .filter(|document| matches!(document.state, HoldState::Creating | HoldState::Resetting))
            .and_then(|document| document.reason.as_ref())
            .filter(|reason| reason.code == ReasonCode::ControllerUnavailable)
            .map(ToString::to_string);
        report.reason = refusal
            .map(ToString::to_string)
            .or(unavailable)
            .or(reason)
            .or(deferral);
        let state = match refusal.is_some() || not_requested.is_some() && is_unrequested {
            true => InstanceState::Waiting,
            false => instance_state(report, document, plan, observed),
        };
        state.as_str().clone_into(&mut report.state);
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
    plan: &Plan,
    observed: &ObservedJob,
) -> InstanceState {
    let mut alive = observed
        .pods
        .iter()
        .filter(|pod| pod.instance == report.index && !pod.has_ended());
    let is_ending = |pod: &JobPod| pod.terminating || pod.attempt < report.attempt;
    if alive.any(is_ending) || plan.status.phase == JobPhase::Terminating && alive.next().is_some() {
        return InstanceState::Stopping;
    }
    let backs_off = report.retry_time.is_some_and(|retry| retry.0 > observed.now);
    match document.map(|document| document.state) {
        _ if observed.unknown.contains_key(&report.index) => InstanceState::Running,
        Some(HoldState::Releasing) => InstanceState::Releasing,
        _ if backs_off => InstanceState::BackingOff,
        Some(HoldState::Active) if report.running_time.is_some() => InstanceState::Running,
        Some(HoldState::Active) => InstanceState::Starting,
        Some(HoldState::Waiting | HoldState::Quarantined) => InstanceState::Waiting,
        None | Some(HoldState::Gone) if plan.status.phase == JobPhase::Suspended => InstanceState::Suspended,
        None | Some(HoldState::Gone) if plan.status.phase == JobPhase::Terminating => {
            InstanceState::Releasing
        }
        _ => InstanceState::Preparing,
    }
}

/// Returns whether every instance has its partition for its current attempt. The proxy rebuilds a lost ledger
/// from this.
fn all_granted(after: &IpuJobStatus, before: &IpuJobStatus, spec: &JobSpec, observed: &ObservedJob) -> bool {
    let wanted = spec.instances();
    let granted = |index: u32| {
        let report = after.instances.iter().find(|report| report.index == index);
        let document = observed.partitions.get(&index);
        let is_active = report.zip(document).is_some_and(|(report, document)| {
            document.attempt == report.attempt && document.state == HoldState::Active
        });
        let known = before.instances.iter().find(|known| known.index == index);
        let is_same_attempt = report
            .zip(known)
            .is_some_and(|(report, known)| report.attempt == known.attempt);
        is_active || observed.unknown.contains_key(&index) && before.ipu_partition_created && is_same_attempt
    };
    wanted > 0 && (0..wanted).all(granted)
}

/// Adds the process and node to a new failure while they are known.
fn report_failure(
    after: &mut IpuJobStatus,
    before: &IpuJobStatus,
    job: &IpuJob,
    spec: &JobSpec,
    observed: &ObservedJob,
) {
    let Some(failure) = after
        .first_failure
        .as_mut()
        .filter(|failure| failure.name.is_empty())
    else {
        return;
    };
    let is_launcher = |pod: &&JobPod| {
        pod.worker.is_none() && (pod.instance, pod.attempt) == (failure.instance, failure.attempt)
    };
    let launcher = observed
        .pods
        .iter()
        .find(is_launcher)
        .filter(|_| failure.kind == "Launcher");
    let rank = launcher.and_then(|launcher| observed.evidence.reported_rank(launcher));
    if let Some((rank, worker)) = rank.and_then(|rank| {
        let worker = rank.worker(job, spec, failure.instance)?;
        Some((rank, worker))
    }) {
        failure.worker = Some(worker);
        "Worker".clone_into(&mut failure.kind);
        failure.reason = format!("{} of rank {}, as the launcher reports", rank.exit, rank.rank);
    }
    failure.name = match (failure.worker, failure.kind.as_str()) {
        (Some(worker), _) => spec.worker_name(failure.instance, worker),
        (None, "Launcher") => spec.launcher_name(failure.instance),
        (None, _) => spec.partition_id(failure.instance).to_string(),
    };
    let is_failed = |pod: &&JobPod| pod.name == failure.name && pod.attempt == failure.attempt;
    failure.node = observed
        .pods
        .iter()
        .find(is_failed)
        .and_then(|pod| pod.node.clone());
    let attempt = AttemptReport {
        instance: failure.instance,
        attempt: failure.attempt,
        name: failure.name.clone(),
        reason: failure.reason.clone(),
        time: failure.time,
    };
    if before.attempts.last() != Some(&attempt) {
        after.attempts.push(attempt);
    }
    let surplus = after.attempts.len().saturating_sub(IpuJobStatus::MAX_ATTEMPTS);
    after.attempts.drain(..surplus);
}

/// Sets one condition for each phase that was reached; that of the current phase is true (V-IPU guide §6.6).
fn report_condition(after: &mut IpuJobStatus, spec: &JobSpec, phase: JobPhase, plan: &Plan, now: Timestamp) {
    let kind = format!("{phase:?}");
    let key = spec.key();
    let conclusion = plan.status.conclusion.as_ref();
    let description = match phase {
        JobPhase::Pending => "is waiting for resources to be ready.".to_owned(),
        JobPhase::Running => "is running.".to_owned(),
        JobPhase::Restarting => "is restarting.".to_owned(),
        JobPhase::Suspended => "is suspended.".to_owned(),
        JobPhase::Completed => "has completed.".to_owned(),
        JobPhase::Failed => conclusion.map_or_else(
            || "has failed.".to_owned(),
            |conclusion| format!("has failed: {}.", conclusion.message),
        ),
        JobPhase::Terminating => "is being deleted.".to_owned(),
    };
    let held = held_ipus(spec, plan).map_or_else(String::new, |held| format!(" It {held}."));
    let message = format!("IPUJob {}/{} {description}{held}", key.namespace, key.name);
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

/// Returns a text about the IPUs that a finished job keeps.
pub(super) fn held_ipus(spec: &JobSpec, plan: &Plan) -> Option<String> {
    let held = plan.status.ipus_held;
    let keeps = plan.status.phase.is_finished() && spec.clean_pod_policy() != CleanPodPolicy::All;
    let unit = if held == 1 { "IPU" } else { "IPUs" };
    let until = match spec.ttl_after_finished() {
        Some(ttl) => format!(
            "until it is deleted, at the latest {} s after its end",
            ttl.as_secs()
        ),
        None => "until it is deleted".to_owned(),
    };
    (keeps && held > 0).then(|| format!("holds {held} {unit} {until}"))
}

/// Returns the duration of each part of the start; each begins where the previous one ended.
fn phase_seconds(observed: &ObservedJob) -> PhaseSeconds {
    let documents = || observed.partitions.values();
    let granted = documents().filter_map(|document| document.held_since).max();
    let active = documents().map(|document| document.since).max();
    let workers = observed.pods.iter().filter(|pod| pod.worker.is_some());
    let scheduled = workers.filter_map(|pod| pod.scheduled).max();
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

/// Returns a message about the first process of the job that does not terminate, does not start or is not
/// ready, or whose Pod outlives it.
pub(super) fn pod_problem(phase: JobPhase, observed: &ObservedJob) -> Option<String> {
    let (starts, runs) = match phase {
        JobPhase::Pending | JobPhase::Restarting => (true, false),
        JobPhase::Running => (true, true),
        _ => (false, false),
    };
    let first_message = |message_of: &dyn Fn(&JobPod) -> Option<String>| {
        let mut pods = observed.pods.iter();
        pods.find_map(|pod| Some(format!("{}: {}", pod.name, message_of(pod)?)))
    };
    first_message(&|pod| pod.overdue(observed.now).filter(|_| !phase.is_finished()))
        .or_else(|| first_message(&|pod| pod.start_blocker.clone().filter(|_| starts)))
        .or_else(|| first_message(&|pod| pod.not_ready(observed.now).filter(|_| runs)))
        .or_else(|| first_message(&|pod| pod.holds_on(observed.now)))
}

/// Returns the time for which the status of a job in a short transition is not written: a job that starts
/// without waiting, or the beginning of a deletion. The later steps of
/// a start wait for longer.
pub(super) fn transient(before: &IpuJobStatus, plan: &Plan, observed: &ObservedJob) -> Option<Duration> {
    let starts = observed.deleted.is_none() && is_starting(plan);
    let (since, time) = match (observed.deleted, before.phase) {
        (Some(_), Some(JobPhase::Terminating)) => return None,
        (Some(requested), _) => (requested, TRANSIENT_TIME),
        (None, None) if starts => (observed.last_step().unwrap_or(observed.now), TRANSIENT_TIME),
        (None, Some(JobPhase::Pending)) if starts && was_starting(before) => {
            // A time in the future comes from a clock that was set back since.
            let last = before.last_reconcile_time.map(|last| last.0);
            (last.filter(|last| *last <= observed.now)?, MESSAGE_WRITE_INTERVAL)
        }
        _ => return None,
    };
    let is_verdict = plan.requeue_after == Some(Duration::ZERO);
    let is_blocked = observed.pods.iter().any(|pod| pod.start_blocker.is_some());
    let left = time.saturating_sub(observed.now.since(since));
    (!left.is_zero() && !is_verdict && !is_blocked).then_some(left)
}

/// Returns whether the recorded status is one of a start that waits for nothing.
fn was_starting(before: &IpuJobStatus) -> bool {
    let steps = [InstanceState::Preparing, InstanceState::Starting];
    let mut states = before.instances.iter().map(|report| &*report.state);
    states.all(|state| steps.iter().any(|step| step.as_str() == state))
}

/// Returns whether a job starts without waiting for a partition.
fn is_starting(plan: &Plan) -> bool {
    // An instance that is not requested yet waits for others of its job, and those report their reasons.
    let steps = [
        ReasonCode::PreparingPartition,
        ReasonCode::NotRequested,
        ReasonCode::StartingWorkers,
        ReasonCode::StartingLauncher,
    ];
    plan.status.phase == JobPhase::Pending && plan.reasons.iter().all(|reason| steps.contains(&reason.code))
}

impl Context {
    /// Writes a status on top of the version of `job`, unless it is unchanged, or the job is pending and only
    /// messages changed shortly after the last write.
    pub(super) async fn write_status(
        &self,
        job: &IpuJob,
        before: &IpuJobStatus,
        mut after: IpuJobStatus,
    ) -> Result<StatusWrite, ReconcileError> {
        let now = (self.now)();
        after.last_message = shortened(after.last_message);
        after.last_reconcile_time = before.last_reconcile_time;
        if after == *before {
            return Ok(StatusWrite::Unchanged);
        }
        // A time in the future comes from a clock that was set back since.
        let last = before.last_reconcile_time.filter(|last| last.0 <= now);
        let elapsed = last.map(|last| now.since(last.0));
        if let Some(elapsed) = elapsed.filter(|elapsed| *elapsed < MESSAGE_WRITE_INTERVAL)
            && after.phase == Some(JobPhase::Pending)
            && without_messages(&after) == without_messages(before)
        {
            return Ok(StatusWrite::Deferred(MESSAGE_WRITE_INTERVAL - elapsed));
        }
        after.last_reconcile_time = Some(Time(now));
        // The API server ignores everything but the status and the version.
        let mut object = IpuJob::new(&job.name_any(), IpuJobSpec::default());
        object.metadata.resource_version = job.resource_version();
        object.status = Some(after);
        let jobs: Api<IpuJob> = Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        jobs.replace_status(&job.name_any(), &post_params(), &object)
            .await?;
        Ok(StatusWrite::Written)
    }
}

fn shortened(message: String) -> String {
    if message.chars().count() <= MAX_MESSAGE_CHARS {
        return message;
    }
    message.chars().take(MAX_MESSAGE_CHARS - 1).chain(['…']).collect()
}

/// Returns the status without the messages about waiting.
fn without_messages(status: &IpuJobStatus) -> IpuJobStatus {
    let mut status = status.clone();
    status.last_message.clear();
    for instance in &mut status.instances {
        instance.reason = None;
    }
    status
}

/// Returns the key of a job, or `None` if the API server has not assigned a uid.
pub(super) fn key_of(job: &IpuJob) -> Option<JobKey> {
    let metadata = &job.metadata;
    let (namespace, name) = (metadata.namespace.as_deref()?, metadata.name.as_deref()?);
    JobKey::new(namespace, name, metadata.uid.as_deref()?).ok()
}
