//! Warnings about updates that running Pods do not follow.

use ipu_core::job::Warning;
use serde_json::Value;

/// Returns a warning if the Pods that a job has keep what the update changes. `old` and `new` are the whole
/// objects.
pub(super) fn delayed_change(old: &Value, new: &Value) -> Option<Warning> {
    let instances = old["status"]["instances"].as_array().into_iter().flatten();
    let mut names = instances.filter_map(|instance| instance["workers"].as_array());
    let has_pods = names.any(|names| !names.is_empty());
    let (old, new) = (&old["spec"], &new["spec"]);
    let changed = ["workers", "launcher"]
        .into_iter()
        .find(|field| old[*field] != new[*field])?;
    has_pods.then(|| {
        Warning::new(
            &format!("spec.{changed}"),
            Some("{…}"),
            "applies to Pods that are created from now on: those of new instances, and of the next attempt",
            "suspend and resume the job to apply it to all at once",
        )
    })
}
