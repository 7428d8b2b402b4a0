//! Single reconciliations: the requests of the operator for a job.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ipu_k8s::controller::{Cache, Reconciler, Requeue};
use ipu_k8s::crd::Time;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::fake_cluster::{Operators, Watches, World, key, owner, time};

/// Runs a future that only yields.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

pub(super) struct Fixture {
    pub(super) world: World,
    pub(super) operator: Reconciler,
}

impl Fixture {
    pub(super) fn new() -> Self {
        // A seed without faults.
        let world = World::new(0, Operators::One);
        world.state().fault_rate = 0;
        world.state().watches = Watches::InOrder;
        let port = world.port();
        let cache = world.restart(0);
        let operator = Reconciler::new(
            port.clone(),
            port,
            cache,
            InstallationDefaults::default(),
            world.clock(),
        );
        Self { world, operator }
    }

    pub(super) fn reconcile(&self, name: &str) -> Value {
        let job = self.world.state().jobs[name].clone();
        let _ = block_on(self.operator.reconcile(&job));
        self.world.state().jobs.get(name).cloned().unwrap_or_default()
    }

    /// Alternates reconciliations and simulation steps until `done`, or panics after 1000.
    pub(super) fn run_until(&self, name: &str, done: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1000 {
            let job = self.reconcile(name);
            if done(&job) {
                return job;
            }
            self.world.step();
        }
        panic!("condition not reached: {}", self.world.state().jobs[name]);
    }
}

pub(super) fn sample() -> Value {
    json!({
        "jobInstances": 1, "ipusPerJobInstance": "1",
        "launcher": {"command": ["mpirun", "train"], "env": [{"name": "A", "value": "launcher"}]},
        "workers": {"replicas": 1, "template": {
            "metadata": {"labels": {"app": "resnet"}},
            "spec": {
                "volumes": [{"name": "data", "emptyDir": {}}], "terminationGracePeriodSeconds": 300,
                "containers": [{
                    "name": "resnet", "image": "resnet:latest",
                    "env": [{"name": "A", "value": "worker"}, {"name": "IPUOF_VIPU_API_PARTITION_ID", "value": "stale"}],
                    "resources": {"limits": {"rdma/hca": "1"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/mnt"}],
                }],
            },
        }},
    })
}

fn env<'a>(pod: &'a Value, name: &str) -> Vec<&'a str> {
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    env.iter()
        .filter(|var| var["name"] == name)
        .filter_map(|var| var["value"].as_str())
        .collect()
}

#[test]
fn a_job_gets_its_finalizer_before_it_holds_a_partition() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    let job = fixture.reconcile("a");
    assert_eq!(
        job["metadata"]["finalizers"],
        json!(["ipu.finalizers.graphcore.ai"])
    );
}

#[test]
fn workers_and_launcher_are_as_documented() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-launcher"));
    let pods = fixture.world.state().pods.clone();
    let (worker, launcher) = (&pods["a-worker-0"], &pods["a-launcher"]);
    for pod in [worker, launcher] {
        assert_eq!(pod["spec"]["hostNetwork"], true);
        assert_eq!(pod["spec"]["dnsPolicy"], "ClusterFirstWithHostNet");
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 300);
        assert_eq!(pod["spec"]["nodeSelector"], json!({"ctrl": "c"}));
        assert_eq!(pod["metadata"]["labels"]["app"], "resnet");
        assert_eq!(pod["spec"]["volumes"][0]["name"], "data");
        let main = &pod["spec"]["containers"][0];
        assert_eq!(main["securityContext"]["privileged"], true);
        assert_eq!(main["terminationMessagePolicy"], "FallbackToLogsOnError");
        assert_eq!(main["image"], "resnet:latest");
        assert_eq!(main["volumeMounts"][0]["mountPath"], "/mnt");
        assert_ne!(env(pod, "IPUOF_VIPU_API_PARTITION_ID"), ["stale"]);
        assert_eq!(env(pod, "IPUOF_VIPU_API_PARTITION_ID").len(), 1);
    }
    assert_eq!(env(worker, "A"), ["worker"]);
    assert_eq!(env(launcher, "A"), ["launcher"]);
    assert_eq!(
        launcher["spec"]["containers"][0]["command"],
        json!(["mpirun", "train"])
    );
    assert_eq!(launcher["spec"]["containers"][0]["resources"], Value::Null);
    assert_eq!(launcher["spec"]["serviceAccountName"], "a-launcher");
    assert_eq!(
        env(launcher, "OMPI_MCA_orte_default_hostfile"),
        ["/etc/mpi/hostfile"]
    );
}

#[test]
fn a_completed_job_reports_it_and_keeps_the_pods_of_its_policy() {
    let fixture = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["run", "it", "now"]);
    spec["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 9, "backOffSeconds": 1});
    fixture.world.submit("a", spec);
    let job = fixture.run_until("a", |job| job["status"]["phase"] == "Completed");
    let status = &job["status"];
    assert_eq!(status["launcherStatus"], "Completed");
    assert_eq!(status["lastMessage"], "All instances done");
    assert_eq!(status["currentReplicas"], 0);
    assert_eq!(status["ipusHeld"], 1);
    let conditions = status["conditions"].as_array().unwrap();
    let kinds: Vec<&str> = conditions
        .iter()
        .filter_map(|condition| condition["type"].as_str())
        .collect();
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("Pending", "Completed"));
    let now: Vec<&Value> = conditions
        .iter()
        .filter(|condition| condition["status"] == "True")
        .collect();
    assert_eq!(now.len(), 1);
}

#[test]
fn the_seconds_of_the_phases_add_up_to_the_time_until_the_job_ran() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    let job = fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let status = &job["status"];
    let conditions = status["conditions"].as_array().unwrap();
    let running = conditions.iter().find(|condition| condition["type"] == "Running");
    let moment = |value: &Value| serde_json::from_value::<Time>(value.clone()).unwrap().0;
    let total =
        moment(&running.unwrap()["lastTransitionTime"]).since(moment(&job["metadata"]["creationTimestamp"]));
    let parts = ["queue", "partition", "schedule", "start"];
    let parts = parts.map(|part| status["phaseSeconds"][part].as_f64().unwrap());
    assert!(parts.iter().all(|seconds| *seconds >= 0.0), "{parts:?}");
    assert!(total.as_secs_f64() > 0.0);
    assert!(
        (parts.iter().sum::<f64>() - total.as_secs_f64()).abs() < 1e-6,
        "{parts:?} do not add up to {total:?}"
    );
}

#[test]
fn jobs_of_another_manager_are_ignored() {
    let fixture = Fixture::new();
    let mut spec = sample();
    spec["managedBy"] = "example.com/other".into();
    fixture.world.submit("a", spec);
    let job = fixture.reconcile("a");
    assert_eq!(job["metadata"]["finalizers"], Value::Null);
    assert_eq!(fixture.world.state().writes, 0);

    // An empty value means no other manager.
    let mut spec = sample();
    spec["managedBy"] = "".into();
    fixture.world.submit("b", spec);
    fixture.run_until("b", |job| job["status"]["phase"] == "Running");
}

#[test]
fn an_invalid_job_is_reported_and_can_be_deleted() {
    let fixture = Fixture::new();
    let mut spec = sample();
    spec["ipusPerJobInstance"] = "3".into();
    fixture.world.submit("a", spec);
    let job = fixture.reconcile("a");
    let message = job["status"]["lastMessage"].as_str().unwrap();
    assert!(message.contains("spec.ipusPerJobInstance"), "{message}");
    let writes = fixture.world.state().writes;
    fixture.reconcile("a");
    assert_eq!(
        fixture.world.state().writes,
        writes,
        "the status is not written again"
    );
    fixture.world.delete("a");
    fixture.reconcile("a");
    assert!(fixture.world.state().jobs.is_empty());
}

#[test]
fn a_job_of_many_instances_limits_its_queued_requests_and_reports_it() {
    let fixture = Fixture::new();
    fixture.world.state().capacity = 3;
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["sh", "-c", "sleep 1d"]);
    spec["jobInstances"] = 100.into();
    fixture.world.submit("a", spec);
    let queued = || {
        let state = fixture.world.state();
        let waiting = state.holds.values().filter(|hold| hold.state != "active");
        (waiting.count(), state.holds.len())
    };
    fixture.run_until("a", |_| {
        let (queued, all) = queued();
        assert!(queued <= 64, "{queued}");
        all == 64 + 3
    });
    fixture.world.state().now += 20_000;
    let job = fixture.reconcile("a");
    let message = job["status"]["lastMessage"].as_str().unwrap();
    let expected = "the partitions of 33 instances are not requested yet: 64 instances of a job may be in the queue at once, and 64 are";
    assert!(
        message.starts_with("partition not ready yet!") && message.ends_with(expected),
        "{message}"
    );
    assert_eq!(job["status"]["phase"], "Pending");
    let last = &job["status"]["instances"][99];
    assert_eq!(last["state"], "Waiting");
    let reason = "NotRequested: 64 instances of the job are queued or have their partition made ready, which is the limit";
    assert_eq!(last["reason"], reason);
    // All partitions are released, and instances without a request do not matter.
    fixture.world.delete("a");
    fixture.run_until("a", Value::is_null);
    let state = fixture.world.state();
    assert!(state.holds.values().all(|hold| hold.state == "releasing"));
}

#[test]
fn a_reconciliation_without_changes_writes_nothing() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let writes = fixture.world.state().writes;
    for _ in 0..5 {
        fixture.reconcile("a");
    }
    assert_eq!(fixture.world.state().writes, writes);
}

/// Alternates reconciliations and simulation steps without advancing time.
fn run_without_time(fixture: &Fixture, done: impl Fn(&Value) -> bool) -> Value {
    let now = fixture.world.state().now;
    for _ in 0..1000 {
        let job = fixture.reconcile("a");
        if done(&job) {
            return job;
        }
        fixture.world.step();
        fixture.world.state().now = now;
    }
    panic!("condition not reached: {}", fixture.world.state().jobs["a"]);
}

#[test]
fn a_quickly_started_job_writes_one_status_with_all_conditions() {
    let fixture = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    fixture.world.submit("a", spec);
    let before = fixture.world.state().writes;
    let job = run_without_time(&fixture, |job| job["status"]["phase"] == "Running");
    // Three writes: the finalizer, the worker, the status.
    assert_eq!(fixture.world.state().writes - before, 3);
    let conditions: Vec<_> = ["Pending", "Running"]
        .iter()
        .zip(job["status"]["conditions"].as_array().unwrap())
        .map(|(kind, condition)| condition["type"] == *kind && !condition["lastTransitionTime"].is_null())
        .collect();
    assert_eq!(conditions, [true, true], "{job}");
    assert_eq!(job["status"]["conditions"][0]["status"], "False");
}

#[test]
fn a_slowly_started_job_reports_pending_after_two_seconds() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    let job = run_without_time(&fixture, |_| {
        fixture.world.state().pods.contains_key("a-worker-0")
    });
    assert_eq!(job["status"], Value::Null);
    let Requeue::After(pause) = block_on(fixture.operator.reconcile(&job)).unwrap() else {
        panic!("no requeue is requested");
    };
    assert!(pause <= Duration::from_secs(2), "{pause:?}");
    fixture.world.state().now += u64::try_from(pause.as_millis()).unwrap();
    assert_eq!(fixture.reconcile("a")["status"]["phase"], "Pending");
}

#[test]
fn the_reason_of_an_unstarted_worker_is_reported_without_further_events() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-worker-0"));
    fixture.world.state().now += 2_000;
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["phase"], "Pending");
    fixture.world.state().change_pod("a-worker-0", |pod| {
        pod["status"] = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has the label"},
        ]});
    });
    fixture.world.state().deliver_all_events();
    // The last message was written recently, so this one is delayed; no event will trigger a
    // reconciliation.
    let Requeue::After(pause) = block_on(fixture.operator.reconcile(&job)).unwrap() else {
        panic!("no requeue is requested");
    };
    assert!(pause <= Duration::from_secs(15), "{pause:?}");
    fixture.world.state().now += u64::try_from(pause.as_millis()).unwrap();
    let message = fixture.reconcile("a")["status"]["lastMessage"].to_string();
    assert!(
        message.contains("a-worker-0: Unschedulable: no node has the label"),
        "{message}"
    );
}

#[test]
fn a_job_reports_its_unreachable_node() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let now = fixture.world.state().now;
    let reconcile_after = |change: &dyn Fn(&mut Value)| {
        fixture.world.state().change_pod("a-worker-0", |pod| {
            pod["spec"]["nodeName"] = "one".into();
            change(pod);
        });
        fixture.world.state().deliver_all_events();
        // A change of only the message is not written at once.
        fixture.reconcile("a");
        fixture.world.state().now += 20_000;
        fixture.reconcile("a")["status"]["lastMessage"].clone()
    };
    // The node is unreachable: Kubernetes marks the Pod not ready and deletes it, and the node does not
    // respond.
    let message = reconcile_after(&|pod| {
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": time(now)}]);
    });
    let expected = format!("a-worker-0: NotReady: since {} on node one", time(now));
    assert!(
        message
            .as_str()
            .is_some_and(|message| message.ends_with(&expected)),
        "{message}"
    );
    let deletion_time = fixture.world.state().now + 60_000;
    reconcile_after(&|pod| {
        pod["metadata"]["deletionTimestamp"] = time(deletion_time).into();
        pod["metadata"]["deletionGracePeriodSeconds"] = 60.into();
    });
    let job = fixture.world.state().jobs["a"].clone();
    let Requeue::After(pause) = block_on(fixture.operator.reconcile(&job)).unwrap() else {
        panic!("no requeue is requested");
    };
    fixture.world.state().now += u64::try_from(pause.as_millis()).unwrap();
    assert!(fixture.world.state().now >= deletion_time);
    let message = fixture.reconcile("a")["status"]["lastMessage"].to_string();
    let expected = format!(
        "a-worker-0: DeletionOverdue: its deletion was due by {}, and its exit is not reported on node one",
        time(deletion_time)
    );
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn a_cache_that_missed_a_running_launcher_does_not_fail_its_job() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let port = fixture.world.port();
    let uninformed = Reconciler::new(
        port.clone(),
        port,
        Arc::default(),
        InstallationDefaults::default(),
        fixture.world.clock(),
    );
    let job = fixture.world.state().jobs["a"].clone();
    let _ = block_on(uninformed.reconcile(&job));
    assert_eq!(fixture.world.state().jobs["a"]["status"]["phase"], "Running");
}

#[test]
fn the_event_of_its_own_status_does_not_trigger_a_reconciliation() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    let job = fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let version = |job: &Value| -> u64 {
        let version = job["metadata"]["resourceVersion"].as_str().unwrap();
        version.parse().unwrap()
    };
    let cache = fixture.world.state().operator_watches[0].cache.clone();
    assert!(cache.is_up_to_date(&key(&job), version(&job)));
    let writes = fixture.world.state().writes;
    assert_eq!(fixture.reconcile("a"), job);
    assert_eq!(fixture.world.state().writes, writes);
    // A write by another client is reconciled.
    fixture
        .world
        .state()
        .change_job("a", |job| job["spec"]["suspend"] = true.into());
    let job = fixture.world.state().jobs["a"].clone();
    assert!(!cache.is_up_to_date(&key(&job), version(&job)));
}

#[test]
fn an_event_before_the_event_of_its_own_status_is_reconciled_afterwards() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    let before = fixture.world.state().jobs["a"].clone();
    let job = fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let version = job["metadata"]["resourceVersion"].as_str().unwrap();
    let version: u64 = version.parse().unwrap();
    let cache = fixture.world.state().operator_watches[0].cache.clone();
    assert!(cache.is_up_to_date(&key(&job), version));
    // For example, the worker fails, and the cached job is older than the last reconciliation.
    let requeue = block_on(fixture.operator.reconcile(&before)).unwrap();
    assert!(
        !cache.is_up_to_date(&key(&job), version),
        "the next event is reconciled"
    );
    assert!(
        matches!(requeue, Requeue::After(_)),
        "the event may have arrived meanwhile"
    );
    let second = block_on(fixture.operator.reconcile(&before)).unwrap();
    assert_eq!(second, Requeue::AwaitChange);
}

#[test]
fn a_pod_that_another_operator_started_is_reconciled_once_found() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    let phase = |name: &str| -> Option<Value> {
        let state = fixture.world.state();
        state.pods.get(name).map(|pod| pod["status"]["phase"].clone())
    };
    fixture.run_until("a", |_| {
        phase("a-worker-0") == Some("Running".into()) && phase("a-launcher").is_none()
    });
    // This operator observes the worker and no later event.
    let cache = Arc::new(Cache::new());
    let port = fixture.world.port();
    let other = Reconciler::new(
        port.clone(),
        port,
        Arc::clone(&cache),
        InstallationDefaults::default(),
        fixture.world.clock(),
    );
    {
        let state = fixture.world.state();
        cache.on_init();
        state.pods.values().for_each(|pod| cache.on_init_apply(pod));
        let _ = cache.on_init_done();
        let holds = state.holds.values();
        cache.replace_holds(holds.map(|hold| (owner(&hold.wanted.owner), hold.wanted.instance)));
    }
    fixture.run_until("a", |_| phase("a-launcher").is_some());
    let end = json!({"exitCode": 0, "finishedAt": time(fixture.world.state().now)});
    fixture.world.state().change_pod("a-launcher", |pod| {
        pod["status"] = json!({"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": end}}]});
    });
    let job = fixture.world.state().jobs["a"].clone();
    block_on(other.reconcile(&job)).unwrap();
    assert_eq!(fixture.world.state().jobs["a"]["status"]["phase"], "Completed");
}

#[test]
fn one_reconciliation_requests_a_limited_number_of_partitions() {
    let mut fixture = Fixture::new();
    let (port, cache, clock) = (
        fixture.world.port(),
        fixture.world.restart(0),
        fixture.world.clock(),
    );
    let mut installation = InstallationDefaults::default();
    installation.max_requested = 1024;
    fixture.operator = Reconciler::new(port.clone(), port, cache, installation, clock);
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["jobInstances"] = 200.into();
    fixture.world.submit("a", spec);
    let requested = || fixture.world.state().holds.len();
    let mut before = requested();
    for _ in 0..10 {
        fixture.reconcile("a");
        assert!(requested() <= before + 64, "{before} {}", requested());
        before = requested();
    }
    assert_eq!(before, 200);
    let desired = fixture.world.state().jobs["a"]["status"]["desiredReplicas"].clone();
    assert_eq!(desired, 200);
}

#[test]
fn a_finished_job_is_deleted_after_its_ttl_unless_the_ttl_is_extended() {
    let fixture = Fixture::new();
    for (name, clean) in [("a", "None"), ("b", "All")] {
        let mut spec = sample();
        spec["ttlSecondsAfterFinished"] = 50.into();
        spec["cleanPodPolicy"] = clean.into();
        fixture.world.submit(name, spec);
        fixture.run_until(name, |job| job["status"]["phase"] == "Running");
        let now = time(fixture.world.state().now);
        fixture
            .world
            .state()
            .change_pod(&format!("{name}-launcher"), |pod| {
                pod["status"] = json!({"phase": "Succeeded", "containerStatuses": [
                    {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": now}}},
                ]});
            });
        fixture.run_until(name, |job| job["status"]["phase"] == "Completed");
        let job = fixture.world.state().jobs[name].clone();
        let requeue = block_on(fixture.operator.reconcile(&job)).unwrap();
        assert!(
            matches!(requeue, Requeue::After(pause) if pause <= Duration::from_secs(50)),
            "{requeue:?}"
        );
    }
    fixture.world.state().now += 40_000;
    fixture.world.state().change_job("b", |job| {
        job["spec"]["ttlSecondsAfterFinished"] = 1_000_000.into()
    });
    fixture.world.state().now += 20_000;
    let job_a = || fixture.world.state().jobs.get("a").cloned();
    for _ in 0..100 {
        let Some(job) = job_a() else { break };
        let held = fixture
            .world
            .state()
            .holds
            .keys()
            .any(|id| id.as_str().starts_with("p-a-"));
        assert!(
            !held || job["metadata"]["deletionTimestamp"].is_null(),
            "partitions are released first"
        );
        fixture.reconcile("a");
        fixture.world.step();
    }
    assert_eq!(job_a(), None);
    assert_eq!(fixture.reconcile("b")["status"]["phase"], "Completed");
    assert!(fixture.reconcile("b")["metadata"]["deletionTimestamp"].is_null());
}
