//! How an operator hears of the world: late, in order, and with gaps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ipu_core::JobKey;
use ipu_k8s::operator::Cache;
use ipu_proxy_client::PartitionDocument;
use serde_json::Value;

use super::world::{Hold, key, owner};

/// What a watch is told.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Job(Value),
    JobGone(JobKey),
    Pod(Value),
    PodGone(Value),
    Hold(Box<PartitionDocument>),
    HoldGone(JobKey, u32),
}

/// One operator's way of hearing: what it has not been told yet.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    pub(crate) cache: Arc<Cache>,
    pub(crate) waiting: VecDeque<Told>,
    /// The jobs as they were heard of last.
    pub(crate) jobs: BTreeMap<JobKey, Value>,
    /// The jobs that are to be looked at because of what was told.
    pub(crate) due: BTreeSet<JobKey>,
}

impl Ear {
    /// Hears what was told, as the loop does.
    pub(super) fn hear(&mut self, told: Told) {
        let due = match told {
            Told::Job(job) => {
                let of = key(&job);
                let version = job["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap();
                self.jobs.insert(of.clone(), job);
                (!self.cache.is_settled(&of, version)).then_some(of)
            }
            Told::JobGone(job) => {
                self.jobs.remove(&job);
                self.due.remove(&job);
                self.cache.forget(&job);
                None
            }
            Told::Pod(pod) => self.cache.heard(&pod),
            Told::PodGone(pod) => self.cache.gone(&pod),
            Told::Hold(document) => {
                let job = owner(document.owner.as_ref().unwrap());
                self.cache.holds(&job, document.instance);
                self.cache.is_news(&job, &document).then_some(job)
            }
            Told::HoldGone(job, instance) => {
                self.cache.holds_no_more(&job, instance);
                Some(job)
            }
        };
        self.due.extend(due);
    }

    /// The watches broke, or begin: what they had not told is listed instead.
    pub(super) fn list<'a>(
        &mut self,
        jobs: impl Iterator<Item = &'a Value>,
        pods: impl Iterator<Item = &'a Value>,
        holds: impl Iterator<Item = &'a Hold> + Clone,
    ) {
        self.waiting.clear();
        self.cache.begin();
        pods.for_each(|pod| self.cache.list(pod));
        self.due.extend(self.cache.end());
        let holds = holds.map(|hold| (owner(&hold.wanted.owner), hold.wanted.instance));
        self.due.extend(holds.clone().map(|(job, _)| job));
        self.cache.holds_only(holds);
        let before = std::mem::take(&mut self.jobs);
        self.jobs = jobs.map(|job| (key(job), job.clone())).collect();
        let gone = before.keys().filter(|job| !self.jobs.contains_key(*job));
        gone.for_each(|job| self.cache.forget(job));
        self.due.extend(self.jobs.keys().cloned());
    }
}
