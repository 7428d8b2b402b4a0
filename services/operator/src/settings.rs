//! What can be set, and where from: flags, then the environment, then the file, then the default.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipu_core::{IpuCount, Limits};
use ipu_k8s::webhook::AdmissionRules;
use serde::Deserialize;

use crate::certificates::is_name_or_address;

/// The names that the original chart gives to its objects.
const PROXY: &str = "ipu-operator-vipu-proxy";
/// The most instances of a job unless set: a status has room for some thousands, and so has the line of the proxy for all jobs together.
const MAX_INSTANCES: u32 = 1024;
const WEBHOOK_SERVICE: &str = "ipu-operator-webhook-svc";
const METRICS_SERVICE: &str = "ipu-operator-controller-manager-metrics";
const ADMISSION: &str = "ipu-operator-admission";
/// The lock of the original operator: it and this one never work at the same time.
const LEASE: &str = "ee82fc7a.graphcore.ai";
const WEBHOOKS_PORT: u16 = 9443;
const METRICS: &str = ":8443";
const PROBES: &str = ":8081";

/// Everything that can be set. In the file, keys are the names of the flags without the dashes before them.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Settings {
    /// The proxy: HOST, HOST:PORT or a URL [default: ipu-operator-vipu-proxy in the operator's namespace].
    #[arg(long, env = "IPU_OPERATOR_VIPU_PROXY_SVC", value_name = "ADDRESS")]
    pub vipu_proxy_svc: Option<String>,
    /// The token that the operator shows to the proxy; read again whenever it is shown.
    #[arg(long, env = "IPU_OPERATOR_PROXY_TOKEN_FILE", value_name = "FILE")]
    pub proxy_token_file: Option<PathBuf>,
    /// The certificates of those who may sign that of a proxy at https; read again for every connection.
    #[arg(long, env = "IPU_OPERATOR_PROXY_CA_FILE", value_name = "FILE")]
    pub proxy_ca_file: Option<PathBuf>,
    /// Make the certificate of the proxy and renew it: kept in this Secret of the operator's namespace (tls.crt, tls.key, ca.crt),
    /// which the proxy mounts. The operator writes the authorities to --proxy-ca-file then [default: none is made].
    #[arg(long, env = "IPU_OPERATOR_PROXY_SECRET", value_name = "NAME")]
    pub proxy_secret: Option<String>,
    /// The image of the launcher's init container.
    #[arg(long, env = "IPU_OPERATOR_LAUNCHER_IMAGE", value_name = "IMAGE")]
    pub launcher_image: Option<String>,
    /// The tag of that image, if the image has none.
    #[arg(long, env = "IPU_OPERATOR_LAUNCHER_IMAGE_TAG", value_name = "TAG")]
    pub launcher_image_tag: Option<String>,
    /// When that image is pulled: Always, IfNotPresent or Never [default: IfNotPresent].
    #[arg(long, env = "IPU_OPERATOR_LAUNCHER_IMAGE_PULL_POLICY", value_name = "POLICY")]
    pub launcher_image_pull_policy: Option<PullPolicy>,
    /// Whether workers and launchers are on the host's network [default: true].
    #[arg(long, env = "IPU_OPERATOR_HOST_NETWORK", value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub host_network: Option<bool>,
    /// Where the webhooks listen [default: 9443].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOKS_PORT", value_name = "PORT")]
    pub webhooks_port: Option<u16>,
    /// Where metrics are served [default: :8443].
    #[arg(long, env = "IPU_OPERATOR_METRICS_BIND_ADDRESS", value_name = "[HOST]:PORT")]
    pub metrics_bind_address: Option<String>,
    /// Where /healthz and /readyz are served [default: :8081].
    #[arg(
        long,
        env = "IPU_OPERATOR_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "[HOST]:PORT"
    )]
    pub health_probe_bind_address: Option<String>,
    /// Whether of several operators one works on jobs at a time; all of them serve webhooks [default: true].
    #[arg(long, env = "IPU_OPERATOR_LEADER_ELECT", value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub leader_elect: Option<bool>,
    /// The Lease that they compete for [default: ee82fc7a.graphcore.ai, the lock of the original operator].
    #[arg(long, env = "IPU_OPERATOR_LEADER_ELECTION_ID", value_name = "NAME")]
    pub leader_election_id: Option<String>,
    /// The namespace that the operator runs in [default: that of its service account, or of the kubeconfig].
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// The namespaces whose jobs are worked on: NAME[,...] [default: all].
    #[arg(long, env = "IPU_OPERATOR_WATCH_NAMESPACES", value_name = "LIST")]
    pub watch_namespaces: Option<String>,
    /// The most IPUs of one instance of a new job, a power of two [default: 64].
    #[arg(long, env = "IPU_OPERATOR_MAX_IPUS_PER_INSTANCE", value_name = "NUMBER")]
    pub max_ipus_per_instance: Option<u32>,
    /// The most instances of a job [default: 1024].
    #[arg(long, env = "IPU_OPERATOR_MAX_INSTANCES", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_instances: Option<u32>,
    /// The most instances of one job that are in the queue of the proxy, or have their partition made ready, at once [default: 64].
    #[arg(long, env = "IPU_OPERATOR_MAX_REQUESTED_INSTANCES", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_requested_instances: Option<u32>,
    /// The Service of the webhooks, whose names their certificate is for, beside those of the configurations [default: ipu-operator-webhook-svc].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_SERVICE", value_name = "NAME")]
    pub webhook_service: Option<String>,
    /// The Service of the metrics, likewise [default: ipu-operator-controller-manager-metrics].
    #[arg(long, env = "IPU_OPERATOR_METRICS_SERVICE", value_name = "NAME")]
    pub metrics_service: Option<String>,
    /// Further names and addresses that the certificate is for: NAME[,...].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_CERT_NAMES", value_name = "LIST")]
    pub webhook_cert_names: Option<String>,
    /// The Secret that certificates are kept in [default: ipu-operator-admission].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_SECRET", value_name = "NAME")]
    pub webhook_secret: Option<String>,
    /// The MutatingWebhookConfiguration whose caBundle is kept right [default: ipu-operator-admission].
    #[arg(
        long,
        env = "IPU_OPERATOR_MUTATING_WEBHOOK_CONFIGURATION",
        value_name = "NAME"
    )]
    pub mutating_webhook_configuration: Option<String>,
    /// The ValidatingWebhookConfiguration whose caBundle is kept right [default: ipu-operator-admission].
    #[arg(
        long,
        env = "IPU_OPERATOR_VALIDATING_WEBHOOK_CONFIGURATION",
        value_name = "NAME"
    )]
    pub validating_webhook_configuration: Option<String>,
    /// Instead of making certificates: tls.crt and tls.key of this directory; a change of them is applied within seconds, and
    /// caBundle is up to whoever wrote them.
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_CERT_DIR", value_name = "DIRECTORY")]
    pub webhook_cert_dir: Option<PathBuf>,
    /// Likewise for the metrics [default: the certificate that the operator makes].
    #[arg(long, env = "IPU_OPERATOR_METRICS_CERT_DIR", value_name = "DIRECTORY")]
    pub metrics_cert_dir: Option<PathBuf>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[clap(rename_all = "PascalCase")]
#[non_exhaustive]
pub enum PullPolicy {
    /// Whenever a container starts.
    Always,
    /// When the node does not have it.
    #[default]
    IfNotPresent,
    /// Never: the node has it.
    Never,
}

impl PullPolicy {
    /// As Kubernetes writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Why settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value:?}: {rule}")]
#[non_exhaustive]
pub struct SettingError {
    /// The name of the flag, and of the key in the file.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What is wrong with that, and what to do.
    pub rule: String,
}

/// Settings that fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The URL of the proxy, without a slash at its end.
    pub proxy_url: String,
    /// The token that is shown to the proxy.
    pub proxy_token_file: Option<PathBuf>,
    /// The certificates of those who may sign the proxy's; there if the URL is one of https, and only then.
    pub proxy_ca_file: Option<PathBuf>,
    /// How the certificate of the proxy is made, if the operator makes it.
    pub proxy_certificate: Option<ProxyCertificate>,
    /// The image of the launcher's init container, with its tag.
    pub launcher_image: Option<String>,
    /// When that image is pulled.
    pub launcher_image_pull_policy: PullPolicy,
    /// Whether workers and launchers are on the host's network.
    pub host_network: bool,
    /// The namespace that the operator runs in.
    pub namespace: String,
    /// The namespaces whose jobs are worked on; empty for all.
    pub watch_namespaces: BTreeSet<String>,
    /// What new jobs may ask for.
    pub rules: AdmissionRules,
    /// The most instances of one job that are in the queue of the proxy, or have their partition made ready, at once.
    pub max_requested_instances: u32,
    /// Where the webhooks listen; the first address that can be had.
    pub webhooks: Vec<SocketAddr>,
    /// Where metrics are served, likewise.
    pub metrics: Vec<SocketAddr>,
    /// Where probes are answered, likewise.
    pub probes: Vec<SocketAddr>,
    /// The Lease that operators compete for; none if there is one operator alone.
    pub lease: Option<String>,
    /// Where the certificates come from.
    pub certificates: Certificates,
    /// The directory of the metrics' own certificate.
    pub metrics_cert_dir: Option<PathBuf>,
}

/// Where the certificates of the webhooks come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Certificates {
    /// `tls.crt` and `tls.key` of this directory.
    Given(PathBuf),
    /// They are made, and kept here.
    Made(Keeping),
}

/// Where certificates that are made are kept, and who is told of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keeping {
    /// The Secret.
    pub secret: String,
    /// The MutatingWebhookConfiguration.
    pub mutating: String,
    /// The ValidatingWebhookConfiguration.
    pub validating: String,
    /// The names that the certificate is for.
    pub names: BTreeSet<String>,
}

/// How the certificate of the proxy is made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyCertificate {
    /// The Secret that it is kept in, for the proxy to mount.
    pub secret: String,
    /// The file that the operator writes the authorities to, for itself to trust.
    pub ca_file: PathBuf,
    /// The names that the certificate is for.
    pub names: BTreeSet<String>,
}

impl Settings {
    /// The settings of a file.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if it cannot be read or understood; keys that are none are errors.
    pub fn from_file(path: &Path) -> Result<Self, SettingError> {
        let wrong = |rule: String| wrong("config", &path.display().to_string(), &rule);
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// These settings, and of `others` what is not set here.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            vipu_proxy_svc: self.vipu_proxy_svc.or(others.vipu_proxy_svc),
            proxy_token_file: self.proxy_token_file.or(others.proxy_token_file),
            proxy_ca_file: self.proxy_ca_file.or(others.proxy_ca_file),
            proxy_secret: self.proxy_secret.or(others.proxy_secret),
            launcher_image: self.launcher_image.or(others.launcher_image),
            launcher_image_tag: self.launcher_image_tag.or(others.launcher_image_tag),
            launcher_image_pull_policy: self
                .launcher_image_pull_policy
                .or(others.launcher_image_pull_policy),
            host_network: self.host_network.or(others.host_network),
            webhooks_port: self.webhooks_port.or(others.webhooks_port),
            metrics_bind_address: self.metrics_bind_address.or(others.metrics_bind_address),
            health_probe_bind_address: self
                .health_probe_bind_address
                .or(others.health_probe_bind_address),
            leader_elect: self.leader_elect.or(others.leader_elect),
            leader_election_id: self.leader_election_id.or(others.leader_election_id),
            namespace: self.namespace.or(others.namespace),
            watch_namespaces: self.watch_namespaces.or(others.watch_namespaces),
            max_ipus_per_instance: self.max_ipus_per_instance.or(others.max_ipus_per_instance),
            max_instances: self.max_instances.or(others.max_instances),
            max_requested_instances: self.max_requested_instances.or(others.max_requested_instances),
            webhook_service: self.webhook_service.or(others.webhook_service),
            metrics_service: self.metrics_service.or(others.metrics_service),
            webhook_cert_names: self.webhook_cert_names.or(others.webhook_cert_names),
            webhook_secret: self.webhook_secret.or(others.webhook_secret),
            mutating_webhook_configuration: self
                .mutating_webhook_configuration
                .or(others.mutating_webhook_configuration),
            validating_webhook_configuration: self
                .validating_webhook_configuration
                .or(others.validating_webhook_configuration),
            webhook_cert_dir: self.webhook_cert_dir.or(others.webhook_cert_dir),
            metrics_cert_dir: self.metrics_cert_dir.or(others.metrics_cert_dir),
        }
    }

    /// Checks that the settings fit together, and fills in the defaults. `namespace` is the operator's if none is set.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for the first that cannot be used.
    pub fn check(self, namespace: &str) -> Result<Config, SettingError> {
        let namespace = match &self.namespace {
            Some(name) if !name.is_empty() => name.clone(),
            _ => namespace.to_owned(),
        };
        let certificates = match &self.webhook_cert_dir {
            Some(directory) => Certificates::Given(directory.clone()),
            None => Certificates::Made(self.keeping(&namespace)?),
        };
        let proxy_url = proxy_url(self.vipu_proxy_svc.as_deref(), &namespace)?;
        check_trust(&proxy_url, self.proxy_ca_file.as_deref())?;
        let proxy_certificate = self.proxy_certificate(&proxy_url, &namespace)?;
        Ok(Config {
            proxy_url,
            proxy_certificate,
            proxy_token_file: self.proxy_token_file.clone(),
            proxy_ca_file: self.proxy_ca_file.clone(),
            launcher_image: self.image()?,
            launcher_image_pull_policy: self.launcher_image_pull_policy.unwrap_or_default(),
            host_network: self.host_network.unwrap_or(true),
            watch_namespaces: list(self.watch_namespaces.as_deref()),
            rules: self.rules()?,
            max_requested_instances: self.requested()?,
            webhooks: everywhere(self.webhooks_port.unwrap_or(WEBHOOKS_PORT)),
            metrics: addresses(
                "metrics-bind-address",
                self.metrics_bind_address.as_deref(),
                METRICS,
            )?,
            probes: addresses(
                "health-probe-bind-address",
                self.health_probe_bind_address.as_deref(),
                PROBES,
            )?,
            lease: self
                .leader_elect
                .unwrap_or(true)
                .then(|| or_default(&self.leader_election_id, LEASE)),
            certificates,
            metrics_cert_dir: self.metrics_cert_dir,
            namespace,
        })
    }

    fn rules(&self) -> Result<AdmissionRules, SettingError> {
        let mut limits = Limits::default();
        if let Some(most) = self.max_ipus_per_instance {
            let count = IpuCount::try_from(most)
                .map_err(|error| wrong("max-ipus-per-instance", &most.to_string(), &error.to_string()))?;
            limits = limits.with_max_ipus(count);
        }
        let most = self.max_instances.unwrap_or(MAX_INSTANCES);
        Ok(AdmissionRules::new(limits).with_max_instances(most))
    }

    /// A file is not held to the range of the flag.
    fn requested(&self) -> Result<u32, SettingError> {
        match self.max_requested_instances.unwrap_or(Limits::MAX_REQUESTED) {
            0 => Err(wrong(
                "max-requested-instances",
                "0",
                "must be at least 1: with 0 no job would ever have a partition",
            )),
            most => Ok(most),
        }
    }

    fn image(&self) -> Result<Option<String>, SettingError> {
        let Some(image) = self.launcher_image.clone().filter(|image| !image.is_empty()) else {
            return match &self.launcher_image_tag {
                Some(tag) if !tag.is_empty() => {
                    Err(wrong("launcher-image-tag", tag, "belongs to a launcher-image"))
                }
                _ => Ok(None),
            };
        };
        // A colon before the last slash belongs to the port of a registry.
        let name = image.rsplit('/').next().unwrap_or_default();
        Ok(Some(match &self.launcher_image_tag {
            Some(tag) if !tag.is_empty() && !name.contains([':', '@']) => format!("{image}:{tag}"),
            _ => image,
        }))
    }

    fn proxy_certificate(
        &self,
        url: &str,
        namespace: &str,
    ) -> Result<Option<ProxyCertificate>, SettingError> {
        let secret = self.proxy_secret.clone().filter(|name| !name.is_empty());
        let Some(secret) = secret else {
            return Ok(None);
        };
        let Some(ca_file) = self.proxy_ca_file.clone() else {
            let rule = "the operator has to trust the certificate that it makes: set proxy-ca-file to a file that it may write, and \
                        vipu-proxy-svc to https://";
            return Err(wrong("proxy-secret", &secret, rule));
        };
        let mut names: BTreeSet<String> = service_names(PROXY, namespace).collect();
        let uri: Option<http::Uri> = url.parse().ok();
        let host = uri.as_ref().and_then(http::Uri::host);
        // An address of version 6 has brackets in a URL.
        names.extend(host.map(|host| host.trim_matches(['[', ']']).to_owned()));
        Ok(Some(ProxyCertificate {
            secret,
            ca_file,
            names,
        }))
    }

    fn keeping(&self, namespace: &str) -> Result<Keeping, SettingError> {
        let mut names = list(self.webhook_cert_names.as_deref());
        // One that stands for all of a domain is fine too.
        let is_name = |name: &&String| is_name_or_address(name.strip_prefix("*.").unwrap_or(name));
        if let Some(name) = names.iter().find(|name| !is_name(name)) {
            let rule = "is neither an address nor a name as DNS has them: write names and addresses with commas between them";
            return Err(wrong("webhook-cert-names", name, rule));
        }
        let services = [
            (
                "webhook-service",
                or_default(&self.webhook_service, WEBHOOK_SERVICE),
            ),
            (
                "metrics-service",
                or_default(&self.metrics_service, METRICS_SERVICE),
            ),
        ];
        for (setting, service) in services {
            if !is_name_or_address(&service) || service.contains(['.', ':']) {
                return Err(wrong(
                    setting,
                    &service,
                    "is not the name of a Service: write it without its namespace",
                ));
            }
            names.extend(service_names(&service, namespace));
        }
        Ok(Keeping {
            secret: or_default(&self.webhook_secret, ADMISSION),
            mutating: or_default(&self.mutating_webhook_configuration, ADMISSION),
            validating: or_default(&self.validating_webhook_configuration, ADMISSION),
            names,
        })
    }
}

/// The names of a Service within its cluster.
fn service_names(service: &str, namespace: &str) -> impl Iterator<Item = String> + use<> {
    let rest = [
        "",
        &format!(".{namespace}"),
        &format!(".{namespace}.svc"),
        &format!(".{namespace}.svc.cluster.local"),
    ];
    rest.map(|rest| format!("{service}{rest}")).into_iter()
}

fn or_default(given: &Option<String>, default: &str) -> String {
    given.clone().unwrap_or_else(|| default.to_owned())
}

fn list(text: Option<&str>) -> BTreeSet<String> {
    let words = text.unwrap_or_default().split(',').map(str::trim);
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Every address of this host: of both families where the host has both.
fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into(),
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into(),
    ]
}

fn addresses(name: &'static str, text: Option<&str>, default: &str) -> Result<Vec<SocketAddr>, SettingError> {
    let text = text.unwrap_or(default);
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(everywhere(port));
    }
    text.parse().map(|address| vec![address]).map_err(|_| {
        wrong(
            name,
            text,
            "must be :PORT, or ADDRESS:PORT with an address in digits",
        )
    })
}

/// The proxy of the original operator is given without scheme or port.
fn proxy_url(given: Option<&str>, namespace: &str) -> Result<String, SettingError> {
    let Some(given) = given.filter(|given| !given.is_empty()) else {
        return Ok(format!("http://{PROXY}.{namespace}.svc.cluster.local"));
    };
    let rule = "must be HOST, HOST:PORT, or a URL of http or https without a path";
    let refuse = || wrong("vipu-proxy-svc", given, rule);
    let url = if given.contains("://") {
        given.trim_end_matches('/').to_owned()
    } else {
        format!("http://{given}")
    };
    let uri: http::Uri = url.parse().map_err(|_| refuse())?;
    let plain = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.path().trim_matches('/').is_empty()
        && uri.query().is_none();
    if plain { Ok(url) } else { Err(refuse()) }
}

/// Nobody is trusted unless it is said who, and nobody has to be where nothing is proven.
fn check_trust(url: &str, ca: Option<&Path>) -> Result<(), SettingError> {
    let scheme = url.split("://").next().unwrap_or_default();
    match (scheme.eq_ignore_ascii_case("https"), ca) {
        (true, None) => Err(wrong(
            "vipu-proxy-svc",
            url,
            "a proxy at https has to be trusted: set proxy-ca-file to the certificates of those who may sign its own, or write http://",
        )),
        (false, Some(file)) => {
            let rule = format!(
                "is for a proxy at https, and vipu-proxy-svc comes to {url}: write https:// there, or leave proxy-ca-file out"
            );
            Err(wrong("proxy-ca-file", &file.display().to_string(), &rule))
        }
        _ => Ok(()),
    }
}

fn wrong(name: &'static str, value: &str, rule: &str) -> SettingError {
    SettingError {
        name,
        value: value.to_owned(),
        rule: rule.to_owned(),
    }
}

#[cfg(test)]
mod tests;
