//! Kubernetes Pods that are taken away by force: their processes go on where nobody can look, until their partition is reset.

use std::collections::BTreeSet;

use serde_json::Value;

use super::world::{Operators, State};

/// The partitions that processes may use which nobody sees, until they are reset.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// What the status of a job tells of.
    recorded: BTreeSet<String>,
    /// What only an operator knows, until it crashes.
    remembered: BTreeSet<String>,
}

impl Unseen {
    pub(super) fn reset(&mut self, partition: &str) {
        self.recorded.remove(partition);
        self.remembered.remove(partition);
    }

    pub(super) fn crash(&mut self) {
        self.remembered.clear();
    }
}

impl State {
    /// Takes a Kubernetes Pod away by force. If its job says that its instance runs, or the operator knew of it, its process goes on
    /// unseen.
    pub(super) fn take_by_force(&mut self, name: &str) {
        let pod = &self.pods[name];
        let label = |name: &str| pod["metadata"]["labels"][name].as_str();
        let number = |name: &str| label(name).and_then(|text| text.parse::<u64>().ok());
        let user = self.running.get(pod["metadata"]["uid"].as_str().unwrap());
        let job = self
            .jobs
            .values()
            .find(|job| job["metadata"]["uid"].as_str() == label("graphcore.ai/ipujob-uid"));
        let instances = job.and_then(|job| job["status"]["instances"].as_array());
        let known = instances.into_iter().flatten().any(|instance| {
            instance["index"].as_u64() == number("graphcore.ai/instance")
                && instance["attempt"].as_u64() == number("graphcore.ai/attempt")
                && !instance["runningTime"].is_null()
        });
        let works = label("graphcore.ai/role") == Some("worker");
        let heard = self.ears[0].cache.pods(label("graphcore.ai/ipujob-uid").unwrap());
        let heard = heard.iter().any(|heard| pod["metadata"]["uid"] == heard.uid);
        if let Some((partition, ..)) = user.filter(|_| works) {
            if known {
                self.unseen.recorded.insert(partition.clone());
            } else if heard {
                self.unseen.remembered.insert(partition.clone());
            }
        }
        self.remove_pod(name);
    }

    /// A process starts on a partition: no worker beside one that is not seen. A launcher waits for its workers before it does
    /// anything, which nobody does in this world.
    pub(super) fn expect_fenced(&self, pod: &Value, partition: &str) {
        let works = pod["metadata"]["labels"]["graphcore.ai/role"] == "worker";
        let unseen = self.unseen.recorded.contains(partition) || self.unseen.remembered.contains(partition);
        assert!(
            self.operators == Operators::Two || !works || !unseen,
            "a process starts on {partition}, which another one that was taken away may still use"
        );
    }
}
