//! What the operator has heard of the Kubernetes Pods of its jobs, and what it knows because it did it itself: whoever
//! writes reads his own writes here, however late the watch is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipu_core::{ControllerName, Gone, JobKey, JobStatus, Timestamp};
use ipu_proxy_client::{HoldState, PartitionDocument};
use serde_json::Value;

use super::pods::{KubePod, version};

/// Shared by everybody who works on jobs.
#[derive(Debug, Default)]
pub struct Cache(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By their job, and by their name.
    pods: HashMap<JobKey, BTreeMap<String, KubePod>>,
    /// The newest version that the watch has told of.
    heard: u64,
    /// What a watch that begins anew has listed so far.
    listed: Option<Vec<KubePod>>,
    /// The newest version of each job that was written here.
    written: HashMap<JobKey, u64>,
    /// The instances that the proxy told of holds or requests of, by the job: also of some that the job's status
    /// never got to say.
    holds: HashMap<JobKey, BTreeSet<u32>>,
    /// What the proxy answered last of active partitions, by the job and the instance.
    active: HashMap<JobKey, BTreeMap<u32, Active>>,
    /// The instances that the proxy is being asked for a partition of, by the job.
    asking: BTreeSet<(JobKey, u32)>,
    /// The version of a job that was written here and leaves nothing to be done.
    settled: HashMap<JobKey, u64>,
    /// The names of Kubernetes Pods of which it is not known whether they are there, by their job.
    unsure: HashMap<JobKey, BTreeMap<String, Doubt>>,
    /// How many doubts there were.
    doubts: u64,
    /// How often a watch that began anew has listed everything.
    lists: u64,
    /// Whether the proxy's events are being heard.
    told: bool,
    /// When work on a job began that nothing was recorded of yet.
    begun: HashMap<JobKey, Timestamp>,
    /// Since when a job is on its way to running without waiting for anybody.
    on_its_way: HashMap<JobKey, Timestamp>,
    /// What was applied last of the objects that a job shares, by the job.
    applied: HashMap<JobKey, u64>,
    /// The processes that others took away, with their instances, by their job.
    taken: HashMap<JobKey, BTreeSet<(u32, Gone)>>,
    /// The attempts of instances, by their job, of which it is known what was started: nothing yet when they were first
    /// seen here, or it was looked for.
    witnessed: HashMap<JobKey, BTreeMap<u32, u32>>,
    /// When a Kubernetes Pod was first seen to have failed, by its uid, by its job.
    ended: HashMap<JobKey, BTreeMap<String, Timestamp>>,
}

/// That it is not known whether a Kubernetes Pod is there.
#[derive(Debug)]
struct Doubt {
    number: u64,
    /// The process that it would be, with its instance, if its creation was not answered.
    created: Option<(u32, Gone)>,
}

/// What tells one active partition of an instance from another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Active {
    attempt: u32,
    since: Timestamp,
    controller: Option<ControllerName>,
}

impl Active {
    fn of(document: &PartitionDocument) -> Option<Self> {
        (document.state == HoldState::Active).then(|| Self {
            attempt: document.attempt,
            since: document.since,
            controller: document
                .controller
                .as_ref()
                .map(|controller| controller.name.clone()),
        })
    }
}

/// That the proxy is being asked for a partition, as long as this is there.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    cache: &'a Cache,
    what: (JobKey, u32),
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.cache.lock().asking.remove(&self.what);
    }
}

impl Cache {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
    pub fn heard(&self, pod: &Value) -> Option<JobKey> {
        let mut known = self.lock();
        known.heard = known.heard.max(version(pod));
        let pod = KubePod::read(pod)?;
        let job = pod.job.clone();
        known.put(pod).then_some(job)
    }

    /// The watch tells that an object is gone; its job.
    pub fn gone(&self, pod: &Value) -> Option<JobKey> {
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
    pub fn begin(&self) {
        self.lock().listed = Some(Vec::new());
    }

    /// It lists an object.
    pub fn list(&self, pod: &Value) {
        let mut known = self.lock();
        if let (Some(pod), Some(listed)) = (KubePod::read(pod), known.listed.as_mut()) {
            listed.push(pod);
        }
    }

    /// It has listed everything; the jobs that may have changed.
    pub fn end(&self) -> Vec<JobKey> {
        let mut known = self.lock();
        let known = &mut *known;
        let listed = known.listed.take().unwrap_or_default();
        let newest = listed.iter().map(|pod| pod.version).max().unwrap_or(0);
        known.heard = known.heard.max(newest);
        let mut jobs: Vec<JobKey> = known.pods.keys().cloned().collect();
        // What was made here since is not in the list yet. What went before it was listed is not there either, and may have
        // been the newest: that is asked.
        known.doubts += 1;
        known.lists += 1;
        let mut listed: HashMap<String, KubePod> =
            listed.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        for (job, pods) in &mut known.pods {
            let is_known = known.written.contains_key(job) || known.holds.contains_key(job);
            pods.retain(|_, pod| match listed.get_mut(&pod.uid) {
                Some(listed) => {
                    listed.follows(pod);
                    pod.version > newest
                }
                None if pod.gone || pod.version > newest => true,
                None if is_known && pod.leaves_an_end() => pod.go(),
                None => {
                    take(&mut known.taken, pod);
                    false
                }
            });
            let unsure = pods.values().filter(|pod| !pod.gone);
            for name in unsure.map(|pod| pod.name.clone()) {
                let names = known.unsure.entry(job.clone()).or_default();
                let doubt = names.entry(name).or_insert(Doubt {
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
    pub fn lists(&self) -> u64 {
        self.lock().lists
    }

    /// The API server answered a question or a write with this object, which was asked or sent when the watch had listed everything so
    /// many times. Whether that was news: if not, the watch has told of it, or of what came after.
    pub fn answered(&self, pod: &Value, lists: u64) -> bool {
        let mut known = self.lock();
        let Some(pod) = KubePod::read(pod) else {
            return false;
        };
        // What the watch has passed already it has told of, and perhaps of its end too.
        if pod.version <= known.heard {
            return false;
        }
        if known.lists != lists {
            // It may have gone before a list that was made meanwhile, which then did not tell of it.
            known.doubts += 1;
            let number = known.doubts;
            let names = known.unsure.entry(pod.job.clone()).or_default();
            names.insert(
                pod.name.clone(),
                Doubt {
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
    pub(super) fn will_be_stopped(&self, job: &JobKey, name: &str, uid: &str) {
        let mut known = self.lock();
        let pod = known.pods.get_mut(job).and_then(|pods| pods.get_mut(name));
        if let Some(pod) = pod.filter(|pod| pod.uid == uid) {
            pod.will_be_stopped();
        }
    }

    /// The processes of the job's first `instances` instances that others took away, with their instances, since the attempts that
    /// `status` records began. Those of other instances are remembered until their partitions are `given_back`: somebody may
    /// want them again before that.
    pub(super) fn taken(
        &self,
        job: &JobKey,
        instances: u32,
        status: &JobStatus,
        given_back: &BTreeSet<u32>,
    ) -> Vec<(u32, Gone)> {
        let mut known = self.lock();
        let Some(taken) = known.taken.get_mut(job) else {
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
    pub fn unsure(&self, job: &JobKey, name: &str, who: (u32, Gone)) {
        let mut known = self.lock();
        known.doubts += 1;
        let doubt = Doubt {
            number: known.doubts,
            created: Some(who),
        };
        let names = known.unsure.entry(job.clone()).or_default();
        names.insert(name.to_owned(), doubt);
    }

    /// The names that the API server is to be asked about, each with the number of the doubt.
    #[must_use]
    pub fn to_be_asked(&self, job: &JobKey) -> BTreeMap<String, u64> {
        let known = self.lock();
        let names = known.unsure.get(job).into_iter().flatten();
        names.map(|(name, doubt)| (name.clone(), doubt.number)).collect()
    }

    /// It was asked about these since the doubts of these numbers, and some are `there`. What was doubted again meanwhile is still to be
    /// asked about. What may have been created and is not there may have been taken away.
    pub fn asked(&self, job: &JobKey, doubts: &BTreeMap<String, u64>, there: &BTreeSet<&str>) {
        let mut known = self.lock();
        let known = &mut *known;
        let Some(names) = known.unsure.get_mut(job) else {
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
            known.unsure.remove(job);
        }
        if !lost.is_empty() {
            known.taken.entry(job.clone()).or_default().extend(lost);
        }
    }

    /// A process of this instance may have been there, and is not.
    pub(super) fn take(&self, job: &JobKey, instance: u32, gone: Gone) {
        let mut known = self.lock();
        let taken = known.taken.entry(job.clone()).or_default();
        taken.insert((instance, gone));
    }

    /// Whether it is known of this attempt of an instance what of it was started.
    pub(super) fn is_witnessed(&self, job: &JobKey, instance: u32, attempt: u32) -> bool {
        let known = self.lock();
        let attempts = known.witnessed.get(job);
        attempts.and_then(|attempts| attempts.get(&instance)) == Some(&attempt)
    }

    /// It is, from here on.
    pub(super) fn witness(&self, job: &JobKey, instance: u32, attempt: u32) {
        let mut known = self.lock();
        let attempts = known.witnessed.entry(job.clone()).or_default();
        attempts.insert(instance, attempt);
    }

    /// The proxy tells that an instance of the job has something in the ledger.
    pub fn holds(&self, job: &JobKey, instance: u32) {
        self.lock().holds.entry(job.clone()).or_default().insert(instance);
    }

    /// The proxy tells that it has nothing any more.
    pub fn holds_no_more(&self, job: &JobKey, instance: u32) {
        let mut known = self.lock();
        if let Some(instances) = known.holds.get_mut(job) {
            instances.remove(&instance);
            if instances.is_empty() {
                known.holds.remove(job);
            }
        }
    }

    /// The proxy cannot be heard for the moment.
    pub fn hears_nothing(&self) {
        self.lock().told = false;
    }

    /// Whether the proxy tells of changes.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.lock().told
    }

    /// The proxy tells of everything that it has, and from now on of every change.
    pub fn holds_only(&self, all: impl IntoIterator<Item = (JobKey, u32)>) {
        let mut holds: HashMap<JobKey, BTreeSet<u32>> = HashMap::new();
        for (job, instance) in all {
            holds.entry(job).or_default().insert(instance);
        }
        let mut known = self.lock();
        known.holds = holds;
        known.told = true;
    }

    /// The instances of the job that the proxy told of.
    #[must_use]
    pub fn held(&self, job: &JobKey) -> BTreeSet<u32> {
        self.lock().holds.get(job).cloned().unwrap_or_default()
    }

    /// The proxy is asked for the partition of an instance until the answer of this is dropped.
    pub(super) fn asks(&self, job: &JobKey, instance: u32) -> Asking<'_> {
        let what = (job.clone(), instance);
        self.lock().asking.insert(what.clone());
        Asking { cache: self, what }
    }

    /// The proxy answered this of the partition of an instance.
    pub(super) fn saw(&self, job: &JobKey, instance: u32, document: Option<&PartitionDocument>) {
        let mut known = self.lock();
        match document.and_then(Active::of) {
            Some(active) => {
                known
                    .active
                    .entry(job.clone())
                    .or_default()
                    .insert(instance, active);
            }
            None => {
                if let Some(instances) = known.active.get_mut(job) {
                    instances.remove(&instance);
                }
            }
        }
    }

    /// Whether the proxy tells anything that is a reason to look at the job: not what it answered already, nor that what it is
    /// being asked for is on its way, of which the answer tells, or what it tells next.
    #[must_use]
    pub fn is_news(&self, job: &JobKey, document: &PartitionDocument) -> bool {
        let known = self.lock();
        let instance = document.instance;
        match Active::of(document) {
            Some(active) => known.active.get(job).and_then(|all| all.get(&instance)) != Some(&active),
            None => document.state != HoldState::Intent || !known.asking.contains(&(job.clone(), instance)),
        }
    }

    /// The job was written here as it is at `version`, and there is nothing to be done about it before something else happens.
    pub(super) fn settled(&self, job: &JobKey, version: u64) {
        self.lock().settled.insert(job.clone(), version);
    }

    /// Whether there is nothing to be done about the job at this very version by itself.
    #[must_use]
    pub fn is_settled(&self, job: &JobKey, version: u64) -> bool {
        self.lock().settled.get(job) == Some(&version)
    }

    /// The job was written here, and has this version since.
    pub fn wrote(&self, job: &JobKey, version: u64) {
        let mut known = self.lock();
        let written = known.written.entry(job.clone()).or_default();
        *written = (*written).max(version);
        known.begun.remove(job);
    }

    /// Whether the job was written here since `version`: who looks at that looks at the past.
    #[must_use]
    pub fn is_past(&self, job: &JobKey, version: u64) -> bool {
        self.lock()
            .written
            .get(job)
            .is_some_and(|written| *written > version)
    }

    /// The job was let go of: all that will be heard of it but that it is gone is past.
    pub(super) fn over(&self, job: &JobKey) {
        self.forget(job);
        self.wrote(job, u64::MAX);
    }

    /// When work on the job began here, of which nothing was recorded yet: `now` if this is the first that is heard of it.
    #[must_use]
    pub fn begun(&self, job: &JobKey, now: Timestamp) -> Timestamp {
        *self.lock().begun.entry(job.clone()).or_insert(now)
    }

    /// The job is on its way to running, since this moment or earlier; or it is not.
    pub(super) fn is_going(&self, job: &JobKey, since: Option<Timestamp>) {
        let mut known = self.lock();
        match since {
            Some(since) => {
                known.on_its_way.entry(job.clone()).or_insert(since);
            }
            None => {
                known.on_its_way.remove(job);
            }
        }
    }

    /// Since when the job is on its way to running, if it is.
    pub(super) fn goes_since(&self, job: &JobKey) -> Option<Timestamp> {
        self.lock().on_its_way.get(job).copied()
    }

    /// Whether the shared objects of the job were applied as they are now; `fingerprint` is of what they are.
    #[must_use]
    pub fn is_applied(&self, job: &JobKey, fingerprint: u64) -> bool {
        self.lock().applied.get(job) == Some(&fingerprint)
    }

    /// They were.
    pub fn applied(&self, job: &JobKey, fingerprint: u64) {
        self.lock().applied.insert(job.clone(), fingerprint);
    }

    /// They may not be there any more.
    pub(super) fn not_applied(&self, job: &JobKey) {
        self.lock().applied.remove(job);
    }

    /// The Kubernetes Pods of the job that have failed, by their uid, are these, as is seen at `now`: since when that is seen.
    pub(super) fn ended(&self, job: &JobKey, uids: &[&str], now: Timestamp) -> BTreeMap<String, Timestamp> {
        let mut known = self.lock();
        let before = known.ended.remove(job).unwrap_or_default();
        let since = |uid: &&str| ((*uid).to_owned(), before.get(*uid).copied().unwrap_or(now));
        let ended: BTreeMap<String, Timestamp> = uids.iter().map(since).collect();
        if !ended.is_empty() {
            known.ended.insert(job.clone(), ended.clone());
        }
        ended
    }

    /// The job is gone.
    pub fn forget(&self, job: &JobKey) {
        let mut known = self.lock();
        known.written.remove(job);
        known.settled.remove(job);
        known.active.remove(job);
        known.applied.remove(job);
        known.begun.remove(job);
        known.on_its_way.remove(job);
        known.unsure.remove(job);
        known.ended.remove(job);
        known.taken.remove(job);
        known.witnessed.remove(job);
        if let Some(pods) = known.pods.get_mut(job) {
            pods.retain(|_, pod| !pod.gone);
            if pods.is_empty() {
                known.pods.remove(job);
            }
        }
    }
}

/// Remembers the process that is taken away with `pod`, if there is one.
fn take(taken: &mut HashMap<JobKey, BTreeSet<(u32, Gone)>>, pod: &KubePod) {
    if let Some(gone) = pod.taken() {
        let all = taken.entry(pod.job.clone()).or_default();
        all.insert((pod.instance, gone));
    }
}

impl Known {
    /// Whether it tells anything new.
    fn put(&mut self, mut pod: KubePod) -> bool {
        let pods = self.pods.entry(pod.job.clone()).or_default();
        let known = pods.get(&pod.name);
        if known.is_some_and(|known| known.version > pod.version) {
            return false;
        }
        let new = !known.is_some_and(|known| pod.is_no_further_than(known));
        if let Some(known) = known {
            pod.follows(known);
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
        if is_known && pod.leaves_an_end() {
            return pod.go();
        }
        take(&mut self.taken, pod);
        pods.remove(name);
        if pods.is_empty() {
            self.pods.remove(job);
        }
        false
    }
}

#[cfg(test)]
mod tests;
