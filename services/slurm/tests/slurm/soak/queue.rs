//! Waits of jobs in the queue of the proxy, by its events.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::cluster::Cluster;

/// Starts to record the events of the proxy.
pub(crate) fn record(cluster: &mut Cluster) {
    cluster.start_events("events");
}

/// Returns the times between the request of a partition for a job of Slurm and its grant, in milliseconds. A
/// request that is granted at once was never queued, and has none.
pub(crate) fn waits(cluster: &Cluster) -> Vec<u64> {
    let log = fs::read_to_string(cluster.bed.directory().join("log/events.out")).unwrap();
    let mut queued: BTreeMap<String, u64> = BTreeMap::new();
    let mut waits = Vec::new();
    for data in log.lines().filter_map(|line| line.strip_prefix("data:")) {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            // The last line may be incomplete.
            continue;
        };
        let (Some(id), Some(at)) = (event["id"].as_str(), event["at"].as_u64()) else {
            continue;
        };
        let is_slurm = event["partition"]["owner"]["kind"] == "SlurmJob";
        if event["to"] == "waiting" && is_slurm {
            queued.entry(id.to_owned()).or_insert(at);
        } else if let Some(since) = queued.remove(id) {
            waits.push(at.saturating_sub(since));
        }
    }
    waits
}
