//! The installation in use: its Deployments, and the settings in their flags.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use crate::exit_code::{Code, Failure, api_failure};

/// Selector of operators.
pub(crate) const OPERATOR_SELECTOR: &str =
    "app.kubernetes.io/component=controller-manager,control-plane=controller-manager";
/// Selector of proxies.
pub(crate) const PROXY_SELECTOR: &str = "app.kubernetes.io/component=vipu-proxy";
/// Label with the name of the installation.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// Deployments of an installation, and their flags.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    pub(crate) namespace: String,
    pub(crate) operator: Deployment,
    /// None if there is none with the label of the installation.
    pub(crate) proxy: Option<Deployment>,
    operator_flags: BTreeMap<String, String>,
    proxy_flags: BTreeMap<String, String>,
}

/// Finds the installation in `namespace`, or in any one.
///
/// # Errors
///
/// No operator, several of them, or the refusal of the API server.
pub(crate) async fn find(client: &Client, namespace: Option<&str>) -> Result<Installation, Failure> {
    let api: Api<Deployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let listed = api.list(&ListParams::default().labels(OPERATOR_SELECTOR)).await;
    let listed = listed.map_err(|error| {
        let action = match namespace {
            Some(namespace) => format!("find the operator in namespace {namespace}"),
            None => "find the operator in all namespaces; name its namespace by --operator-namespace".into(),
        };
        api_failure(action, error)
    })?;
    let mut operators = listed.items;
    operators.retain(is_operator);
    let operator = match operators.len() {
        0 => {
            let text = "no operator was found: correct --operator-namespace, or install it";
            return Err(Failure::new(Code::NotFound, text));
        }
        1 => operators.remove(0),
        _ => {
            let namespaces: Vec<_> = operators.iter().filter_map(ResourceExt::namespace).collect();
            let text = format!(
                "there are several operators, in the namespaces {}: choose one by --operator-namespace",
                namespaces.join(", ")
            );
            return Err(Failure::new(Code::Usage, text));
        }
    };
    let namespace = operator.namespace().unwrap_or_default();
    let labels = format!("{PROXY_SELECTOR},{INSTANCE}={}", label(&operator, INSTANCE));
    let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let proxies = api.list(&ListParams::default().labels(&labels)).await;
    let proxies =
        proxies.map_err(|error| api_failure(format!("list the Deployments of {namespace}"), error))?;
    Ok(Installation::new(operator, proxies.items.into_iter().next()))
}

/// Returns whether a Deployment with the labels of operators is one: Graphcore's has the same labels.
pub(crate) fn is_operator(deployment: &Deployment) -> bool {
    flags_of(deployment, "IPU_OPERATOR_").contains_key("vipu-proxy-svc")
}

/// Returns the release of Helm that an object belongs to. A rendering of the chart has none.
pub(crate) fn release_of(deployment: &Deployment) -> Option<&str> {
    let release = deployment.annotations().get("meta.helm.sh/release-name")?;
    Some(release.as_str()).filter(|release| is_name(release))
}

impl Installation {
    /// Reads the flags of the Deployments.
    pub(crate) fn new(operator: Deployment, proxy: Option<Deployment>) -> Self {
        let proxy_flags = proxy.as_ref().map(|proxy| flags_of(proxy, "VIPU_PROXY_"));
        Self {
            namespace: operator.namespace().unwrap_or_default(),
            operator_flags: flags_of(&operator, "IPU_OPERATOR_"),
            proxy_flags: proxy_flags.unwrap_or_default(),
            operator,
            proxy,
        }
    }

    /// Returns the label with the name of the installation.
    pub(crate) fn instance(&self) -> &str {
        label(&self.operator, INSTANCE)
    }

    /// Returns the version of the operator.
    pub(crate) fn version(&self) -> Option<&str> {
        version_of(&self.operator)
    }

    /// Returns the ServiceAccount of the operator.
    pub(crate) fn operator_account(&self) -> &str {
        account(&self.operator)
    }

    /// Returns the ServiceAccount of the proxy; none without its Deployment.
    pub(crate) fn proxy_account(&self) -> Option<&str> {
        self.proxy.as_ref().map(account)
    }

    /// Returns the name of the Lease of the leader election.
    pub(crate) fn lease(&self) -> &str {
        name_in(&self.operator_flags, "leader-election-id").unwrap_or("ee82fc7a.graphcore.ai")
    }

    /// Returns the name of the Service of the webhooks.
    pub(crate) fn webhook_service(&self) -> &str {
        name_in(&self.operator_flags, "webhook-service").unwrap_or("ipu-operator-webhook-svc")
    }

    /// Returns the Secret of the webhooks' certificate; none if another program makes it.
    pub(crate) fn webhook_secret(&self) -> Option<&str> {
        name_in(&self.operator_flags, "webhook-secret")
    }

    /// Returns the name of both webhook configurations; none if their certificates are not the operator's.
    pub(crate) fn webhook_configuration(&self) -> Option<&str> {
        name_in(&self.operator_flags, "validating-webhook-configuration")
    }

    /// Returns the image of the launcher with its tag, as Pods have it.
    pub(crate) fn launcher_image(&self) -> Option<String> {
        let image = self.operator_flags.get("launcher-image")?;
        // A colon before the last slash belongs to the port of a registry.
        let name = image.rsplit('/').next().unwrap_or_default();
        Some(match self.operator_flags.get("launcher-image-tag") {
            Some(tag) if !tag.is_empty() && !name.contains([':', '@']) => format!("{image}:{tag}"),
            _ => image.clone(),
        })
    }

    /// Returns whether the Pods of jobs use the host network by default.
    pub(crate) fn uses_host_network(&self) -> bool {
        let flag = self.operator_flags.get("host-network");
        flag.is_none_or(|value| matches!(value.as_str(), "true" | "1" | ""))
    }

    /// Returns the namespaces of its jobs; empty for all.
    pub(crate) fn watch_namespaces(&self) -> BTreeSet<&str> {
        let list = self.operator_flags.get("watch-namespaces");
        let names = list.map(String::as_str).unwrap_or_default().split(',');
        names.map(str::trim).filter(|name| is_name(name)).collect()
    }

    /// Returns whether the operator reconciles the jobs of a namespace.
    pub(crate) fn watches(&self, namespace: &str) -> bool {
        let watched = self.watch_namespaces();
        watched.is_empty() || watched.contains(namespace)
    }

    /// Returns the scheme, the Service and the port by which the operator reaches the proxy.
    pub(crate) fn proxy_service(&self) -> (&str, &str, u16) {
        let url = self.operator_flags.get("vipu-proxy-svc");
        let url = url.map(String::as_str).unwrap_or_default();
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let host = rest.split('/').next().unwrap_or_default();
        let (host, port) = host.split_once(':').unwrap_or((host, ""));
        let default = if scheme == "https" { 443 } else { 80 };
        let name = host.split('.').next().filter(|name| is_name(name));
        (scheme, name.unwrap_or_default(), port.parse().unwrap_or(default))
    }

    /// Returns the Secret with the certificate of the proxy.
    pub(crate) fn proxy_secret(&self) -> &str {
        name_in(&self.operator_flags, "proxy-secret").unwrap_or(self.proxy_service().1)
    }

    /// Returns the ConfigMap with the list of controllers.
    ///
    /// # Errors
    ///
    /// The reason why it is not known.
    pub(crate) fn controllers_config_map(&self) -> Result<&str, String> {
        self.check_proxy()?;
        let name = name_in(&self.proxy_flags, "controllers-configmap");
        name.ok_or_else(|| "the list of the proxy is not in a ConfigMap (`--controllers-configmap`)".into())
    }

    /// Returns the ConfigMap with the ledger.
    ///
    /// # Errors
    ///
    /// The reason why it is not known.
    pub(crate) fn ledger(&self) -> Result<&str, String> {
        self.check_proxy()?;
        Ok(name_in(&self.proxy_flags, "tracker").unwrap_or("ipu-partitions-tracker"))
    }

    fn check_proxy(&self) -> Result<(), String> {
        match self.proxy {
            Some(_) => Ok(()),
            None => Err(format!(
                "the Deployment of the proxy was not found in {}",
                self.namespace
            )),
        }
    }
}

/// Returns the value of a flag that names an object. Printed commands contain it.
fn name_in<'a>(flags: &'a BTreeMap<String, String>, flag: &str) -> Option<&'a str> {
    flags.get(flag).map(String::as_str).filter(|name| is_name(name))
}

/// Returns whether a text has the characters of names of Kubernetes objects only.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    // A command would read a leading hyphen as an option.
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(allowed)
}

fn label<'a>(deployment: &'a Deployment, name: &str) -> &'a str {
    deployment.labels().get(name).map_or("", String::as_str)
}

fn account(deployment: &Deployment) -> &str {
    let spec = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let account = spec.and_then(|spec| spec.service_account_name.as_deref());
    account.unwrap_or("default")
}

/// Returns the label with the version of a Deployment, or else the tag of its image.
pub(crate) fn version_of(deployment: &Deployment) -> Option<&str> {
    let labelled = label(deployment, "app.kubernetes.io/version");
    if !labelled.is_empty() {
        return Some(labelled);
    }
    let image = container(deployment)?.image.as_deref()?.split('@').next()?;
    let (_, tag) = image.rsplit('/').next()?.rsplit_once(':')?;
    Some(tag)
}

/// Returns the container of a Deployment of an installation.
pub(crate) fn container(deployment: &Deployment) -> Option<&Container> {
    deployment
        .spec
        .as_ref()?
        .template
        .spec
        .as_ref()?
        .containers
        .first()
}

/// Returns the values of flags by their name, including those in variables. Flags win.
fn flags_of(deployment: &Deployment, prefix: &str) -> BTreeMap<String, String> {
    let Some(container) = container(deployment) else {
        return BTreeMap::new();
    };
    let variables = container.env.iter().flatten().filter_map(|variable| {
        let name = variable.name.strip_prefix(prefix)?;
        Some((name.to_lowercase().replace('_', "-"), variable.value.clone()?))
    });
    let arguments = container.args.iter().flatten().filter_map(|argument| {
        let flag = argument.strip_prefix("--")?;
        let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
        Some((name.to_owned(), value.to_owned()))
    });
    variables.chain(arguments).collect()
}
