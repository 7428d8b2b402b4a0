//! The snapshot that the rules read.

use ipu_k8s::crd::FailureReport;
use ipu_proxy_client::ControllerStatus;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{ServiceReference, ValidatingWebhook};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, LimitRange, Namespace, Node, Pod, ResourceQuota, Service,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::installation::Installation;

/// A fact, or the reason why it is not known.
pub(super) type Fact<T> = Result<T, String>;

/// Returns a fact, or a copy of the reason why it is not known.
pub(super) fn known<T>(fact: &Fact<T>) -> Result<&T, String> {
    fact.as_ref().map_err(Clone::clone)
}

/// A configuration with webhooks for IPUJobs.
#[derive(Clone, Debug)]
pub(super) struct WebhookConfiguration {
    /// `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
    pub(super) kind: &'static str,
    pub(super) metadata: ObjectMeta,
    /// Webhooks for IPUJobs, each with its index among all. Mutating ones have the same fields.
    pub(super) webhooks: Vec<(usize, ValidatingWebhook)>,
    /// Whether it has webhooks for other objects too.
    pub(super) has_others: bool,
}

impl WebhookConfiguration {
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the Services that the webhooks lead to.
    pub(super) fn services(&self) -> impl Iterator<Item = &ServiceReference> {
        let webhooks = self.webhooks.iter();
        webhooks.filter_map(|(_, webhook)| webhook.client_config.service.as_ref())
    }
}

/// An IPUJob.
#[derive(Clone, Debug)]
pub(super) struct JobFacts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) declines_host_network: bool,
    pub(super) first_failure: Option<FailureReport>,
}

/// Everything that the rules read.
#[derive(Debug)]
pub(super) struct Facts {
    /// Time of the API server.
    pub(super) now: Fact<Timestamp>,
    /// Deployments of operators in all namespaces.
    pub(super) operators: Fact<Vec<Deployment>>,
    /// Deployments of proxies in all namespaces.
    pub(super) proxies: Fact<Vec<Deployment>>,
    /// Examined installation; the reason if there is none.
    pub(super) installation: Fact<Installation>,
    pub(super) crd: Fact<Option<CustomResourceDefinition>>,
    pub(super) webhooks: Fact<Vec<WebhookConfiguration>>,
    pub(super) webhook_service: Fact<Option<Service>>,
    /// Error of the API server when it calls the webhooks; none if they answer.
    pub(super) webhook_error: Fact<Option<String>>,
    pub(super) proxy_service: Fact<Option<Service>>,
    /// Error of the API server when it calls the proxy through its Service; none if the proxy answers.
    pub(super) proxy_error: Fact<Option<String>>,
    pub(super) lease: Fact<Option<Lease>>,
    pub(super) controller_list: Fact<Option<ConfigMap>>,
    /// Controllers as the proxy sees them.
    pub(super) controllers: Fact<Vec<ControllerStatus>>,
    pub(super) ledger: Fact<Option<ConfigMap>>,
    pub(super) jobs: Fact<Vec<JobFacts>>,
    /// Pods of jobs.
    pub(super) pods: Fact<Vec<Pod>>,
    /// Warnings about Pods whose sandbox could not be created.
    pub(super) sandbox_events: Fact<Vec<Event>>,
    pub(super) nodes: Fact<Vec<Node>>,
    pub(super) namespaces: Fact<Vec<Namespace>>,
    pub(super) quotas: Fact<Vec<ResourceQuota>>,
    pub(super) limit_ranges: Fact<Vec<LimitRange>>,
    pub(super) missing_rights: Fact<Vec<MissingRight>>,
}

impl Facts {
    /// Returns the namespace of this name; none if there is none.
    pub(super) fn namespace(&self, name: &str) -> Result<Option<&Namespace>, String> {
        let mut namespaces = known(&self.namespaces)?.iter();
        Ok(namespaces.find(|namespace| namespace.metadata.name.as_deref() == Some(name)))
    }

    /// Returns the Pods of jobs that the installation reconciles.
    pub(super) fn own_pods(&self) -> Result<impl Iterator<Item = &Pod>, String> {
        let installation = known(&self.installation)?;
        let is_own = |pod: &&Pod| installation.watches(pod.metadata.namespace.as_deref().unwrap_or_default());
        Ok(known(&self.pods)?.iter().filter(is_own))
    }

    /// Returns the jobs that the installation reconciles.
    pub(super) fn own_jobs(&self) -> Result<impl Iterator<Item = &JobFacts> + Clone, String> {
        let installation = known(&self.installation)?;
        Ok(known(&self.jobs)?
            .iter()
            .filter(|job| installation.watches(&job.namespace)))
    }
}

/// Returns the phase of a Pod.
pub(super) fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// A right that an account of the installation lacks.
#[derive(Clone, Debug)]
pub(super) struct MissingRight {
    pub(super) account: String,
    /// None for the whole cluster.
    pub(super) namespace: Option<String>,
    /// Verb and resource, such as `create pods`.
    pub(super) text: String,
}
