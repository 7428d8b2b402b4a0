//! The snapshot that the rules read.

use ipu_k8s::crd::FailureReport;
use ipu_proxy_client::ControllerStatus;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, LimitRange, Namespace, Node, Pod, ResourceQuota, Service,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::installation::{Installation, Origin};

/// A fact, or the reason why the caller could not read it.
#[derive(Clone, Debug)]
pub(super) enum Fact<T> {
    Read(T),
    Hidden(String),
}

impl<T> Fact<T> {
    /// Returns the fact.
    ///
    /// # Errors
    ///
    /// The reason why it is hidden.
    pub(super) fn get(&self) -> Result<&T, String> {
        match self {
            Self::Read(value) => Ok(value),
            Self::Hidden(reason) => Err(reason.clone()),
        }
    }
}

/// Webhooks of one configuration.
#[derive(Clone, Debug)]
pub(super) struct WebhookConfiguration {
    /// `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Value of the label `app.kubernetes.io/instance`.
    pub(super) instance: Option<String>,
    pub(super) origin: Origin,
    /// Namespace of the release of Helm.
    pub(super) release_namespace: Option<String>,
    /// Certificate of cert-manager that its bundle comes from, as `namespace/name`.
    pub(super) certificate: Option<String>,
    pub(super) webhooks: Vec<Webhook>,
    /// Whether it has webhooks for other objects too.
    pub(super) has_others: bool,
}

impl WebhookConfiguration {
    /// Returns the namespace of the first Service that its webhooks lead to.
    pub(super) fn service_namespace(&self) -> Option<&str> {
        let services = self
            .webhooks
            .iter()
            .filter_map(|webhook| webhook.service.as_ref());
        services.map(|(namespace, ..)| namespace.as_str()).next()
    }
}

/// One webhook for IPUJobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Webhook {
    pub(super) name: String,
    /// Index among all webhooks of the configuration.
    pub(super) index: usize,
    /// Namespace, name and path of its Service; none for a URL.
    pub(super) service: Option<(String, String, String)>,
    pub(super) ca_bundle: Vec<u8>,
}

/// PEM certificates of a Secret; empty without the Secret or its key.
#[derive(Clone, Debug, Default)]
pub(super) struct Certificates {
    /// CA certificates (`ca.crt`).
    pub(super) ca: Vec<u8>,
    /// Certificate of the server, with its chain (`tls.crt`).
    pub(super) server: Vec<u8>,
}

/// An IPUJob.
#[derive(Clone, Debug)]
pub(super) struct JobFacts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) declines_host_network: bool,
    /// First failure of its status, or the reason why the status cannot be read.
    pub(super) first_failure: Result<Option<FailureReport>, String>,
}

/// A right that an account of the installation lacks.
#[derive(Clone, Debug)]
pub(super) struct MissingPermission {
    /// `system:serviceaccount:…`.
    pub(super) account: String,
    /// Namespace, or none for the whole cluster.
    pub(super) namespace: Option<String>,
    pub(super) verb: &'static str,
    /// `resource.group/name`.
    pub(super) resource: String,
}

/// Everything that the rules read.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Time of this host.
    pub(super) now: Timestamp,
    /// Time of the API server at `now`.
    pub(super) api_time: Fact<Timestamp>,
    /// Deployments of operators in all namespaces.
    pub(super) operators: Fact<Vec<Deployment>>,
    /// Other installations than the examined one, with their ledgers.
    pub(super) others: Fact<Vec<(Installation, Fact<Option<ConfigMap>>)>>,
    /// Deployments of proxies in all namespaces.
    pub(super) proxies: Fact<Vec<Deployment>>,
    /// Examined installation; the reason if there is none.
    pub(super) installation: Fact<Installation>,
    pub(super) proxy: Fact<Option<Deployment>>,
    pub(super) crd: Fact<Option<CustomResourceDefinition>>,
    /// All configurations, with their webhooks for IPUJobs only.
    pub(super) mutating: Fact<Vec<WebhookConfiguration>>,
    pub(super) validating: Fact<Vec<WebhookConfiguration>>,
    pub(super) webhook_service: Fact<Option<Service>>,
    /// Certificates of the webhooks' Secret.
    pub(super) webhook_certificates: Fact<Certificates>,
    pub(super) lease: Fact<Option<Lease>>,
    pub(super) controller_list: Fact<Option<ConfigMap>>,
    /// Controllers as the proxy sees them.
    pub(super) controllers: Fact<Vec<ControllerStatus>>,
    pub(super) tracker: Fact<Option<ConfigMap>>,
    pub(super) jobs: Fact<Vec<JobFacts>>,
    /// Pods of jobs.
    pub(super) pods: Fact<Vec<Pod>>,
    /// Warnings about Pods.
    pub(super) events: Fact<Vec<Event>>,
    pub(super) nodes: Fact<Vec<Node>>,
    /// Heartbeats of nodes.
    pub(super) node_leases: Fact<Vec<Lease>>,
    pub(super) namespaces: Fact<Vec<Namespace>>,
    pub(super) quotas: Fact<Vec<ResourceQuota>>,
    pub(super) limit_ranges: Fact<Vec<LimitRange>>,
    /// `namespace/name` of NetworkAttachmentDefinitions; none if the cluster has no such kind.
    pub(super) attachments: Fact<Option<Vec<String>>>,
    pub(super) missing_permissions: Fact<Vec<MissingPermission>>,
}
