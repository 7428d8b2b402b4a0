//! Tests of the state that is read from pods.

use serde_json::json;

use super::*;

fn phase(status: &Value) -> ProcessPhase {
    let pod = KubePod::read(&worker(status)).expect("a pod of a job");
    pod.facts(Timestamp::default()).phase
}

fn worker(status: &Value) -> Value {
    let labels = [
        (ROLE, "worker"),
        (JOB_NAME, "a"),
        (JOB_UID, "u"),
        (INSTANCE, "0"),
        (WORKER, "0"),
        (ATTEMPT, "0"),
    ];
    let labels: std::collections::BTreeMap<_, _> = labels.into();
    json!({
        "metadata": {
            "name": "a-worker-0", "namespace": "n", "uid": "p", "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {},
        "status": status,
    })
}

#[test]
fn image_pulls_do_not_count_as_starting_time_and_init_containers_do() {
    let sandbox = json!([{"type": "PodReadyToStartContainers", "status": "True"}]);
    let waiting = |reason: &str| json!([{"name": "main", "state": {"waiting": {"reason": reason}}}]);
    let later = Timestamp::from_millis(2_000_000_000_000);
    let since = |pod: &Value| match KubePod::read(pod).expect("a pod of a job").facts(later).phase {
        ProcessPhase::Starting { since, .. } => since,
        other => panic!("{other:?}"),
    };
    let at = |text: &str| parse_time(&text.into()).expect("a timestamp");
    let mut one = worker(&json!({
        "phase": "Pending", "conditions": sandbox, "containerStatuses": waiting("ContainerCreating"),
    }));
    assert_eq!(since(&one), later, "its image is pulled");
    one["status"]["containerStatuses"] = waiting("ImagePullBackOff");
    assert_eq!(since(&one), at("2026-01-01T00:00:00Z"));
    // An init container runs: no image is pulled for the others yet.
    one["spec"] =
        json!({"initContainers": [{"name": "first"}, {"name": "beside", "restartPolicy": "Always"}]});
    one["status"]["containerStatuses"] = waiting("PodInitializing");
    let running = |name: &str| json!({"name": name, "started": true, "state": {"running": {"startedAt": "2026-01-01T00:20:00Z"}}});
    one["status"]["initContainerStatuses"] = json!([running("first")]);
    assert_eq!(since(&one), at("2026-01-01T00:20:00Z"));
    let ended = json!({"name": "first", "state": {"terminated": {"finishedAt": "2026-01-01T00:30:00Z"}}});
    one["status"]["initContainerStatuses"] = json!([ended, running("beside")]);
    assert_eq!(since(&one), later);
    // The image is pulled, and the container is not ready yet.
    one["status"]["phase"] = "Running".into();
    one["status"]["containerStatuses"] =
        json!([{"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:40:00Z"}}}]);
    assert_eq!(since(&one), at("2026-01-01T00:40:00Z"));
}

#[test]
fn a_copy_of_a_worker_is_not_a_worker() {
    for (name, instance, worker, is_worker) in [
        ("a-worker-0", 0, Some(0), true),
        ("a-worker-12", 0, Some(12), true),
        // In the fourth instance of three, or of four, workers each.
        ("a-worker-10", 3, Some(1), true),
        ("a-worker-13", 3, Some(1), true),
        ("a-launcher", 0, None, true),
        ("a-launcher-1", 1, None, true),
        ("a-worker-0-copy", 0, Some(0), false),
        ("a-worker-", 0, Some(0), false),
        ("a-worker", 0, Some(0), false),
        ("a-worker-00", 0, Some(0), false),
        ("a-worker-+0", 0, Some(0), false),
        ("copy-a-worker-0", 0, Some(0), false),
        ("a-b-worker-0", 0, Some(0), false),
        ("a-worker-1", 0, Some(0), false),
        ("a-worker-11", 3, Some(1), false),
        ("a-worker-4", 3, Some(1), false),
        ("a-worker-0", 0, Some(1), false),
        ("a-launcher-", 0, None, false),
        ("a-launcher-0", 0, None, false),
        ("a-launcher-1", 0, None, false),
        ("a-launcher", 1, None, false),
        ("a-launcher-0", 0, Some(0), false),
    ] {
        let known = is_name_of(name, "a", instance, worker);
        assert_eq!(known, is_worker, "{name} of {instance}, {worker:?}");
    }
}

#[test]
fn a_pod_with_an_exited_container_counts_as_running() {
    let ready =
        |so: &str| json!([{"type": "Ready", "status": so, "lastTransitionTime": "2026-01-01T00:00:03Z"}]);
    let running = json!({"state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}});
    let ended = json!({"state": {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:02Z"}}});
    let since = |text: &str| ProcessPhase::Running {
        since: parse_time(&text.into()).expect("a timestamp"),
    };
    let status =
        |ready, all: &[&Value]| json!({"phase": "Running", "conditions": ready, "containerStatuses": all});
    assert_eq!(
        phase(&status(ready("True"), &[&running])),
        since("2026-01-01T00:00:03Z")
    );
    // The readiness probe has not succeeded yet.
    let starting = phase(&status(ready("False"), &[&running]));
    assert!(matches!(starting, ProcessPhase::Starting { .. }), "{starting:?}");
    // The kubelet reports the lost readiness a moment before the exit.
    assert_eq!(
        phase(&status(ready("False"), &[&ended])),
        since("2026-01-01T00:00:02Z")
    );
    // One of two containers; the pod was never ready.
    let one_of_two = status(ready("False"), &[&running, &ended]);
    assert_eq!(phase(&one_of_two), since("2026-01-01T00:00:02Z"));
}
