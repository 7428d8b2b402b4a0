//! RBAC permissions of launchers over Pods, which RBAC identifies by name only: when they are granted and
//! revoked.

use std::collections::{BTreeMap, BTreeSet};

use ipu_k8s::controller::Reconciler;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::fake_cluster::{ClusterState, Operators, World};
use super::reconcile::{Fixture, sample};

/// Roles in the simulated cluster.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    /// By Role name: the uid of the owning job, and the Pods in which its launcher may run commands.
    granted: BTreeMap<String, (String, BTreeSet<String>)>,
    /// Workers that other clients removed or are removing, by the uid of their job. Until the operator
    /// observes the removal, a foreign Pod of the same name is reachable.
    removed: BTreeSet<(String, String)>,
}

impl Roles {
    /// Returns the Pods in which the launchers of this job may run commands.
    pub(crate) fn of(&self, uid: &str) -> BTreeSet<String> {
        let roles = self.granted.values().filter(|(owner, _)| owner == uid);
        roles.flat_map(|(_, pods)| pods.clone()).collect()
    }

    pub(super) fn revoke(&mut self, role: &str, uid: &str) {
        if let Some((_, pods)) = self.granted.get_mut(role).filter(|(owner, _)| owner == uid) {
            pods.clear();
        }
    }

    /// Garbage collection of the Roles of deleted jobs.
    pub(super) fn keep(&mut self, live_uids: &[Value]) {
        self.granted
            .retain(|_, (owner, _)| live_uids.iter().any(|uid| uid == owner));
    }
}

impl ClusterState {
    /// Records an object that the operator applies, if it is a Role.
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
            let was_removed = || self.roles.removed.contains(&(uid.to_owned(), name.clone()));
            assert!(
                reached || was_removed() || self.operators == Operators::Two,
                "a launcher of {uid} may run commands in {name}, which is not a worker of its job"
            );
        }
        let name = object["metadata"]["name"].as_str().unwrap();
        self.roles.granted.insert(name.to_owned(), (uid.to_owned(), pods));
    }

    /// Records the removal of a worker by another client.
    pub(super) fn record_foreign_removal(&mut self, name: &str) {
        let uid = self.pods[name]["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str();
        if let Some(uid) = uid {
            self.roles.removed.insert((uid.to_owned(), name.to_owned()));
        }
    }

    /// Checks that no launcher may reach a Pod that the operator deletes.
    pub(super) fn check_no_rights(&self, name: &str) {
        let uid = self.pods[name]["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str();
        let reached = uid.is_some_and(|uid| self.roles.of(uid).contains(name));
        assert!(
            !reached || self.operators == Operators::Two,
            "{name} is deleted while a launcher may run commands in Pods of that name"
        );
    }

    /// Checks that a starting launcher has its permissions.
    pub(super) fn check_launcher_rights(&self, launcher: &Value) {
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
        // The permissions do not cover deleted and ended workers.
        let all_running = workers.iter().all(|(_, pod)| {
            pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] == "Running"
        });
        let removed_by_others = self.roles.removed.iter().any(|(of, _)| uid == **of);
        let job = self.jobs.values().find(|job| job["metadata"]["uid"] == uid);
        let continues = job.is_some_and(|job| !is_to_stop(job));
        let missing = workers.iter().find(|(name, _)| !rights.contains(*name));
        assert!(
            missing.is_none()
                || !all_running
                || !continues
                || removed_by_others
                || self.operators == Operators::Two,
            "a launcher has no rights over {missing:?}: {:?}",
            self.roles
        );
    }

    /// Checks that no launcher reaches a foreign Pod, unless its name was freed by another client.
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

    /// Checks for an idle cluster that each Pod that a launcher may reach is a running worker of its job.
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

/// Returns whether the launchers of a job may be stopped with their workers.
fn is_to_stop(job: &Value) -> bool {
    let ended = job["status"]["instances"].as_array().into_iter().flatten();
    let mut ended = ended.filter(|instance| !instance["outcome"].is_null());
    !job["metadata"]["deletionTimestamp"].is_null()
        || job["spec"]["suspend"] == true
        || job["metadata"]["generation"] != 1
        || ended.next().is_some()
}

/// Returns whether the job of this uid controls the Pod.
fn is_of(pod: &Value, uid: &str) -> bool {
    let mut owners = pod["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten();
    owners.any(|owner| owner["controller"] == true && owner["uid"] == uid)
}

/// Returns a job of two workers and a launcher.
fn pair() -> Value {
    let mut spec = sample();
    spec["ipusPerJobInstance"] = "2".into();
    spec["workers"]["replicas"] = 2.into();
    spec
}

fn rights(fixture: &Fixture) -> BTreeSet<String> {
    let state = fixture.world.state();
    let uid = state.jobs["a"]["metadata"]["uid"].as_str().unwrap().to_owned();
    state.roles.of(&uid)
}

fn both_workers() -> BTreeSet<String> {
    ["a-worker-0", "a-worker-1"].map(str::to_owned).into()
}

/// Creates a Pod of another owner, such as a StatefulSet, which no watch reports.
fn foreign(world: &World, name: &str) {
    let mut state = world.state();
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("foreign-{name}"), "resourceVersion": "1"},
        "status": {"phase": "Running"},
    });
    let before = state.pods.insert(name.to_owned(), pod);
    assert_eq!(before, None);
}

/// Starts another operator, which knows only what it lists.
fn start_new_operator(fixture: &mut Fixture) {
    let (port, cache) = (fixture.world.port(), fixture.world.restart(0));
    let clock = fixture.world.clock();
    fixture.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
}

#[test]
fn a_launcher_has_rights_over_its_workers_once_all_of_them_run() {
    let fixture = Fixture::new();
    fixture.world.submit("a", pair());
    fixture.run_until("a", |_| {
        let rights = rights(&fixture);
        let state = fixture.world.state();
        let runs = |name: &&str| {
            state
                .pods
                .get(*name)
                .is_some_and(|pod| pod["status"]["phase"] == "Running")
        };
        let all = ["a-worker-0", "a-worker-1"].iter().all(runs);
        assert!(rights.is_empty() || all && rights == both_workers(), "{rights:?}");
        state.pods.contains_key("a-launcher")
    });
    assert_eq!(rights(&fixture), both_workers());
    fixture.run_until("a", |job| job["status"]["phase"] == "Completed");
    assert_eq!(rights(&fixture), BTreeSet::new(), "its launcher has ended");
}

#[test]
fn a_launcher_never_reaches_a_foreign_pod_with_the_name_of_a_worker() {
    let fixture = Fixture::new();
    foreign(&fixture.world, "a-worker-1");
    fixture.world.submit("a", pair());
    let job = fixture.run_until("a", |job| {
        fixture.world.state().now += 1000;
        assert_eq!(rights(&fixture), BTreeSet::new());
        let message = job["status"]["lastMessage"].as_str();
        message.is_some_and(|message| message.contains("NameTaken"))
    });
    assert_eq!(job["status"]["phase"], "Pending");
    for _ in 0..50 {
        fixture.world.step();
        fixture.reconcile("a");
        assert_eq!(rights(&fixture), BTreeSet::new());
    }
}

#[test]
fn rights_end_with_the_first_reconciliation_after_a_forced_deletion() {
    let fixture = Fixture::new();
    fixture.world.submit("a", pair());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    assert_eq!(rights(&fixture), both_workers());
    fixture.world.state().force_delete("a-worker-0");
    foreign(&fixture.world, "a-worker-0");
    fixture.world.state().deliver_all_events();
    fixture.reconcile("a");
    assert_eq!(rights(&fixture), BTreeSet::new());
}

#[test]
fn rights_end_when_another_client_requests_the_deletion_of_a_worker() {
    let fixture = Fixture::new();
    fixture.world.submit("a", pair());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().delete_gracefully("a-worker-1");
    fixture.world.state().deliver_all_events();
    fixture.reconcile("a");
    assert_eq!(rights(&fixture), BTreeSet::new());
}

#[test]
fn a_worker_whose_right_cannot_be_revoked_is_not_deleted() {
    let fixture = Fixture::new();
    fixture.world.submit("a", pair());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().revokes = false;
    fixture.world.delete("a");
    for _ in 0..20 {
        fixture.reconcile("a");
    }
    let state = fixture.world.state();
    let deleted = state
        .pods
        .values()
        .find(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(deleted, None);
    drop(state);
    fixture.world.state().revokes = true;
    fixture.run_until("a", Value::is_null);
    assert!(fixture.world.state().pods.is_empty());
}

#[test]
fn each_attempt_has_its_rights_and_no_launcher_has_any_in_between() {
    let fixture = Fixture::new();
    let mut spec = pair();
    spec["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 3, "backOffSeconds": 1});
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().force_delete("a-worker-0");
    fixture.world.state().deliver_all_events();
    // Every deletion by the operator is checked as well.
    fixture.run_until("a", |_| {
        let state = fixture.world.state();
        let launcher = state.pods.get("a-launcher");
        launcher.is_some_and(|pod| pod["metadata"]["labels"]["graphcore.ai/attempt"] == "1")
    });
    assert_eq!(rights(&fixture), both_workers());
}

#[test]
fn a_new_operator_revokes_what_an_earlier_version_granted_too_early() {
    let mut fixture = Fixture::new();
    fixture.world.submit("a", pair());
    fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-worker-0"));
    let uid = fixture.world.state().jobs["a"]["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let grant_early = |fixture: &Fixture| {
        let granted = (uid.clone(), both_workers());
        fixture
            .world
            .state()
            .roles
            .granted
            .insert("a-launcher".to_owned(), granted);
    };
    grant_early(&fixture);
    start_new_operator(&mut fixture);
    fixture.reconcile("a");
    assert_eq!(rights(&fixture), BTreeSet::new(), "its workers do not run yet");
    fixture.run_until("a", |job| job["status"]["phase"] == "Completed");
    grant_early(&fixture);
    start_new_operator(&mut fixture);
    fixture.reconcile("a");
    assert_eq!(rights(&fixture), BTreeSet::new(), "it has finished");
}

#[test]
fn a_job_with_the_account_of_a_launcher_in_its_template_is_invalid_without_a_webhook_too() {
    let fixture = Fixture::new();
    let mut spec = pair();
    spec["workers"]["template"]["spec"]["serviceAccount"] = "db-launcher".into();
    fixture.world.submit("a", spec);
    let job = fixture.reconcile("a");
    let message = job["status"]["lastMessage"].as_str().unwrap();
    assert!(
        message.contains("the job cannot be run: spec.workers.template.spec.serviceAccount"),
        "{message}"
    );
    for _ in 0..50 {
        fixture.reconcile("a");
        fixture.world.step();
    }
    assert!(fixture.world.state().pods.is_empty() && fixture.world.state().holds.is_empty());
}

#[test]
fn a_job_that_became_invalid_has_no_rights() {
    let fixture = Fixture::new();
    fixture.world.submit("a", pair());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().change_job("a", |job| {
        job["metadata"]["generation"] = 2.into();
        job["spec"]["ipusPerJobInstance"] = "3".into();
    });
    fixture.reconcile("a");
    assert_eq!(rights(&fixture), BTreeSet::new());
}
