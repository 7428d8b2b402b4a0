//! The reason of a queued request with the names of its blockers.

use std::collections::BTreeSet;

use ipu_core::{PartitionId, Reason, ReasonCode};
use ipu_proxy_client::{BlockerDocument, OwnerDocument, PartitionDocument};

/// Number of blockers that a message names.
const MAX_NAMES: usize = 3;

/// Returns the reason of a queued request. Its message names the blockers, finished jobs first, with the ways
/// to release the IPUs of a finished job.
pub(super) fn queue_reason(document: &PartitionDocument, finished: &BTreeSet<PartitionId>) -> Reason {
    let Some(waiting) = &document.waiting else {
        let next = || Reason::new(ReasonCode::NextInLine, "the request is the next in the queue");
        return document.reason.clone().unwrap_or_else(next);
    };
    let mut reason = waiting.reason.clone();
    if matches!(reason.code, ReasonCode::TooLarge | ReasonCode::QuotaTooSmall) {
        reason
            .message
            .push_str("; the request can never start: request fewer IPUs");
        return reason;
    }
    reason.message = format!("{}; position {} in the queue", reason.message, waiting.position);
    // This message names the request ahead.
    if waiting.blockers.is_empty() || reason.code == "HeldBackForEarlier" {
        return reason;
    }
    let is_finished = |blocker: &&BlockerDocument| finished.contains(&blocker.id);
    let (holding, running): (Vec<_>, Vec<_>) = waiting.blockers.iter().partition(is_finished);
    let names = holding.iter().map(|blocker| name(blocker, ", finished"));
    let names = names.chain(running.iter().map(|blocker| name(blocker, "")));
    let mut text = names.take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    if let more @ 1.. = waiting.blockers.len().saturating_sub(MAX_NAMES) {
        text.push_str(&format!(" and {more} more"));
    }
    reason.message = format!("{}; blocked by {text}", reason.message);
    if !holding.is_empty() {
        reason.message.push_str(
            "; a finished job holds its IPUs until it is deleted: delete it, or set cleanPodPolicy: All or \
             ttlSecondsAfterFinished",
        );
    }
    reason
}

fn name(blocker: &BlockerDocument, state: &str) -> String {
    let owner = blocker.owner.as_ref();
    let name = owner.map(OwnerDocument::qualified_name);
    let name = name.unwrap_or_else(|| format!("partition {}", blocker.id));
    match blocker.size.map(ipu_core::IpuCount::get) {
        None => format!("{name}{state}"),
        Some(1) => format!("{name} (1 IPU{state})"),
        Some(size) => format!("{name} ({size} IPUs{state})"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(blockers: &[(&str, u32)], finished: &[&str]) -> String {
        let blockers = blockers.iter().map(|(name, size)| {
            let owner = json!({"kind": "IPUJob", "namespace": "team", "name": name, "uid": "1"});
            json!({"id": name, "owner": owner, "size": size, "until": null})
        });
        let reason = json!({"code": "NotEnoughFree", "numbers": {"free": 0}, "message": "0 IPUs are free"});
        let waiting = json!({
            "position": 1, "reason": reason, "blockers": blockers.collect::<Vec<_>>(), "earliestFit": null,
        });
        let document = json!({
            "id": "p", "state": "waiting", "owner": null, "instance": 0, "attempt": 0, "size": 16, "gcds": 1,
            "replicas": 1, "reconfigurable": false, "controller": null, "ipus": [], "since": 0, "heldSince": null,
            "priority": 0, "account": null, "preemptible": false, "maxRuntimeSeconds": null, "leaseUntil": null,
            "reason": reason, "waiting": waiting, "errors": [], "env": {},
        });
        let finished = finished.iter().map(|id| PartitionId::new(*id).unwrap()).collect();
        queue_reason(&serde_json::from_value(document).unwrap(), &finished).message
    }

    #[test]
    fn a_queued_request_names_its_blockers_and_finished_jobs_first() {
        assert_eq!(message(&[], &[]), "0 IPUs are free; position 1 in the queue");
        assert_eq!(
            message(&[("a", 1)], &[]),
            "0 IPUs are free; position 1 in the queue; blocked by team/a (1 IPU)"
        );
        let four = message(&[("a", 4), ("b", 4), ("c", 4), ("d", 4)], &["c"]);
        assert!(
            four.contains("blocked by team/c (4 IPUs, finished), team/a (4 IPUs), team/b (4 IPUs) and 1 more; a finished"),
            "{four}"
        );
        assert!(
            four.ends_with("set cleanPodPolicy: All or ttlSecondsAfterFinished"),
            "{four}"
        );
    }
}
