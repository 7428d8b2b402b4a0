//! Rights of launchers over Pods, which RBAC knows by name alone: when they begin, and when they end.

use std::collections::{BTreeMap, BTreeSet};

use ipu_k8s::controller::Reconciler;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::fake_cluster::{Operators, State, World};
use super::reconcile::{Fixture, sample};

/// The Roles in a world.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    /// The uid of the job that owns a Role, and the Pods in which the Role lets a launcher run commands, by its name.
    granted: BTreeMap<String, (String, BTreeSet<String>)>,
    /// Workers that other clients removed or are removing, by the uid of their job: until the operator has seen that, a
    /// Pod that takes their name can be reached.
    removed: BTreeSet<(String, String)>,
}

impl Roles {
    /// The Pods in which the launchers of the job of this uid may run commands.
    pub(crate) fn of(&self, uid: &str) -> BTreeSet<String> {
        let roles = self.granted.values().filter(|(owner, _)| owner == uid);
        roles.flat_map(|(_, pods)| pods.clone()).collect()
    }

    pub(super) fn revoke(&mut self, role: &str, uid: &str) {
        if let Some((_, pods)) = self.granted.get_mut(role).filter(|(owner, _)| owner == uid) {
            pods.clear();
        }
    }

    /// Kubernetes removes the Roles of jobs that are gone.
    pub(super) fn keep(&mut self, alive: &[Value]) {
        self.granted
            .retain(|_, (owner, _)| alive.iter().any(|uid| uid == owner));
    }
}

impl State {
    /// The operator writes an object, which may be a Role.
    pub(super) fn write_role(&mut self, object: &Value) {
        if object["kind"] != "Role" {
            return;
        }
        let uid = object["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap();
        let mut pods = BTreeSet::new();
        for rule in object["rules"].as_array().unwrap() {
            let names = rule["resourceNames"].as_array();
            let names =
                names.unwrap_or_else(|| panic!("a launcher reaches every Pod of its namespace: {rule}"));
            pods.extend(names.iter().map(|name| name.as_str().unwrap().to_owned()));
        }
        for name in &pods {
            let reached = self.pods.get(name).is_some_and(|pod| is_of(pod, uid));
            let was = || self.roles.removed.contains(&(uid.to_owned(), name.clone()));
            assert!(
                reached || was() || self.operators == Operators::Two,
                "a launcher of {uid} may run commands in {name}, which is not a worker of its job"
            );
        }
        let name = object["metadata"]["name"].as_str().unwrap();
        self.roles.granted.insert(name.to_owned(), (uid.to_owned(), pods));
    }

    /// Another client removes a worker.
    pub(super) fn others_remove(&mut self, name: &str) {
        let uid = self.pods[name]["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str();
        if let Some(uid) = uid {
            self.roles.removed.insert((uid.to_owned(), name.to_owned()));
        }
    }

    /// The operator deletes a Pod, whose name is free soon.
    pub(super) fn expect_no_rights(&self, name: &str) {
        let uid = self.pods[name]["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str();
        let reached = uid.is_some_and(|uid| self.roles.of(uid).contains(name));
        assert!(
            !reached || self.operators == Operators::Two,
            "{name} is deleted while a launcher may run commands in Pods of that name"
        );
    }

    /// A launcher runs, and needs its rights.
    pub(super) fn expect_rights(&self, launcher: &Value) {
        let labels =
            |pod: &Value, name: &str| pod["metadata"]["labels"][format!("graphcore.ai/{name}")].clone();
        let same = |pod: &Value| {
            ["ipujob-uid", "instance", "attempt"]
                .iter()
                .all(|name| labels(pod, name) == labels(launcher, name))
        };
        let uid = labels(launcher, "ipujob-uid");
        let rights = self.roles.of(uid.as_str().unwrap());
        let workers: Vec<(&String, &Value)> = self
            .pods
            .iter()
            .filter(|(_, pod)| same(pod) && labels(pod, "role") == "worker")
            .collect();
        // The job gave up those that are being deleted, and those that have ended.
        let whole = workers.iter().all(|(_, pod)| {
            pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] == "Running"
        });
        let others_did = self.roles.removed.iter().any(|(of, _)| uid == **of);
        let job = self.jobs.values().find(|job| job["metadata"]["uid"] == uid);
        let goes_on = job.is_some_and(|job| !is_to_stop(job));
        let lacks = workers.iter().find(|(name, _)| !rights.contains(*name));
        assert!(
            lacks.is_none() || !whole || !goes_on || others_did || self.operators == Operators::Two,
            "a launcher has no rights over {lacks:?}: {:?}",
            self.roles
        );
    }

    /// No launcher reaches a Pod of another owner, unless that took a name which other clients made free.
    pub(super) fn check_rights(&self) {
        for (uid, pods) in self.roles.granted.values() {
            for name in pods {
                let reached = self.pods.get(name).filter(|pod| !is_of(pod, uid));
                let removed = || self.roles.removed.contains(&(uid.clone(), name.clone()));
                assert!(
                    reached.is_none() || removed() || self.operators == Operators::Two,
                    "a launcher of {uid} may run commands in {name} of another owner"
                );
            }
        }
    }

    /// Once nothing happens any more, every Pod that a launcher may reach is a worker of its job that runs.
    pub(crate) fn check_rights_at_rest(&self) {
        for (role, (uid, pods)) in &self.roles.granted {
            for name in pods {
                let pod = self.pods.get(name);
                let reached = pod.is_some_and(|pod| is_of(pod, uid) && pod["status"]["phase"] == "Running");
                assert!(
                    reached || self.operators == Operators::Two,
                    "{role} names {name}, which is {pod:?}"
                );
            }
        }
    }
}

/// Whether launchers of a job may be stopped together with their workers.
fn is_to_stop(job: &Value) -> bool {
    let ended = job["status"]["instances"].as_array().into_iter().flatten();
    let mut ended = ended.filter(|instance| !instance["outcome"].is_null());
    !job["metadata"]["deletionTimestamp"].is_null()
        || job["spec"]["suspend"] == true
        || job["metadata"]["generation"] != 1
        || ended.next().is_some()
}

/// Whether the job of this uid is the controller of a Pod.
fn is_of(pod: &Value, uid: &str) -> bool {
    let mut owners = pod["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten();
    owners.any(|owner| owner["controller"] == true && owner["uid"] == uid)
}

/// A job of two workers and a launcher.
fn pair() -> Value {
    let mut spec = sample();
    spec["ipusPerJobInstance"] = "2".into();
    spec["workers"]["replicas"] = 2.into();
    spec
}

fn rights(setting: &Fixture) -> BTreeSet<String> {
    let state = setting.world.state();
    let uid = state.jobs["a"]["metadata"]["uid"].as_str().unwrap().to_owned();
    state.roles.of(&uid)
}

fn both() -> BTreeSet<String> {
    ["a-worker-0", "a-worker-1"].map(str::to_owned).into()
}

/// A Pod of another owner, such as a StatefulSet, which no watch reports.
fn foreign(world: &World, name: &str) {
    let mut state = world.state();
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("foreign-{name}"), "resourceVersion": "1"},
        "status": {"phase": "Running"},
    });
    let before = state.pods.insert(name.to_owned(), pod);
    assert_eq!(before, None);
}

/// Another operator takes over, which knows only what it lists.
fn take_over(setting: &mut Fixture) {
    let (port, cache) = (setting.world.port(), setting.world.restart(0));
    let clock = setting.world.clock();
    setting.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
}

#[test]
fn a_launcher_has_rights_over_its_workers_from_when_all_of_them_run() {
    let setting = Fixture::new();
    setting.world.submit("a", pair());
    setting.until("a", |_| {
        let rights = rights(&setting);
        let state = setting.world.state();
        let runs = |name: &&str| {
            state
                .pods
                .get(*name)
                .is_some_and(|pod| pod["status"]["phase"] == "Running")
        };
        let all = ["a-worker-0", "a-worker-1"].iter().all(runs);
        assert!(rights.is_empty() || all && rights == both(), "{rights:?}");
        state.pods.contains_key("a-launcher")
    });
    assert_eq!(rights(&setting), both());
    setting.until("a", |job| job["status"]["phase"] == "Completed");
    assert_eq!(rights(&setting), BTreeSet::new(), "its launcher has ended");
}

#[test]
fn a_pod_of_another_owner_that_is_called_as_a_worker_is_never_reached() {
    let setting = Fixture::new();
    foreign(&setting.world, "a-worker-1");
    setting.world.submit("a", pair());
    let job = setting.until("a", |job| {
        setting.world.state().now += 1000;
        assert_eq!(rights(&setting), BTreeSet::new());
        let message = job["status"]["lastMessage"].as_str();
        message.is_some_and(|message| message.contains("NameTaken"))
    });
    assert_eq!(job["status"]["phase"], "Pending");
    for _ in 0..50 {
        setting.world.step();
        setting.pass("a");
        assert_eq!(rights(&setting), BTreeSet::new());
    }
}

#[test]
fn rights_end_with_the_first_pass_after_a_worker_was_removed_by_force() {
    let setting = Fixture::new();
    setting.world.submit("a", pair());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    assert_eq!(rights(&setting), both());
    setting.world.state().take_by_force("a-worker-0");
    foreign(&setting.world, "a-worker-0");
    setting.world.state().tell_all();
    setting.pass("a");
    assert_eq!(rights(&setting), BTreeSet::new());
}

#[test]
fn rights_end_when_another_client_asks_for_the_deletion_of_a_worker() {
    let setting = Fixture::new();
    setting.world.submit("a", pair());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().end_pod("a-worker-1");
    setting.world.state().tell_all();
    setting.pass("a");
    assert_eq!(rights(&setting), BTreeSet::new());
}

#[test]
fn a_worker_whose_right_cannot_be_revoked_is_not_deleted() {
    let setting = Fixture::new();
    setting.world.submit("a", pair());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().revokes = false;
    setting.world.delete("a");
    for _ in 0..20 {
        setting.pass("a");
    }
    let state = setting.world.state();
    let deleted = state
        .pods
        .values()
        .find(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(deleted, None);
    drop(state);
    setting.world.state().revokes = true;
    setting.until("a", Value::is_null);
    assert!(setting.world.state().pods.is_empty());
}

#[test]
fn each_attempt_has_its_rights_and_nobody_has_any_in_between() {
    let setting = Fixture::new();
    let mut spec = pair();
    spec["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 3, "backOffSeconds": 1});
    setting.world.submit("a", spec);
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().take_by_force("a-worker-0");
    setting.world.state().tell_all();
    // Every deletion by the operator is checked too.
    setting.until("a", |_| {
        let state = setting.world.state();
        let launcher = state.pods.get("a-launcher");
        launcher.is_some_and(|pod| pod["metadata"]["labels"]["graphcore.ai/attempt"] == "1")
    });
    assert_eq!(rights(&setting), both());
}

#[test]
fn a_new_operator_revokes_what_an_earlier_version_granted_too_early() {
    let mut setting = Fixture::new();
    setting.world.submit("a", pair());
    setting.until("a", |_| setting.world.state().pods.contains_key("a-worker-0"));
    let uid = setting.world.state().jobs["a"]["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let early = |setting: &Fixture| {
        let granted = (uid.clone(), both());
        setting
            .world
            .state()
            .roles
            .granted
            .insert("a-launcher".to_owned(), granted);
    };
    early(&setting);
    take_over(&mut setting);
    setting.pass("a");
    assert_eq!(rights(&setting), BTreeSet::new(), "its workers do not run yet");
    setting.until("a", |job| job["status"]["phase"] == "Completed");
    early(&setting);
    take_over(&mut setting);
    setting.pass("a");
    assert_eq!(rights(&setting), BTreeSet::new(), "it has finished");
}

#[test]
fn a_job_whose_workers_would_have_the_account_of_a_launcher_is_invalid_without_a_webhook_too() {
    let setting = Fixture::new();
    let mut spec = pair();
    spec["workers"]["template"]["spec"]["serviceAccount"] = "db-launcher".into();
    setting.world.submit("a", spec);
    let job = setting.pass("a");
    let message = job["status"]["lastMessage"].as_str().unwrap();
    assert!(
        message.contains("the job cannot be run: spec.workers.template.spec.serviceAccount"),
        "{message}"
    );
    for _ in 0..50 {
        setting.pass("a");
        setting.world.step();
    }
    assert!(setting.world.state().pods.is_empty() && setting.world.state().holds.is_empty());
}

#[test]
fn a_job_that_is_not_supervised_because_it_became_invalid_has_no_rights() {
    let setting = Fixture::new();
    setting.world.submit("a", pair());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().change_job("a", |job| {
        job["metadata"]["generation"] = 2.into();
        job["spec"]["ipusPerJobInstance"] = "3".into();
    });
    setting.pass("a");
    assert_eq!(rights(&setting), BTreeSet::new());
}
