//! What the operator has heard of the Kubernetes Pods of its jobs, and what it knows because it did it itself: whoever
//! writes reads his own writes here, however late the watch is.

mod partitions;
mod pods;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipu_core::{JobKey, MissingProcess, Timestamp};

use self::partitions::Active;
use super::launcher_role::LauncherRole;
use super::pod_state::KubePod;

/// Shared by everybody who works on jobs.
#[derive(Debug, Default)]
pub struct Cache(Mutex<CachedJob>);

#[derive(Debug, Default)]
struct CachedJob {
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
    up_to_date: HashMap<JobKey, u64>,
    /// The names of Kubernetes Pods of which it is not known whether they are there, by their job.
    unconfirmed: HashMap<JobKey, BTreeMap<String, UnconfirmedPod>>,
    /// How many doubts there were.
    doubts: u64,
    /// How often a watch that began anew has listed everything.
    relist_count: u64,
    /// Whether the proxy's events are being heard.
    told: bool,
    /// When work on a job began that nothing was recorded of yet.
    begun: HashMap<JobKey, Timestamp>,
    /// Since when a job is on its way to running without waiting for anybody.
    on_its_way: HashMap<JobKey, Timestamp>,
    /// What was applied last of the objects that a job shares, by the job.
    applied: HashMap<JobKey, u64>,
    /// The rights of launchers that are known, by the job and the instance.
    rights: HashMap<JobKey, BTreeMap<u32, LauncherRole>>,
    /// The processes that others took away, with their instances, by their job.
    evicted: HashMap<JobKey, BTreeSet<(u32, MissingProcess)>>,
    /// The attempts of instances, by their job, of which it is known what was started: nothing yet when they were first
    /// seen here, or it was looked for.
    witnessed: HashMap<JobKey, BTreeMap<u32, u32>>,
    /// When a Kubernetes Pod was first seen to have failed, by its uid, by its job.
    ended: HashMap<JobKey, BTreeMap<String, Timestamp>>,
}

/// That it is not known whether a Kubernetes Pod is there.
#[derive(Debug)]
struct UnconfirmedPod {
    number: u64,
    /// The process that it would be, with its instance, if its creation was not answered.
    created: Option<(u32, MissingProcess)>,
}

impl Cache {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, CachedJob> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is known of this attempt of an instance what of it was started.
    pub(super) fn is_witnessed(&self, job: &JobKey, instance: u32, attempt: u32) -> bool {
        let known = self.lock();
        let attempts = known.witnessed.get(job);
        attempts.and_then(|attempts| attempts.get(&instance)) == Some(&attempt)
    }

    /// It is, from here on.
    pub(super) fn mark_accounted(&self, job: &JobKey, instance: u32, attempt: u32) {
        let mut known = self.lock();
        let attempts = known.witnessed.entry(job.clone()).or_default();
        attempts.insert(instance, attempt);
    }

    /// The job was written here as it is at `version`, and there is nothing to be done about it before something else happens.
    pub(super) fn mark_up_to_date(&self, job: &JobKey, version: u64) {
        self.lock().up_to_date.insert(job.clone(), version);
    }

    /// Whether there is nothing to be done about the job at this very version by itself.
    #[must_use]
    pub fn is_settled(&self, job: &JobKey, version: u64) -> bool {
        self.lock().up_to_date.get(job) == Some(&version)
    }

    /// What was written of the job is to be looked at when it is heard, because something else was told before. Whether it was not to be.
    pub(super) fn clear_up_to_date(&self, job: &JobKey) -> bool {
        self.lock().up_to_date.remove(job).is_some()
    }

    /// The job was written here, and has this version since.
    pub fn record_write(&self, job: &JobKey, version: u64) {
        let mut known = self.lock();
        let written = known.written.entry(job.clone()).or_default();
        *written = (*written).max(version);
        known.begun.remove(job);
    }

    /// Whether the job was written here since `version`: who looks at that looks at the past.
    #[must_use]
    pub fn is_stale(&self, job: &JobKey, version: u64) -> bool {
        self.lock()
            .written
            .get(job)
            .is_some_and(|written| *written > version)
    }

    /// The job was let go of: all that will be heard of it but that it is gone is past.
    pub(super) fn mark_finalized(&self, job: &JobKey) {
        self.forget(job);
        self.record_write(job, u64::MAX);
    }

    /// When work on the job began here, of which nothing was recorded yet: `now` if this is the first that is heard of it.
    #[must_use]
    pub fn begun(&self, job: &JobKey, now: Timestamp) -> Timestamp {
        *self.lock().begun.entry(job.clone()).or_insert(now)
    }

    /// The job is on its way to running, since this moment or earlier; or it is not.
    pub(super) fn set_starting(&self, job: &JobKey, since: Option<Timestamp>) {
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
    pub(super) fn starting_since(&self, job: &JobKey) -> Option<Timestamp> {
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

    /// Returns the rights of the job's launchers by instance. Of an instance without an entry they are not known.
    pub(super) fn rights(&self, job: &JobKey) -> BTreeMap<u32, LauncherRole> {
        self.lock().rights.get(job).cloned().unwrap_or_default()
    }

    /// Records the rights of the launcher of an instance.
    pub(super) fn has_rights(&self, job: &JobKey, instance: u32, rights: LauncherRole) {
        let mut known = self.lock();
        let all = known.rights.entry(job.clone()).or_default();
        all.insert(instance, rights);
    }

    /// Records that the rights of the launcher of an instance are not known.
    pub(super) fn doubts_rights(&self, job: &JobKey, instance: u32) {
        let mut known = self.lock();
        if let Some(all) = known.rights.get_mut(job) {
            all.remove(&instance);
        }
    }

    /// The job is gone.
    pub fn forget(&self, job: &JobKey) {
        let mut known = self.lock();
        known.written.remove(job);
        known.up_to_date.remove(job);
        known.active.remove(job);
        known.applied.remove(job);
        known.rights.remove(job);
        known.begun.remove(job);
        known.on_its_way.remove(job);
        known.unconfirmed.remove(job);
        known.ended.remove(job);
        known.evicted.remove(job);
        known.witnessed.remove(job);
        if let Some(pods) = known.pods.get_mut(job) {
            pods.retain(|_, pod| !pod.deleted);
            if pods.is_empty() {
                known.pods.remove(job);
            }
        }
    }
}

#[cfg(test)]
mod tests;
