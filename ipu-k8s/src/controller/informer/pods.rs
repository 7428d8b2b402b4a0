//! What is heard of the Kubernetes Pods of jobs: from the watch, from answers to questions and writes, and by what is missing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipu_core::{JobKey, JobStatus, MissingProcess, Timestamp};
use serde_json::Value;

use super::{Cache, CachedJob, UnconfirmedPod};
use crate::controller::pod_state::{KubePod, version};

impl Cache {
    /// The Kubernetes Pods that may be the job's, in order of their names.
    #[must_use]
    pub fn pods(&self, job: &JobKey) -> Vec<KubePod> {
        let known = self.lock();
        known
            .pods
            .get(job)
            .map(|pods| pods.values().cloned().collect())
            .unwrap_or_default()
    }

    /// The watch tells of an object; its job, if there is anything new in it for the job.
    pub fn on_applied(&self, pod: &Value) -> Option<JobKey> {
        let mut known = self.lock();
        known.heard = known.heard.max(version(pod));
        let pod = KubePod::read(pod)?;
        let job = pod.job.clone();
        known.put(pod).then_some(job)
    }

    /// The watch tells that an object is gone; its job.
    pub fn on_deleted(&self, pod: &Value) -> Option<JobKey> {
        let mut known = self.lock();
        known.heard = known.heard.max(version(pod));
        let pod = KubePod::read(pod)?;
        let pods = known.pods.get(&pod.job);
        if pods
            .and_then(|pods| pods.get(&pod.name))
            .is_some_and(|known| known.uid == pod.uid)
        {
            // What it was at last tells how it ended.
            known.put(pod.clone());
            known.remove(&pod.job, &pod.name, &pod.uid);
        }
        Some(pod.job)
    }

    /// The watch begins anew.
    pub fn on_init(&self) {
        self.lock().listed = Some(Vec::new());
    }

    /// It lists an object.
    pub fn on_init_apply(&self, pod: &Value) {
        let mut known = self.lock();
        if let (Some(pod), Some(listed)) = (KubePod::read(pod), known.listed.as_mut()) {
            listed.push(pod);
        }
    }

    /// It has listed everything; the jobs that may have changed.
    pub fn on_init_done(&self) -> Vec<JobKey> {
        let mut known = self.lock();
        let known = &mut *known;
        let listed = known.listed.take().unwrap_or_default();
        let newest = listed.iter().map(|pod| pod.version).max().unwrap_or(0);
        known.heard = known.heard.max(newest);
        let mut jobs: Vec<JobKey> = known.pods.keys().cloned().collect();
        // What was made here since is not in the list yet. What went before it was listed is not there either, and may have
        // been the newest: that is asked.
        known.doubts += 1;
        known.relist_count += 1;
        let mut listed: HashMap<String, KubePod> =
            listed.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        for (job, pods) in &mut known.pods {
            let is_known = known.written.contains_key(job) || known.holds.contains_key(job);
            pods.retain(|_, pod| match listed.get_mut(&pod.uid) {
                Some(listed) => {
                    listed.merge_previous(pod);
                    pod.version > newest
                }
                None if pod.deleted || pod.version > newest => true,
                None => {
                    evict(&mut known.evicted, pod);
                    is_known && pod.keeps_outcome() && pod.mark_deleted()
                }
            });
            let unsure = pods.values().filter(|pod| !pod.deleted);
            for name in unsure.map(|pod| pod.name.clone()) {
                let names = known.unconfirmed.entry(job.clone()).or_default();
                let doubt = names.entry(name).or_insert(UnconfirmedPod {
                    number: 0,
                    created: None,
                });
                doubt.number = known.doubts;
            }
        }
        jobs.extend(listed.values().map(|pod| pod.job.clone()));
        for pod in listed.into_values() {
            known.put(pod);
        }
        known.pods.retain(|_, pods| !pods.is_empty());
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    /// How often the watch has listed everything.
    #[must_use]
    pub fn relist_count(&self) -> u64 {
        self.lock().relist_count
    }

    /// The API server answered a question or a write with this object, which was asked or sent when the watch had listed everything so
    /// many times. Whether that was news: if not, the watch has told of it, or of what came after.
    pub fn observe_response(&self, pod: &Value, lists: u64) -> bool {
        let mut known = self.lock();
        let Some(pod) = KubePod::read(pod) else {
            return false;
        };
        if pod.version <= known.heard {
            let pods = known.pods.get(&pod.job);
            let told = pods.is_some_and(|pods| pods.values().any(|known| known.uid == pod.uid));
            // What the watch has passed it has told of, and perhaps of its end too; but if it began anew meanwhile, of what went before that
            // it never tells.
            if told || known.relist_count == lists {
                return false;
            }
            let new = known.put(pod.clone());
            known.remove(&pod.job, &pod.name, &pod.uid);
            return new;
        }
        if known.relist_count != lists {
            // It may have gone before a list that was made meanwhile, which then did not tell of it.
            known.doubts += 1;
            let number = known.doubts;
            let names = known.unconfirmed.entry(pod.job.clone()).or_default();
            names.insert(
                pod.name.clone(),
                UnconfirmedPod {
                    number,
                    created: None,
                },
            );
        }
        known.put(pod)
    }

    /// The API server has none of this name and uid any more; whether its end is remembered.
    pub fn absent(&self, job: &JobKey, name: &str, uid: &str) -> bool {
        self.lock().remove(job, name, uid)
    }

    /// It is about to be told to stop.
    pub(in crate::controller) fn will_be_stopped(&self, job: &JobKey, name: &str, uid: &str) {
        let mut known = self.lock();
        let pod = known.pods.get_mut(job).and_then(|pods| pods.get_mut(name));
        if let Some(pod) = pod.filter(|pod| pod.uid == uid) {
            pod.will_be_stopped();
        }
    }

    /// The processes of the job's first `instances` instances that others took away, with their instances, since the attempts that
    /// `status` records began. Those of other instances are remembered until their partitions are `given_back`: somebody may
    /// want them again before that.
    pub(in crate::controller) fn evicted(
        &self,
        job: &JobKey,
        instances: u32,
        status: &JobStatus,
        given_back: &BTreeSet<u32>,
    ) -> Vec<(u32, MissingProcess)> {
        let mut known = self.lock();
        let Some(taken) = known.evicted.get_mut(job) else {
            return Vec::new();
        };
        taken.retain(|(instance, gone)| {
            let memory = status.instances.iter().find(|memory| memory.index == *instance);
            let wanted = *instance < instances || !given_back.contains(instance);
            wanted && memory.is_none_or(|memory| memory.attempt <= gone.attempt)
        });
        let wanted = taken.iter().filter(|(instance, _)| *instance < instances);
        wanted.copied().collect()
    }

    /// It was told to stop, and the API server agreed.
    pub fn stopping(&self, job: &JobKey, name: &str, uid: &str) {
        let mut known = self.lock();
        let pod = known.pods.get_mut(job).and_then(|pods| pods.get_mut(name));
        if let Some(pod) = pod.filter(|pod| pod.uid == uid) {
            pod.stopping();
        }
    }

    /// There was no answer to the creation of the Kubernetes Pod of this name, which is this process of its instance: before anybody
    /// believes that there is none, the API server is asked.
    pub fn unconfirmed(&self, job: &JobKey, name: &str, who: (u32, MissingProcess)) {
        let mut known = self.lock();
        known.doubts += 1;
        let doubt = UnconfirmedPod {
            number: known.doubts,
            created: Some(who),
        };
        let names = known.unconfirmed.entry(job.clone()).or_default();
        names.insert(name.to_owned(), doubt);
    }

    /// The names that the API server is to be asked about, each with the number of the doubt.
    #[must_use]
    pub fn pending_checks(&self, job: &JobKey) -> BTreeMap<String, u64> {
        let known = self.lock();
        let names = known.unconfirmed.get(job).into_iter().flatten();
        names.map(|(name, doubt)| (name.clone(), doubt.number)).collect()
    }

    /// It was asked about these since the doubts of these numbers, and some are `there`. What was doubted again meanwhile is still to be
    /// asked about. What may have been created and is not there may have been taken away.
    pub fn confirm(&self, job: &JobKey, doubts: &BTreeMap<String, u64>, there: &BTreeSet<&str>) {
        let mut known = self.lock();
        let known = &mut *known;
        let Some(names) = known.unconfirmed.get_mut(job) else {
            return;
        };
        let mut lost = Vec::new();
        names.retain(|name, doubt| {
            let solved = doubts.get(name) == Some(&doubt.number);
            if solved && !there.contains(name.as_str()) {
                lost.extend(doubt.created);
            }
            !solved
        });
        if names.is_empty() {
            known.unconfirmed.remove(job);
        }
        if !lost.is_empty() {
            known.evicted.entry(job.clone()).or_default().extend(lost);
        }
    }

    /// A process of this instance may have been there, and is not.
    pub(in crate::controller) fn record_eviction(&self, job: &JobKey, instance: u32, gone: MissingProcess) {
        let mut known = self.lock();
        let taken = known.evicted.entry(job.clone()).or_default();
        taken.insert((instance, gone));
    }

    /// The Kubernetes Pods of the job that have failed, by their uid, are these, as is seen at `now`: since when that is seen.
    pub(in crate::controller) fn ended(
        &self,
        job: &JobKey,
        uids: &[&str],
        now: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        let mut known = self.lock();
        let before = known.ended.remove(job).unwrap_or_default();
        let since = |uid: &&str| ((*uid).to_owned(), before.get(*uid).copied().unwrap_or(now));
        let ended: BTreeMap<String, Timestamp> = uids.iter().map(since).collect();
        if !ended.is_empty() {
            known.ended.insert(job.clone(), ended.clone());
        }
        ended
    }
}

/// Remembers the process that is taken away with `pod`, if there is one.
fn evict(taken: &mut HashMap<JobKey, BTreeSet<(u32, MissingProcess)>>, pod: &KubePod) {
    if let Some(gone) = pod.is_evicted() {
        let all = taken.entry(pod.job.clone()).or_default();
        all.insert((pod.instance, gone));
    }
}

impl CachedJob {
    /// Whether it tells anything new.
    fn put(&mut self, mut pod: KubePod) -> bool {
        let pods = self.pods.entry(pod.job.clone()).or_default();
        let known = pods.get(&pod.name);
        if known.is_some_and(|known| known.version > pod.version) {
            return false;
        }
        let new = !known.is_some_and(|known| pod.is_equivalent_to(known));
        if let Some(known) = known {
            pod.merge_previous(known);
        }
        pods.insert(pod.name.clone(), pod);
        new
    }

    /// Whether its end is remembered.
    fn remove(&mut self, job: &JobKey, name: &str, uid: &str) -> bool {
        let is_known = self.written.contains_key(job) || self.holds.contains_key(job);
        let Some(pods) = self.pods.get_mut(job) else {
            return false;
        };
        let Some(pod) = pods.get_mut(name).filter(|pod| pod.uid == uid) else {
            return false;
        };
        evict(&mut self.evicted, pod);
        if is_known && pod.keeps_outcome() {
            return pod.mark_deleted();
        }
        pods.remove(name);
        if pods.is_empty() {
            self.pods.remove(job);
        }
        false
    }
}
