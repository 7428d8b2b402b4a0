//! A small world for the operator: an API server in memory that is late, forgets to answer and refuses old versions, a
//! kubelet that runs nothing, and a ledger of one controller. Everything that takes time happens when [`World::step`] says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use ipu_core::{JobKey, PartitionId, Timestamp};
use ipu_k8s::controller::{Cache, JobEvent};
use ipu_k8s::crd::Time;
use ipu_proxy_client::{OwnerDocument, PartitionDocument, PutPartition};
use serde_json::{Value, json};

use super::fake_api::Port;
use super::fake_watches::{FakeWatches, Watch, WatchEvent};
use super::forced_deletion::Unseen;
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

/// What is true.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) random: Random,
    pub(crate) now: u64,
    pub(crate) version: u64,
    pub(crate) jobs: BTreeMap<String, Value>,
    pub(crate) pods: BTreeMap<String, Value>,
    /// Processes that run, by the uid of their Pod: partition, uid of the job, attempt.
    pub(crate) running: BTreeMap<String, (String, String, String)>,
    pub(crate) holds: BTreeMap<PartitionId, Hold>,
    pub(super) unseen: Unseen,
    /// The uids of jobs that were taken away without the operator.
    pub(super) forced: BTreeSet<String>,
    pub(crate) capacity: u32,
    pub(crate) ears: Vec<FakeWatches>,
    pub(crate) writes: u64,
    /// How often anybody was called.
    pub(crate) calls: u64,
    pub(crate) faults: u64,
    /// The reasons of the events that users were told.
    pub(crate) events: Vec<String>,
    /// What users were told.
    pub(crate) told: Vec<JobEvent>,
    /// How often something goes wrong: one call in so many; never if 0.
    pub(crate) trouble: u64,
    /// The most Kubernetes Pods that a quota allows: more are refused.
    pub(crate) quota: usize,
    pub(crate) proxy_is_away: bool,
    /// Whether it refuses whatever it is asked.
    pub(crate) proxy_refuses: bool,
    /// The list of the proxy does not name the controller.
    pub(crate) is_unlisted: bool,
    /// How many objects were applied.
    pub(crate) applied: u64,
    pub(crate) roles: Roles,
    /// Whether the API server lets the operator revoke rights.
    pub(crate) revokes: bool,
    /// How often a watch that is late breaks: one time that it is heard in so many; never if 0.
    pub(super) gaps: u64,
    /// How many operators may work at the same time.
    pub(crate) operators: Operators,
    pub(crate) watches: Watches,
}

/// How what the watches tell comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watches {
    /// As it happened.
    InOrder,
    /// One may be later than another.
    Apart,
}

/// How many operators work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operators {
    /// One, which may crash and be followed by another.
    One,
    /// Two that know nothing of each other, although leases are to prevent that: a Kubernetes Pod of an earlier attempt may
    /// come late. It is the same job's, and nobody else's.
    Two,
}

#[derive(Clone, Debug)]
pub(crate) struct World(pub(crate) Arc<Mutex<State>>);

impl World {
    pub(crate) fn new(seed: u64, operators: Operators) -> Self {
        let ears = if operators == Operators::One { 1 } else { 2 };
        let mut random = Random(seed);
        let capacity = 2 << random.below(3);
        let trouble = [0, 6, 12, 40][usize::try_from(random.below(4)).unwrap()];
        let gaps = [2, 5, 30][usize::try_from(random.below(3)).unwrap()];
        let quota = if trouble != 0 && random.one_in(4) {
            usize::try_from(random.below(5)).unwrap()
        } else {
            usize::MAX
        };
        Self(Arc::new(Mutex::new(State {
            random,
            now: 1_000_000,
            version: 1,
            jobs: BTreeMap::new(),
            pods: BTreeMap::new(),
            running: BTreeMap::new(),
            holds: BTreeMap::new(),
            unseen: Unseen::default(),
            forced: BTreeSet::new(),
            capacity,
            ears: (0..ears).map(|_| FakeWatches::default()).collect(),
            writes: 0,
            calls: 0,
            faults: 0,
            events: Vec::new(),
            told: Vec::new(),
            trouble,
            quota,
            proxy_is_away: false,
            proxy_refuses: false,
            is_unlisted: false,
            applied: 0,
            roles: Roles::default(),
            revokes: true,
            gaps,
            operators,
            watches: Watches::Apart,
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn clock(&self) -> Arc<dyn Fn() -> Timestamp + Send + Sync> {
        let world = self.clone();
        Arc::new(move || Timestamp::from_millis(world.state().now))
    }

    /// What an operator calls on the API server and the ledger.
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
        let told = WatchEvent::Job(job.clone());
        state.jobs.insert(name.to_owned(), job);
        state.everybody_hears(&told);
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
            state.everybody_hears(&WatchEvent::JobGone(job));
            return;
        }
        state.change_job(name, |job| job["metadata"]["deletionTimestamp"] = now.into());
    }

    /// A new process has taken the operator's place: it knows nothing, and lists everything first.
    pub(crate) fn restart(&self, ear: usize) -> Arc<Cache> {
        let mut state = self.state();
        let mut new = FakeWatches::default();
        for watch in Watch::ALL {
            new.begin_anew(watch, state.all(watch));
            // Passes begin when jobs and Kubernetes Pods are known.
            if watch != Watch::Holds || state.watches == Watches::InOrder {
                new.hear_next(watch);
            }
        }
        let cache = Arc::clone(&new.cache);
        state.ears[ear] = new;
        cache
    }

    /// Something happens: a watch is told something, a process starts, ends or is gone, a partition gets on.
    pub(crate) fn step(&self) {
        let mut state = self.state();
        state.now += state.random.below(400);
        match state.random.below(7) {
            0 | 1 => state.tell(),
            2 | 3 => state.kubelet(),
            4 => state.collect(),
            _ => state.controller(),
        }
    }

    /// The proxy goes away, or comes back and tells everything.
    pub(crate) fn turn_proxy(&self, is_away: bool) {
        let mut state = self.state();
        state.proxy_is_away = is_away;
        let all = state.all(Watch::Holds);
        for ear in &mut state.ears {
            ear.begin_anew(Watch::Holds, all.clone());
        }
    }

    /// Something may happen of which nobody is told yet.
    pub(crate) fn stir(&self) {
        let mut state = self.state();
        match state.random.below(4) {
            0 => state.kubelet(),
            1 => state.controller(),
            _ => {}
        }
    }

    /// Everything that can happen by itself does.
    pub(crate) fn settle(&self) {
        self.state().now += 30_000;
        for _ in 0..10 {
            let mut state = self.state();
            state.now += 200;
            for _ in 0..6 {
                state.tell();
                state.kubelet();
                state.controller();
            }
            state.collect();
        }
    }
}

pub(super) fn key(job: &Value) -> JobKey {
    let text = |name: &str| job["metadata"][name].as_str().unwrap();
    JobKey::new(text("namespace"), text("name"), text("uid")).unwrap()
}

pub(super) fn owner(of: &OwnerDocument) -> JobKey {
    JobKey::new(&*of.namespace, &*of.name, &*of.uid).unwrap()
}

pub(super) fn time(millis: u64) -> String {
    Time(Timestamp::from_millis(millis)).to_string()
}

impl State {
    pub(crate) fn change_job(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let version = self.version;
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        change(job);
        job["metadata"]["resourceVersion"] = version.to_string().into();
        let told = WatchEvent::Job(job.clone());
        let gone = !job["metadata"]["deletionTimestamp"].is_null()
            && job["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if gone {
            let job = key(job);
            self.jobs.remove(name);
            self.everybody_hears(&WatchEvent::JobGone(job));
        } else {
            self.everybody_hears(&told);
        }
    }

    /// All ears will be told.
    pub(super) fn everybody_hears(&mut self, told: &WatchEvent) {
        for ear in &mut self.ears {
            ear.put(told.clone());
        }
    }

    /// The partition `id` is another, and will be told.
    pub(super) fn changed(&mut self, id: &PartitionId) {
        if let Some(hold) = self.holds.get(id) {
            let told = WatchEvent::Hold(Box::new(self.document(id, hold)));
            self.everybody_hears(&told);
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
        let told = WatchEvent::Pod(pod.clone());
        self.everybody_hears(&told);
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        self.version += 1;
        let Some(mut pod) = self.pods.remove(name) else {
            return;
        };
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.running.remove(pod["metadata"]["uid"].as_str().unwrap());
        self.everybody_hears(&WatchEvent::PodGone(pod));
    }

    pub(super) fn remove_hold(&mut self, id: &PartitionId) {
        let Some(hold) = self.holds.remove(id) else { return };
        self.unseen.reset(id.as_str());
        let told = WatchEvent::HoldGone(owner(&hold.wanted.owner), hold.wanted.instance);
        self.everybody_hears(&told);
    }

    /// Everything that a watch tells when it begins.
    fn all(&self, watch: Watch) -> WatchEvent {
        let whose = |hold: &Hold| (owner(&hold.wanted.owner), hold.wanted.instance);
        match watch {
            Watch::Jobs => WatchEvent::Jobs(self.jobs.values().cloned().collect()),
            Watch::Pods => WatchEvent::Pods(self.pods.values().cloned().collect()),
            Watch::Holds => WatchEvent::Holds(self.holds.values().map(whose).collect()),
        }
    }

    /// A watch tells the next that it has to tell, or breaks.
    pub(super) fn tell(&mut self) {
        let ear = usize::try_from(self.random.below(self.ears.len() as u64)).unwrap();
        let watch = match self.watches {
            Watches::InOrder => self.ears[ear].first(),
            Watches::Apart => {
                let tell = self.ears[ear].watches();
                let any = if tell.is_empty() {
                    &Watch::ALL[..]
                } else {
                    &tell[..]
                };
                any[usize::try_from(self.random.below(any.len() as u64)).unwrap()]
            }
        };
        if watch == Watch::Holds && self.proxy_is_away {
            return;
        }
        let breaks = self.watches == Watches::Apart && self.gaps != 0;
        if breaks && self.random.one_in(self.gaps) {
            let all = self.all(watch);
            self.ears[ear].begin_anew(watch, all);
        } else {
            self.ears[ear].hear_next(watch);
        }
    }

    /// All watches tell everything that they have to tell.
    pub(super) fn tell_all(&mut self) {
        for ear in &mut self.ears {
            while !ear.has_heard_all() {
                Watch::ALL.iter().for_each(|watch| ear.hear_next(*watch));
            }
        }
    }

    /// One partition gets on.
    fn controller(&mut self) {
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
        let breaks = self.trouble != 0 && self.random.one_in(60);
        let strays = self.trouble != 0 && self.random.one_in(60);
        let (now, capacity) = (self.now, self.capacity);
        let Some(hold) = self.holds.get_mut(id) else {
            return;
        };
        match hold.state {
            "waiting" if used + hold.wanted.size <= capacity => {
                hold.state = "intent";
                hold.granted = Some(now);
            }
            // It could not be made.
            "intent" if breaks => hold.state = "failed",
            "intent" => {
                hold.state = "active";
                self.unseen.reset(id.as_str());
            }
            "active" if breaks => hold.state = "failed",
            // The job is taken for gone, until it is found.
            "active" if strays => hold.state = "orphaned",
            "orphaned" => hold.state = "active",
            "releasing" => {
                self.remove_hold(id);
                return;
            }
            _ => return,
        }
        hold.since = now;
        let id = id.clone();
        self.changed(&id);
    }

    /// Nothing runs on a partition that is made ready for another attempt, reset or given back.
    pub(super) fn expect_free(&self, id: &PartitionId, but: Option<u32>) {
        let but = but.map(|attempt| attempt.to_string());
        let user = self
            .running
            .values()
            .find(|user| user.0 == id.to_string() && Some(&user.2) != but.as_ref());
        assert!(
            user.is_none_or(|user| self.forced.contains(&user.1)) || self.operators == Operators::Two,
            "{id} is taken from under {user:?}"
        );
    }

    /// What holds at any moment.
    pub(crate) fn check(&self) {
        let held = self.holds.values().filter(|hold| hold.state != "waiting");
        let held: u32 = held.map(|hold| hold.wanted.size).sum();
        assert!(held <= self.capacity, "more is held than there is");
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

    /// Kubernetes takes away what belongs to jobs that are gone.
    fn collect(&mut self) {
        let alive: Vec<Value> = self
            .jobs
            .values()
            .map(|job| job["metadata"]["uid"].clone())
            .collect();
        self.roles.keep(&alive);
        let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"].clone();
        let orphans = self
            .pods
            .iter()
            .filter(|(_, pod)| !owner(pod).is_null() && !alive.contains(&owner(pod)));
        let orphans: Vec<(String, Value)> = orphans.map(|(name, pod)| (name.clone(), pod.clone())).collect();
        for (name, pod) in orphans {
            if self.is_forced(&pod) {
                self.end_pod(&name);
                continue;
            }
            assert_eq!(self.operators, Operators::Two, "{name} outlived its job");
            self.remove_pod(&name);
        }
        // So does the proxy, of what they held: it asks whether owners are there, or a Kubernetes Pod of theirs.
        let pods: BTreeSet<String> = self
            .pods
            .values()
            .filter_map(|pod| pod["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str())
            .map(str::to_owned)
            .collect();
        let dead = |hold: &Hold| {
            let uid = hold.wanted.owner.uid.as_str();
            !pods.contains(uid) && !alive.iter().any(|alive| alive == uid)
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
        dead.iter().for_each(|id| self.changed(id));
    }

    /// Whether a call goes wrong, and how: refused before anything is done, or without an answer after it.
    pub(super) fn trouble(&mut self) -> Option<bool> {
        if self.trouble == 0 || !self.random.one_in(self.trouble) {
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
            "errors": if hold.state == "failed" { json!(["it broke"]) } else { json!([]) },
            "env": if hold.state == "active" {
                json!({"IPUOF_VIPU_API_HOST": "c", "IPUOF_VIPU_API_PORT": "1", "IPUOF_VIPU_API_PARTITION_ID": id})
            } else {
                json!({})
            },
        });
        serde_json::from_value(value).unwrap()
    }
}
