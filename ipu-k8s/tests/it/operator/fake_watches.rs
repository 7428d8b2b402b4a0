//! How an operator hears of the world: late, in order, and with gaps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ipu_core::JobKey;
use ipu_k8s::controller::Cache;
use ipu_proxy_client::PartitionDocument;
use serde_json::Value;

use super::fake_cluster::{key, owner};

/// What a watch is told.
#[derive(Clone, Debug)]
pub(crate) enum WatchEvent {
    Job(Value),
    JobGone(JobKey),
    Jobs(Vec<Value>),
    Pod(Value),
    PodGone(Value),
    Pods(Vec<Value>),
    Hold(Box<PartitionDocument>),
    HoldGone(JobKey, u32),
    Holds(Vec<(JobKey, u32)>),
}

/// Each watch tells in order, and all of them know nothing of one another.
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
    const fn by(&self) -> Watch {
        match self {
            Self::Job(_) | Self::JobGone(_) | Self::Jobs(_) => Watch::Jobs,
            Self::Pod(_) | Self::PodGone(_) | Self::Pods(_) => Watch::Pods,
            Self::Hold(_) | Self::HoldGone(..) | Self::Holds(_) => Watch::Holds,
        }
    }
}

/// One operator's way of hearing: what it has not been told yet.
#[derive(Debug, Default)]
pub(crate) struct FakeWatches {
    pub(crate) cache: Arc<Cache>,
    /// What each watch has still to tell, with the number of what happened.
    waiting: [VecDeque<(u64, WatchEvent)>; 3],
    /// How much there was to be told so far.
    happened: u64,
    /// The jobs as they were heard of last.
    pub(crate) jobs: BTreeMap<JobKey, Value>,
    /// The instances that hold or wait for something, as far as was heard.
    held: BTreeSet<(JobKey, u32)>,
    /// The jobs that are to be looked at because of what was told.
    pub(crate) due: BTreeSet<JobKey>,
}

impl FakeWatches {
    /// There is something to be told.
    pub(super) fn put(&mut self, told: WatchEvent) {
        self.happened += 1;
        self.waiting[told.by() as usize].push_back((self.happened, told));
    }

    /// Whether it was told everything.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.watches().is_empty()
    }

    /// The watches that have something to tell.
    pub(super) fn watches(&self) -> Vec<Watch> {
        let tells = |watch: &Watch| !self.waiting[*watch as usize].is_empty();
        Watch::ALL.into_iter().filter(tells).collect()
    }

    /// The watch that has to tell what happened first.
    pub(super) fn first(&self) -> Watch {
        let number = |watch: &Watch| self.waiting[*watch as usize].front().map(|(number, _)| *number);
        let first = self.watches().into_iter().min_by_key(number);
        first.unwrap_or(Watch::Jobs)
    }

    /// Hears the next of what a watch tells.
    pub(super) fn hear_next(&mut self, watch: Watch) {
        if let Some((_, told)) = self.waiting[watch as usize].pop_front() {
            self.hear(told);
        }
    }

    /// A watch broke, or begins: instead of what it had not told it tells of `all`, as it is now, when that gets here.
    pub(super) fn begin_anew(&mut self, watch: Watch, all: WatchEvent) {
        self.waiting[watch as usize].clear();
        self.put(all);
        match watch {
            Watch::Jobs => {}
            Watch::Pods => self.cache.on_init(),
            Watch::Holds => self.cache.disconnected(),
        }
    }

    /// Hears what was told, as the loop does.
    fn hear(&mut self, told: WatchEvent) {
        let due = match told {
            WatchEvent::Job(job) => {
                let of = key(&job);
                let version = job["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap();
                self.jobs.insert(of.clone(), job);
                (!self.cache.is_settled(&of, version)).then_some(of)
            }
            WatchEvent::JobGone(job) => {
                self.jobs.remove(&job);
                self.due.remove(&job);
                self.cache.forget(&job);
                None
            }
            WatchEvent::Jobs(jobs) => {
                let before = std::mem::take(&mut self.jobs);
                self.jobs = jobs.into_iter().map(|job| (key(&job), job)).collect();
                let gone = before.keys().filter(|job| !self.jobs.contains_key(*job));
                gone.for_each(|job| self.cache.forget(job));
                self.due.extend(self.jobs.keys().cloned());
                None
            }
            WatchEvent::Pod(pod) => self.cache.on_applied(&pod),
            WatchEvent::PodGone(pod) => self.cache.on_deleted(&pod),
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
            WatchEvent::HoldGone(job, instance) => {
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
