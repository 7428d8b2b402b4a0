//! The partitions in the cache: updates from the proxy's events and from its responses.

use std::collections::{BTreeSet, HashMap};

use ipu_core::{ControllerName, JobKey, Timestamp};
use ipu_proxy_client::{HoldState, PartitionDocument};

use super::Cache;

/// Identity of one active partition of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ActivePartition {
    attempt: u32,
    since: Timestamp,
    controller: Option<ControllerName>,
    is_preempted: bool,
}

impl ActivePartition {
    fn from_document(document: &PartitionDocument) -> Option<Self> {
        (document.state == HoldState::Active).then(|| Self {
            attempt: document.attempt,
            since: document.since,
            controller: document
                .controller
                .as_ref()
                .map(|controller| controller.name.clone()),
            is_preempted: document.preemption.is_some(),
        })
    }
}

/// Marks a request to the proxy for a partition as in progress until it is dropped.
#[derive(Debug)]
pub(in crate::controller) struct PartitionRequestGuard<'a> {
    cache: &'a Cache,
    key: (JobKey, u32),
}

impl Drop for PartitionRequestGuard<'_> {
    fn drop(&mut self) {
        self.cache.lock().pending_requests.remove(&self.key);
    }
}

impl Cache {
    /// Records that the proxy has a hold or a request of an instance of the job.
    pub fn add_hold(&self, job: &JobKey, instance: u32) {
        self.lock().holds.entry(job.clone()).or_default().insert(instance);
    }

    /// Records that the proxy no longer has one.
    pub fn remove_hold(&self, job: &JobKey, instance: u32) {
        let mut state = self.lock();
        if let Some(instances) = state.holds.get_mut(job) {
            instances.remove(&instance);
            if instances.is_empty() {
                state.holds.remove(job);
            }
        }
    }

    /// Records that the proxy's event stream is disconnected.
    pub fn mark_disconnected(&self) {
        self.lock().partition_watch_connected = false;
    }

    /// Returns whether the proxy's event stream is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.lock().partition_watch_connected
    }

    /// Replaces all holds with a snapshot of the proxy, and marks the event stream as connected.
    pub fn replace_holds(&self, all: impl IntoIterator<Item = (JobKey, u32)>) {
        let mut holds: HashMap<JobKey, BTreeSet<u32>> = HashMap::new();
        for (job, instance) in all {
            holds.entry(job).or_default().insert(instance);
        }
        let mut state = self.lock();
        state.holds = holds;
        state.partition_watch_connected = true;
    }

    /// Returns the instances of the job for which the proxy has a hold or a request.
    #[must_use]
    pub fn held(&self, job: &JobKey) -> BTreeSet<u32> {
        self.lock().holds.get(job).cloned().unwrap_or_default()
    }

    /// Marks a request for the partition of an instance as in progress until the returned guard is dropped.
    pub(in crate::controller) fn begin_request(
        &self,
        job: &JobKey,
        instance: u32,
    ) -> PartitionRequestGuard<'_> {
        let key = (job.clone(), instance);
        self.lock().pending_requests.insert(key.clone());
        PartitionRequestGuard { cache: self, key }
    }

    /// Records the partition of an instance in a response of the proxy.
    pub(in crate::controller) fn record_response(
        &self,
        job: &JobKey,
        instance: u32,
        document: Option<&PartitionDocument>,
    ) {
        let mut state = self.lock();
        match document.and_then(ActivePartition::from_document) {
            Some(active) => {
                state
                    .active
                    .entry(job.clone())
                    .or_default()
                    .insert(instance, active);
            }
            None => {
                if let Some(instances) = state.active.get_mut(job) {
                    instances.remove(&instance);
                }
            }
        }
    }

    /// Returns whether an event of the proxy needs a reconcile of the job. A state that a response already
    /// returned does not. Nor does an operation for a request in progress, whose response or next event
    /// follows.
    #[must_use]
    pub fn is_change(&self, job: &JobKey, document: &PartitionDocument) -> bool {
        let state = self.lock();
        let instance = document.instance;
        match ActivePartition::from_document(document) {
            Some(active) => state.active.get(job).and_then(|all| all.get(&instance)) != Some(&active),
            None => {
                !document.state.is_in_progress() || !state.pending_requests.contains(&(job.clone(), instance))
            }
        }
    }
}
