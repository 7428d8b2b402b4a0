//! Warnings about fields that have no effect: they are stored as written.

use ipu_core::Warning;
use serde_json::Value;

use crate::crd::is_partition_variable;

/// Returns the warnings about fields of a job's `spec` without effect.
pub(super) fn ignored_fields(spec: &Value) -> Vec<Warning> {
    let mut all = Vec::new();
    if spec["workers"]["hostNetwork"] == true {
        all.push(Warning::new(
            "spec.workers.hostNetwork",
            Some("true"),
            "has no effect: it can only disable the host network",
            "leave it out",
        ));
    }
    let template = &spec["workers"]["template"]["spec"];
    let policy = template["restartPolicy"].as_str();
    if let Some(policy) = policy.filter(|policy| *policy != "Never") {
        all.push(Warning::new(
            "spec.workers.template.spec.restartPolicy",
            Some(policy),
            "is always Never: the operator restarts whole instances",
            "use spec.restartPolicy",
        ));
    }
    replaced_variables(&spec["launcher"]["env"], "spec.launcher.env", &mut all);
    for list in ["initContainers", "containers"] {
        let containers = template[list].as_array().into_iter().flatten();
        for (number, container) in containers.enumerate() {
            let field = format!("spec.workers.template.spec.{list}[{number}].env");
            replaced_variables(&container["env"], &field, &mut all);
        }
    }
    all
}

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

/// Adds warnings about variables of a list that are replaced.
fn replaced_variables(list: &Value, field: &str, all: &mut Vec<Warning>) {
    let names = list.as_array().into_iter().flatten();
    let names = names.filter_map(|variable| variable["name"].as_str());
    for name in names.filter(|name| is_partition_variable(name)) {
        all.push(Warning::new(
            field,
            Some(name),
            "is replaced: it contains the address of the job's partition",
            "leave it out",
        ));
    }
}
