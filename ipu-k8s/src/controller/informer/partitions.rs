//! What is heard of partitions: from the proxy's events, and from its answers.

use std::collections::{BTreeSet, HashMap};

use ipu_core::{ControllerName, JobKey, Timestamp};
use ipu_proxy_client::{HoldState, PartitionDocument};

use super::Cache;

/// What tells one active partition of an instance from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Active {
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
pub(in crate::controller) struct PartitionRequestGuard<'a> {
    cache: &'a Cache,
    what: (JobKey, u32),
}

impl Drop for PartitionRequestGuard<'_> {
    fn drop(&mut self) {
        self.cache.lock().asking.remove(&self.what);
    }
}

impl Cache {
    /// The proxy tells that an instance of the job has something in the ledger.
    pub fn add_hold(&self, job: &JobKey, instance: u32) {
        self.lock().holds.entry(job.clone()).or_default().insert(instance);
    }

    /// The proxy tells that it has nothing any more.
    pub fn remove_hold(&self, job: &JobKey, instance: u32) {
        let mut known = self.lock();
        if let Some(instances) = known.holds.get_mut(job) {
            instances.remove(&instance);
            if instances.is_empty() {
                known.holds.remove(job);
            }
        }
    }

    /// The proxy cannot be heard for the moment.
    pub fn disconnected(&self) {
        self.lock().told = false;
    }

    /// Whether the proxy tells of changes.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.lock().told
    }

    /// The proxy tells of everything that it has, and from now on of every change.
    pub fn replace_holds(&self, all: impl IntoIterator<Item = (JobKey, u32)>) {
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
    pub(in crate::controller) fn begin_request(
        &self,
        job: &JobKey,
        instance: u32,
    ) -> PartitionRequestGuard<'_> {
        let what = (job.clone(), instance);
        self.lock().asking.insert(what.clone());
        PartitionRequestGuard { cache: self, what }
    }

    /// The proxy answered this of the partition of an instance.
    pub(in crate::controller) fn record_response(
        &self,
        job: &JobKey,
        instance: u32,
        document: Option<&PartitionDocument>,
    ) {
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
    pub fn is_change(&self, job: &JobKey, document: &PartitionDocument) -> bool {
        let known = self.lock();
        let instance = document.instance;
        match Active::of(document) {
            Some(active) => known.active.get(job).and_then(|all| all.get(&instance)) != Some(&active),
            None => document.state != HoldState::Intent || !known.asking.contains(&(job.clone(), instance)),
        }
    }
}
