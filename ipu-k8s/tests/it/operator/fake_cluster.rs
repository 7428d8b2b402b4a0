//! Simulated cluster for the operator: an in-memory API server that is late, loses responses and rejects
//! old versions, a kubelet that runs nothing, and a ledger of one controller. Asynchronous work happens in
//! [`World::step`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use ipu_core::{JobKey, PartitionId, Timestamp};
use ipu_k8s::controller::{Cache, JobEvent};
use ipu_k8s::crd::Time;
use ipu_proxy_client::{OwnerDocument, PartitionDocument, PutPartition};
use serde_json::{Value, json};

use super::fake_api::Port;
use super::fake_watches::{FakeWatches, Watch, WatchEvent};
use super::forced_deletion::OrphanedProcesses;
use super::random_events::Random;
use super::rights::Roles;

/// A partition in the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) wanted: PutPartition,
    pub(crate) state: &'static str,
    pub(super) since: u64,
    pub(super) granted: Option<u64>,
}

/// State of the simulated cluster.
#[derive(Debug)]
pub(crate) struct ClusterState {
    pub(crate) random: Random,
    pub(crate) now: u64,
    pub(crate) version: u64,
    pub(crate) jobs: BTreeMap<String, Value>,
    pub(crate) pods: BTreeMap<String, Value>,
    /// Running processes by the uid of their Pod: partition, uid of the job, attempt.
    pub(crate) running: BTreeMap<String, (String, String, String)>,
    pub(crate) holds: BTreeMap<PartitionId, Hold>,
    pub(super) orphaned: OrphanedProcesses,
    /// Uids of jobs that were deleted by force.
    pub(super) forced: BTreeSet<String>,
    pub(crate) capacity: u32,
    pub(crate) operator_watches: Vec<FakeWatches>,
    pub(crate) writes: u64,
    /// Number of calls to the API server and the proxy.
    pub(crate) calls: u64,
    pub(crate) faults: u64,
    /// Reasons of all published events.
    pub(crate) event_reasons: Vec<String>,
    /// Published events.
    pub(crate) published: Vec<JobEvent>,
    /// Fault rate: one call in this many fails; no call if 0.
    pub(crate) fault_rate: u64,
    /// Maximum number of Pods; further ones are rejected.
    pub(crate) quota: usize,
    pub(crate) proxy_is_down: bool,
    /// Whether the proxy rejects every request.
    pub(crate) proxy_refuses: bool,
    /// Whether the controller is missing from the proxy's list.
    pub(crate) is_unlisted: bool,
    /// Number of applied objects.
    pub(crate) applied: u64,
    pub(crate) roles: Roles,
    /// Whether the API server permits the operator to revoke rights.
    pub(crate) revokes: bool,
    /// Disconnect rate: a watch disconnects in one of this many deliveries; never if 0.
    pub(super) disconnect_rate: u64,
    /// Number of concurrent operators.
    pub(crate) operators: Operators,
    pub(crate) watches: Watches,
}

/// Order of events across watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watches {
    /// In the order of the changes.
    InOrder,
    /// Each watch has its own delay.
    Independent,
}

/// Number of concurrent operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operators {
    /// One operator, which may crash and be replaced.
    One,
    /// Two operators without a common Lease: a Pod of an earlier attempt of the same job may be created
    /// late.
    Two,
}

#[derive(Clone, Debug)]
pub(crate) struct World(pub(crate) Arc<Mutex<ClusterState>>);

impl World {
    pub(crate) fn new(seed: u64, operators: Operators) -> Self {
        let operator_watches = if operators == Operators::One { 1 } else { 2 };
        let mut random = Random(seed);
        let capacity = 2 << random.below(3);
        let fault_rate = [0, 6, 12, 40][usize::try_from(random.below(4)).unwrap()];
        let disconnect_rate = [2, 5, 30][usize::try_from(random.below(3)).unwrap()];
        let quota = if fault_rate != 0 && random.one_in(4) {
            usize::try_from(random.below(5)).unwrap()
        } else {
            usize::MAX
        };
        Self(Arc::new(Mutex::new(ClusterState {
            random,
            now: 1_000_000,
            version: 1,
            jobs: BTreeMap::new(),
            pods: BTreeMap::new(),
            running: BTreeMap::new(),
            holds: BTreeMap::new(),
            orphaned: OrphanedProcesses::default(),
            forced: BTreeSet::new(),
            capacity,
            operator_watches: (0..operator_watches).map(|_| FakeWatches::default()).collect(),
            writes: 0,
            calls: 0,
            faults: 0,
            event_reasons: Vec::new(),
            published: Vec::new(),
            fault_rate,
            quota,
            proxy_is_down: false,
            proxy_refuses: false,
            is_unlisted: false,
            applied: 0,
            roles: Roles::default(),
            revokes: true,
            disconnect_rate,
            operators,
            watches: Watches::Independent,
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.0.lock().unwrap()
    }

    pub(crate) fn clock(&self) -> Arc<dyn Fn() -> Timestamp + Send + Sync> {
        let world = self.clone();
        Arc::new(move || Timestamp::from_millis(world.state().now))
    }

    /// Returns the connection to API server and ledger.
    pub(crate) fn port(&self) -> Arc<Port> {
        Arc::new(Port(self.clone()))
    }

    pub(crate) fn submit(&self, name: &str, spec: Value) {
        let mut state = self.state();
        state.version += 1;
        let (version, created) = (state.version, time(state.now));
        let job = json!({
            "apiVersion": "graphcore.ai/v1alpha1",
            "kind": "IPUJob",
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("uid-{name}-{version}"), "generation": 1,
                "creationTimestamp": created, "resourceVersion": version.to_string(),
            },
            "spec": spec,
        });
        let event = WatchEvent::Job(job.clone());
        state.jobs.insert(name.to_owned(), job);
        state.notify_all(&event);
    }

    pub(crate) fn delete(&self, name: &str) {
        let mut state = self.state();
        let now = time(state.now);
        let Some(job) = state.jobs.get(name) else { return };
        if !job["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        if job["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            let job = key(job);
            state.jobs.remove(name);
            state.notify_all(&WatchEvent::JobDeleted(job));
            return;
        }
        state.change_job(name, |job| job["metadata"]["deletionTimestamp"] = now.into());
    }

    /// Replaces an operator by a new process with an empty cache, which lists everything first.
    pub(crate) fn restart(&self, index: usize) -> Arc<Cache> {
        let mut state = self.state();
        let mut new = FakeWatches::default();
        for watch in Watch::ALL {
            new.restart(watch, state.all(watch));
            // Reconciliation starts once jobs and Pods are listed.
            if watch != Watch::Holds || state.watches == Watches::InOrder {
                new.deliver_next(watch);
            }
        }
        let cache = Arc::clone(&new.cache);
        state.operator_watches[index] = new;
        cache
    }

    /// Advances the simulation: a watch event, a process start or exit, a deletion, or a partition
    /// transition.
    pub(crate) fn step(&self) {
        let mut state = self.state();
        state.now += state.random.below(400);
        match state.random.below(7) {
            0 | 1 => state.deliver_event(),
            2 | 3 => state.kubelet(),
            4 => state.collect(),
            _ => state.advance_partition(),
        }
    }

    /// Makes the proxy unavailable or available; its watch then restarts.
    pub(crate) fn set_proxy_down(&self, is_down: bool) {
        let mut state = self.state();
        state.proxy_is_down = is_down;
        let all = state.all(Watch::Holds);
        for index in &mut state.operator_watches {
            index.restart(Watch::Holds, all.clone());
        }
    }

    /// Advances the simulation without delivering events.
    pub(crate) fn step_unobserved(&self) {
        let mut state = self.state();
        match state.random.below(4) {
            0 => state.kubelet(),
            1 => state.advance_partition(),
            _ => {}
        }
    }

    /// Advances all components until their pending work is done.
    pub(crate) fn settle(&self) {
        self.state().now += 30_000;
        for _ in 0..10 {
            let mut state = self.state();
            state.now += 200;
            for _ in 0..6 {
                state.deliver_event();
                state.kubelet();
                state.advance_partition();
            }
            state.collect();
        }
    }
}

pub(super) fn key(job: &Value) -> JobKey {
    let text = |name: &str| job["metadata"][name].as_str().unwrap();
    JobKey::new(text("namespace"), text("name"), text("uid")).unwrap()
}

pub(super) fn owner(document: &OwnerDocument) -> JobKey {
    JobKey::new(&*document.namespace, &*document.name, &*document.uid).unwrap()
}

pub(super) fn time(millis: u64) -> String {
    Time(Timestamp::from_millis(millis)).to_string()
}

impl ClusterState {
    pub(crate) fn change_job(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let version = self.version;
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        change(job);
        job["metadata"]["resourceVersion"] = version.to_string().into();
        let event = WatchEvent::Job(job.clone());
        let is_deleted = !job["metadata"]["deletionTimestamp"].is_null()
            && job["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if is_deleted {
            let job = key(job);
            self.jobs.remove(name);
            self.notify_all(&WatchEvent::JobDeleted(job));
        } else {
            self.notify_all(&event);
        }
    }

    /// Queues an event for all operators.
    pub(super) fn notify_all(&mut self, event: &WatchEvent) {
        for index in &mut self.operator_watches {
            index.put(event.clone());
        }
    }

    /// Queues an event for the changed partition `id`.
    pub(super) fn notify_changed(&mut self, id: &PartitionId) {
        if let Some(hold) = self.holds.get(id) {
            let event = WatchEvent::Hold(Box::new(self.document(id, hold)));
            self.notify_all(&event);
        }
    }

    pub(super) fn change_pod(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let version = self.version.to_string();
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        change(pod);
        pod["metadata"]["resourceVersion"] = version.into();
        let event = WatchEvent::Pod(pod.clone());
        self.notify_all(&event);
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        self.version += 1;
        let Some(mut pod) = self.pods.remove(name) else {
            return;
        };
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.running.remove(pod["metadata"]["uid"].as_str().unwrap());
        self.notify_all(&WatchEvent::PodDeleted(pod));
    }

    pub(super) fn remove_hold(&mut self, id: &PartitionId) {
        let Some(hold) = self.holds.remove(id) else { return };
        self.orphaned.reset(id.as_str());
        let event = WatchEvent::HoldRemoved(owner(&hold.wanted.owner), hold.wanted.instance);
        self.notify_all(&event);
    }

    /// Returns the initial list of a watch.
    fn all(&self, watch: Watch) -> WatchEvent {
        let hold_key = |hold: &Hold| (owner(&hold.wanted.owner), hold.wanted.instance);
        match watch {
            Watch::Jobs => WatchEvent::Jobs(self.jobs.values().cloned().collect()),
            Watch::Pods => WatchEvent::Pods(self.pods.values().cloned().collect()),
            Watch::Holds => WatchEvent::Holds(self.holds.values().map(hold_key).collect()),
        }
    }

    /// Delivers the next event of a watch, or disconnects the watch.
    pub(super) fn deliver_event(&mut self) {
        let index = usize::try_from(self.random.below(self.operator_watches.len() as u64)).unwrap();
        let watch = match self.watches {
            Watches::InOrder => self.operator_watches[index].first(),
            Watches::Independent => {
                let deliver_event = self.operator_watches[index].watches();
                let candidates = if deliver_event.is_empty() {
                    &Watch::ALL[..]
                } else {
                    &deliver_event[..]
                };
                candidates[usize::try_from(self.random.below(candidates.len() as u64)).unwrap()]
            }
        };
        if watch == Watch::Holds && self.proxy_is_down {
            return;
        }
        let fails = self.watches == Watches::Independent && self.disconnect_rate != 0;
        if fails && self.random.one_in(self.disconnect_rate) {
            let all = self.all(watch);
            self.operator_watches[index].restart(watch, all);
        } else {
            self.operator_watches[index].deliver_next(watch);
        }
    }

    /// Delivers all queued events.
    pub(super) fn deliver_all_events(&mut self) {
        for index in &mut self.operator_watches {
            while !index.is_drained() {
                Watch::ALL.iter().for_each(|watch| index.deliver_next(*watch));
            }
        }
    }

    /// Advances one partition.
    fn advance_partition(&mut self) {
        let used: u32 = self
            .holds
            .values()
            .filter(|hold| hold.state != "waiting")
            .map(|hold| hold.wanted.size)
            .sum();
        let ids: Vec<PartitionId> = self.holds.keys().cloned().collect();
        if ids.is_empty() {
            return;
        }
        let id = &ids[usize::try_from(self.random.below(ids.len() as u64)).unwrap()];
        let fails = self.fault_rate != 0 && self.random.one_in(60);
        let (now, capacity) = (self.now, self.capacity);
        let Some(hold) = self.holds.get_mut(id) else {
            return;
        };
        match hold.state {
            "waiting" if used + hold.wanted.size <= capacity => {
                hold.state = "creating";
                hold.granted = Some(now);
            }
            // The creation failed.
            "creating" if fails => hold.state = "failed",
            "creating" => {
                hold.state = "active";
                self.orphaned.reset(id.as_str());
            }
            "active" if fails => hold.state = "failed",
            "releasing" => {
                self.remove_hold(id);
                return;
            }
            _ => return,
        }
        hold.since = now;
        let id = id.clone();
        self.notify_changed(&id);
    }

    /// Checks that no process uses a partition that is prepared for another attempt, reset or released.
    pub(super) fn check_unused(&self, id: &PartitionId, except: Option<u32>) {
        let except = except.map(|attempt| attempt.to_string());
        let user = self
            .running
            .values()
            .find(|user| user.0 == id.to_string() && Some(&user.2) != except.as_ref());
        assert!(
            user.is_none_or(|user| self.forced.contains(&user.1)) || self.operators == Operators::Two,
            "{id} is in use by {user:?}"
        );
    }

    /// Checks the invariants.
    pub(crate) fn check(&self) {
        let held = self.holds.values().filter(|hold| hold.state != "waiting");
        let held: u32 = held.map(|hold| hold.wanted.size).sum();
        assert!(held <= self.capacity, "more IPUs are held than exist");
        self.check_rights();
        for (partition, job, attempt) in self.running.values() {
            let hold = self
                .holds
                .iter()
                .find(|(id, _)| id.to_string() == *partition)
                .map(|(_, hold)| hold);
            let Some(hold) = hold.filter(|hold| !matches!(hold.state, "waiting" | "releasing")) else {
                assert!(
                    self.operators == Operators::Two || self.forced.contains(job),
                    "a process of {job} runs on {partition}, which is not held"
                );
                continue;
            };
            assert_eq!(
                hold.wanted.owner.uid, *job,
                "a process runs on the partition of another job"
            );
            let same = hold.wanted.attempt.to_string() == *attempt;
            assert!(
                same || self.operators == Operators::Two || self.forced.contains(job),
                "{partition} is used by attempt {attempt}: {hold:?}"
            );
        }
    }

    /// Garbage collection of Pods and Roles of deleted jobs.
    fn collect(&mut self) {
        let live_uids: Vec<Value> = self
            .jobs
            .values()
            .map(|job| job["metadata"]["uid"].clone())
            .collect();
        self.roles.keep(&live_uids);
        let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"].clone();
        let orphans = self
            .pods
            .iter()
            .filter(|(_, pod)| !owner(pod).is_null() && !live_uids.contains(&owner(pod)));
        let orphans: Vec<(String, Value)> = orphans.map(|(name, pod)| (name.clone(), pod.clone())).collect();
        for (name, pod) in orphans {
            if self.is_forced(&pod) {
                self.delete_gracefully(&name);
                continue;
            }
            assert_eq!(self.operators, Operators::Two, "{name} outlived its job");
            self.remove_pod(&name);
        }
        // The proxy releases partitions whose job and Pods no longer exist.
        let pods: BTreeSet<String> = self
            .pods
            .values()
            .filter_map(|pod| pod["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str())
            .map(str::to_owned)
            .collect();
        let dead = |hold: &Hold| {
            let uid = hold.wanted.owner.uid.as_str();
            !pods.contains(uid) && !live_uids.iter().any(|live| live == uid)
        };
        let waiting = self
            .holds
            .iter()
            .filter(|(_, hold)| dead(hold) && hold.state == "waiting");
        let waiting: Vec<PartitionId> = waiting.map(|(id, _)| id.clone()).collect();
        for id in waiting {
            self.remove_hold(&id);
        }
        let dead: Vec<PartitionId> = self
            .holds
            .iter_mut()
            .filter(|(_, hold)| dead(hold) && hold.state != "releasing")
            .map(|(id, hold)| {
                hold.state = "releasing";
                id.clone()
            })
            .collect();
        dead.iter().for_each(|id| self.notify_changed(id));
    }

    /// Decides whether a call fails: `Some(true)` before it has an effect, `Some(false)` after it.
    pub(super) fn inject_fault(&mut self) -> Option<bool> {
        if self.fault_rate == 0 || !self.random.one_in(self.fault_rate) {
            return None;
        }
        self.faults += 1;
        Some(self.random.one_in(2))
    }

    pub(super) fn document(&self, id: &PartitionId, hold: &Hold) -> PartitionDocument {
        let wanted = &hold.wanted;
        let value = json!({
            "id": id, "state": hold.state,
            "owner": wanted.owner, "instance": wanted.instance, "attempt": wanted.attempt,
            "size": wanted.size, "gcds": 1, "replicas": 1, "reconfigurable": false,
            "controller": if self.is_unlisted {
                json!({"name": "c:1", "host": null, "port": null, "nodeLabel": null})
            } else {
                json!({"name": "c:1", "host": "c", "port": 1, "nodeLabel": "ctrl=c"})
            },
            "ipus": [], "since": hold.since, "heldSince": hold.granted, "priority": 0, "account": null,
            "preemptible": false, "maxRuntimeSeconds": null, "leaseUntil": null, "reason": null, "waiting": null,
            "errors": if hold.state == "failed" { json!(["the partition failed"]) } else { json!([]) },
            "env": if hold.state == "active" {
                json!({"IPUOF_VIPU_API_HOST": "c", "IPUOF_VIPU_API_PORT": "1", "IPUOF_VIPU_API_PARTITION_ID": id})
            } else {
                json!({})
            },
        });
        serde_json::from_value(value).unwrap()
    }
}
