//! Kubernetes Pods that others take away. By force: their processes go on where nobody can look, until their partition is reset.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::world::{Operators, State, World, time};

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
            self.operators == Operators::Two || beside.is_none(),
            "{name} starts on {partition}, which {beside:?} may still use, which was taken away"
        );
    }
}

fn attempt(pod: &Value) -> u32 {
    let attempt = pod["metadata"]["labels"]["graphcore.ai/attempt"].as_str();
    attempt.unwrap().parse().unwrap()
}
