//! The rules, in the order of a diagnosis: a fault of an earlier rule explains those of later ones.

mod controllers;
mod crd;
mod jobs;
mod network;
mod nodes;
mod operator;
mod restore;
mod tracker;
mod webhooks;

use k8s_openapi::api::core::v1::Pod;

use super::finding::Rule;

/// Returns all rules.
pub(super) fn all() -> impl Iterator<Item = &'static Rule> {
    [
        crd::RULES,
        operator::RULES,
        webhooks::RULES,
        controllers::RULES,
        tracker::RULES,
        jobs::RULES,
        network::RULES,
        nodes::RULES,
    ]
    .into_iter()
    .flatten()
}

/// Returns whether a Pod has not finished.
fn is_active(pod: &&Pod) -> bool {
    !matches!(phase(pod), Some("Succeeded" | "Failed"))
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}
