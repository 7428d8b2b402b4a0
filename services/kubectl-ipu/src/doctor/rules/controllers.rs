//! V-IPU controllers: their list, their state, and the labels of their nodes.

use ipu_proxy_client::ControllerStatus;
use ipu_vipu_client::{ControllerEndpoint, ControllerListError, NodeLabel, parse_controllers};
use k8s_openapi::api::core::v1::Node;
use semver::Version;

use super::super::facts::Facts;
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::restore;
use crate::installation::{Installation, is_name};

/// Key of the list in its ConfigMap.
const KEY: &str = "controllers.yaml";
/// Major version of the documented V-IPU API.
const KNOWN_MAJOR: u64 = 1;
/// Parts of errors of a plain connection to a port with TLS, and of a rejected handshake.
const TLS_ERRORS: [&str; 7] = [
    "tls",
    "certificate",
    "ssl",
    "handshake",
    "corrupt message",
    // The answer of a TLS server to a plain request, as HTTP/2 reads it, or its end of the connection.
    "frame with invalid size",
    "stream closed because of a broken pipe",
];

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "ControllerListEmpty",
        condition: "The list of V-IPU controllers is absent or empty.",
        effect: "A new proxy has no controller, and all jobs wait. A running proxy keeps its last list.",
        remedy: "Write the list. The proxy uses an edit within a minute.",
        check: list_empty,
    },
    Rule {
        code: "ControllerListMalformed",
        condition: "The list of V-IPU controllers does not have the format `HOST[:PORT][:KEY=VALUE],…`.",
        effect: "The proxy keeps its last list, and a new proxy has no controller.",
        remedy: "Correct the named entry.",
        check: list_malformed,
    },
    Rule {
        code: "ControllerUnreachable",
        condition: "The proxy cannot reach a V-IPU controller.",
        effect: "Its IPUs are unavailable, and its partitions are not released.",
        remedy: "Check host and port, name resolution, and the network policies of the proxy.",
        check: unreachable,
    },
    Rule {
        code: "ControllerTlsFailed",
        condition: "The TLS connection of the proxy and a V-IPU controller fails, such as without TLS at the proxy.",
        effect: "Its IPUs are unavailable, and its partitions are not released.",
        remedy: "Give the proxy the certificates of the controller (`--controllers-secrets`).",
        check: wants_tls,
    },
    Rule {
        code: "ControllerVersionUnknown",
        condition: "A V-IPU controller reports no version, or one other than 1.x.",
        effect: "The proxy was not tested with its API.",
        remedy: "Check that the address is that of a V-IPU controller, and its version.",
        check: unknown_version,
    },
    Rule {
        code: "ControllerWithoutNode",
        condition: "No schedulable node has the label of a V-IPU controller.",
        effect: "Workers with a partition of this controller stay Pending.",
        remedy: "Label the nodes that reach the IPUs of the controller.",
        check: without_node,
    },
];

/// Returns the ConfigMap with the list, as `namespace/name`, and the text.
fn list(facts: &Facts) -> Result<(String, Option<&String>), String> {
    let installation = facts.installation.get()?;
    let Installation { namespace, proxy, .. } = installation;
    if installation.proxy_account.is_none() {
        return Err(format!(
            "the Deployment {namespace}/{proxy} of the proxy was not found, so the name of the list is not known"
        ));
    }
    let Some(name) = &installation.controllers_configmap else {
        return Err("the list of the proxy is not in a ConfigMap (`--controllers-configmap`)".into());
    };
    let map = facts.controller_list.get()?.as_ref();
    let text = map.and_then(|map| map.data.as_ref()?.get(KEY));
    Ok((format!("{namespace}/{name}"), text))
}

/// Example of an entry of the list, with words to replace.
const EXAMPLE: &str = "HOST:8090:KEY=VALUE";

fn edit(name: &str) -> Fix {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    Fix::template(format!(
        "kubectl -n {namespace} patch configmap {name} --type merge -p '{{\"data\": {{\"{KEY}\": \"{EXAMPLE}\"}}}}'"
    ))
}

/// Returns the command that creates an absent list.
fn create(installation: &Installation, name: &str) -> Fix {
    let namespace = &installation.namespace;
    let (_, name) = name.split_once('/').unwrap_or_default();
    let of_manifests = || {
        Fix::template(format!(
            "kubectl -n {namespace} create configmap {name} --from-literal={KEY}={EXAMPLE}"
        ))
    };
    let value = format!("--set global.vipuControllers={EXAMPLE}");
    restore::set_value(installation, &value).unwrap_or_else(of_manifests)
}

fn list_empty(facts: &Facts) -> Checked {
    let (name, text) = list(facts)?;
    if text.is_some_and(|text| !text.trim().is_empty()) {
        return Ok(Vec::new());
    }
    let actual = match (facts.controller_list.get()?, text) {
        (None, _) => "absent".to_owned(),
        (Some(_), None) => format!("no key {KEY}"),
        _ => format!("key {KEY} is empty"),
    };
    let fix = match facts.controller_list.get()? {
        None => create(facts.installation.get()?, &name),
        Some(_) => edit(&name),
    };
    let object = format!("ConfigMap {name}");
    Ok(vec![Finding::new(object, actual, "one controller or more", fix)])
}

fn list_malformed(facts: &Facts) -> Checked {
    let (name, text) = list(facts)?;
    let Some(text) = text else {
        return Err("there is no list".into());
    };
    Ok(match parse_controllers(text) {
        Ok(_) | Err(ControllerListError::Empty) => Vec::new(),
        Err(error) => {
            let mut actual = format!("{text:?}: {error}");
            if let Some(source) = std::error::Error::source(&error) {
                actual.push_str(&format!(": {source}"));
            }
            let expected = "HOST[:PORT][:KEY=VALUE], with commas between controllers";
            vec![Finding::new(
                format!("ConfigMap {name}"),
                actual,
                expected,
                edit(&name),
            )]
        }
    })
}

/// Returns whether the error of a controller is one of TLS.
fn is_tls_error(status: &ControllerStatus) -> bool {
    // The name of the host may contain such a part.
    let error = status.error.as_deref().unwrap_or_default();
    let host = status.controller.host.as_deref().unwrap_or_default();
    let error = error.replace(host, "").to_lowercase();
    TLS_ERRORS.iter().any(|part| error.contains(part))
}

fn object(status: &ControllerStatus) -> String {
    format!("controller {}", status.controller.name)
}

fn unreachable(facts: &Facts) -> Checked {
    let Installation { namespace, proxy, .. } = facts.installation.get()?;
    let down = facts
        .controllers
        .get()?
        .iter()
        .filter(|status| !status.available && !is_tls_error(status));
    let finding = |status: &ControllerStatus| {
        Finding::new(
            object(status),
            status.error.clone().unwrap_or_else(|| "does not respond".into()),
            "responds to the proxy",
            Fix::inspect(format!("kubectl -n {namespace} logs deployment/{proxy}")),
        )
    };
    Ok(down.map(finding).collect())
}

fn wants_tls(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let failed = facts
        .controllers
        .get()?
        .iter()
        .filter(|status| !status.available && is_tls_error(status));
    let finding = |status: &ControllerStatus| {
        let folder = status.controller.name.as_str().replace(':', "_");
        Finding::new(
            object(status),
            status.error.clone().unwrap_or_default(),
            format!("certificates of this controller in the folder {folder} of --controllers-secrets"),
            add_certificates(installation, status.controller.name.as_str()),
        )
    };
    Ok(failed.map(finding).collect())
}

/// Returns the command that gives the proxy the certificates of a controller.
fn add_certificates(installation: &Installation, controller: &str) -> Fix {
    let Installation { namespace, proxy, .. } = installation;
    let secret = controller.replace([':', '_'], "-");
    // Dots separate the keys of a value.
    let key = controller.replace('.', "\\.");
    let value = format!("--set 'vipuProxy.controllersSecrets.{key}={secret}'");
    let mount = restore::set_value(installation, &value)
        .unwrap_or_else(|| Fix::template(format!("kubectl -n {namespace} edit deployment {proxy}")));
    if !is_name(&secret) {
        return Fix::advice("Correct the name of the controller in the list: no Secret can have it.");
    }
    let create = format!("kubectl -n {namespace} create secret generic {secret} --from-file=ca.crt=CA.crt");
    Fix {
        command: mount.command.map(|command| format!("{create} && {command}")),
        ..mount
    }
}

fn unknown_version(facts: &Facts) -> Checked {
    let Installation { namespace, proxy, .. } = facts.installation.get()?;
    let available = facts.controllers.get()?.iter().filter(|status| status.available);
    let finding = |status: &ControllerStatus| {
        let version = status.version.as_deref().unwrap_or_default();
        let number = version.trim_start_matches(|c: char| !c.is_ascii_digit());
        let number = number
            .split(|c: char| !(c.is_ascii_alphanumeric() || ".-+".contains(c)))
            .next();
        let parsed: Option<Version> = number.and_then(|number| number.parse().ok());
        if parsed.is_some_and(|version| version.major == KNOWN_MAJOR) {
            return None;
        }
        let actual = if version.is_empty() {
            "reports no version".into()
        } else {
            format!("version {version:?}")
        };
        let fix = Fix::inspect(format!("kubectl -n {namespace} logs deployment/{proxy}"));
        Some(Finding::new(object(status), actual, "a version 1.x", fix))
    };
    Ok(available.filter_map(finding).collect())
}

/// Returns the node labels of the listed controllers, or an error if the list is absent or malformed.
pub(super) fn labels(facts: &Facts) -> Result<Vec<NodeLabel>, String> {
    let (_, text) = list(facts)?;
    let controllers = text.and_then(|text| parse_controllers(text).ok());
    let controllers = controllers.ok_or("there is no valid list of controllers")?;
    let labels = controllers.iter().filter_map(ControllerEndpoint::label);
    Ok(labels.cloned().collect())
}

/// Returns whether a node has the label.
pub(super) fn has_label(node: &Node, label: &NodeLabel) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(label.key()))
        .is_some_and(|value| value == label.value())
}

fn without_node(facts: &Facts) -> Checked {
    let labels = labels(facts)?;
    let nodes = facts.nodes.get()?;
    let without = labels.iter().filter(|label| {
        !nodes.iter().any(|node| {
            let is_cordoned = node
                .spec
                .as_ref()
                .is_some_and(|spec| spec.unschedulable == Some(true));
            !is_cordoned && has_label(node, label)
        })
    });
    let finding = |label: &NodeLabel| {
        Finding::new(
            format!("label {label}"),
            "no schedulable node has it",
            "one node or more",
            Fix::template(format!("kubectl label node NODE {label}")),
        )
    };
    Ok(without.map(finding).collect())
}
