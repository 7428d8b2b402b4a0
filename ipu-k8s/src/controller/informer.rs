//! Cache of the pods of IPUJobs, fed by the watch and by the operator's own writes. The operator reads its
//! own writes here, however late the watch is.

mod partitions;
mod pods;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipu_core::{JobKey, MissingProcess, PartitionId, Timestamp};
use ipu_proxy_client::{BlockerDocument, PartitionDocument};

use self::partitions::ActivePartition;
use super::launcher_role::LauncherRole;
use super::pod_state::KubePod;
use crate::crd::IpuJob;

/// Cache shared by all reconciles.
#[derive(Debug, Default)]
pub struct Cache(Mutex<CacheState>);

#[derive(Debug, Default)]
struct CacheState {
    /// Pods by job and by name.
    pods: HashMap<JobKey, BTreeMap<String, KubePod>>,
    /// Newest `resourceVersion` that the watch has delivered.
    newest_version: u64,
    /// Pods of the LIST in progress.
    listed: Option<Vec<KubePod>>,
    /// Newest version of each job that the operator wrote.
    written: HashMap<JobKey, u64>,
    /// Instances that the proxy listed with holds or requests, by job. The job's status may not record all of
    /// them.
    holds: HashMap<JobKey, BTreeSet<u32>>,
    /// Last active partitions that the proxy returned, by job and instance.
    active: HashMap<JobKey, BTreeMap<u32, ActivePartition>>,
    /// Instances, with their job, for which a request to the proxy is in progress.
    pending_requests: BTreeSet<(JobKey, u32)>,
    /// Version of each job that the operator wrote and that needs no further reconcile.
    up_to_date: HashMap<JobKey, u64>,
    /// Names of pods whose existence is unconfirmed, by job.
    unconfirmed: HashMap<JobKey, BTreeMap<String, UnconfirmedPod>>,
    /// Number of confirmations requested so far.
    confirmations: u64,
    /// Number of completed LISTs.
    relist_count: u64,
    /// True if the proxy's event stream is connected.
    partition_watch_connected: bool,
    /// Time of the first reconcile of each job that has no recorded status yet.
    first_reconciled: HashMap<JobKey, Timestamp>,
    /// Time since which a job is starting without waiting for a partition.
    starting: HashMap<JobKey, Timestamp>,
    /// Fingerprint of the shared objects that were applied last, by job.
    applied: HashMap<JobKey, u64>,
    /// Known rights of launchers, by job and instance.
    rights: HashMap<JobKey, BTreeMap<u32, LauncherRole>>,
    /// Disrupted processes with their instances, by job.
    evicted: HashMap<JobKey, BTreeSet<(u32, MissingProcess)>>,
    /// Attempts of instances, by job, for which all started processes are known: none had been started at the
    /// first observation, or the API server was asked.
    witnessed: HashMap<JobKey, BTreeMap<u32, u32>>,
    /// Jobs that have finished and exist.
    finished: HashSet<JobKey>,
    /// Time at which each failed pod was first observed, by job and uid.
    failed_since: HashMap<JobKey, BTreeMap<String, Timestamp>>,
}

/// An unconfirmed pod: it may or may not exist.
#[derive(Debug)]
struct UnconfirmedPod {
    confirmation: u64,
    /// Process and instance of the pod, if the response to its creation was lost.
    created: Option<(u32, MissingProcess)>,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether all processes started in this attempt of an instance are known.
    pub(super) fn is_witnessed(&self, job: &JobKey, instance: u32, attempt: u32) -> bool {
        let cached = self.lock();
        let attempts = cached.witnessed.get(job);
        attempts.and_then(|attempts| attempts.get(&instance)) == Some(&attempt)
    }

    /// Records that all processes started in this attempt are known from now on.
    pub(super) fn mark_accounted(&self, job: &JobKey, instance: u32, attempt: u32) {
        let mut cached = self.lock();
        let attempts = cached.witnessed.entry(job.clone()).or_default();
        attempts.insert(instance, attempt);
    }

    /// Records that the operator wrote the job as it is at `version`, and that only another change needs a
    /// reconcile.
    pub(super) fn mark_up_to_date(&self, job: &JobKey, version: u64) {
        self.lock().up_to_date.insert(job.clone(), version);
    }

    /// Returns whether this exact version of the job needs no reconcile by itself.
    #[must_use]
    pub fn is_up_to_date(&self, job: &JobKey, version: u64) -> bool {
        self.lock().up_to_date.get(job) == Some(&version)
    }

    /// Clears the up-to-date mark, so that the next watch event of the job is reconciled. Returns whether it
    /// was set.
    pub(super) fn clear_up_to_date(&self, job: &JobKey) -> bool {
        self.lock().up_to_date.remove(job).is_some()
    }

    /// Records whether the job has finished.
    pub fn record_finished(&self, job: &JobKey, is_finished: bool) {
        let mut cached = self.lock();
        if is_finished {
            cached.finished.insert(job.clone());
        } else {
            cached.finished.remove(job);
        }
    }

    /// Returns the blockers of queued requests that finished jobs still hold.
    pub(super) fn finished_blockers<'a>(
        &self,
        documents: impl Iterator<Item = &'a PartitionDocument>,
    ) -> BTreeSet<PartitionId> {
        let cached = self.lock();
        let is_finished = |blocker: &&BlockerDocument| {
            let owner = blocker.owner.as_ref().filter(|owner| owner.kind == IpuJob::KIND);
            let key = owner.and_then(|owner| JobKey::new(&owner.namespace, &owner.name, &owner.uid).ok());
            key.is_some_and(|key| cached.finished.contains(&key))
        };
        let waiting = documents.filter_map(|document| document.waiting.as_ref());
        let blockers = waiting.flat_map(|waiting| &waiting.blockers);
        blockers
            .filter(is_finished)
            .map(|blocker| blocker.id.clone())
            .collect()
    }

    /// Records that the operator wrote this version of the job.
    pub fn record_write(&self, job: &JobKey, version: u64) {
        let mut cached = self.lock();
        let written = cached.written.entry(job.clone()).or_default();
        *written = (*written).max(version);
        cached.first_reconciled.remove(job);
    }

    /// Returns whether the operator has written the job since `version`, which is therefore outdated.
    #[must_use]
    pub fn is_stale(&self, job: &JobKey, version: u64) -> bool {
        self.lock()
            .written
            .get(job)
            .is_some_and(|written| *written > version)
    }

    /// Records that the finalizer was removed: every later event of the job but its deletion is outdated.
    pub(super) fn mark_finalized(&self, job: &JobKey) {
        self.forget(job);
        self.record_write(job, u64::MAX);
    }

    /// Returns the time of the first reconcile of a job without recorded status: `now` for a new job.
    #[must_use]
    pub fn started_at(&self, job: &JobKey, now: Timestamp) -> Timestamp {
        *self.lock().first_reconciled.entry(job.clone()).or_insert(now)
    }

    /// Records that the job is starting since this time or earlier, or that it is not starting.
    pub(super) fn set_starting(&self, job: &JobKey, since: Option<Timestamp>) {
        let mut cached = self.lock();
        match since {
            Some(since) => {
                cached.starting.entry(job.clone()).or_insert(since);
            }
            None => {
                cached.starting.remove(job);
            }
        }
    }

    /// Returns the time since which the job is starting, if it is.
    pub(super) fn starting_since(&self, job: &JobKey) -> Option<Timestamp> {
        self.lock().starting.get(job).copied()
    }

    /// Returns whether the shared objects of the job were applied with this `fingerprint`.
    #[must_use]
    pub fn is_applied(&self, job: &JobKey, fingerprint: u64) -> bool {
        self.lock().applied.get(job) == Some(&fingerprint)
    }

    /// Records that the shared objects were applied with this `fingerprint`.
    pub fn mark_applied(&self, job: &JobKey, fingerprint: u64) {
        self.lock().applied.insert(job.clone(), fingerprint);
    }

    /// Records that shared objects may be missing.
    pub(super) fn invalidate_applied(&self, job: &JobKey) {
        self.lock().applied.remove(job);
    }

    /// Returns the rights of the job's launchers by instance. The rights of other instances are unknown.
    pub(super) fn rights(&self, job: &JobKey) -> BTreeMap<u32, LauncherRole> {
        self.lock().rights.get(job).cloned().unwrap_or_default()
    }

    /// Records the rights of the launcher of an instance.
    pub(super) fn record_rights(&self, job: &JobKey, instance: u32, rights: LauncherRole) {
        let mut cached = self.lock();
        let all = cached.rights.entry(job.clone()).or_default();
        all.insert(instance, rights);
    }

    /// Records that the rights of the launcher of an instance are unknown.
    pub(super) fn invalidate_rights(&self, job: &JobKey, instance: u32) {
        let mut cached = self.lock();
        if let Some(all) = cached.rights.get_mut(job) {
            all.remove(&instance);
        }
    }

    /// Clears the state of a deleted job.
    pub fn forget(&self, job: &JobKey) {
        let mut cached = self.lock();
        cached.written.remove(job);
        cached.up_to_date.remove(job);
        cached.active.remove(job);
        cached.applied.remove(job);
        cached.rights.remove(job);
        cached.first_reconciled.remove(job);
        cached.starting.remove(job);
        cached.unconfirmed.remove(job);
        cached.failed_since.remove(job);
        cached.evicted.remove(job);
        cached.witnessed.remove(job);
        cached.finished.remove(job);
        if let Some(pods) = cached.pods.get_mut(job) {
            pods.retain(|_, pod| !pod.deleted);
            if pods.is_empty() {
                cached.pods.remove(job);
            }
        }
    }
}

#[cfg(test)]
mod tests;
