//! Why a Pod does not run, from its status: a pure function.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// Returns the problem of a Pod that cannot be scheduled, cannot start, or has failed.
pub(super) fn problem_of(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    // Its sidecars are killed at the end.
    if status.phase.as_deref() == Some("Succeeded") {
        return None;
    }
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        let message = condition.message.as_deref().unwrap_or_default();
        return Some(with_detail(reason, message));
    }
    let containers = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten());
    containers.filter_map(container_problem).next().or_else(|| {
        let reason = status.reason.as_deref()?;
        Some(with_detail(reason, status.message.as_deref().unwrap_or_default()))
    })
}

fn container_problem(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("Waiting");
        // Every Pod passes through these.
        if matches!(reason, "ContainerCreating" | "PodInitializing") {
            return None;
        }
        let text = with_detail(reason, waiting.message.as_deref().unwrap_or_default());
        return Some(format!("container {}: {text}", container.name));
    }
    let ended = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    let reason = ended.reason.as_deref().unwrap_or("Error");
    Some(format!(
        "container {}: {reason}, exit code {}",
        container.name, ended.exit_code
    ))
}

fn with_detail(reason: &str, message: &str) -> String {
    if message.is_empty() {
        reason.to_owned()
    } else {
        format!("{reason}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problem(status: &Value) -> Option<String> {
        problem_of(&serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap())
    }

    #[test]
    fn the_problem_of_a_pod_is_that_of_its_scheduling_or_its_first_container() {
        let unscheduled = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"},
        ]});
        assert_eq!(
            problem(&unscheduled).unwrap(),
            "Unschedulable: 0/2 nodes are available"
        );
        let container = |state: Value| {
            json!({"initContainerStatuses": [{"name": "launcher", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": state}]})
        };
        let pull = container(json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}}));
        assert_eq!(
            problem(&pull).unwrap(),
            "container launcher: ErrImagePull: not found"
        );
        let killed = container(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
        assert_eq!(
            problem(&killed).unwrap(),
            "container launcher: OOMKilled, exit code 137"
        );
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"});
        assert_eq!(problem(&evicted).unwrap(), "Evicted: disk pressure");
    }

    #[test]
    fn a_pod_that_starts_runs_or_has_succeeded_has_no_problem() {
        for state in [
            json!({"waiting": {"reason": "PodInitializing"}}),
            json!({"running": {}}),
            json!({"terminated": {"exitCode": 0}}),
        ] {
            let status = json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": state}]});
            assert_eq!(problem(&status), None, "{state}");
        }
    }
}
