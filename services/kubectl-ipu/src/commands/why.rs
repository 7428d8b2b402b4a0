//! `kubectl ipu why`: explains why a job waits, does not start, or has failed.

use ipu_core::Reason;
use ipu_k8s::crd::{FailureReport, IpuJobStatus, Time};
use ipu_proxy_client::{PartitionDocument, WaitingDocument};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;

use super::get::{phase_of, status_of};
use super::pod_problem::problem_of;
use crate::cli::Global;
use crate::context::Context;
use crate::exit_code::{Code, Failure};
use crate::output::{self, printable, render};
use crate::proxy;

/// All that is known about the state of a job.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    namespace: String,
    name: String,
    phase: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    conclusion: Option<Reason>,
    instances: Vec<InstanceExplanation>,
    pods: Vec<PodExplanation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_failure: Option<FailureReport>,
    /// Queued requests of the job, as the proxy reports them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue: Vec<QueuedRequest>,
    /// Facts that the caller may not see, each with the reason.
    not_checked: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InstanceExplanation {
    index: u32,
    state: String,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A queued request of an instance.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct QueuedRequest {
    instance: u32,
    size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<WaitingDocument>,
}

#[derive(Debug, Serialize)]
struct PodExplanation {
    name: String,
    problem: String,
}

/// Prints the explanation.
pub(crate) async fn why(job: &str, context: &Context, global: &Global) -> Result<Code, Failure> {
    let object = context.job(job).await?;
    let mut not_checked = Vec::new();
    let pods = match context.pods(job).await {
        Ok(pods) => pods,
        Err(failure) => {
            not_checked.push(failure.chain());
            Vec::new()
        }
    };
    let status = status_of(&object);
    let is_waiting = status.instances.iter().any(|instance| instance.state == WAITING);
    let mut explanation = explain(job, &context.namespace, status, &pods, not_checked);
    if is_waiting {
        match queued(context, global, &object.uid().unwrap_or_default()).await {
            Ok(queue) => explanation.queue = queue,
            Err(failure) => {
                let text = format!("position, blockers and expected start: {}", failure.chain());
                explanation.not_checked.push(text);
            }
        }
    }
    output::result(&render(global.output, &explanation, || text(&explanation))?)?;
    Ok(Code::Done)
}

/// State of an instance whose request is queued.
const WAITING: &str = "Waiting";

/// Asks the proxy for the queued requests of the job.
async fn queued(context: &Context, global: &Global, uid: &str) -> Result<Vec<QueuedRequest>, Failure> {
    let proxy = proxy::connect(context, global).await?;
    let waiting = proxy.client.waiting().await.map_err(proxy::failure)?;
    Ok(of_job(waiting, uid))
}

fn of_job(waiting: Vec<PartitionDocument>, uid: &str) -> Vec<QueuedRequest> {
    let is_own = |request: &PartitionDocument| request.owner.as_ref().is_some_and(|owner| owner.uid == uid);
    let request = |request: PartitionDocument| QueuedRequest {
        instance: request.instance,
        size: request.size,
        reason: request.reason,
        waiting: request.waiting,
    };
    waiting.into_iter().filter(is_own).map(request).collect()
}

fn explain(
    name: &str,
    namespace: &str,
    status: IpuJobStatus,
    pods: &[Pod],
    not_checked: Vec<String>,
) -> Explanation {
    let phase = phase_of(&status);
    let instances = status.instances.iter().map(|instance| InstanceExplanation {
        index: instance.index,
        state: instance.state.clone(),
        attempt: instance.attempt,
        partition: instance.partition.clone(),
        reason: instance.reason.clone(),
    });
    let problems = pods.iter().filter_map(|pod| {
        Some(PodExplanation {
            name: pod.name_any(),
            problem: problem_of(pod)?,
        })
    });
    Explanation {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        phase,
        instances: instances.collect(),
        pods: problems.collect(),
        message: if status.last_message.is_empty() {
            "the operator has not reconciled the job: check it by `kubectl ipu doctor`".into()
        } else {
            status.last_message
        },
        queue: Vec::new(),
        conclusion: status.conclusion,
        first_failure: status.first_failure,
        not_checked,
    }
}

fn text(explanation: &Explanation) -> String {
    let Explanation {
        namespace,
        name,
        phase,
        message,
        ..
    } = explanation;
    let mut lines = vec![format!("{namespace}/{name} is {phase}: {message}")];
    if let Some(conclusion) = &explanation.conclusion {
        lines.push(format!("Conclusion: {}", reason_text(conclusion)));
    }
    for instance in &explanation.instances {
        let reason = instance.reason.as_deref().map(|reason| format!(": {reason}"));
        lines.push(format!(
            "Instance {} is {}{}",
            instance.index,
            instance.state,
            reason.unwrap_or_default()
        ));
    }
    for request in &explanation.queue {
        lines.extend(queue_lines(request));
    }
    for pod in &explanation.pods {
        lines.push(format!("Pod {}: {}", pod.name, pod.problem));
    }
    if let Some(failure) = &explanation.first_failure {
        let node = failure.node.as_deref().map(|node| format!(" on node {node}"));
        lines.push(format!(
            "First failure: {} {}{}: {}",
            failure.kind.to_lowercase(),
            failure.name,
            node.unwrap_or_default(),
            failure.reason
        ));
        let log = failure.log.trim_end().lines();
        lines.extend(log.map(|line| format!("  | {line}")));
    }
    for fact in &explanation.not_checked {
        lines.push(format!("Not checked: {fact}"));
    }
    let lines: Vec<String> = lines.iter().map(|line| printable(line)).collect();
    lines.join("\n") + "\n"
}

/// Returns the position, the reason, the blockers and the expected start of a queued request.
fn queue_lines(request: &QueuedRequest) -> Vec<String> {
    let QueuedRequest { instance, size, .. } = request;
    let Some(waiting) = &request.waiting else {
        let reason = request.reason.as_ref().map(reason_text);
        let reason = reason.unwrap_or_else(|| "it is the next in the queue".into());
        return vec![format!("Queue: {size} IPUs for instance {instance}: {reason}")];
    };
    let mut lines = vec![
        format!(
            "Queue: {size} IPUs for instance {instance}, position {}",
            waiting.position
        ),
        format!("  reason: {}", reason_text(&waiting.reason)),
    ];
    for blocker in &waiting.blockers {
        let owner = blocker.owner.as_ref();
        let owner = owner.map_or_else(
            || "no known owner".into(),
            |owner| format!("{}/{}", owner.namespace, owner.name),
        );
        let size = blocker.size.map(|size| format!(", {} IPUs", size.get()));
        let until = blocker.until.map(|until| format!(", until {}", Time(until)));
        lines.push(format!(
            "  blocked by {} of {owner}{}{}",
            blocker.id,
            size.unwrap_or_default(),
            until.unwrap_or_default()
        ));
    }
    lines.push(match waiting.earliest_fit {
        Some(time) => format!("  expected start: {} at the earliest", Time(time)),
        None if waiting.blockers.iter().any(|blocker| blocker.until.is_none()) => {
            "  expected start: not known, because a job ahead has no maximum run time".into()
        }
        // Such as cordoned hardware, or a controller that does not respond.
        None => "  expected start: not known".into(),
    });
    lines
}

/// Returns a reason with its code and numbers.
fn reason_text(reason: &Reason) -> String {
    let numbers: Vec<_> = reason
        .numbers
        .iter()
        .map(|(name, number)| format!("{name}={number}"))
        .collect();
    let numbers = if numbers.is_empty() {
        String::new()
    } else {
        format!(" ({})", numbers.join(", "))
    };
    format!("{}{numbers}: {}", reason.code, reason.message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_queued_request_shows_position_reason_blockers_and_expected_start() {
        let reason = json!({"code": "NotEnoughFree", "numbers": {"free": 4, "size": 16}, "message": "4 IPUs are free"});
        let owner =
            |name: &str, uid: &str| json!({"kind": "IPUJob", "namespace": "team", "name": name, "uid": uid});
        let blocker = json!({"id": "p-other-0", "owner": owner("other", "2"), "size": 16, "until": 1_795_608_000_000_u64});
        let document = json!({
            "id": "p-own-0", "state": "waiting", "owner": owner("own", "1"), "instance": 0, "attempt": 0, "size": 16,
            "gcds": 1, "replicas": 1, "reconfigurable": false, "controller": null, "ipus": [], "since": 0,
            "heldSince": null, "priority": 0, "account": null, "preemptible": false, "maxRuntimeSeconds": null,
            "leaseUntil": null, "reason": reason, "errors": [], "env": {},
            "waiting": {"position": 2, "reason": reason, "blockers": [blocker], "earliestFit": 1_795_608_000_000_u64},
        });
        let document: PartitionDocument = serde_json::from_value(document).unwrap();
        assert!(of_job(vec![document.clone()], "2").is_empty());
        let requests = of_job(vec![document], "1");
        assert_eq!(
            queue_lines(&requests[0]),
            [
                "Queue: 16 IPUs for instance 0, position 2",
                "  reason: NotEnoughFree (free=4, size=16): 4 IPUs are free",
                "  blocked by p-other-0 of team/other, 16 IPUs, until 2026-11-25T12:00:00.000Z",
                "  expected start: 2026-11-25T12:00:00.000Z at the earliest",
            ]
        );
    }

    #[test]
    fn an_unknown_start_names_a_job_ahead_only_if_one_has_no_maximum_run_time() {
        let reason =
            json!({"code": "ControllerUnavailable", "numbers": {}, "message": "pod1:8090 is unavailable"});
        let expected = |blockers: serde_json::Value| {
            let waiting = json!({"position": 1, "reason": reason, "blockers": blockers, "earliestFit": null});
            let request = QueuedRequest {
                instance: 0,
                size: 4,
                reason: None,
                waiting: Some(serde_json::from_value(waiting).unwrap()),
            };
            queue_lines(&request).pop().unwrap()
        };
        assert_eq!(expected(json!([])), "  expected start: not known");
        let endless = json!([{"id": "p-other-0", "owner": null, "size": 16, "until": null}]);
        assert_eq!(
            expected(endless),
            "  expected start: not known, because a job ahead has no maximum run time"
        );
    }
}
