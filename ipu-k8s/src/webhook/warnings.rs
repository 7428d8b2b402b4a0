//! What a job says and nobody heeds: it is warned about, and stays as it was written.

use ipu_core::Warning;
use serde_json::Value;

use crate::crd::leads_to_partition;

/// What `job` says in vain.
pub(super) fn ignored(job: &Value) -> Vec<Warning> {
    let mut all = Vec::new();
    if job.pointer("/spec/workers/hostNetwork") == Some(&Value::Bool(true)) {
        all.push(Warning::new(
            "spec.workers.hostNetwork",
            Some("true"),
            "changes nothing: it can only keep a job off the network of its host",
            "leave it out",
        ));
    }
    let template = "/spec/workers/template/spec";
    let policy = job.pointer(&format!("{template}/restartPolicy"));
    if let Some(policy) = policy.and_then(Value::as_str).filter(|policy| *policy != "Never") {
        all.push(Warning::new(
            "spec.workers.template.spec.restartPolicy",
            Some(policy),
            "is always Never: the operator restarts whole instances",
            "use spec.restartPolicy",
        ));
    }
    variables(job.pointer("/spec/launcher/env"), "spec.launcher.env", &mut all);
    for list in ["initContainers", "containers"] {
        let containers = job.pointer(&format!("{template}/{list}"));
        let containers = containers.and_then(Value::as_array).into_iter().flatten();
        for (number, container) in containers.enumerate() {
            let field = format!("spec.workers.template.spec.{list}[{number}].env");
            variables(container.get("env"), &field, &mut all);
        }
    }
    all
}

/// The variables of a list that are replaced.
fn variables(list: Option<&Value>, field: &str, all: &mut Vec<Warning>) {
    let names = list.and_then(Value::as_array).into_iter().flatten();
    let names = names.filter_map(|variable| variable["name"].as_str());
    for name in names.filter(|name| leads_to_partition(name)) {
        all.push(Warning::new(
            field,
            Some(name),
            "is replaced: it leads to the partition that the job gets",
            "leave it out",
        ));
    }
}
