//! Watches of a simulated operator: delayed, ordered, and with disconnects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ipu_core::JobKey;
use ipu_k8s::controller::Cache;
use ipu_proxy_client::PartitionDocument;
use serde_json::Value;

use super::fake_cluster::{key, owner};

/// Event of a watch.
#[derive(Clone, Debug)]
pub(crate) enum WatchEvent {
    Job(Value),
    JobDeleted(JobKey),
    Jobs(Vec<Value>),
    Pod(Value),
    PodDeleted(Value),
    Pods(Vec<Value>),
    Hold(Box<PartitionDocument>),
    HoldRemoved(JobKey, u32),
    Holds(Vec<(JobKey, u32)>),
}

/// Kind of a watch; each delivers in order, independently of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    Jobs,
    Pods,
    Holds,
}

impl Watch {
    pub(super) const ALL: [Self; 3] = [Self::Jobs, Self::Pods, Self::Holds];
}

impl WatchEvent {
    const fn watch(&self) -> Watch {
        match self {
            Self::Job(_) | Self::JobDeleted(_) | Self::Jobs(_) => Watch::Jobs,
            Self::Pod(_) | Self::PodDeleted(_) | Self::Pods(_) => Watch::Pods,
            Self::Hold(_) | Self::HoldRemoved(..) | Self::Holds(_) => Watch::Holds,
        }
    }
}

/// Watches of one operator, with their undelivered events.
#[derive(Debug, Default)]
pub(crate) struct FakeWatches {
    pub(crate) cache: Arc<Cache>,
    /// Undelivered events of each watch, with their sequence numbers.
    queued: [VecDeque<(u64, WatchEvent)>; 3],
    /// Number of events so far.
    event_count: u64,
    /// Last observed version of each job.
    pub(crate) jobs: BTreeMap<JobKey, Value>,
    /// Observed instances that hold or wait for a partition.
    held: BTreeSet<(JobKey, u32)>,
    /// Jobs to reconcile because of events.
    pub(crate) due: BTreeSet<JobKey>,
}

impl FakeWatches {
    /// Queues an event.
    pub(super) fn put(&mut self, event: WatchEvent) {
        self.event_count += 1;
        self.queued[event.watch() as usize].push_back((self.event_count, event));
    }

    /// Returns whether all events are delivered.
    pub(crate) fn is_drained(&self) -> bool {
        self.watches().is_empty()
    }

    /// Returns the watches with undelivered events.
    pub(super) fn watches(&self) -> Vec<Watch> {
        let has_events = |watch: &Watch| !self.queued[*watch as usize].is_empty();
        Watch::ALL.into_iter().filter(has_events).collect()
    }

    /// Returns the watch with the oldest undelivered event.
    pub(super) fn first(&self) -> Watch {
        let number = |watch: &Watch| self.queued[*watch as usize].front().map(|(number, _)| *number);
        let first = self.watches().into_iter().min_by_key(number);
        first.unwrap_or(Watch::Jobs)
    }

    /// Delivers the next event of a watch.
    pub(super) fn deliver_next(&mut self, watch: Watch) {
        if let Some((_, event)) = self.queued[watch as usize].pop_front() {
            self.apply(event);
        }
    }

    /// Restarts a watch: its undelivered events are replaced by the list `all`.
    pub(super) fn restart(&mut self, watch: Watch, all: WatchEvent) {
        self.queued[watch as usize].clear();
        self.put(all);
        match watch {
            Watch::Jobs => {}
            Watch::Pods => self.cache.on_init(),
            Watch::Holds => self.cache.mark_disconnected(),
        }
    }

    /// Applies an event to the cache, as the controller does.
    fn apply(&mut self, event: WatchEvent) {
        let due = match event {
            WatchEvent::Job(job) => {
                let job_key = key(&job);
                let version = job["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap();
                self.jobs.insert(job_key.clone(), job);
                (!self.cache.is_up_to_date(&job_key, version)).then_some(job_key)
            }
            WatchEvent::JobDeleted(job) => {
                self.jobs.remove(&job);
                self.due.remove(&job);
                self.cache.forget(&job);
                None
            }
            WatchEvent::Jobs(jobs) => {
                let before = std::mem::take(&mut self.jobs);
                self.jobs = jobs.into_iter().map(|job| (key(&job), job)).collect();
                let deleted = before.keys().filter(|job| !self.jobs.contains_key(*job));
                deleted.for_each(|job| self.cache.forget(job));
                self.due.extend(self.jobs.keys().cloned());
                None
            }
            WatchEvent::Pod(pod) => self.cache.on_applied(&pod),
            WatchEvent::PodDeleted(pod) => self.cache.on_deleted(&pod),
            WatchEvent::Pods(pods) => {
                pods.iter().for_each(|pod| self.cache.on_init_apply(pod));
                self.due.extend(self.cache.on_init_done());
                None
            }
            WatchEvent::Hold(document) => {
                let job = owner(document.owner.as_ref().unwrap());
                self.held.insert((job.clone(), document.instance));
                self.cache.add_hold(&job, document.instance);
                self.cache.is_change(&job, &document).then_some(job)
            }
            WatchEvent::HoldRemoved(job, instance) => {
                self.held.remove(&(job.clone(), instance));
                self.cache.remove_hold(&job, instance);
                Some(job)
            }
            WatchEvent::Holds(holds) => {
                let before = std::mem::replace(&mut self.held, holds.iter().cloned().collect());
                let all = before.iter().chain(&self.held);
                self.due.extend(all.map(|(job, _)| job.clone()));
                self.cache.replace_holds(holds);
                None
            }
        };
        self.due.extend(due);
    }
}
