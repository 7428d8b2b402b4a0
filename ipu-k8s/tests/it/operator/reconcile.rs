//! Single passes: what the operator asks of the world for a job.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ipu_k8s::controller::{Cache, Reconciler, Requeue};
use ipu_k8s::crd::Time;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::fake_cluster::{Operators, Watches, World, key, owner, time};

/// Runs `future`, which waits for nobody but its turn.
pub(super) fn finish<T>(future: impl Future<Output = T>) -> T {
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
        // A seed of a world without trouble.
        let world = World::new(0, Operators::One);
        world.state().trouble = 0;
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

    pub(super) fn pass(&self, name: &str) -> Value {
        let job = self.world.state().jobs[name].clone();
        let _ = finish(self.operator.reconcile(&job));
        self.world.state().jobs.get(name).cloned().unwrap_or_default()
    }

    /// Passes and what happens by itself, until `done` or too long.
    pub(super) fn until(&self, name: &str, done: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1000 {
            let job = self.pass(name);
            if done(&job) {
                return job;
            }
            self.world.step();
        }
        panic!("it never came: {}", self.world.state().jobs[name]);
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
fn a_job_is_kept_before_anything_is_held_for_it() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    let job = setting.pass("a");
    assert_eq!(
        job["metadata"]["finalizers"],
        json!(["ipu.finalizers.graphcore.ai"])
    );
}

#[test]
fn workers_and_launcher_are_as_documented() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    setting.until("a", |_| setting.world.state().pods.contains_key("a-launcher"));
    let pods = setting.world.state().pods.clone();
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
fn a_job_that_is_done_says_so_and_keeps_what_its_policy_leaves() {
    let setting = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["run", "it", "now"]);
    spec["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 9, "backOffSeconds": 1});
    setting.world.submit("a", spec);
    let job = setting.until("a", |job| job["status"]["phase"] == "Completed");
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
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    let job = setting.until("a", |job| job["status"]["phase"] == "Running");
    let status = &job["status"];
    let conditions = status["conditions"].as_array().unwrap();
    let running = conditions.iter().find(|condition| condition["type"] == "Running");
    let moment = |value: &Value| serde_json::from_value::<Time>(value.clone()).unwrap().0;
    let took =
        moment(&running.unwrap()["lastTransitionTime"]).since(moment(&job["metadata"]["creationTimestamp"]));
    let parts = ["queue", "partition", "schedule", "start"];
    let parts = parts.map(|part| status["phaseSeconds"][part].as_f64().unwrap());
    assert!(parts.iter().all(|seconds| *seconds >= 0.0), "{parts:?}");
    assert!(took.as_secs_f64() > 0.0);
    assert!(
        (parts.iter().sum::<f64>() - took.as_secs_f64()).abs() < 1e-6,
        "{parts:?} are not {took:?}"
    );
}

#[test]
fn another_managers_jobs_are_left_alone() {
    let setting = Fixture::new();
    let mut spec = sample();
    spec["managedBy"] = "example.com/other".into();
    setting.world.submit("a", spec);
    let job = setting.pass("a");
    assert_eq!(job["metadata"]["finalizers"], Value::Null);
    assert_eq!(setting.world.state().writes, 0);

    // Nobody is no manager.
    let mut spec = sample();
    spec["managedBy"] = "".into();
    setting.world.submit("b", spec);
    setting.until("b", |job| job["status"]["phase"] == "Running");
}

#[test]
fn what_is_no_job_is_told_so_and_can_be_deleted() {
    let setting = Fixture::new();
    let mut spec = sample();
    spec["ipusPerJobInstance"] = "3".into();
    setting.world.submit("a", spec);
    let job = setting.pass("a");
    let message = job["status"]["lastMessage"].as_str().unwrap();
    assert!(message.contains("spec.ipusPerJobInstance"), "{message}");
    let writes = setting.world.state().writes;
    setting.pass("a");
    assert_eq!(setting.world.state().writes, writes, "it is not told again");
    setting.world.delete("a");
    setting.pass("a");
    assert!(setting.world.state().jobs.is_empty());
}

#[test]
fn a_job_of_many_instances_leaves_the_queue_to_others_and_says_so() {
    let setting = Fixture::new();
    setting.world.state().capacity = 3;
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["sh", "-c", "sleep 1d"]);
    spec["jobInstances"] = 100.into();
    setting.world.submit("a", spec);
    let queued = || {
        let state = setting.world.state();
        let waiting = state.holds.values().filter(|hold| hold.state != "active");
        (waiting.count(), state.holds.len())
    };
    setting.until("a", |_| {
        let (queued, all) = queued();
        assert!(queued <= 64, "{queued}");
        all == 64 + 3
    });
    setting.world.state().now += 20_000;
    let job = setting.pass("a");
    let message = job["status"]["lastMessage"].as_str().unwrap();
    let said = "the partitions of 33 instances are not requested yet: 64 instances of a job may be in the queue at once, and 64 are";
    assert!(
        message.starts_with("partition not ready yet!") && message.ends_with(said),
        "{message}"
    );
    assert_eq!(job["status"]["phase"], "Pending");
    let last = &job["status"]["instances"][99];
    assert_eq!(last["state"], "Waiting");
    let reason = "NotRequested: 64 instances of the job are queued or have their partition made ready, which is the limit";
    assert_eq!(last["reason"], reason);
    // All of it is released, and what was never asked for is not missed.
    setting.world.delete("a");
    setting.until("a", Value::is_null);
    let state = setting.world.state();
    assert!(state.holds.values().all(|hold| hold.state == "releasing"));
}

#[test]
fn a_pass_that_finds_nothing_new_writes_nothing() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let writes = setting.world.state().writes;
    for _ in 0..5 {
        setting.pass("a");
    }
    assert_eq!(setting.world.state().writes, writes);
}

/// Lets everything happen that does, without time passing, and looks at the job in between.
fn hurry(setting: &Fixture, done: impl Fn(&Value) -> bool) -> Value {
    let now = setting.world.state().now;
    for _ in 0..1000 {
        let job = setting.pass("a");
        if done(&job) {
            return job;
        }
        setting.world.step();
        setting.world.state().now = now;
    }
    panic!("it never came: {}", setting.world.state().jobs["a"]);
}

#[test]
fn a_job_that_runs_in_a_moment_is_told_of_once_and_everything_that_was_on_the_way() {
    let setting = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    setting.world.submit("a", spec);
    let before = setting.world.state().writes;
    let job = hurry(&setting, |job| job["status"]["phase"] == "Running");
    // The finalizer, the worker, the status.
    assert_eq!(setting.world.state().writes - before, 3);
    let conditions: Vec<_> = ["Pending", "Running"]
        .iter()
        .zip(job["status"]["conditions"].as_array().unwrap())
        .map(|(kind, condition)| condition["type"] == *kind && !condition["lastTransitionTime"].is_null())
        .collect();
    assert_eq!(conditions, [true, true], "{job}");
    assert_eq!(job["status"]["conditions"][0]["status"], "False");
}

#[test]
fn a_job_that_takes_longer_says_that_it_is_on_its_way_after_two_seconds() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    let job = hurry(&setting, |_| {
        setting.world.state().pods.contains_key("a-worker-0")
    });
    assert_eq!(job["status"], Value::Null);
    let Requeue::After(pause) = finish(setting.operator.reconcile(&job)).unwrap() else {
        panic!("it is never looked at again");
    };
    assert!(pause <= Duration::from_secs(2), "{pause:?}");
    setting.world.state().now += u64::try_from(pause.as_millis()).unwrap();
    assert_eq!(setting.pass("a")["status"]["phase"], "Pending");
}

#[test]
fn why_a_worker_does_not_start_is_told_although_nothing_else_happens() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    setting.until("a", |_| setting.world.state().pods.contains_key("a-worker-0"));
    setting.world.state().now += 2_000;
    let job = setting.pass("a");
    assert_eq!(job["status"]["phase"], "Pending");
    setting.world.state().change_pod("a-worker-0", |pod| {
        pod["status"] = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has the label"},
        ]});
    });
    setting.world.state().tell_all();
    // Something was written a moment ago, so these words have to wait; nothing else will wake the operator.
    let Requeue::After(pause) = finish(setting.operator.reconcile(&job)).unwrap() else {
        panic!("it is never looked at again");
    };
    assert!(pause <= Duration::from_secs(15), "{pause:?}");
    setting.world.state().now += u64::try_from(pause.as_millis()).unwrap();
    let message = setting.pass("a")["status"]["lastMessage"].to_string();
    assert!(
        message.contains("a-worker-0: Unschedulable: no node has the label"),
        "{message}"
    );
}

#[test]
fn a_job_says_of_which_node_nothing_is_heard() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let now = setting.world.state().now;
    let heard = |change: &dyn Fn(&mut Value)| {
        setting.world.state().change_pod("a-worker-0", |pod| {
            pod["spec"]["nodeName"] = "one".into();
            change(pod);
        });
        setting.world.state().tell_all();
        // Words alone are not written at once.
        setting.pass("a");
        setting.world.state().now += 20_000;
        setting.pass("a")["status"]["lastMessage"].clone()
    };
    // Its node is not heard from: Kubernetes calls it not ready, and tells it to go, which nobody there hears.
    let message = heard(&|pod| {
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": time(now)}]);
    });
    let said = format!("a-worker-0: NotReady: since {} on node one", time(now));
    assert!(
        message.as_str().is_some_and(|message| message.ends_with(&said)),
        "{message}"
    );
    let gone_by = setting.world.state().now + 60_000;
    heard(&|pod| {
        pod["metadata"]["deletionTimestamp"] = time(gone_by).into();
        pod["metadata"]["deletionGracePeriodSeconds"] = 60.into();
    });
    let job = setting.world.state().jobs["a"].clone();
    let Requeue::After(pause) = finish(setting.operator.reconcile(&job)).unwrap() else {
        panic!("nobody tells that nothing happens");
    };
    setting.world.state().now += u64::try_from(pause.as_millis()).unwrap();
    assert!(setting.world.state().now >= gone_by);
    let message = setting.pass("a")["status"]["lastMessage"].to_string();
    let said = format!(
        "a-worker-0: DeletionOverdue: it was to be gone by {}, and nothing says that it has ended on node one",
        time(gone_by)
    );
    assert!(message.contains(&said), "{message}");
}

#[test]
fn a_cache_that_missed_a_running_launcher_does_not_fail_its_job() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let port = setting.world.port();
    let deaf = Reconciler::new(
        port.clone(),
        port,
        Arc::default(),
        InstallationDefaults::default(),
        setting.world.clock(),
    );
    let job = setting.world.state().jobs["a"].clone();
    let _ = finish(deaf.reconcile(&job));
    assert_eq!(setting.world.state().jobs["a"]["status"]["phase"], "Running");
}

#[test]
fn a_job_that_runs_leaves_nothing_to_be_done_when_its_own_status_is_heard() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    let job = setting.until("a", |job| job["status"]["phase"] == "Running");
    let version = |job: &Value| -> u64 {
        let version = job["metadata"]["resourceVersion"].as_str().unwrap();
        version.parse().unwrap()
    };
    let cache = setting.world.state().ears[0].cache.clone();
    assert!(cache.is_settled(&key(&job), version(&job)));
    let writes = setting.world.state().writes;
    assert_eq!(setting.pass("a"), job);
    assert_eq!(setting.world.state().writes, writes);
    // What somebody else writes is looked at.
    setting
        .world
        .state()
        .change_job("a", |job| job["spec"]["suspend"] = true.into());
    let job = setting.world.state().jobs["a"].clone();
    assert!(!cache.is_settled(&key(&job), version(&job)));
}

#[test]
fn what_is_told_of_a_job_whose_own_status_was_not_heard_yet_is_looked_at_once_it_is() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    let before = setting.world.state().jobs["a"].clone();
    let job = setting.until("a", |job| job["status"]["phase"] == "Running");
    let version = job["metadata"]["resourceVersion"].as_str().unwrap();
    let version: u64 = version.parse().unwrap();
    let cache = setting.world.state().ears[0].cache.clone();
    assert!(cache.is_settled(&key(&job), version));
    // Its worker fails, say, and the job that is known is the one from before the last pass.
    let wake = finish(setting.operator.reconcile(&before)).unwrap();
    assert!(
        !cache.is_settled(&key(&job), version),
        "whoever hears of it tells"
    );
    assert!(
        matches!(wake, Requeue::After(_)),
        "it may have been heard meanwhile"
    );
    let again = finish(setting.operator.reconcile(&before)).unwrap();
    assert_eq!(again, Requeue::AwaitChange);
}

#[test]
fn what_another_operator_started_is_looked_at_in_the_pass_that_finds_it() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    let phase = |name: &str| -> Option<Value> {
        let state = setting.world.state();
        state.pods.get(name).map(|pod| pod["status"]["phase"].clone())
    };
    setting.until("a", |_| {
        phase("a-worker-0") == Some("Running".into()) && phase("a-launcher").is_none()
    });
    // It hears of the worker, and of nothing after that.
    let cache = Arc::new(Cache::new());
    let port = setting.world.port();
    let other = Reconciler::new(
        port.clone(),
        port,
        Arc::clone(&cache),
        InstallationDefaults::default(),
        setting.world.clock(),
    );
    {
        let state = setting.world.state();
        cache.on_init();
        state.pods.values().for_each(|pod| cache.on_init_apply(pod));
        let _ = cache.on_init_done();
        let holds = state.holds.values();
        cache.replace_holds(holds.map(|hold| (owner(&hold.wanted.owner), hold.wanted.instance)));
    }
    setting.until("a", |_| phase("a-launcher").is_some());
    let end = json!({"exitCode": 0, "finishedAt": time(setting.world.state().now)});
    setting.world.state().change_pod("a-launcher", |pod| {
        pod["status"] = json!({"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": end}}]});
    });
    let job = setting.world.state().jobs["a"].clone();
    finish(other.reconcile(&job)).unwrap();
    assert_eq!(setting.world.state().jobs["a"]["status"]["phase"], "Completed");
}

#[test]
fn one_pass_does_not_ask_for_all_of_a_thousand_instances() {
    let mut setting = Fixture::new();
    let (port, cache, clock) = (
        setting.world.port(),
        setting.world.restart(0),
        setting.world.clock(),
    );
    let mut installation = InstallationDefaults::default();
    installation.max_requested = 1024;
    setting.operator = Reconciler::new(port.clone(), port, cache, installation, clock);
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["jobInstances"] = 200.into();
    setting.world.submit("a", spec);
    let asked = || setting.world.state().holds.len();
    let mut before = asked();
    for _ in 0..10 {
        setting.pass("a");
        assert!(asked() <= before + 64, "{before} {}", asked());
        before = asked();
    }
    assert_eq!(before, 200);
    let desired = setting.world.state().jobs["a"]["status"]["desiredReplicas"].clone();
    assert_eq!(desired, 200);
}

#[test]
fn a_finished_job_is_deleted_when_its_time_is_over_unless_somebody_wants_it_longer() {
    let setting = Fixture::new();
    for (name, clean) in [("a", "None"), ("b", "All")] {
        let mut spec = sample();
        spec["ttlSecondsAfterFinished"] = 50.into();
        spec["cleanPodPolicy"] = clean.into();
        setting.world.submit(name, spec);
        setting.until(name, |job| job["status"]["phase"] == "Running");
        let now = time(setting.world.state().now);
        setting
            .world
            .state()
            .change_pod(&format!("{name}-launcher"), |pod| {
                pod["status"] = json!({"phase": "Succeeded", "containerStatuses": [
                    {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": now}}},
                ]});
            });
        setting.until(name, |job| job["status"]["phase"] == "Completed");
        let job = setting.world.state().jobs[name].clone();
        let wake = finish(setting.operator.reconcile(&job)).unwrap();
        assert!(
            matches!(wake, Requeue::After(pause) if pause <= Duration::from_secs(50)),
            "{wake:?}"
        );
    }
    setting.world.state().now += 40_000;
    setting.world.state().change_job("b", |job| {
        job["spec"]["ttlSecondsAfterFinished"] = 1_000_000.into()
    });
    setting.world.state().now += 20_000;
    let there = || setting.world.state().jobs.get("a").cloned();
    for _ in 0..100 {
        let Some(job) = there() else { break };
        let held = setting
            .world
            .state()
            .holds
            .keys()
            .any(|id| id.as_str().starts_with("p-a-"));
        assert!(
            !held || job["metadata"]["deletionTimestamp"].is_null(),
            "first it gives everything back"
        );
        setting.pass("a");
        setting.world.step();
    }
    assert_eq!(there(), None);
    assert_eq!(setting.pass("b")["status"]["phase"], "Completed");
    assert!(setting.pass("b")["metadata"]["deletionTimestamp"].is_null());
}
