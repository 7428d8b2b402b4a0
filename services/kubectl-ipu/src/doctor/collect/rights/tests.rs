//! The reviewed rights against the shipped roles.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::Value;

use super::*;

fn documents(file: &str) -> Vec<Value> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes");
    let text = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Returns the shipped Deployment in a file, in the namespace of the manifests.
fn deployment(file: &str) -> Deployment {
    let documents = documents(file);
    let found = documents
        .into_iter()
        .find(|document| document["kind"] == "Deployment");
    let mut deployment: Deployment = serde_json::from_value(found.unwrap()).unwrap();
    deployment.metadata.namespace = Some("ipu-operator-system".into());
    deployment
}

/// Returns the rights of the roles in a shipped manifest.
fn shipped(file: &str) -> BTreeSet<String> {
    let texts = |value: &Value| serde_json::from_value::<Vec<String>>(value.clone()).unwrap_or_default();
    let mut rights = BTreeSet::new();
    for role in documents(file) {
        let scope = match role["kind"].as_str() {
            Some("ClusterRole") => "cluster",
            Some("Role") => "namespace",
            _ => continue,
        };
        for rule in role["rules"].as_array().unwrap() {
            let group = texts(&rule["apiGroups"]).remove(0);
            let mut names = texts(&rule["resourceNames"]);
            if names.is_empty() {
                names.push(String::new());
            }
            for resource in texts(&rule["resources"]) {
                for name in &names {
                    let verbs = texts(&rule["verbs"]);
                    let right = |verb: &String| format!("{scope} {group} {resource} {name} {verb}");
                    rights.extend(verbs.iter().map(right));
                }
            }
        }
    }
    rights
}

fn reviewed(installation: &Installation, account: &str) -> BTreeSet<String> {
    let reviews = needed(installation);
    let own = reviews.iter().filter(|review| review.account.ends_with(account));
    let right = |review: &Review| {
        let scope = if review.namespace.is_none() {
            "cluster"
        } else {
            "namespace"
        };
        let name = review.name.as_deref().unwrap_or_default();
        format!(
            "{scope} {} {} {name} {}",
            review.group, review.resource, review.verb
        )
    };
    own.map(right).collect()
}

#[test]
fn the_reviewed_rights_are_those_of_the_shipped_roles() {
    let (operator, proxy) = (deployment("operator.yaml"), deployment("proxy.yaml"));
    let installation = Installation::new(&operator, Some(&proxy)).unwrap();
    assert_eq!(
        reviewed(&installation, ":ipu-operator-controller"),
        shipped("operator-access.yaml")
    );
    assert_eq!(
        reviewed(&installation, ":ipu-operator-vipu-proxy"),
        shipped("proxy-access.yaml")
    );
}

#[test]
fn rights_of_unused_flags_are_not_reviewed() {
    let mut installation = Installation::new(&deployment("operator.yaml"), None).unwrap();
    installation.maintains_crd = false;
    installation.webhook_secret = None;
    installation.own_proxy_secret = None;
    installation.webhook_configuration = None;
    let reviewed = reviewed(&installation, ":ipu-operator-controller");
    for part in ["customresourcedefinitions", "secrets", "webhookconfigurations"] {
        assert!(
            !reviewed.iter().any(|right| right.contains(part)),
            "{part}: {reviewed:?}"
        );
    }
}
