//! The rules, in the order of a diagnosis: a fault of an earlier rule explains those of later ones.

mod bundle;
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

use super::facts::Facts;
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

/// Returns the Pods of jobs, if the installation is known only of those that it reconciles.
fn pods(facts: &Facts) -> Result<impl Iterator<Item = &Pod>, String> {
    let installation = facts.installation.get().ok();
    let is_own = move |pod: &&Pod| {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        installation.is_none_or(|installation| installation.watches(namespace))
    };
    Ok(facts.pods.get()?.iter().filter(is_own))
}

/// Returns whether a Pod has not finished.
fn is_active(pod: &&Pod) -> bool {
    !matches!(phase(pod), Some("Succeeded" | "Failed"))
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}
