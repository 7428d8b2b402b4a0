//! Settings, in order of precedence: flags, environment, file, default.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipu_core::IpuCount;
use ipu_core::job::Limits;
use ipu_k8s::webhook::AdmissionRules;
use serde::Deserialize;

/// Object names of the original chart.
const PROXY_SERVICE: &str = "ipu-operator-vipu-proxy";
/// Default maximum of instances per job: a status holds some thousands, and so does the proxy's queue for
/// all jobs together.
const MAX_INSTANCES: u32 = 1024;
const WEBHOOK_SERVICE: &str = "ipu-operator-webhook-svc";
const METRICS_SERVICE: &str = "ipu-operator-controller-manager-metrics";
const ADMISSION_NAME: &str = "ipu-operator-admission";
/// Lease of the original operator, so that the two never reconcile at the same time.
const LEASE_NAME: &str = "ee82fc7a.graphcore.ai";
const WEBHOOKS_PORT: u16 = 9443;
const METRICS_ADDRESS: &str = ":8443";
const PROBES_ADDRESS: &str = ":8081";

/// Settings of the operator. In the file, keys are the flag names without leading dashes.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Settings {
    /// Address of the proxy: HOST, HOST:PORT or a URL [default: ipu-operator-vipu-proxy in the operator's
    /// namespace].
    #[arg(long, env = "IPU_OPERATOR_VIPU_PROXY_SVC", value_name = "ADDRESS")]
    pub vipu_proxy_svc: Option<String>,
    /// File with the bearer token for the proxy; read for every request.
    #[arg(long, env = "IPU_OPERATOR_PROXY_TOKEN_FILE", value_name = "FILE")]
    pub proxy_token_file: Option<PathBuf>,
    /// File with the CA certificates that may sign the certificate of an HTTPS proxy; read for every
    /// connection.
    #[arg(long, env = "IPU_OPERATOR_PROXY_CA_FILE", value_name = "FILE")]
    pub proxy_ca_file: Option<PathBuf>,
    /// Secret in the operator's namespace for the proxy's certificate (tls.crt, tls.key, ca.crt), which the
    /// operator creates and renews and the proxy mounts. The operator writes the CA certificates to
    /// --proxy-ca-file [default: no certificate is created].
    #[arg(long, env = "IPU_OPERATOR_PROXY_SECRET", value_name = "NAME")]
    pub proxy_secret: Option<String>,
    /// Image of the launcher's init container.
    #[arg(long, env = "IPU_OPERATOR_LAUNCHER_IMAGE", value_name = "IMAGE")]
    pub launcher_image: Option<String>,
    /// Tag of the launcher image, if the image has none.
    #[arg(long, env = "IPU_OPERATOR_LAUNCHER_IMAGE_TAG", value_name = "TAG")]
    pub launcher_image_tag: Option<String>,
    /// Pull policy of the launcher image: Always, IfNotPresent or Never [default: IfNotPresent].
    #[arg(long, env = "IPU_OPERATOR_LAUNCHER_IMAGE_PULL_POLICY", value_name = "POLICY")]
    pub launcher_image_pull_policy: Option<PullPolicy>,
    /// Use the host network for workers and launchers [default: true].
    #[arg(long, env = "IPU_OPERATOR_HOST_NETWORK", value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub host_network: Option<bool>,
    /// Port of the webhooks [default: 9443].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOKS_PORT", value_name = "PORT")]
    pub webhooks_port: Option<u16>,
    /// Listen address of the metrics [default: :8443].
    #[arg(long, env = "IPU_OPERATOR_METRICS_BIND_ADDRESS", value_name = "[HOST]:PORT")]
    pub metrics_bind_address: Option<String>,
    /// Listen address of /healthz and /readyz [default: :8081].
    #[arg(
        long,
        env = "IPU_OPERATOR_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "[HOST]:PORT"
    )]
    pub health_probe_bind_address: Option<String>,
    /// Elect a leader that reconciles jobs; all operators serve webhooks [default: true].
    #[arg(long, env = "IPU_OPERATOR_LEADER_ELECT", value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub leader_elect: Option<bool>,
    /// Name of the Lease for the election [default: ee82fc7a.graphcore.ai, the lock of the original
    /// operator].
    #[arg(long, env = "IPU_OPERATOR_LEADER_ELECTION_ID", value_name = "NAME")]
    pub leader_election_id: Option<String>,
    /// Namespace of the operator [default: that of its service account, or of the kubeconfig].
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Namespaces to watch: NAME[,...] [default: all].
    #[arg(long, env = "IPU_OPERATOR_WATCH_NAMESPACES", value_name = "LIST")]
    pub watch_namespaces: Option<String>,
    /// Maximum IPUs per instance of a new job, a power of two [default: 64].
    #[arg(long, env = "IPU_OPERATOR_MAX_IPUS_PER_INSTANCE", value_name = "NUMBER")]
    pub max_ipus_per_instance: Option<u32>,
    /// Maximum instances per job [default: 1024].
    #[arg(long, env = "IPU_OPERATOR_MAX_INSTANCES", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_instances: Option<u32>,
    /// Maximum instances per job that are queued at the proxy or have their partition created at the same
    /// time [default: 64].
    #[arg(long, env = "IPU_OPERATOR_MAX_REQUESTED_INSTANCES", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_requested_instances: Option<u32>,
    /// Apply the CRD of this build before the operator is ready, unless a newer one is installed [default:
    /// false].
    #[arg(long, env = "IPU_OPERATOR_MAINTAIN_CRD", value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub maintain_crd: Option<bool>,
    /// Let IPUJobs wait in the queues of Kueue, and answer its AdmissionChecks. Needs Kueue in the cluster
    /// [default: false].
    #[arg(long, env = "IPU_OPERATOR_KUEUE", value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub kueue: Option<bool>,
    /// Service of the webhooks; the certificate covers its names and those in the webhook configurations
    /// [default: ipu-operator-webhook-svc].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_SERVICE", value_name = "NAME")]
    pub webhook_service: Option<String>,
    /// Service of the metrics; the certificate covers its names [default:
    /// ipu-operator-controller-manager-metrics].
    #[arg(long, env = "IPU_OPERATOR_METRICS_SERVICE", value_name = "NAME")]
    pub metrics_service: Option<String>,
    /// Additional names and addresses for the certificate: NAME[,...].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_CERT_NAMES", value_name = "LIST")]
    pub webhook_cert_names: Option<String>,
    /// Secret for the certificates [default: ipu-operator-admission].
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_SECRET", value_name = "NAME")]
    pub webhook_secret: Option<String>,
    /// MutatingWebhookConfiguration whose caBundle the operator maintains [default:
    /// ipu-operator-admission].
    #[arg(
        long,
        env = "IPU_OPERATOR_MUTATING_WEBHOOK_CONFIGURATION",
        value_name = "NAME"
    )]
    pub mutating_webhook_configuration: Option<String>,
    /// ValidatingWebhookConfiguration whose caBundle the operator maintains [default:
    /// ipu-operator-admission].
    #[arg(
        long,
        env = "IPU_OPERATOR_VALIDATING_WEBHOOK_CONFIGURATION",
        value_name = "NAME"
    )]
    pub validating_webhook_configuration: Option<String>,
    /// Directory with tls.crt and tls.key, used instead of managed certificates. Changes are applied within
    /// seconds; the caBundle must be maintained externally.
    #[arg(long, env = "IPU_OPERATOR_WEBHOOK_CERT_DIR", value_name = "DIRECTORY")]
    pub webhook_cert_dir: Option<PathBuf>,
    /// Directory with tls.crt and tls.key for the metrics [default: the certificate of the webhooks].
    #[arg(long, env = "IPU_OPERATOR_METRICS_CERT_DIR", value_name = "DIRECTORY")]
    pub metrics_cert_dir: Option<PathBuf>,
}

/// Image pull policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[clap(rename_all = "PascalCase")]
pub enum PullPolicy {
    /// Pull at every container start.
    Always,
    /// Pull if the node lacks the image.
    #[default]
    IfNotPresent,
    /// Never pull; the node must have the image.
    Never,
}

impl PullPolicy {
    /// Returns the Kubernetes spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value:?}: {rule}")]
#[non_exhaustive]
pub struct SettingError {
    /// Name of the flag and of the key in the file.
    pub name: &'static str,
    /// Configured value.
    pub value: String,
    /// Violated rule and how to fix it.
    pub rule: String,
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// URL of the proxy, without a trailing slash.
    pub proxy_url: String,
    /// File with the token for the proxy.
    pub proxy_token_file: Option<PathBuf>,
    /// File with the CA certificates for the proxy; set exactly if the URL is HTTPS.
    pub proxy_ca_file: Option<PathBuf>,
    /// Certificate of the proxy, if the operator manages it.
    pub proxy_certificate: Option<ProxyCertificate>,
    /// Image of the launcher's init container, with its tag.
    pub launcher_image: Option<String>,
    /// Pull policy of the launcher image.
    pub launcher_image_pull_policy: PullPolicy,
    /// Use the host network for workers and launchers [default: true].
    pub host_network: bool,
    /// Namespace of the operator.
    pub namespace: String,
    /// Watched namespaces; empty for all.
    pub watch_namespaces: BTreeSet<String>,
    /// Limits for new jobs.
    pub rules: AdmissionRules,
    /// Maximum instances per job that are queued at the proxy or have their partition created at the same
    /// time.
    pub max_requested_instances: u32,
    /// Apply the CRD of this build before the operator is ready, unless a newer one is installed.
    pub maintain_crd: bool,
    /// Work with Kueue.
    pub kueue: bool,
    /// Candidate addresses of the webhooks; the first available one is used.
    pub webhooks: Vec<SocketAddr>,
    /// Candidate addresses of the metrics.
    pub metrics: Vec<SocketAddr>,
    /// Candidate addresses of the probes.
    pub probes: Vec<SocketAddr>,
    /// Name of the Lease; `None` without leader election.
    pub lease: Option<String>,
    /// Source of the webhooks' certificates.
    pub certificates: Certificates,
    /// Directory of the metrics' own certificate.
    pub metrics_cert_dir: Option<PathBuf>,
}

/// Source of the webhooks' certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// Directory with `tls.crt` and `tls.key`.
    Directory(PathBuf),
    /// The operator creates and renews the certificates.
    Managed(ManagedCertificates),
}

/// Objects of the certificates that the operator manages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagedCertificates {
    /// Secret that stores the certificates.
    pub secret: String,
    /// MutatingWebhookConfiguration that receives the CA bundle.
    pub mutating: String,
    /// ValidatingWebhookConfiguration that receives the CA bundle.
    pub validating: String,
    /// DNS names and addresses of the certificate.
    pub names: BTreeSet<String>,
}

/// Certificate of the proxy that the operator manages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyCertificate {
    /// Secret that the proxy mounts.
    pub secret: String,
    /// File to which the operator writes the CA certificates for its own client.
    pub ca_file: PathBuf,
    /// DNS names and addresses of the certificate.
    pub names: BTreeSet<String>,
}

impl Settings {
    /// Reads the settings of a file.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the file cannot be read or parsed, or has unknown keys.
    pub fn from_file(path: &Path) -> Result<Self, SettingError> {
        let invalid = |rule: String| invalid("config", &path.display().to_string(), &rule);
        let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(&text)
            .map_err(|error| invalid(error.render_with_formatter(&serde_saphyr::UserMessageFormatter)))
    }

    /// Returns these settings; unset ones are taken from `others`.
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
            maintain_crd: self.maintain_crd.or(others.maintain_crd),
            kueue: self.kueue.or(others.kueue),
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

    /// Checks the settings and fills in the defaults. `namespace` applies if none is set.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for the first invalid setting.
    pub fn check(self, namespace: &str) -> Result<Config, SettingError> {
        let namespace = match &self.namespace {
            Some(name) if !name.is_empty() => name.clone(),
            _ => namespace.to_owned(),
        };
        let certificates = match &self.webhook_cert_dir {
            Some(directory) => Certificates::Directory(directory.clone()),
            None => Certificates::Managed(self.managed_certificates(&namespace)?),
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
            watch_namespaces: parse_list(self.watch_namespaces.as_deref()),
            rules: self.rules()?,
            max_requested_instances: self.max_requested()?,
            maintain_crd: self.maintain_crd.unwrap_or(false),
            kueue: self.kueue.unwrap_or(false),
            webhooks: all_interfaces(self.webhooks_port.unwrap_or(WEBHOOKS_PORT)),
            metrics: addresses(
                "metrics-bind-address",
                self.metrics_bind_address.as_deref(),
                METRICS_ADDRESS,
            )?,
            probes: addresses(
                "health-probe-bind-address",
                self.health_probe_bind_address.as_deref(),
                PROBES_ADDRESS,
            )?,
            lease: self
                .leader_elect
                .unwrap_or(true)
                .then(|| or_default(&self.leader_election_id, LEASE_NAME)),
            certificates,
            metrics_cert_dir: self.metrics_cert_dir,
            namespace,
        })
    }

    fn rules(&self) -> Result<AdmissionRules, SettingError> {
        let mut limits = Limits::default();
        if let Some(maximum) = self.max_ipus_per_instance {
            let count = IpuCount::try_from(maximum).map_err(|error| {
                invalid("max-ipus-per-instance", &maximum.to_string(), &error.to_string())
            })?;
            limits = limits.with_max_ipus(count);
        }
        let max_instances = self.max_instances.unwrap_or(MAX_INSTANCES);
        Ok(AdmissionRules {
            limits,
            max_instances,
        })
    }

    /// The range of the flag does not apply to the file.
    fn max_requested(&self) -> Result<u32, SettingError> {
        match self.max_requested_instances.unwrap_or(Limits::MAX_REQUESTED) {
            0 => Err(invalid(
                "max-requested-instances",
                "0",
                "must be at least 1: with 0 no job gets a partition",
            )),
            maximum => Ok(maximum),
        }
    }

    fn image(&self) -> Result<Option<String>, SettingError> {
        let Some(image) = self.launcher_image.clone().filter(|image| !image.is_empty()) else {
            return match &self.launcher_image_tag {
                Some(tag) if !tag.is_empty() => {
                    Err(invalid("launcher-image-tag", tag, "needs launcher-image"))
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
            let rule = "the operator must trust the certificate it creates: set proxy-ca-file to a writable file, and \
                        vipu-proxy-svc to https://";
            return Err(invalid("proxy-secret", &secret, rule));
        };
        let uri: Option<http::Uri> = url.parse().ok();
        let host = uri.as_ref().and_then(http::Uri::host);
        // The URL of the chart names the Service of its release.
        let service = host
            .and_then(|host| host.split_once(&format!(".{namespace}.svc")))
            .map_or(PROXY_SERVICE, |(service, _)| service);
        let mut names: BTreeSet<String> = service_names(service, namespace).collect();
        // An IPv6 address has brackets in a URL.
        names.extend(host.map(|host| host.trim_matches(['[', ']']).to_owned()));
        Ok(Some(ProxyCertificate {
            secret,
            ca_file,
            names,
        }))
    }

    fn managed_certificates(&self, namespace: &str) -> Result<ManagedCertificates, SettingError> {
        let mut names = parse_list(self.webhook_cert_names.as_deref());
        // Wildcard names are valid too.
        let is_name = |name: &&String| is_name_or_address(name.strip_prefix("*.").unwrap_or(name));
        if let Some(name) = names.iter().find(|name| !is_name(name)) {
            let rule = "is neither an IP address nor a DNS name: separate names and addresses with commas";
            return Err(invalid("webhook-cert-names", name, rule));
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
                return Err(invalid(
                    setting,
                    &service,
                    "is not a Service name: omit the namespace",
                ));
            }
            names.extend(service_names(&service, namespace));
        }
        Ok(ManagedCertificates {
            secret: or_default(&self.webhook_secret, ADMISSION_NAME),
            mutating: or_default(&self.mutating_webhook_configuration, ADMISSION_NAME),
            validating: or_default(&self.validating_webhook_configuration, ADMISSION_NAME),
            names,
        })
    }
}

/// Returns the cluster-internal names of a Service.
fn service_names(service: &str, namespace: &str) -> impl Iterator<Item = String> + use<> {
    let suffixes = [
        "",
        &format!(".{namespace}"),
        &format!(".{namespace}.svc"),
        &format!(".{namespace}.svc.cluster.local"),
    ];
    suffixes.map(|suffix| format!("{service}{suffix}")).into_iter()
}

fn or_default(value: &Option<String>, default: &str) -> String {
    value.clone().unwrap_or_else(|| default.to_owned())
}

fn parse_list(text: Option<&str>) -> BTreeSet<String> {
    let items = text.unwrap_or_default().split(',').map(str::trim);
    items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// Returns the wildcard addresses of both families; IPv6 first.
fn all_interfaces(port: u16) -> Vec<SocketAddr> {
    vec![
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into(),
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into(),
    ]
}

fn addresses(name: &'static str, text: Option<&str>, default: &str) -> Result<Vec<SocketAddr>, SettingError> {
    let text = text.unwrap_or(default);
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(all_interfaces(port));
    }
    text.parse().map(|address| vec![address]).map_err(|_| {
        invalid(
            name,
            text,
            "must be :PORT, or ADDRESS:PORT with a numeric IP address",
        )
    })
}

/// Returns the URL of the proxy; the original operator's setting has no scheme or port.
fn proxy_url(value: Option<&str>, namespace: &str) -> Result<String, SettingError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(format!("http://{PROXY_SERVICE}.{namespace}.svc"));
    };
    let rule = "must be HOST, HOST:PORT, or a URL of http or https without a path";
    let error = || invalid("vipu-proxy-svc", value, rule);
    let url = if value.contains("://") {
        value.trim_end_matches('/').to_owned()
    } else {
        format!("http://{value}")
    };
    let uri: http::Uri = url.parse().map_err(|_| error())?;
    let is_valid = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.path().trim_matches('/').is_empty()
        && uri.query().is_none();
    if is_valid { Ok(url) } else { Err(error()) }
}

/// Requires a CA file for HTTPS, and rejects one for HTTP.
fn check_trust(url: &str, ca: Option<&Path>) -> Result<(), SettingError> {
    let scheme = url.split("://").next().unwrap_or_default();
    match (scheme.eq_ignore_ascii_case("https"), ca) {
        (true, None) => Err(invalid(
            "vipu-proxy-svc",
            url,
            "an HTTPS proxy needs trusted CA certificates: set proxy-ca-file, or write http://",
        )),
        (false, Some(file)) => {
            let rule = format!(
                "requires an HTTPS proxy, but vipu-proxy-svc resolves to {url}: write https:// there, or unset proxy-ca-file"
            );
            Err(invalid("proxy-ca-file", &file.display().to_string(), &rule))
        }
        _ => Ok(()),
    }
}

fn invalid(name: &'static str, value: &str, rule: &str) -> SettingError {
    SettingError {
        name,
        value: value.to_owned(),
        rule: rule.to_owned(),
    }
}

/// Returns whether `name` is an IP address or a valid DNS name.
pub(crate) fn is_name_or_address(name: &str) -> bool {
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(plain)
    };
    name.parse::<IpAddr>().is_ok() || name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests;
