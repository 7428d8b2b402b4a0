//! V-IPU controllers: their list, their state, and their nodes.

use ipu_proxy_client::{ControllerStatus, UnrecordedPartition};
use ipu_vipu_client::{ControllerEndpoint, NodeLabel, parse_controllers};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use crate::doctor::facts::{Facts, known};
use crate::doctor::finding::{CheckResult, Finding, Fix};
use crate::doctor::fixes;

/// Key of the list in its ConfigMap.
const CONTROLLERS_KEY: &str = "controllers.yaml";
/// Example of an entry of the list, with words to replace.
const EXAMPLE: &str = "HOST:8090:KEY=VALUE";

/// Returns the list, or the reason why it is invalid.
fn list(facts: &Facts) -> Result<Result<Vec<ControllerEndpoint>, String>, String> {
    let Some(map) = known(&facts.controller_list)? else {
        return Ok(Err("absent".into()));
    };
    let text = map.data.as_ref().and_then(|data| data.get(CONTROLLERS_KEY));
    let text = text.map(String::as_str).unwrap_or_default();
    Ok(parse_controllers(text).map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!(
            "{CONTROLLERS_KEY} is {text:?}: {error}{}",
            source.unwrap_or_default()
        )
    }))
}

pub(super) fn list_invalid(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    let (namespace, name) = (&installation.namespace, installation.controllers_config_map()?);
    let Err(actual) = list(facts)? else {
        return Ok(Vec::new());
    };
    let fix = if known(&facts.controller_list)?.is_some() {
        Fix::template(format!(
            "kubectl -n {namespace} patch configmap {name} --type merge -p '{{\"data\": {{\"{CONTROLLERS_KEY}\": \"{EXAMPLE}\"}}}}'"
        ))
    } else {
        let value = format!("--set global.vipuControllers={EXAMPLE}");
        let create = format!(
            "kubectl -n {namespace} create configmap {name} --from-literal={CONTROLLERS_KEY}={EXAMPLE}"
        );
        fixes::set_value(installation, &value).unwrap_or_else(|| Fix::template(create))
    };
    Ok(vec![Finding::new(
        format!("ConfigMap {namespace}/{name}"),
        actual,
        fix,
    )])
}

pub(super) fn unreachable(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    let (namespace, (_, proxy, _)) = (&installation.namespace, installation.proxy_service());
    let down = known(&facts.controllers)?
        .iter()
        .filter(|status| !status.available);
    let finding = |status: &ControllerStatus| {
        let fix = Fix::inspect(format!("kubectl -n {namespace} logs deployment/{proxy}"));
        let error = status.error.as_deref().unwrap_or("does not respond");
        Finding::new(format!("controller {}", status.controller.name), error, fix)
    };
    Ok(down.map(finding).collect())
}

pub(super) fn foreign_partitions(facts: &Facts) -> CheckResult {
    Ok(known(&facts.controllers)?.iter().flat_map(foreign_at).collect())
}

/// Returns a finding for each partition of a controller that the ledger does not record.
fn foreign_at(status: &ControllerStatus) -> Vec<Finding> {
    let controller = &status.controller.name;
    let finding = |partition: &UnrecordedPartition| {
        let fix = Fix::inspect(format!("vipu get partition {}", partition.id)).with_note(
            "On a host that uses the controller. If no process has the partition, its user removes it with \
             `vipu remove partition`. Graphcore's Slurm names it `slurm_` and the id of its job.",
        );
        let actual = format!(
            "{} IPUs at controller {controller}, and the ledger does not record it",
            partition.size
        );
        Finding::new(format!("partition {}", partition.id), actual, fix)
    };
    status.foreign.iter().map(finding).collect()
}

/// Returns the node labels of the listed controllers.
fn labels(facts: &Facts) -> Result<Vec<NodeLabel>, String> {
    let controllers = list(facts)??;
    Ok(controllers
        .iter()
        .filter_map(ControllerEndpoint::label)
        .cloned()
        .collect())
}

fn has_label(node: &Node, label: &NodeLabel) -> bool {
    node.labels()
        .get(label.key())
        .is_some_and(|value| value == label.value())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
}

pub(super) fn without_node(facts: &Facts) -> CheckResult {
    let nodes = known(&facts.nodes)?;
    let mut findings = Vec::new();
    for label in labels(facts)? {
        let own: Vec<&Node> = nodes.iter().filter(|node| has_label(node, &label)).collect();
        if own.iter().any(|node| is_ready(node) && !is_cordoned(node)) {
            continue;
        }
        let (actual, fix) = if let Some(cordoned) = own.iter().find(|node| is_ready(node)) {
            let name = cordoned.name_any();
            let note = "If it must stay cordoned, label another node that reaches the IPUs.";
            let fix = Fix::run(format!("kubectl uncordon {name}")).with_note(note);
            (format!("Node {name} has it and is cordoned"), fix)
        } else if let Some(down) = own.first() {
            let name = down.name_any();
            let fix = Fix::inspect(format!("kubectl describe node {name}"));
            (format!("Node {name} has it and is not ready"), fix)
        } else {
            let fix = Fix::template(format!("kubectl label node NODE {label}"));
            ("no node has it".into(), fix)
        };
        findings.push(Finding::new(format!("label {label}"), actual, fix));
    }
    Ok(findings)
}

pub(super) fn rdma_unavailable(facts: &Facts) -> CheckResult {
    // Other nodes may keep a resource of a removed plugin, with nothing allocatable.
    let labels = labels(facts)?;
    let nodes = known(&facts.nodes)?.iter();
    let mut findings = Vec::new();
    for node in nodes.filter(|node| labels.iter().any(|label| has_label(node, label))) {
        let Some(status) = &node.status else { continue };
        let capacity = status.capacity.iter().flatten().map(|(name, _)| name);
        for resource in capacity.filter(|name| name.starts_with("rdma/")) {
            let allocatable = status.allocatable.as_ref().and_then(|all| all.get(resource));
            if allocatable.is_none_or(|quantity| quantity.0 == "0") {
                let fix = Fix::inspect(format!("kubectl describe node {}", node.name_any()));
                let actual = format!("{resource} has nothing allocatable");
                findings.push(Finding::new(format!("Node {}", node.name_any()), actual, fix));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use ipu_core::{ControllerName, PartitionId};
    use ipu_proxy_client::ControllerDocument;

    use super::*;

    #[test]
    fn a_partition_that_a_user_left_is_named_with_its_controller() {
        let mut status =
            ControllerStatus::new(ControllerDocument::new(ControllerName::new("pod:8090").unwrap()));
        assert!(foreign_at(&status).is_empty());
        status.foreign = vec![UnrecordedPartition::new(PartitionId::new("slurm_22").unwrap(), 4)];
        let findings = foreign_at(&status);
        assert_eq!(findings[0].object, "partition slurm_22");
        assert_eq!(
            findings[0].actual,
            "4 IPUs at controller pod:8090, and the ledger does not record it"
        );
    }
}
