//! Commands that restore shipped objects of an installation.

use crate::installation::Installation;

/// Namespace in the shipped manifests.
const NAMESPACE: &str = "ipu-operator-system";
/// Selector of the objects of the webhooks.
const WEBHOOKS: &str = "app.kubernetes.io/component=admission-webhook";

/// Returns the command that creates absent webhook configurations and their Service again, and leaves other
/// objects of manifests as they are.
pub(super) fn webhooks(installation: &Installation) -> String {
    match release(installation) {
        Some(command) => command,
        None => manifests(
            installation,
            &["operator", "webhooks"],
            &format!(" --selector {WEBHOOKS}"),
        ),
    }
}

/// Returns the command that creates the proxy again, with the registry of the operator's image.
pub(super) fn proxy(installation: &Installation) -> String {
    match release(installation) {
        Some(command) => command,
        None => manifests(installation, &["proxy"], ""),
    }
}

/// Returns the command that restores accounts, roles and their bindings.
pub(super) fn rights(installation: &Installation) -> String {
    match release(installation) {
        Some(command) => command,
        None => manifests(installation, &["operator-access", "proxy-access"], ""),
    }
}

/// Returns the command that applies a release of Helm again; none for an installation by manifests.
///
/// Objects that exist keep the edits that the chart allows. Without an edit by `kubectl`, Helm 4 has no
/// conflict, and Helm 3 knows no `--force-conflicts`.
fn release(installation: &Installation) -> Option<String> {
    let Installation {
        namespace, instance, ..
    } = installation;
    installation.is_helm_release.then(|| {
        format!(
            "helm upgrade {instance} deploy/helm/ipu-operator --namespace {namespace} --reset-then-reuse-values"
        )
    })
}

/// Returns the command that applies `files` of the manifests, in the namespace and with the registry of the
/// installation.
fn manifests(installation: &Installation, files: &[&str], flags: &str) -> String {
    let Installation {
        namespace, registry, ..
    } = installation;
    let mut edits = String::new();
    if namespace != NAMESPACE {
        edits.push_str(&format!("s/{NAMESPACE}/{namespace}/;"));
    }
    if !registry.is_empty() {
        edits.push_str(&format!("s|image: |image: {registry}|;"));
    }
    let apply = |file: &&str| {
        let file = format!("deploy/kubernetes/{file}.yaml");
        if edits.is_empty() {
            format!("kubectl apply -n {namespace} -f {file}{flags}")
        } else {
            format!("sed '{edits}' {file} | kubectl apply -n {namespace} -f -{flags}")
        }
    };
    files.iter().map(apply).collect::<Vec<_>>().join(" && ")
}
