//! The pods in the cache: updates from the watch, from responses to reads and writes, and from relists.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipu_core::{JobKey, JobStatus, MissingProcess, Timestamp};
use serde_json::Value;

use super::{Cache, CacheState, UnconfirmedPod};
use crate::controller::pod_state::{KubePod, version};

impl Cache {
    /// Returns the pods that the job may own, sorted by name.
    #[must_use]
    pub fn pods(&self, job: &JobKey) -> Vec<KubePod> {
        let state = self.lock();
        state
            .pods
            .get(job)
            .map(|pods| pods.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Handles an added or modified pod. Returns its job if a relevant field changed.
    pub fn on_applied(&self, pod: &Value) -> Option<JobKey> {
        let mut state = self.lock();
        state.newest_version = state.newest_version.max(version(pod));
        let pod = KubePod::read(pod)?;
        let job = pod.job.clone();
        state.insert(pod).then_some(job)
    }

    /// Handles a deleted pod. Returns its job.
    pub fn on_deleted(&self, pod: &Value) -> Option<JobKey> {
        let mut state = self.lock();
        state.newest_version = state.newest_version.max(version(pod));
        let pod = KubePod::read(pod)?;
        let pods = state.pods.get(&pod.job);
        if pods
            .and_then(|pods| pods.get(&pod.name))
            .is_some_and(|known| known.uid == pod.uid)
        {
            // The last version shows how the pod ended.
            state.insert(pod.clone());
            state.remove(&pod.job, &pod.name, &pod.uid);
        }
        Some(pod.job)
    }

    /// Handles the start of a LIST.
    pub fn on_init(&self) {
        self.lock().listed = Some(Vec::new());
    }

    /// Handles an object of a LIST.
    pub fn on_init_apply(&self, pod: &Value) {
        let mut state = self.lock();
        if let (Some(pod), Some(listed)) = (KubePod::read(pod), state.listed.as_mut()) {
            listed.push(pod);
        }
    }

    /// Handles the end of a LIST. Returns the jobs that may have changed.
    pub fn on_init_done(&self) -> Vec<JobKey> {
        let mut state = self.lock();
        let state = &mut *state;
        let listed = state.listed.take().unwrap_or_default();
        let newest = listed.iter().map(|pod| pod.version).max().unwrap_or(0);
        state.newest_version = state.newest_version.max(newest);
        let mut jobs: Vec<JobKey> = state.pods.keys().cloned().collect();
        // Pods created since are not in the list. Pods deleted before the list are missing too, and may have
        // had the newest version: the API server is asked about those.
        state.confirmations += 1;
        state.relist_count += 1;
        let mut listed: HashMap<String, KubePod> =
            listed.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        for (job, pods) in &mut state.pods {
            let is_known_job = state.written.contains_key(job) || state.holds.contains_key(job);
            pods.retain(|_, pod| match listed.get_mut(&pod.uid) {
                Some(listed) => {
                    listed.merge_previous(pod);
                    pod.version > newest
                }
                None if pod.deleted || pod.version > newest => true,
                None => {
                    evict(&mut state.evicted, pod);
                    is_known_job && pod.keeps_outcome() && pod.mark_deleted()
                }
            });
            let unconfirmed_pods = pods.values().filter(|pod| !pod.deleted);
            for name in unconfirmed_pods.map(|pod| pod.name.clone()) {
                let names = state.unconfirmed.entry(job.clone()).or_default();
                let unconfirmed_pod = names.entry(name).or_insert(UnconfirmedPod {
                    confirmation: 0,
                    created: None,
                });
                unconfirmed_pod.confirmation = state.confirmations;
            }
        }
        jobs.extend(listed.values().map(|pod| pod.job.clone()));
        for pod in listed.into_values() {
            state.insert(pod);
        }
        state.pods.retain(|_, pods| !pods.is_empty());
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    /// Returns the number of completed LISTs.
    #[must_use]
    pub fn relist_count(&self) -> u64 {
        self.lock().relist_count
    }

    /// Records the object in a response of the API server. `lists` is [`Cache::relist_count`] at the time of
    /// the request. Returns whether the object changed; otherwise the watch has delivered this or a later
    /// version.
    pub fn observe_response(&self, pod: &Value, lists: u64) -> bool {
        let mut state = self.lock();
        let Some(pod) = KubePod::read(pod) else {
            return false;
        };
        if pod.version <= state.newest_version {
            let pods = state.pods.get(&pod.job);
            let is_cached = pods.is_some_and(|pods| pods.values().any(|known| known.uid == pod.uid));
            // After a relist the watch never reports objects deleted before it. Without one, it has delivered
            // this version already, and perhaps the deletion.
            if is_cached || state.relist_count == lists {
                return false;
            }
            let is_change = state.insert(pod.clone());
            state.remove(&pod.job, &pod.name, &pod.uid);
            return is_change;
        }
        if state.relist_count != lists {
            // The pod may have been deleted before a list that completed meanwhile, which omits it.
            state.confirmations += 1;
            let confirmation = state.confirmations;
            let names = state.unconfirmed.entry(pod.job.clone()).or_default();
            names.insert(
                pod.name.clone(),
                UnconfirmedPod {
                    confirmation,
                    created: None,
                },
            );
        }
        state.insert(pod)
    }

    /// Records that the API server has no pod with this name and uid. Returns whether its outcome is kept.
    pub fn mark_missing(&self, job: &JobKey, name: &str, uid: &str) -> bool {
        self.lock().remove(job, name, uid)
    }

    /// Records that the operator is about to delete the pod.
    pub(in crate::controller) fn mark_stop_requested(&self, job: &JobKey, name: &str, uid: &str) {
        let mut state = self.lock();
        let pod = state.pods.get_mut(job).and_then(|pods| pods.get_mut(name));
        if let Some(pod) = pod.filter(|pod| pod.uid == uid) {
            pod.mark_stop_requested();
        }
    }

    /// Returns the disrupted processes of the job's first `instances` instances, with their instances, since
    /// the start of the attempts in `status`. Those of other instances are kept until their partitions are
    /// `released`: the job may be scaled up again before.
    pub(in crate::controller) fn evicted(
        &self,
        job: &JobKey,
        instances: u32,
        status: &JobStatus,
        released: &BTreeSet<u32>,
    ) -> Vec<(u32, MissingProcess)> {
        let mut state = self.lock();
        let Some(evicted) = state.evicted.get_mut(job) else {
            return Vec::new();
        };
        evicted.retain(|(instance, process)| {
            let memory = status.instances.iter().find(|memory| memory.index == *instance);
            let wanted = *instance < instances || !released.contains(instance);
            wanted && memory.is_none_or(|memory| memory.attempt <= process.attempt)
        });
        let wanted = evicted.iter().filter(|(instance, _)| *instance < instances);
        wanted.copied().collect()
    }

    /// Records that the API server accepted the deletion of the pod.
    pub fn mark_terminating(&self, job: &JobKey, name: &str, uid: &str) {
        let mut state = self.lock();
        let pod = state.pods.get_mut(job).and_then(|pods| pods.get_mut(name));
        if let Some(pod) = pod.filter(|pod| pod.uid == uid) {
            pod.mark_terminating();
        }
    }

    /// Records that the response to the creation of a pod was lost. Before the pod is treated as missing, the
    /// API server is asked for it.
    pub fn mark_unconfirmed(&self, job: &JobKey, name: &str, process: (u32, MissingProcess)) {
        let mut state = self.lock();
        state.confirmations += 1;
        let unconfirmed_pod = UnconfirmedPod {
            confirmation: state.confirmations,
            created: Some(process),
        };
        let names = state.unconfirmed.entry(job.clone()).or_default();
        names.insert(name.to_owned(), unconfirmed_pod);
    }

    /// Returns the names of unconfirmed pods, each with its confirmation number.
    #[must_use]
    pub fn pending_checks(&self, job: &JobKey) -> BTreeMap<String, u64> {
        let state = self.lock();
        let names = state.unconfirmed.get(job).into_iter().flatten();
        names
            .map(|(name, unconfirmed_pod)| (name.clone(), unconfirmed_pod.confirmation))
            .collect()
    }

    /// Records the result of a confirmation of these pods, of which some `exist`. Pods with a newer
    /// confirmation number stay unconfirmed. A created pod that does not exist counts as disrupted.
    pub fn confirm(&self, job: &JobKey, confirmations: &BTreeMap<String, u64>, existing: &BTreeSet<&str>) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(names) = state.unconfirmed.get_mut(job) else {
            return;
        };
        let mut missing = Vec::new();
        names.retain(|name, unconfirmed_pod| {
            let confirmed = confirmations.get(name) == Some(&unconfirmed_pod.confirmation);
            if confirmed && !existing.contains(name.as_str()) {
                missing.extend(unconfirmed_pod.created);
            }
            !confirmed
        });
        if names.is_empty() {
            state.unconfirmed.remove(job);
        }
        if !missing.is_empty() {
            state.evicted.entry(job.clone()).or_default().extend(missing);
        }
    }

    /// Records that a process of this instance may have existed and is missing.
    pub(in crate::controller) fn record_eviction(
        &self,
        job: &JobKey,
        instance: u32,
        process: MissingProcess,
    ) {
        let mut state = self.lock();
        let evicted = state.evicted.entry(job.clone()).or_default();
        evicted.insert((instance, process));
    }

    /// Records the failed pods of the job, by uid, as observed at `now`. Returns the time of the first
    /// observation of each.
    pub(in crate::controller) fn failed_since(
        &self,
        job: &JobKey,
        uids: &[&str],
        now: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        let mut state = self.lock();
        let before = state.failed_since.remove(job).unwrap_or_default();
        let since = |uid: &&str| ((*uid).to_owned(), before.get(*uid).copied().unwrap_or(now));
        let failed_since: BTreeMap<String, Timestamp> = uids.iter().map(since).collect();
        if !failed_since.is_empty() {
            state.failed_since.insert(job.clone(), failed_since.clone());
        }
        failed_since
    }
}

/// Records the disrupted process of `pod`, if there is one.
fn evict(evicted: &mut HashMap<JobKey, BTreeSet<(u32, MissingProcess)>>, pod: &KubePod) {
    if let Some(process) = pod.evicted_process() {
        let all = evicted.entry(pod.job.clone()).or_default();
        all.insert((pod.instance, process));
    }
}

impl CacheState {
    /// Inserts a pod. Returns whether a relevant field changed.
    fn insert(&mut self, mut pod: KubePod) -> bool {
        let pods = self.pods.entry(pod.job.clone()).or_default();
        let known = pods.get(&pod.name);
        if known.is_some_and(|known| known.version > pod.version) {
            return false;
        }
        let is_change = !known.is_some_and(|known| pod.is_equivalent_to(known));
        if let Some(known) = known {
            pod.merge_previous(known);
        }
        pods.insert(pod.name.clone(), pod);
        is_change
    }

    /// Removes a pod. Returns whether its outcome is kept.
    fn remove(&mut self, job: &JobKey, name: &str, uid: &str) -> bool {
        let is_known_job = self.written.contains_key(job) || self.holds.contains_key(job);
        let Some(pods) = self.pods.get_mut(job) else {
            return false;
        };
        let Some(pod) = pods.get_mut(name).filter(|pod| pod.uid == uid) else {
            return false;
        };
        evict(&mut self.evicted, pod);
        if is_known_job && pod.keeps_outcome() {
            return pod.mark_deleted();
        }
        pods.remove(name);
        if pods.is_empty() {
            self.pods.remove(job);
        }
        false
    }
}
