//! Kubernetes Pods that others take away. By force: their processes go on where nobody can look, until their partition is reset.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::world::{Operators, State, World, time};

/// The partitions that processes may use which nobody sees, until they are reset, with the roles of these.
#[derive(Debug, Default)]
pub(super) struct Unseen(BTreeMap<String, BTreeSet<String>>);

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
        let (name, grace) = (name.clone(), 30_u64);
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if ended || state.random.one_in(3) {
            state.take_by_force(&name);
            return;
        }
        let gone_by = time(state.now / 1000 * 1000 + grace * 1000);
        state.change_pod(&name, |pod| {
            pod["metadata"]["deletionTimestamp"] = gone_by.into();
            pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        });
    }
}

impl State {
    /// Takes a Kubernetes Pod away by force. If it runs, its process goes on unseen.
    pub(crate) fn take_by_force(&mut self, name: &str) {
        let pod = &self.pods[name];
        let user = self.running.get(pod["metadata"]["uid"].as_str().unwrap());
        if let Some((partition, ..)) = user {
            let roles = self.unseen.0.entry(partition.clone()).or_default();
            roles.insert(role(pod));
        }
        self.remove_pod(name);
    }

    /// A process starts on a partition: no worker beside one that is not seen, and no launcher beside one that may start more in its
    /// workers.
    pub(super) fn expect_fenced(&self, pod: &Value, partition: &str) {
        let unseen = self.unseen.0.get(partition);
        assert!(
            self.operators == Operators::Two || !unseen.is_some_and(|roles| roles.contains(&role(pod))),
            "a process starts on {partition}, which another one that was taken away may still use"
        );
    }
}

fn role(pod: &Value) -> String {
    pod["metadata"]["labels"]["graphcore.ai/role"]
        .as_str()
        .unwrap()
        .to_owned()
}
