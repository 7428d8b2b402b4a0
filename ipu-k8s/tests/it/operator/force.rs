//! Kubernetes Pods that are taken away by force: their processes go on where nobody can look, until their partition is reset.

use serde_json::Value;

use super::world::{Operators, State};

impl State {
    /// Takes a Kubernetes Pod away by force. If its job says that its instance runs, its process goes on unseen.
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
        if let Some((partition, ..)) = user.filter(|_| known && works) {
            self.unseen.insert(partition.clone());
        }
        self.remove_pod(name);
    }

    /// A process starts on a partition: no worker beside one that is not seen. A launcher waits for its workers before it does
    /// anything, which nobody does in this world.
    pub(super) fn expect_fenced(&self, pod: &Value, partition: &str) {
        let works = pod["metadata"]["labels"]["graphcore.ai/role"] == "worker";
        assert!(
            self.operators == Operators::Two || !works || !self.unseen.contains(partition),
            "a process starts on {partition}, which another one that was taken away may still use"
        );
    }
}
