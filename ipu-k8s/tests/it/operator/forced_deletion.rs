//! Deletions by other clients. After a forced deletion the process may run unobserved until its partition
//! is reset.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::fake_cluster::{ClusterState, Operators, World, key, time};
use super::fake_watches::WatchEvent;

/// Partitions that unobserved processes may use until a reset, with attempt and Pod name of these
/// processes.
#[derive(Debug, Default)]
pub(super) struct OrphanedProcesses(BTreeMap<String, BTreeSet<(u32, String)>>);

impl OrphanedProcesses {
    pub(super) fn reset(&mut self, partition: &str) {
        self.0.remove(partition);
    }
}

impl World {
    /// Deletes a random Pod, as a client or a node drain does.
    pub(crate) fn delete_pod(&self) {
        let mut state = self.state();
        let count = state.pods.len() as u64;
        if count == 0 {
            return;
        }
        let index = usize::try_from(state.random.below(count)).unwrap();
        let Some((name, pod)) = state.pods.iter().nth(index) else {
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
            state.force_delete(&name);
            return;
        }
        state.delete_gracefully(&name);
    }
}

impl World {
    /// Removes the finalizer of a job and deletes it without the operator.
    pub(crate) fn force_delete_job(&self, name: &str) {
        let mut state = self.state();
        let Some(job) = state.jobs.get(name).map(key) else {
            return;
        };
        state.forced.insert(job.uid.to_string());
        state.version += 1;
        state.jobs.remove(name);
        state.notify_all(&WatchEvent::JobDeleted(job));
    }

    /// Creates a Pod under a name that the job may need. It has no label of a job, so no watch reports it.
    pub(crate) fn create_foreign_pod(&self, job: &str) {
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

    /// Removes all foreign Pods.
    pub(crate) fn remove_foreign_pods(&self) {
        self.state().pods.retain(|_, pod| !is_foreign(pod));
    }
}

/// Returns whether a Pod belongs to no job.
pub(super) fn is_foreign(pod: &Value) -> bool {
    pod["metadata"]["labels"].is_null()
}

impl ClusterState {
    /// Deletes a Pod with its grace period.
    pub(crate) fn delete_gracefully(&mut self, name: &str) {
        if !self.pods[name]["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        self.record_foreign_removal(name);
        let grace = 30_u64;
        let deletion_time = time(self.now / 1000 * 1000 + grace * 1000);
        self.change_pod(name, |pod| {
            pod["metadata"]["deletionTimestamp"] = deletion_time.into();
            pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        });
    }

    /// Deletes a Pod by force. A running process continues unobserved.
    pub(crate) fn force_delete(&mut self, name: &str) {
        self.record_foreign_removal(name);
        let pod = &self.pods[name];
        let user = self.running.get(pod["metadata"]["uid"].as_str().unwrap());
        if let Some((partition, ..)) = user {
            let orphaned = self.orphaned.0.entry(partition.clone()).or_default();
            orphaned.insert((attempt(pod), name.to_owned()));
        }
        self.remove_pod(name);
    }

    /// Checks that a process starts on a partition without processes of an earlier attempt or of the same
    /// Pod name.
    pub(super) fn check_fencing(&self, pod: &Value, partition: &str) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let mut orphaned = self.orphaned.0.get(partition).into_iter().flatten();
        let conflicts = |(earlier, conflicts): &(u32, String)| *earlier < attempt(pod) || conflicts == name;
        let conflicting = orphaned.find(|orphaned| conflicts(orphaned));
        assert!(
            self.operators == Operators::Two || conflicting.is_none() || self.is_forced(pod),
            "{name} starts on {partition}, which {conflicting:?} may still use, which was taken away"
        );
    }
}

impl ClusterState {
    /// Returns whether the job of a Pod was deleted by force.
    pub(super) fn is_forced(&self, pod: &Value) -> bool {
        let uid = pod["metadata"]["labels"]["graphcore.ai/ipujob-uid"].as_str();
        uid.is_some_and(|uid| self.forced.contains(uid))
    }
}

fn attempt(pod: &Value) -> u32 {
    let attempt = pod["metadata"]["labels"]["graphcore.ai/attempt"].as_str();
    attempt.unwrap().parse().unwrap()
}
