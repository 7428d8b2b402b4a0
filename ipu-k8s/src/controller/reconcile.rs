//! The reconciliation of one job: observe, parse, plan, apply, and one status write. This module contains no
//! rule.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::JobKey;
use ipu_core::job::{JobPhase, JobSpec, Plan, Violation, check_plan, plan};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::{Resource as _, ResourceExt as _};

use super::StoredJob;
use super::apply::{Effects, Progress};
use super::context::Context;
use super::error::{ReconcileError, ignore_statuses};
use super::events::{event, events, refusal};
use super::launcher_rights;
use super::objects::{delete_params, remove};
use super::observe::ObservedJob;
use super::queued_job;
use super::status::{StatusWrite, joined, key_of, pod_problem, recorded_status, report, transient};
use crate::crd::{IpuJob, IpuJobSpec, IpuJobStatus};

/// Delay up to which a plan waits for a change that this operator made, which the watch reports.
const MIN_PLANNED_DELAY: Duration = Duration::from_millis(100);
/// Interval in which the reason is read why a controller does not end a call.
const OPEN_CALL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum wait for the watch event of a change that this operator made.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(1);

/// Reconciles a job of the store once.
pub(super) async fn reconcile(job: Arc<StoredJob>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let job = match &job.0 {
        Ok(job) => job,
        Err(unreadable) => return reject_unreadable(unreadable, &context).await,
    };
    let Some(key) = key_of(job).filter(|_| job.other_manager().is_none()) else {
        return Ok(Action::await_change());
    };
    // No decision is made before the stores have listed all Pods.
    let mut is_listed = context.is_listed.clone();
    let listed = is_listed.wait_for(|listed| *listed).await;
    listed.map_err(|_| ReconcileError::Unavailable("the operator stops".to_owned()))?;
    let is_deleted = job.metadata.deletion_timestamp.is_some();
    match has_finalizer(job) {
        true => {}
        false if is_deleted => return Ok(Action::await_change()),
        false => return context.add_finalizer(job).await.map(|()| Action::await_change()),
    }
    let before = recorded_status(job);
    let hold = match queued_job::hold(&context, job, before.phase).await {
        Ok(hold) => hold,
        Err(error) => return report_blocked(job, &before, error, &context).await,
    };
    let parsed = match hold {
        Some(_) => suspended(job).parse(&context.limits),
        None => job.parse(&context.limits),
    };
    let spec = match parsed {
        Ok(parsed) => parsed.spec,
        Err(_) if is_deleted => return remove_invalid(job, &key, &before, &context).await,
        Err(violations) => return reject_invalid(job, &before, &violations, &context).await,
    };
    let mut observed = match context.observe(job, &spec, &before).await {
        Ok(observed) => observed,
        Err(error) => return report_blocked(job, &before, error, &context).await,
    };
    observed.hold = hold;
    let observation = observed.observation(&spec, before.to_job_status());
    let plan = plan(&spec, &observation);
    if let Some(broken) = check_plan(&spec, &observation, &plan).first() {
        let message = format!("the plan violates an invariant, which is a bug in the operator: {broken}");
        return report_blocked(
            job,
            &before,
            ReconcileError::refused("BrokenPlan", message),
            &context,
        )
        .await;
    }
    let applied = Effects::new(&context, job, &spec, &observed).apply(&plan).await;
    if applied == Ok(Progress::Finalized) {
        return Ok(Action::await_change());
    }
    let followed = queued_job::follow(&context, job, &spec, &plan, &observed).await;
    match &followed {
        Err(refusal @ ReconcileError::Refused { .. }) => observed.hold = Some(format!("Kueue: {refusal}")),
        // As while Kueue's webhooks do not answer.
        Err(error @ ReconcileError::Unavailable(_)) => {
            observed.hold = observed.hold.map(|_| format!("Kueue: {error}"));
        }
        _ => {}
    }
    // The status is recorded even if an effect failed: it follows from the observation.
    let blocker = applied
        .as_ref()
        .err()
        .filter(|error| !matches!(error, ReconcileError::Changed(_)));
    let written = record(job, &spec, &before, &plan, &observed, blocker, &context).await?;
    if plan.expired {
        return expire(job, &context).await;
    }
    followed?;
    Ok(next_action(&plan, &observed, &applied, written))
}

/// Returns a job as if its user had suspended it.
fn suspended(job: &IpuJob) -> IpuJob {
    let mut job = job.clone();
    job.spec.suspend = Some(true);
    job
}

/// Returns when to reconcile a job again that failed.
pub(super) fn retry(_: Arc<StoredJob>, error: &ReconcileError, _: Arc<Context>) -> Action {
    Action::requeue(error.retry_after())
}

/// Writes the status of a reconciliation, and then publishes its Events.
async fn record(
    job: &IpuJob,
    spec: &JobSpec,
    before: &IpuJobStatus,
    plan: &Plan,
    observed: &ObservedJob,
    blocker: Option<&ReconcileError>,
    context: &Context,
) -> Result<StatusWrite, ReconcileError> {
    if blocker.is_none()
        && let Some(left) = transient(before, plan, observed)
    {
        return Ok(StatusWrite::Deferred(left));
    }
    let after = report(job, spec, before, plan, observed, blocker);
    let written = context.write_status(job, before, after.clone()).await?;
    if written == StatusWrite::Written {
        if let Some(blocker) = blocker {
            log(job, blocker);
        }
        let problem = pod_problem(plan.status.phase, observed);
        let mut all = events(spec, before, &after, plan, problem.as_deref());
        all.extend(blocker.and_then(|blocker| refusal(before, blocker)));
        context.publish(&job.object_ref(&()), all).await;
    }
    Ok(written)
}

/// Returns when the job is due without a change of it, of its Pods or of its partitions.
fn next_action(
    plan: &Plan,
    observed: &ObservedJob,
    applied: &Result<Progress, ReconcileError>,
    written: StatusWrite,
) -> Action {
    // A verdict is acted upon once the store has the status that records it.
    let planned = plan.requeue_after.map(|after| match after <= MIN_PLANNED_DELAY {
        true => MAX_WATCH_DELAY,
        false => after,
    });
    let write = match written {
        StatusWrite::Deferred(left) => Some(left),
        StatusWrite::Written | StatusWrite::Unchanged => None,
    };
    let retry = match applied {
        Ok(Progress::Partial) => Some(Duration::ZERO),
        Ok(_) => None,
        Err(error) => Some(error.retry_after()),
    };
    let reports = observed
        .pods
        .iter()
        .filter_map(|pod| pod.next_report_in(observed.now));
    let slow = observed.has_open_call().then_some(OPEN_CALL_INTERVAL);
    let due = [planned, write, retry, slow, observed.evidence.judged_in]
        .into_iter()
        .flatten()
        .chain(reports)
        .min();
    due.map_or_else(Action::await_change, Action::requeue)
}

/// Deletes a finished job whose time to live has expired, if its version is still the observed one.
async fn expire(job: &IpuJob, context: &Context) -> Result<Action, ReconcileError> {
    let mut params = delete_params(job.uid());
    if let Some(preconditions) = &mut params.preconditions {
        preconditions.resource_version = job.resource_version();
    }
    let jobs: Api<IpuJob> = Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    let deleted = jobs.delete(&job.name_any(), &params).await;
    ignore_statuses(deleted, &[404, 409])?;
    // The watch reports the deletion, or the concurrent write.
    Ok(Action::await_change())
}

/// Records in the status why the job could not be observed, if it still needs work.
async fn report_blocked(
    job: &IpuJob,
    before: &IpuJobStatus,
    error: ReconcileError,
    context: &Context,
) -> Result<Action, ReconcileError> {
    if matches!(error, ReconcileError::Changed(_)) {
        return Err(error);
    }
    let is_changed = job.metadata.generation != before.observed_generation;
    let waits_for = match before.phase {
        _ if job.metadata.deletion_timestamp.is_some() => Some("the job is being deleted"),
        None | Some(JobPhase::Pending | JobPhase::Restarting) => Some("partition not ready yet!"),
        Some(phase) if is_changed && !phase.is_finished() => Some("the change of the job is not applied yet"),
        // The job continues, but the operator cannot observe it until the cause of the refusal is removed.
        Some(phase) if error.is_reported_in(phase) => Some("the job is not reconciled"),
        // The job continues or has finished: it waits for nothing.
        Some(_) => None,
    };
    let mut retry = error.retry_after();
    if let Some(waits_for) = waits_for {
        let message = joined(waits_for, &error.to_string());
        let mut after = before.clone();
        after.last_message = message;
        match write_message(job, before, after, context).await? {
            StatusWrite::Deferred(left) => retry = retry.min(left),
            StatusWrite::Unchanged => {}
            StatusWrite::Written => {
                log(job, &error);
                context
                    .publish(
                        &job.object_ref(&()),
                        refusal(before, &error).into_iter().collect(),
                    )
                    .await;
            }
        }
    }
    Ok(Action::requeue(retry))
}

/// Reports the violations of an invalid job. It gets no resources in addition to those that it has.
async fn reject_invalid(
    job: &IpuJob,
    before: &IpuJobStatus,
    violations: &[Violation],
    context: &Context,
) -> Result<Action, ReconcileError> {
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let message = format!("the job cannot be run: {}", violations.join("; "));
    let mut seen = before.clone();
    seen.observed_generation = job.metadata.generation;
    seen.last_message.clone_from(&message);
    Ok(match write_message(job, before, seen, context).await? {
        StatusWrite::Written => {
            let invalid = event(EventType::Warning, "InvalidJob", &message);
            context.publish(&job.object_ref(&()), vec![invalid]).await;
            Action::await_change()
        }
        StatusWrite::Unchanged => Action::await_change(),
        StatusWrite::Deferred(left) => Action::requeue(left),
    })
}

/// Reports a job that cannot be read. It keeps what it has until it is deleted.
async fn reject_unreadable(unreadable: &InvalidObject, context: &Context) -> Result<Action, ReconcileError> {
    let mut job = IpuJob::new("", IpuJobSpec::default());
    job.metadata = unreadable.metadata.clone();
    let key = key_of(&job).filter(|_| has_finalizer(&job));
    if let Some(key) = key.filter(|_| job.metadata.deletion_timestamp.is_some()) {
        return remove_invalid(&job, &key, &IpuJobStatus::default(), context).await;
    }
    let message = format!(
        "the stored job is not an IPUJob of this version ({}): delete it, and create it again",
        unreadable.error
    );
    context
        .publish(
            &job.object_ref(&()),
            vec![event(EventType::Warning, "InvalidJob", &message)],
        )
        .await;
    Ok(Action::await_change())
}

fn has_finalizer(job: &IpuJob) -> bool {
    job.finalizers()
        .iter()
        .any(|finalizer| finalizer == IpuJob::FINALIZER)
}

/// Writes a status of a job that was not planned.
async fn write_message(
    job: &IpuJob,
    before: &IpuJobStatus,
    mut after: IpuJobStatus,
    context: &Context,
) -> Result<StatusWrite, ReconcileError> {
    after.launcher_status.get_or_insert_with(|| "Pending".to_owned());
    context.write_status(job, before, after).await
}

/// Releases the resources of a deleted job that cannot be parsed, as the stores and its status list them, and
/// removes the finalizer.
async fn remove_invalid(
    job: &IpuJob,
    key: &JobKey,
    before: &IpuJobStatus,
    context: &Context,
) -> Result<Action, ReconcileError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), key.namespace.as_str());
    let observed = context.pods_of(key, (context.now)());
    for pod in &observed {
        launcher_rights::revoke(&context.client, key, pod.instance).await?;
        remove(&pods, pod).await?;
    }
    if !observed.is_empty() {
        return Ok(Action::requeue(MAX_WATCH_DELAY));
    }
    context.confirm_no_pods(key).await?;
    if !context.partitions.is_connected() {
        let text = "the proxy does not list the partitions of the job".to_owned();
        return Err(ReconcileError::Unavailable(text));
    }
    let recorded = before.instances.iter().map(|instance| instance.index);
    for instance in recorded.chain(context.partitions.instances_of(key)) {
        let mut request = ipu_proxy_client::DeletePartition::default();
        request.uid = Some(key.uid.to_string());
        context
            .partitions
            .release(&key.partition_id(instance), &request)
            .await?;
    }
    context.finalize(job, key).await?;
    Ok(Action::await_change())
}

fn log(job: &IpuJob, error: &ReconcileError) {
    let job = format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any());
    tracing::warn!(job, reason = %error, "the job is blocked");
}
