//! IPUJobs in a queue of Kueue. Each has a Workload, and is as if suspended until Kueue admits that; when
//! Kueue evicts it, the quota is released once the job holds nothing.

use ipu_core::Reason;
use ipu_core::job::{JobPhase, JobSpec, Plan};
use ipu_proxy_client::HoldState;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, ListParams, Patch};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::context::Context;
use super::error::{ReconcileError, ignore_statuses, is_status};
use super::kueue::{
    Kueue, PodSet, RESOURCE, Workload, condition, set_condition, status_patch, time, workload_name,
};
use super::objects::{delete_params, patch_params, post_params};
use super::observe::ObservedJob;
use crate::crd::IpuJob;

/// Label of a job: the LocalQueue of its namespace.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Label of a Workload: the uid of its job.
const JOB_UID: &str = "kueue.x-k8s.io/job-uid";

/// Returns why Kueue holds a job back; none if it may run, or is in no queue.
pub(super) async fn hold(
    context: &Context,
    job: &IpuJob,
    phase: Option<JobPhase>,
) -> Result<Option<String>, ReconcileError> {
    let Some((kueue, queue)) = queue_of(context, job) else {
        return Ok(None);
    };
    let is_deleted = job.metadata.deletion_timestamp.is_some();
    if is_deleted || job.spec.suspend == Some(true) || phase.is_some_and(JobPhase::is_finished) {
        return Ok(None);
    }
    if !*kueue.has_workloads.borrow() {
        return match phase {
            None | Some(JobPhase::Suspended) => {
                let text = "Kueue's Workloads are not listed yet".to_owned();
                Err(ReconcileError::Unavailable(text))
            }
            // It was admitted, and an outage of Kueue stops nothing.
            Some(_) => Ok(None),
        };
    }
    let Some(workload) = kueue.workload_of(job) else {
        let waits = matches!(phase, None | Some(JobPhase::Suspended));
        // The namespace may not be listed.
        let is_absent = waits || is_absent(context, job).await;
        return Ok(is_absent.then(|| "Kueue has no Workload of the job yet".to_owned()));
    };
    if workload.metadata.deletion_timestamp.is_some() {
        return Ok(Some("the Workload of the job is being deleted".to_owned()));
    }
    let parsed = job.parse(&context.limits);
    if parsed.is_ok_and(|parsed| !is_of(&workload, &workload_of(job, &parsed.spec, queue))) {
        return Ok(Some(
            "the queue or the Pods of the job have changed: it is queued again".to_owned(),
        ));
    }
    Ok(held_by(&workload))
}

fn held_by(workload: &Workload) -> Option<String> {
    let message = |kind: &str| {
        let text = workload
            .condition(kind)
            .map(|condition| condition.message.as_str());
        text.filter(|text| !text.is_empty())
            .unwrap_or("the Workload is not admitted yet")
            .to_owned()
    };
    if workload.spec.active == Some(false) {
        let why = workload.is("Evicted").then(|| message("Evicted"));
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        return Some(format!("Kueue: spec.active of the Workload is false{why}"));
    }
    if !workload.is("QuotaReserved") {
        return Some(format!("Kueue: {}", message("QuotaReserved")));
    }
    if workload.is("Evicted") {
        return Some(format!("Kueue evicted the job: {}", message("Evicted")));
    }
    if workload.is("Admitted") {
        return None;
    }
    let states = workload.status.iter().flat_map(|status| &status.admission_checks);
    let open = states.filter(|state| state["state"] != "Ready");
    let text = |state: &Value| {
        let [name, message] = ["name", "message"].map(|field| state[field].as_str().unwrap_or_default());
        format!("{name}: {message}")
    };
    let checks: Vec<String> = open.map(text).collect();
    Some(match checks.as_slice() {
        [] => format!("Kueue: {}", message("Admitted")),
        checks => format!("Kueue waits for its admission checks: {}", checks.join("; ")),
    })
}

/// Makes the Workload of a job follow a reconciliation of it.
pub(super) async fn follow(
    context: &Context,
    job: &IpuJob,
    spec: &JobSpec,
    plan: &Plan,
    observed: &ObservedJob,
) -> Result<(), ReconcileError> {
    let Some((kueue, queue)) = queue_of(context, job) else {
        return Ok(());
    };
    // The garbage collector deletes the Workload of a deleted job.
    if job.metadata.deletion_timestamp.is_some() || !*kueue.has_workloads.borrow() {
        return Ok(());
    }
    let is_stopped = plan.status.phase == JobPhase::Suspended && holds_nothing(observed);
    let (workload, is_suspended) = (kueue.workload_of(job), job.spec.suspend == Some(true));
    let workloads = workloads(context, job);
    match workload {
        Some(workload) if workload.metadata.deletion_timestamp.is_some() => Ok(()),
        // A job that its user suspends is in no queue.
        Some(workload) if is_suspended && is_stopped => delete(&workloads, &workload).await,
        Some(_) if is_suspended => Ok(()),
        Some(workload) => {
            let wanted = workload_of(job, spec, queue);
            let clears = is_stopped && workload.is("Evicted") && workload.is("QuotaReserved");
            let now = time((context.now)());
            write_status(&workloads, &workload, plan, clears, &now).await?;
            if workload.is("Finished") || plan.status.phase.is_finished() {
                return Ok(());
            }
            write_spec(&workloads, &workload, wanted, is_stopped).await
        }
        None if is_suspended || plan.status.phase.is_finished() => Ok(()),
        None => {
            let wanted = workload_of(job, spec, queue);
            match workloads.create(&post_params(), &wanted).await {
                Err(error) if is_status(&error, 404) => {
                    let text = "install Kueue, or remove the label kueue.x-k8s.io/queue-name";
                    Err(ReconcileError::refused("KueueAbsent", text))
                }
                // The watch reports it, even if it existed.
                created => ignore_statuses(created, &[409]),
            }
        }
    }
}

/// Returns whether the API server has no Workload of a job.
async fn is_absent(context: &Context, job: &IpuJob) -> bool {
    let of_job = format!("metadata.name={}", workload_name(job));
    let found = workloads(context, job)
        .list_metadata(&ListParams::default().fields(&of_job))
        .await;
    match found {
        Ok(found) => found.items.is_empty(),
        // The CRD is gone.
        Err(error) => is_status(&error, 404),
    }
}

fn workloads(context: &Context, job: &IpuJob) -> Api<Workload> {
    Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default())
}

/// Returns the objects of Kueue and the queue of a job that is in one.
fn queue_of<'a>(context: &'a Context, job: &'a IpuJob) -> Option<(&'a Kueue, &'a str)> {
    let queue = job.labels().get(QUEUE).filter(|queue| !queue.is_empty())?;
    Some((context.kueue.as_ref()?, queue))
}

fn holds_nothing(observed: &ObservedJob) -> bool {
    let is_gone = |state| matches!(state, HoldState::Gone);
    observed.pods.is_empty()
        && observed.unknown.is_empty()
        && observed
            .partitions
            .values()
            .all(|document| is_gone(document.state))
}

/// Writes the conditions that follow from the job, and releases the quota of an evicted one.
async fn write_status(
    workloads: &Api<Workload>,
    workload: &Workload,
    plan: &Plan,
    clears: bool,
    now: &Time,
) -> Result<(), ReconcileError> {
    if workload.is("Finished") {
        return Ok(());
    }
    let phase = plan.status.phase;
    let before = workload.status.clone().unwrap_or_default().conditions;
    let mut conditions = before.clone();
    for condition in changes(workload, phase, plan.status.conclusion.as_ref(), clears, now) {
        set_condition(&mut conditions, condition);
    }
    if conditions == before {
        return Ok(());
    }
    let mut status = json!({"conditions": conditions});
    if clears && !phase.is_finished() {
        status["admission"] = Value::Null;
    }
    let patch = status_patch(workload.resource_version(), status);
    workloads
        .patch_status(&workload.name_any(), &patch_params(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Makes the Workload request what the job does. Its Pods and its queue are fixed: a job that has changed
/// them is held, and queued again once it is stopped.
async fn write_spec(
    workloads: &Api<Workload>,
    workload: &Workload,
    wanted: Workload,
    is_stopped: bool,
) -> Result<(), ReconcileError> {
    if !is_of(workload, &wanted) {
        return match is_stopped {
            true => delete(workloads, workload).await,
            false => Ok(()),
        };
    }
    if workload.spec.priority == wanted.spec.priority {
        return Ok(());
    }
    let patch = json!({"spec": {"priority": wanted.spec.priority}});
    workloads
        .patch(&workload.name_any(), &patch_params(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Returns the conditions of a Workload that a reconciliation of its job changes.
fn changes(
    workload: &Workload,
    phase: JobPhase,
    conclusion: Option<&Reason>,
    clears: bool,
    now: &Time,
) -> Vec<Condition> {
    let condition =
        |kind, status, reason: &str, message: &str| condition(kind, status, reason, message, now.clone());
    if phase.is_finished() {
        let (reason, plain) = match phase {
            JobPhase::Completed => ("Succeeded", "the IPUJob has completed"),
            _ => ("Failed", "the IPUJob has failed"),
        };
        let message = conclusion.map_or(plain, |conclusion| conclusion.message.as_str());
        return vec![condition("Finished", true, reason, message)];
    }
    if clears {
        let (reason, message) = workload.condition("Evicted").map_or(("", ""), |evicted| {
            (evicted.reason.as_str(), evicted.message.as_str())
        });
        // Kueue itself decides about other evictions when the job is queued again.
        let is_requeued = matches!(reason, "Preempted" | "NodeFailures");
        return vec![
            condition("QuotaReserved", false, "Pending", message),
            condition(
                "Admitted",
                false,
                "NoReservation",
                "The workload has no reservation",
            ),
            condition("Requeued", is_requeued, reason, message),
        ];
    }
    match (phase == JobPhase::Running, workload.is("PodsReady")) {
        (true, false) if workload.is("Admitted") => {
            vec![condition("PodsReady", true, "Started", "the IPUJob runs")]
        }
        (false, true) => {
            let text = "the IPUJob does not run at present";
            vec![condition("PodsReady", false, "WaitForRecovery", text)]
        }
        _ => Vec::new(),
    }
}

async fn delete(workloads: &Api<Workload>, workload: &Workload) -> Result<(), ReconcileError> {
    let deleted = workloads
        .delete(&workload.name_any(), &delete_params(workload.uid()))
        .await;
    ignore_statuses(deleted, &[404, 409])
}

/// Returns the Workload that a job is to have.
fn workload_of(job: &IpuJob, spec: &JobSpec, queue: &str) -> Workload {
    let mut workload = Workload::default();
    let metadata = &mut workload.metadata;
    metadata.name = Some(workload_name(job));
    metadata.namespace = job.namespace();
    metadata.labels = Some([(JOB_UID.to_owned(), job.uid().unwrap_or_default())].into());
    metadata.owner_references = job.controller_owner_ref(&()).map(|owner| vec![owner]);
    workload.spec.queue_name = Some(queue.to_owned());
    workload.spec.priority = Some(spec.priority());
    workload.spec.active = Some(true);
    workload.spec.pod_sets = pod_sets(job, spec);
    workload
}

/// Returns the Pods of a job: each worker requests its part of the IPUs, which the template of the job itself
/// does not.
fn pod_sets(job: &IpuJob, spec: &JobSpec) -> Vec<PodSet> {
    let workers = spec.workers_per_instance();
    let template = job
        .spec
        .workers
        .as_ref()
        .and_then(|workers| workers.template.as_ref());
    let mut worker = json!({"spec": template.map_or(Value::Null, |template| template.0["spec"].clone())});
    let image = worker["spec"]["containers"][0]["image"].clone();
    if let Some(container) = worker.pointer_mut("/spec/containers/0") {
        let ipus = spec.ipus_per_instance().get() / workers.max(1);
        container["resources"]["requests"][RESOURCE] = json!(ipus.to_string());
    }
    let mut sets = vec![PodSet {
        name: "worker".to_owned(),
        count: spec.instances().saturating_mul(workers),
        template: worker,
    }];
    if let Some(launcher) = &job.spec.launcher {
        let plain = json!({"requests": {"cpu": "100m", "memory": "256Mi"}});
        let resources = launcher.resources.clone().unwrap_or(plain);
        let container = json!({"name": "launcher", "image": image, "resources": resources});
        sets.push(PodSet {
            name: "launcher".to_owned(),
            count: spec.instances(),
            template: json!({"spec": {"containers": [container]}}),
        });
    }
    sets
}

/// Returns whether a Workload is in the wanted queue, with the wanted Pods.
fn is_of(workload: &Workload, wanted: &Workload) -> bool {
    workload.spec.queue_name == wanted.spec.queue_name
        && is_equivalent(&workload.spec.pod_sets, &wanted.spec.pod_sets)
}

/// Returns whether Kueue would count the same for both. It changes templates, with defaults for example.
fn is_equivalent(existing: &[PodSet], wanted: &[PodSet]) -> bool {
    let counted = |set: &PodSet| {
        let ipus = set.template["spec"]["containers"][0]["resources"]["requests"][RESOURCE].clone();
        (set.name.clone(), set.count, ipus)
    };
    existing.iter().map(counted).eq(wanted.iter().map(counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(conditions: &[(&str, &str)]) -> Workload {
        let now = "1970-01-01T00:00:00Z";
        let condition = |(kind, status): &(&str, &str)| {
            let message = format!("{kind} is {status}");
            json!({"type": kind, "status": status, "reason": "Preempted", "message": message, "lastTransitionTime": now})
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        Workload {
            status: serde_json::from_value(json!({"conditions": conditions})).unwrap(),
            ..Workload::default()
        }
    }

    #[test]
    fn a_job_runs_while_its_workload_is_admitted_and_says_else_what_kueue_says() {
        assert_eq!(
            held_by(&workload(&[("QuotaReserved", "True"), ("Admitted", "True")])),
            None
        );
        for (conditions, text) in [
            (&[][..], "Kueue: the Workload is not admitted yet"),
            (&[("QuotaReserved", "False")], "Kueue: QuotaReserved is False"),
            (
                &[("QuotaReserved", "True"), ("Admitted", "False")],
                "Kueue: Admitted is False",
            ),
            (
                &[
                    ("QuotaReserved", "True"),
                    ("Admitted", "True"),
                    ("Evicted", "True"),
                ],
                "Kueue evicted the job: Evicted is True",
            ),
        ] {
            assert_eq!(held_by(&workload(conditions)).unwrap(), text);
        }
        let mut checked = workload(&[("QuotaReserved", "True"), ("Admitted", "False")]);
        let checks =
            json!([{"name": "a", "state": "Ready"}, {"name": "b", "state": "Pending", "message": "no"}]);
        checked.status.as_mut().unwrap().admission_checks = serde_json::from_value(checks).unwrap();
        let text = "Kueue waits for its admission checks: b: no";
        assert_eq!(held_by(&checked).unwrap(), text);
        let mut stopped = workload(&[("Admitted", "True"), ("Evicted", "True")]);
        stopped.spec.active = Some(false);
        let text = "Kueue: spec.active of the Workload is false: Evicted is True";
        assert_eq!(held_by(&stopped).unwrap(), text);
    }

    #[test]
    fn a_reconciliation_changes_the_conditions_that_follow_from_the_job() {
        let reason = Reason::new("JobFailed".into(), "exit code 3");
        let admitted = [("QuotaReserved", "True"), ("Admitted", "True")];
        let ready = [("Admitted", "True"), ("PodsReady", "True")];
        let evicted = [("QuotaReserved", "True"), ("Evicted", "True")];
        for (before, phase, clears, after) in [
            (&admitted, JobPhase::Pending, false, &[][..]),
            (
                &admitted,
                JobPhase::Running,
                false,
                &[("PodsReady", "True", "Started")],
            ),
            (&ready, JobPhase::Running, false, &[]),
            (
                &ready,
                JobPhase::Restarting,
                false,
                &[("PodsReady", "False", "WaitForRecovery")],
            ),
            (
                &ready,
                JobPhase::Completed,
                false,
                &[("Finished", "True", "Succeeded")],
            ),
            (&ready, JobPhase::Failed, true, &[("Finished", "True", "Failed")]),
            (&evicted, JobPhase::Suspended, false, &[]),
            (
                &evicted,
                JobPhase::Suspended,
                true,
                &[
                    ("QuotaReserved", "False", "Pending"),
                    ("Admitted", "False", "NoReservation"),
                    ("Requeued", "True", "Preempted"),
                ],
            ),
        ] {
            let now = time(ipu_core::Timestamp::from_millis(0));
            let changed = changes(&workload(before), phase, Some(&reason), clears, &now);
            let changed: Vec<_> = changed
                .iter()
                .map(|one| (&*one.type_, &*one.status, &*one.reason))
                .collect();
            assert_eq!(changed, after, "{phase:?} {before:?}");
        }
    }
}
