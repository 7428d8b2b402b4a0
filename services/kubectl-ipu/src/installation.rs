//! The examined installation, from the flags of its Deployments.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use crate::exit_code::{Code, Failure, api_text};

/// Selector of operators.
pub(crate) const OPERATORS: &str =
    "app.kubernetes.io/component=controller-manager,control-plane=controller-manager";
/// Selector of proxies.
pub(crate) const PROXIES: &str = "app.kubernetes.io/component=vipu-proxy";
/// Prefix of the variables of the operator.
const OPERATOR_PREFIX: &str = "IPU_OPERATOR_";
/// Default names of objects, those of `deploy/kubernetes`.
const LEASE: &str = "ee82fc7a.graphcore.ai";
const TRACKER: &str = "ipu-partitions-tracker";

/// Program that created the objects of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `kubectl apply` of the manifests.
    Manifests,
    /// `kubectl apply` of a rendering of the chart, as GitOps tools do. Helm knows no such release.
    Rendering,
    /// A release of Helm, with its name.
    Release(String),
}

impl Origin {
    /// Reads the origin of an object. Renderings have the label of Helm, but not its annotations.
    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        let annotation = |name| metadata.annotations.as_ref()?.get(name);
        let label = |name| metadata.labels.as_ref()?.get(name);
        match annotation("meta.helm.sh/release-name").filter(|name| is_name(name)) {
            Some(release) => Self::Release(release.clone()),
            None if label("app.kubernetes.io/managed-by").is_some_and(|by| by == "Helm") => Self::Rendering,
            None => Self::Manifests,
        }
    }
}

/// Names and settings of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Installation {
    pub(crate) namespace: String,
    /// Value of the label `app.kubernetes.io/instance`.
    pub(crate) instance: String,
    pub(crate) origin: Origin,
    /// Part of the operator's image before its name, with a `/` at the end; empty without a registry.
    pub(crate) registry: String,
    /// Name of the operator's Deployment.
    pub(crate) operator: String,
    pub(crate) operator_account: String,
    /// Tag of the operator's image, or the label with its version.
    pub(crate) version: Option<String>,
    pub(crate) lease: String,
    pub(crate) webhook_service: String,
    /// Secret of the webhooks' certificate; none if another program makes it.
    pub(crate) webhook_secret: Option<String>,
    /// Secret at `--webhook-cert-dir` of the operator: a certificate of another program.
    pub(crate) mounted_secret: Option<String>,
    /// Name of both webhook configurations; none if their certificates are not the operator's.
    pub(crate) webhook_configuration: Option<String>,
    pub(crate) launcher_image: Option<String>,
    /// Whether the operator updates the CRD.
    pub(crate) maintains_crd: bool,
    pub(crate) host_network: bool,
    /// Namespaces of its jobs; empty for all.
    pub(crate) watch_namespaces: BTreeSet<String>,
    /// Secret with the certificate of the proxy.
    pub(crate) proxy_secret: String,
    /// Name of this Secret, if the operator makes it (`--proxy-secret`).
    pub(crate) own_proxy_secret: Option<String>,
    /// Name of the proxy's Deployment and Service.
    pub(crate) proxy: String,
    /// ServiceAccount of the proxy; none if its Deployment was not found.
    pub(crate) proxy_account: Option<String>,
    pub(crate) controllers_configmap: Option<String>,
    pub(crate) tracker: String,
}

/// Finds the installation in `namespace`, or in any one.
pub(crate) async fn find(client: &Client, namespace: Option<&str>) -> Result<Installation, Failure> {
    let api: Api<Deployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let listed = api.list(&ListParams::default().labels(OPERATORS)).await;
    let listed = listed.map_err(|error| {
        let action = match namespace {
            Some(namespace) => format!("find the operator in namespace {namespace}"),
            None => "find the operator in all namespaces; name its namespace by --operator-namespace".into(),
        };
        Failure::api(action, error)
    })?;
    let operators = find_operators(listed.items);
    if operators.len() > 1 {
        let namespaces: Vec<String> = operators
            .iter()
            .filter_map(kube::ResourceExt::namespace)
            .collect();
        let problem = format!(
            "there are several operators, in the namespaces {}: choose one by --operator-namespace",
            namespaces.join(", ")
        );
        return Err(Failure::new(Code::Usage, problem));
    }
    let examined = examine(client, &operators).await;
    examined.map_err(|reason| Failure::new(Code::NotFound, reason))
}

/// Examines the first of these operators.
///
/// # Errors
///
/// The reason why there is no installation.
pub(crate) async fn examine(client: &Client, operators: &[Deployment]) -> Result<Installation, String> {
    let Some(operator) = operators.first() else {
        return Err(
            "no operator was found: correct --operator-namespace, or use `kubectl ipu doctor`".into(),
        );
    };
    let namespace = operator.namespace().unwrap_or_default();
    let instance = operator.labels().get("app.kubernetes.io/instance").cloned();
    let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let proxies = api.list(&ListParams::default().labels(PROXIES)).await;
    let proxies =
        proxies.map_err(|error| format!("cannot list Deployments of {namespace}: {}", api_text(&error)))?;
    let proxies = find_proxies(proxies.items);
    let own = proxies
        .iter()
        .find(|proxy| proxy.labels().get("app.kubernetes.io/instance") == instance.as_ref());
    let examined = Installation::new(operator, own);
    examined.ok_or_else(|| {
        format!(
            "the Deployment {namespace}/{} has no container",
            operator.name_any()
        )
    })
}

/// Returns the Deployments of operators.
pub(crate) fn find_operators(all: Vec<Deployment>) -> Vec<Deployment> {
    all.into_iter()
        .filter(|deployment| {
            flags_of(deployment, OPERATOR_PREFIX).is_some_and(|flags| flags.contains_key("vipu-proxy-svc"))
        })
        .collect()
}

/// Returns the Deployments of proxies with a ledger in Kubernetes.
pub(crate) fn find_proxies(all: Vec<Deployment>) -> Vec<Deployment> {
    all.into_iter()
        .filter(|deployment| {
            flags_of(deployment, "VIPU_PROXY_")
                .is_some_and(|flags| flags.get("store").is_some_and(|store| store == "kubernetes"))
        })
        .collect()
}

impl Installation {
    /// Reads the flags of an operator and of its proxy, if that could be read.
    pub(crate) fn new(operator: &Deployment, proxy: Option<&Deployment>) -> Option<Self> {
        let namespace = operator.metadata.namespace.clone()?;
        let name = operator.metadata.name.clone()?;
        let flags = flags_of(operator, OPERATOR_PREFIX)?;
        let proxy_flags = proxy
            .and_then(|proxy| flags_of(proxy, "VIPU_PROXY_"))
            .unwrap_or_default();
        let label = |label: &str| operator.metadata.labels.as_ref()?.get(label).cloned();
        let flag = |name: &str| flags.get(name).cloned();
        // Printed commands contain these, and any user may create a Deployment.
        let name_in = |flag: &str| flags.get(flag).filter(|name| is_name(name)).cloned();
        let host = flag("vipu-proxy-svc").unwrap_or_default();
        let host = host.split("://").last().unwrap_or_default().to_owned();
        let proxy_name = host.split(['.', ':', '/']).next().unwrap_or_default();
        let proxy_name = Some(proxy_name)
            .filter(|name| is_name(name))
            .unwrap_or_default()
            .to_owned();
        let is_true = |value: &String| value == "true" || value == "1" || value.is_empty();
        Some(Self {
            instance: label("app.kubernetes.io/instance").unwrap_or_default(),
            origin: Origin::of(&operator.metadata),
            registry: registry(operator, "ipu-operator").unwrap_or_default(),
            operator_account: account(operator).unwrap_or_else(|| "default".into()),
            version: version(operator),
            lease: name_in("leader-election-id").unwrap_or_else(|| LEASE.into()),
            webhook_service: name_in("webhook-service").unwrap_or_else(|| "ipu-operator-webhook-svc".into()),
            webhook_secret: name_in("webhook-secret"),
            mounted_secret: flags
                .get("webhook-cert-dir")
                .and_then(|directory| mounted_secret(operator, directory)),
            webhook_configuration: name_in("validating-webhook-configuration"),
            launcher_image: flag("launcher-image").map(|image| with_tag(image, flag("launcher-image-tag"))),
            maintains_crd: flags.get("maintain-crd").is_some_and(is_true),
            host_network: flags.get("host-network").is_none_or(is_true),
            watch_namespaces: flag("watch-namespaces")
                .unwrap_or_default()
                .split(',')
                .map(str::trim)
                .filter(|namespace| !namespace.is_empty())
                .map(str::to_owned)
                .collect(),
            own_proxy_secret: name_in("proxy-secret"),
            proxy_secret: name_in("proxy-secret").unwrap_or_else(|| proxy_name.clone()),
            proxy: proxy
                .and_then(|proxy| proxy.metadata.name.clone())
                .unwrap_or(proxy_name),
            proxy_account: proxy.map(|proxy| account(proxy).unwrap_or_else(|| "default".into())),
            controllers_configmap: proxy_flags
                .get("controllers-configmap")
                .filter(|name| is_name(name))
                .cloned(),
            tracker: proxy_flags
                .get("tracker")
                .filter(|name| is_name(name))
                .cloned()
                .unwrap_or_else(|| TRACKER.into()),
            namespace,
            operator: name,
        })
    }

    /// Returns the name of the ConfigMap with the ledger.
    ///
    /// # Errors
    ///
    /// The reason why it is not known.
    pub(crate) fn ledger(&self) -> Result<&str, String> {
        match self.proxy_account {
            Some(_) => Ok(&self.tracker),
            None => Err(format!(
                "the Deployment {}/{} of the proxy was not found, so the name of the ledger is not known",
                self.namespace, self.proxy
            )),
        }
    }

    /// Returns whether both have the same operator.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.namespace, &self.operator) == (&other.namespace, &other.operator)
    }

    /// Returns whether the operator reconciles the jobs of a namespace.
    pub(crate) fn watches(&self, namespace: &str) -> bool {
        self.watch_namespaces.is_empty() || self.watch_namespaces.contains(namespace)
    }
}

/// Returns whether a text has the characters of names of Kubernetes objects only.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    // A command would read a leading hyphen as an option.
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(allowed)
}

fn account(deployment: &Deployment) -> Option<String> {
    deployment
        .spec
        .as_ref()?
        .template
        .spec
        .as_ref()?
        .service_account_name
        .clone()
}

/// Returns the Secret that the container mounts at this directory.
fn mounted_secret(deployment: &Deployment, directory: &str) -> Option<String> {
    let mut mounts = container(deployment)?.volume_mounts.iter().flatten();
    let mount =
        mounts.find(|mount| mount.mount_path.trim_end_matches('/') == directory.trim_end_matches('/'))?;
    let volumes = &deployment.spec.as_ref()?.template.spec.as_ref()?.volumes;
    let volume = volumes
        .iter()
        .flatten()
        .find(|volume| volume.name == mount.name)?;
    let name = volume.secret.as_ref()?.secret_name.as_ref();
    name.filter(|name| is_name(name)).cloned()
}

/// Returns the label with the version, or else the tag of the image.
pub(crate) fn version(deployment: &Deployment) -> Option<String> {
    let labels = deployment.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get("app.kubernetes.io/version"));
    label.cloned().or_else(|| {
        let image = container(deployment)?.image.as_deref()?.split('@').next()?;
        let name = image.rsplit('/').next()?;
        name.rsplit_once(':').map(|(_, tag)| tag.to_owned())
    })
}

fn container(deployment: &Deployment) -> Option<&Container> {
    deployment
        .spec
        .as_ref()?
        .template
        .spec
        .as_ref()?
        .containers
        .first()
}

/// Appends the tag to an image that has none, as the operator does.
fn with_tag(image: String, tag: Option<String>) -> String {
    // A colon before the last slash belongs to the port of a registry.
    let name = image.rsplit('/').next().unwrap_or_default();
    match tag {
        Some(tag) if !tag.is_empty() && !name.contains([':', '@']) => format!("{image}:{tag}"),
        _ => image,
    }
}

/// Returns the part of an image before its name, if this is the `expected` name of the manifests.
pub(crate) fn registry(deployment: &Deployment, expected: &str) -> Option<String> {
    let image = container(deployment)?.image.as_deref()?;
    let (registry, name) = image.rsplit_once('/')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./:_-".contains(c);
    (name.split(':').next() == Some(expected) && registry.chars().all(is_plain))
        .then(|| format!("{registry}/"))
}

/// Returns the values of flags by their name, also of those set by variables. Flags win.
fn flags_of(deployment: &Deployment, prefix: &str) -> Option<BTreeMap<String, String>> {
    let container = container(deployment)?;
    let mut flags = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.name.strip_prefix(prefix), &variable.value) {
            flags.insert(name.to_lowercase().replace('_', "-"), value.clone());
        }
    }
    let words = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten());
    let words: Vec<&String> = words.collect();
    for (index, word) in words.iter().enumerate() {
        let Some(flag) = word.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let next = words.get(index + 1).filter(|next| !next.starts_with("--"));
                (flag, next.map_or_else(String::new, |next| (*next).clone()))
            }
        };
        flags.insert(name.to_owned(), value);
    }
    Some(flags)
}
