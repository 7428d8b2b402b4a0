//! Readiness of one worker Pod for the launcher.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

/// Readiness of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodReadiness {
    /// Running and ready.
    Ready,
    /// Not ready yet; carries the reason.
    Waiting(String),
    /// Can never become ready; carries the reason.
    Failed(String),
}

/// Waiting reason of a container that can never start: the image name is invalid.
const TERMINAL_REASON: &str = "InvalidImageName";

/// Derives the readiness of a Pod from its status.
pub(crate) fn readiness_of(pod: &Pod) -> PodReadiness {
    let default = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&default);
    // Deletion takes precedence over the phase: a Pod deleted while running ends `Failed` or `Succeeded`,
    // and the operator recreates it. If the Pod ended by itself, the operator stops this launcher;
    // otherwise the worker stays missing until the timeout.
    if pod.metadata.deletion_timestamp.is_some() {
        return PodReadiness::Waiting("is being deleted".into());
    }
    match status.phase.as_deref() {
        Some("Failed") => return PodReadiness::Failed(format!("has failed{}", failure_details(status))),
        Some("Succeeded") => return PodReadiness::Failed("has ended before the launcher began".into()),
        _ => {}
    }
    for container in containers(status) {
        if let Some((reason, message)) = waiting_state(container)
            && reason == TERMINAL_REASON
        {
            return PodReadiness::Failed(format!("{}: {reason}{}", container.name, suffix(message)));
        }
    }
    if status.phase.as_deref() == Some("Running") && condition(status, "Ready").is_some_and(|(met, ..)| met) {
        return PodReadiness::Ready;
    }
    PodReadiness::Waiting(waiting_reason(status))
}

/// Returns the most specific reason in the status for a worker that is not ready.
fn waiting_reason(status: &PodStatus) -> String {
    if let Some((false, reason, message)) = condition(status, "PodScheduled") {
        return format!("is not scheduled: {reason}{}", suffix(&message));
    }
    for container in containers(status) {
        if let Some((reason, message)) = waiting_state(container) {
            // Every container has these reasons while it starts.
            if reason == "PodInitializing" || reason == "ContainerCreating" {
                continue;
            }
            return format!("{}: {reason}{}", container.name, suffix(message));
        }
    }
    match status.phase.as_deref() {
        Some("Running") => match condition(status, "Ready") {
            Some((_, reason, message)) if !reason.is_empty() => {
                format!("runs and is not ready: {reason}{}", suffix(&message))
            }
            _ => "runs and is not ready".into(),
        },
        Some("Pending") if status.host_ip.is_some() || status.container_statuses.is_some() => {
            "is being started".into()
        }
        Some("Pending") | None => "waits for a node".into(),
        Some(other) => format!("is in phase {other}"),
    }
}

fn failure_details(status: &PodStatus) -> String {
    let mut text = match (&status.reason, &status.message) {
        (Some(reason), message) => format!(": {reason}{}", suffix(message.as_deref().unwrap_or_default())),
        (None, Some(message)) => format!(": {message}"),
        (None, None) => String::new(),
    };
    for container in containers(status) {
        let ended = container
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        if let Some(ended) = ended
            && ended.exit_code != 0
        {
            let reason = ended.reason.as_deref().unwrap_or("Error");
            text.push_str(&format!(
                "; {}: exit code {} ({reason})",
                container.name, ended.exit_code
            ));
        }
    }
    text
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let first = status.init_container_statuses.iter().flatten();
    first.chain(status.container_statuses.iter().flatten())
}

/// Returns the reason and the message of a waiting container.
fn waiting_state(container: &ContainerStatus) -> Option<(&str, &str)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((
        waiting.reason.as_deref().unwrap_or("waits"),
        waiting.message.as_deref().unwrap_or_default(),
    ))
}

/// Returns whether a condition is true, its reason and its message; `None` if the condition is missing.
fn condition(status: &PodStatus, kind: &str) -> Option<(bool, String, String)> {
    let all = status.conditions.iter().flatten();
    all.filter(|condition| condition.type_ == kind)
        .map(|condition| {
            (
                condition.status == "True",
                condition.reason.clone().unwrap_or_default(),
                condition.message.clone().unwrap_or_default(),
            )
        })
        .next()
}

fn suffix(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readiness(status: serde_json::Value) -> PodReadiness {
        readiness_of(&serde_json::from_value(serde_json::json!({"status": status})).unwrap())
    }

    fn waiting(reason: &str) -> PodReadiness {
        PodReadiness::Waiting(reason.into())
    }

    #[test]
    fn a_worker_is_ready_if_it_runs_and_its_ready_condition_is_true() {
        let ready = serde_json::json!([{"type": "Ready", "status": "True"}]);
        assert_eq!(
            readiness(serde_json::json!({"phase": "Running", "conditions": ready})),
            PodReadiness::Ready
        );
        assert_eq!(
            readiness(serde_json::json!({"phase": "Running"})),
            waiting("runs and is not ready")
        );
    }

    #[test]
    fn a_worker_on_its_way_says_what_it_waits_for() {
        let unschedulable = serde_json::json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]});
        assert_eq!(
            readiness(unschedulable),
            waiting("is not scheduled: Unschedulable: no node fits")
        );
        for reason in [
            "ErrImagePull",
            "ImagePullBackOff",
            "CreateContainerConfigError",
            "CrashLoopBackOff",
        ] {
            let status = serde_json::json!({"phase": "Pending", "containerStatuses": [
                {"name": "main", "state": {"waiting": {"reason": reason, "message": "m"}},
                 "image": "", "imageID": "", "ready": false, "restartCount": 0}]});
            assert_eq!(readiness(status), waiting(&format!("main: {reason}: m")));
        }
        assert_eq!(readiness(serde_json::json!({})), waiting("waits for a node"));
    }

    #[test]
    fn a_worker_that_is_being_deleted_is_waited_for_however_it_ends() {
        let killed = serde_json::json!([
            {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "Error"}},
             "image": "", "imageID": "", "ready": false, "restartCount": 0}]);
        for phase in ["Pending", "Running", "Failed", "Succeeded"] {
            let pod = serde_json::json!({
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30},
                "status": {"phase": phase, "containerStatuses": killed},
            });
            let readiness = readiness_of(&serde_json::from_value(pod).unwrap());
            assert_eq!(readiness, waiting("is being deleted"), "{phase}");
        }
    }

    #[test]
    fn a_worker_that_has_ended_or_has_no_image_is_never_ready() {
        let failed = serde_json::json!({"phase": "Failed", "reason": "Evicted", "message": "no memory", "containerStatuses": [
            {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
             "image": "", "imageID": "", "ready": false, "restartCount": 0}]});
        assert_eq!(
            readiness(failed),
            PodReadiness::Failed("has failed: Evicted: no memory; main: exit code 137 (OOMKilled)".into())
        );
        let ended = readiness(serde_json::json!({"phase": "Succeeded"}));
        assert_eq!(
            ended,
            PodReadiness::Failed("has ended before the launcher began".into())
        );
        let nameless = serde_json::json!({"phase": "Pending", "containerStatuses": [
            {"name": "main", "state": {"waiting": {"reason": "InvalidImageName"}},
             "image": "", "imageID": "", "ready": false, "restartCount": 0}]});
        assert_eq!(
            readiness(nameless),
            PodReadiness::Failed("main: InvalidImageName".into())
        );
    }
}
