//! Kubernetes Pods that others take away. By force: their processes go on where nobody can look, until their partition is reset.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::fake_cluster::{Operators, State, World, key, time};
use super::fake_watches::WatchEvent;

/// The partitions that processes may use which nobody sees, until they are reset, with the attempts and names of these.
#[derive(Debug, Default)]
pub(super) struct Unseen(BTreeMap<String, BTreeSet<(u32, String)>>);

impl Unseen {
    pub(super) fn reset(&mut self, partition: &str) {
        self.0.remove(partition);
    }
}

impl World {
    /// Somebody deletes a Kubernetes Pod, or the node that it is on is drained.
    pub(crate) fn delete_pod(&self) {
        let mut state = self.state();
        let many = state.pods.len() as u64;
        if many == 0 {
            return;
        }
        let which = usize::try_from(state.random.below(many)).unwrap();
        let Some((name, pod)) = state.pods.iter().nth(which) else {
            return;
        };
        let name = name.clone();
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        if is_foreign(pod) {
            state.pods.remove(&name);
            return;
        }
        let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if ended || state.random.one_in(3) {
            state.take_by_force(&name);
            return;
        }
        state.end_pod(&name);
    }
}

impl World {
    /// Somebody takes the finalizer off a job and deletes it: the operator is not asked.
    pub(crate) fn take_job_by_force(&self, name: &str) {
        let mut state = self.state();
        let Some(job) = state.jobs.get(name).map(key) else {
            return;
        };
        state.forced.insert(job.uid.to_string());
        state.version += 1;
        state.jobs.remove(name);
        state.everybody_hears(&WatchEvent::JobGone(job));
    }

    /// Somebody makes a Kubernetes Pod of a name that the job may want. No watch tells of it: it has no label of ours.
    pub(crate) fn take_name(&self, job: &str) {
        let mut state = self.state();
        let name = match state.random.below(5) {
            0 => format!("{job}-launcher"),
            worker => format!("{job}-worker-{}", worker - 1),
        };
        state.version += 1;
        let uid = format!("foreign-{}", state.version);
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid, "resourceVersion": state.version.to_string()},
            "status": {"phase": "Running"},
        });
        state.pods.entry(name).or_insert(pod);
    }

    /// Nobody has names that jobs may want any more.
    pub(crate) fn give_names_back(&self) {
        self.state().pods.retain(|_, pod| !is_foreign(pod));
    }
}

/// Whether somebody made it who knows nothing of jobs.
pub(super) fn is_foreign(pod: &Value) -> bool {
    pod["metadata"]["labels"].is_null()
}

impl State {
    /// Somebody deletes a Kubernetes Pod, which has its time to end.
    pub(crate) fn end_pod(&mut self, name: &str) {
        if !self.pods[name]["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        self.others_remove(name);
        let grace = 30_u64;
        let gone_by = time(self.now / 1000 * 1000 + grace * 1000);
        self.change_pod(name, |pod| {
            pod["metadata"]["deletionTimestamp"] = gone_by.into();
            pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        });
    }

    /// Takes a Kubernetes Pod away by force. If it runs, its process goes on unseen.
    pub(crate) fn take_by_force(&mut self, name: &str) {
        self.others_remove(name);
        let pod = &self.pods[name];
        let user = self.running.get(pod["metadata"]["uid"].as_str().unwrap());
        if let Some((partition, ..)) = user {
            let unseen = self.unseen.0.entry(partition.clone()).or_default();
            unseen.insert((attempt(pod), name.to_owned()));
        }
        self.remove_pod(name);
    }

    /// A process starts on a partition: beside none of an earlier attempt, nor beside itself.
    pub(super) fn expect_fenced(&self, pod: &Value, partition: &str) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let mut unseen = self.unseen.0.get(partition).into_iter().flatten();
        let other = |(of, other): &(u32, String)| *of < attempt(pod) || other == name;
        let beside = unseen.find(|unseen| other(unseen));
        assert!(
            self.operators == Operators::Two || beside.is_none() || self.is_forced(pod),
            "{name} starts on {partition}, which {beside:?} may still use, which was taken away"
        );
    }
}

impl State {
    /// Whether the job of a Kubernetes Pod was taken away without the operator.
    pub(super) fn is_forced(&self, pod: &Value) -> bool {
        let uid = pod["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str();
        uid.is_some_and(|uid| self.forced.contains(uid))
    }
}

fn attempt(pod: &Value) -> u32 {
    let attempt = pod["metadata"]["labels"]["graphcore.ai/attempt"].as_str();
    attempt.unwrap().parse().unwrap()
}
