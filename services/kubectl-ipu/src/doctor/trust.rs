//! Operators that webhooks lead to. Users who may create Deployments can imitate an operator, but not its
//! webhooks.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;

use super::facts::{Fact, Facts, WebhookConfiguration};

/// Returns the existing namespaces that webhooks for IPUJobs lead to; none if webhooks are absent or hidden.
pub(super) fn namespaces<'a>(
    configurations: [&'a Fact<Vec<WebhookConfiguration>>; 2],
    existing: &Fact<Vec<Namespace>>,
) -> BTreeSet<&'a str> {
    let configurations = configurations.into_iter().filter_map(|fact| fact.get().ok());
    let found = configurations
        .flatten()
        .filter_map(WebhookConfiguration::service_namespace);
    let exists = |namespace: &&str| {
        existing.get().map_or(true, |existing| {
            let mut names = existing.iter().filter_map(|one| one.metadata.name.as_deref());
            names.any(|name| name == *namespace)
        })
    };
    found.filter(exists).collect()
}

/// Returns whether an object of this namespace can be trusted. Without any namespace, all are.
fn is_trusted(namespace: Option<&str>, trusted: &BTreeSet<&str>) -> bool {
    trusted.is_empty() || namespace.is_some_and(|namespace| trusted.contains(namespace))
}

/// Keeps the operators that can be trusted.
pub(super) fn retain(operators: &mut Vec<Deployment>, trusted: &BTreeSet<&str>) {
    operators.retain(|operator| is_trusted(operator.metadata.namespace.as_deref(), trusted));
}

impl Facts {
    /// Returns the existing namespaces that webhooks lead to.
    pub(super) fn webhook_namespaces(&self) -> BTreeSet<&str> {
        namespaces([&self.mutating, &self.validating], &self.namespaces)
    }

    /// Returns the operators that can be trusted: those of the namespaces that webhooks lead to, and the
    /// examined one.
    ///
    /// # Errors
    ///
    /// The reason why operators are hidden.
    pub(super) fn trusted_operators(&self) -> Result<Vec<&Deployment>, String> {
        let trusted = self.webhook_namespaces();
        let examined = self.installation.get().ok();
        let is_examined = |namespace: Option<&str>| {
            examined.is_some_and(|examined| namespace == Some(examined.namespace.as_str()))
        };
        let operators = self.operators.get()?.iter();
        Ok(operators
            .filter(|operator| {
                let namespace = operator.metadata.namespace.as_deref();
                is_trusted(namespace, &trusted) || is_examined(namespace)
            })
            .collect())
    }
}
