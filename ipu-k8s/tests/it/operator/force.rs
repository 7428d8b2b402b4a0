//! Kubernetes Pods that are taken away by force: their processes go on where nobody can look, until their partition is reset.

use std::collections::BTreeSet;

use serde_json::Value;

use super::world::{Operators, State};

/// The partitions that processes may use which nobody sees, until they are reset.
#[derive(Debug, Default)]
pub(super) struct Unseen(BTreeSet<String>);

impl Unseen {
    pub(super) fn reset(&mut self, partition: &str) {
        self.0.remove(partition);
    }
}

impl State {
    /// Takes a Kubernetes Pod away by force. If it is a worker that runs, its process goes on unseen.
    pub(crate) fn take_by_force(&mut self, name: &str) {
        let pod = &self.pods[name];
        let works = pod["metadata"]["labels"]["graphcore.ai/role"] == "worker";
        let user = self.running.get(pod["metadata"]["uid"].as_str().unwrap());
        if let Some((partition, ..)) = user.filter(|_| works) {
            self.unseen.0.insert(partition.clone());
        }
        self.remove_pod(name);
    }

    /// A process starts on a partition: no worker beside one that is not seen. A launcher waits for its workers before it does
    /// anything, which nobody does in this world.
    pub(super) fn expect_fenced(&self, pod: &Value, partition: &str) {
        let works = pod["metadata"]["labels"]["graphcore.ai/role"] == "worker";
        let unseen = self.unseen.0.contains(partition);
        assert!(
            self.operators == Operators::Two || !works || !unseen,
            "a process starts on {partition}, which another one that was taken away may still use"
        );
    }
}
