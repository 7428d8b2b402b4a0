//! Commands that restore shipped objects of an installation, by the program that created it.

use k8s_openapi::api::apps::v1::Deployment;

use super::super::facts::{Facts, WebhookConfiguration};
use super::super::finding::Fix;
use super::bundle;
use crate::installation::{Installation, Origin, registry, version};

/// Chart in the bundle.
const CHART: &str = "deploy/helm/ipu-operator";
/// Namespace in the shipped manifests.
const NAMESPACE: &str = "ipu-operator-system";
/// Condition of the commands that restore an installation.
pub(super) const IMITATION: &str = "Run it only if this is the namespace of your installation: users who may create \
                         Deployments can imitate one in theirs.";
/// Selector of the objects of the webhooks.
const WEBHOOKS: &str = "app.kubernetes.io/component=admission-webhook";

/// Returns the command that creates absent webhook configurations and their Service again, and leaves other
/// objects of manifests as they are.
pub(super) fn webhooks(installation: &Installation) -> Fix {
    restored(
        installation,
        &["operator", "webhooks"],
        &format!(" --selector {WEBHOOKS}"),
    )
}

/// Returns the command that creates the proxy again, with the registry of the operator's image.
pub(super) fn proxy(installation: &Installation) -> Fix {
    restored(installation, &["proxy"], "")
}

/// Returns the command that restores accounts, roles and their bindings.
pub(super) fn rights(installation: &Installation) -> Fix {
    restored(installation, &["operator-access", "proxy-access"], "")
}

/// Returns the command that gives the operator its rights in a namespace that is being deleted. The deletion
/// takes the RoleBinding first, and the API server accepts no other one there.
pub(super) fn rights_of_terminating(installation: &Installation) -> Fix {
    let Installation {
        namespace,
        operator,
        operator_account,
        ..
    } = installation;
    let prefix = operator.trim_end_matches("controller-manager");
    let binding = format!("{prefix}end-of-namespace");
    Fix::run(format!(
        "kubectl create clusterrolebinding {binding} --clusterrole={prefix}manager --serviceaccount={namespace}:{operator_account}"
    ))
    .with_note(format!(
        "Its jobs hold IPUs until the operator may end them. With roles of your own, bind yours. When the namespace is gone, run `kubectl delete \
         clusterrolebinding {binding}`."
    ))
}

fn restored(installation: &Installation, files: &[&str], flags: &str) -> Fix {
    let Installation {
        namespace,
        instance,
        origin,
        registry,
        version,
        ..
    } = installation;
    bundle::other_than(version.as_deref()).unwrap_or_else(|| match origin {
        Origin::Release(release) => Fix::run(upgrade(release, namespace)).with_note(IMITATION),
        Origin::Rendering => rendering(instance, namespace),
        Origin::Manifests => Fix::run(manifests(namespace, registry, files, flags)).with_note(IMITATION),
    })
}

/// Returns the command that applies a release of Helm again.
///
/// Objects that exist keep the edits that the chart allows. Without an edit by `kubectl`, Helm 4 has no
/// conflict, and Helm 3 knows no `--force-conflicts`.
fn upgrade(release: &str, namespace: &str) -> String {
    format!("helm upgrade {release} {CHART} --namespace {namespace} --reset-then-reuse-values")
}

/// Returns the command that sets a value of a release of Helm; none for other installations.
pub(super) fn set_value(installation: &Installation, value: &str) -> Option<Fix> {
    let Origin::Release(release) = &installation.origin else {
        return None;
    };
    let set = || {
        let upgrade = upgrade(release, &installation.namespace);
        Fix::template(format!("{upgrade} {value}")).with_note(IMITATION)
    };
    Some(bundle::other_than(installation.version.as_deref()).unwrap_or_else(set))
}

/// Returns the command that applies a rendering of the chart again. Only its owner has the values.
fn rendering(instance: &str, namespace: &str) -> Fix {
    let command = format!(
        "helm template {instance} {CHART} --namespace {namespace} --values VALUES.yaml | kubectl apply -f -"
    );
    Fix::template(command).with_note(
        "The objects are a rendering of the chart, not a release of Helm: use its values, or synchronize it by the \
         GitOps tool.",
    )
}

/// Returns the `sed` edits of the shipped manifests for a namespace and a registry.
fn edits(namespace: &str, registry: &str) -> String {
    let mut edits = String::new();
    if namespace != NAMESPACE {
        edits.push_str(&format!("s/{NAMESPACE}/{namespace}/;"));
    }
    if !registry.is_empty() {
        edits.push_str(&format!("s|image: |image: {registry}|;"));
    }
    edits
}

/// Returns the command that applies `files` of the manifests, in the namespace and with the registry of the
/// installation.
fn manifests(namespace: &str, registry: &str, files: &[&str], flags: &str) -> String {
    let edits = edits(namespace, registry);
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

/// Objects of an installation whose operator is absent.
struct Remains<'a> {
    origin: &'a Origin,
    instance: &'a str,
    namespace: &'a str,
    registry: String,
    version: Option<String>,
}

/// Returns the command that creates an absent operator, beside the objects of its installation if some are
/// left.
///
/// # Errors
///
/// The reason why a fact is hidden.
pub(super) fn operator(facts: &Facts) -> Result<Fix, String> {
    let mut configurations = facts.validating.get()?.iter().chain(facts.mutating.get()?);
    let of_webhooks = facts.webhook_namespaces();
    // Users who may create Deployments can imitate a proxy, but not webhooks.
    let is_trusted = |proxy: &&Deployment| {
        let namespace = proxy.metadata.namespace.as_deref();
        of_webhooks.is_empty() || namespace.is_some_and(|namespace| of_webhooks.contains(namespace))
    };
    let proxies: Vec<_> = facts.proxies.get()?.iter().filter(is_trusted).collect();
    let origins: Vec<_> = proxies.iter().map(|proxy| Origin::of(&proxy.metadata)).collect();
    let of_proxy = proxies.iter().zip(&origins).find_map(|(proxy, origin)| {
        let labels = proxy.metadata.labels.as_ref();
        Some(Remains {
            origin,
            instance: labels
                .and_then(|labels| labels.get("app.kubernetes.io/instance"))
                .map_or("", String::as_str),
            namespace: proxy.metadata.namespace.as_deref()?,
            registry: registry(proxy, "vipu-proxy").unwrap_or_default(),
            version: version(proxy),
        })
    });
    let remains = of_proxy.or_else(|| configurations.find_map(of_configuration));
    let crd = facts.crd.get()?.as_ref();
    let crd = crd.and_then(super::crd::version_of);
    if let Some(advice) = bundle::too_old(crd) {
        return Ok(advice);
    }
    let Some(remains) = remains else {
        return Ok(Fix::run(install("gc", "ipu")).with_note(
            "Set your registry and controllers, too. If a namespace has the ledger of an earlier installation, use \
             that namespace. Without Helm, use `kubectl apply -k deploy/kubernetes` instead.",
        ));
    };
    if let Some(version) = &remains.version
        && let Some(advice) = bundle::other_than(Some(version))
    {
        return Ok(advice);
    }
    let names = facts.namespaces.get()?.iter();
    let mut names = names.filter_map(|namespace| namespace.metadata.name.as_deref());
    Ok(remains.completed(names.any(|name| name == remains.namespace)))
}

/// Returns the installation that a webhook configuration is left of.
fn of_configuration(configuration: &WebhookConfiguration) -> Option<Remains<'_>> {
    let WebhookConfiguration {
        origin,
        instance,
        release_namespace,
        ..
    } = configuration;
    // Graphcore's operator has such webhooks, too.
    let is_own = configuration.name.ends_with("-admission");
    let namespace = release_namespace.as_deref().or(configuration.service_namespace());
    Some(Remains {
        origin,
        instance: instance.as_deref().unwrap_or_default(),
        namespace: namespace.filter(|_| is_own && !configuration.webhooks.is_empty())?,
        registry: String::new(),
        version: None,
    })
}

fn install(release: &str, namespace: &str) -> String {
    format!("helm install {release} {CHART} --namespace {namespace} --create-namespace")
}

impl Remains<'_> {
    fn completed(&self, has_namespace: bool) -> Fix {
        const LOST: &str = "The values of the installation are lost with its namespace: set yours.";
        let Self {
            namespace,
            instance,
            registry,
            ..
        } = self;
        match self.origin {
            Origin::Release(release) if has_namespace => {
                Fix::run(upgrade(release, namespace)).with_note(IMITATION)
            }
            // Helm adopts the objects outside of the namespace, which name this release.
            Origin::Release(release) => Fix::run(install(release, namespace)).with_note(LOST),
            Origin::Rendering => rendering(instance, namespace),
            Origin::Manifests if has_namespace => {
                let files = ["operator-access", "operator", "webhooks"];
                Fix::run(manifests(namespace, registry, &files, "")).with_note(IMITATION)
            }
            Origin::Manifests => {
                let edits = edits(namespace, registry);
                let edit = if edits.is_empty() {
                    String::new()
                } else {
                    format!(" | sed '{edits}'")
                };
                let command = format!("kubectl kustomize deploy/kubernetes{edit} | kubectl apply -f -");
                Fix::run(command).with_note(LOST)
            }
        }
    }
}
