//! The Kubernetes objects of a job: pure functions from the parsed job and its partitions to objects.
//!
//! The objects are those of the V-IPU guide §6.8.1: workers; and, for a job with a launcher, a ConfigMap (the
//! script of remote execution and the hostfiles), a ServiceAccount, a Role and a RoleBinding for each
//! instance, and the launcher. The page "How the operator works" lists the fields that each takes from the
//! template.

mod labels;
mod launcher;
mod launcher_objects;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::BTreeMap;

use ipu_core::PartitionId;
use ipu_core::job::{JobSpec, Limits};
use ipu_core::render::IpuofEnv;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, PodTemplateSpec, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub(crate) use self::labels::{ATTEMPT, INSTANCE, JOB_NAME, JOB_UID, PodRole, ROLE, WORKER, selector};
pub(crate) use self::launcher_objects::launcher_role;

use crate::crd::{DEFAULT_CONTAINER, IpuJob, job_container};

/// Field manager of all writes of the operator.
pub(crate) const FIELD_MANAGER: &str = "ipu-operator";

/// Name of the container of a launcher.
const LAUNCHER_CONTAINER: &str = "launcher";

/// Settings of an installation for all jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstallationDefaults {
    /// Network and privileges of workers and launchers (`worker.hostNetwork`, V-IPU guide §6.11).
    pub network: Network,
    /// Image with `ipu-launcher`.
    pub launcher_image: String,
    /// `imagePullPolicy` of that image.
    pub launcher_image_pull_policy: String,
    /// Maximum number of instances of one job that are queued at the proxy, or whose partition is being
    /// prepared, at once.
    pub max_requested: u32,
}

impl Default for InstallationDefaults {
    fn default() -> Self {
        Self {
            network: Network::Host,
            launcher_image: "graphcore/ipu-operator-launcher:latest".to_owned(),
            launcher_image_pull_policy: "IfNotPresent".to_owned(),
            max_requested: Limits::MAX_REQUESTED,
        }
    }
}

/// Network of workers and launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The network of the node, privileged, with `ClusterFirstWithHostNet`, which gives access to RDMA
    /// interfaces. Init containers get only the privileges of the template.
    Host,
    /// The network of the Pod, even if the template requests that of the node, and with only the privileges
    /// and the `dnsPolicy` of the template.
    Pod,
}

/// Access to the partition of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionEndpoint {
    /// Id of the partition.
    pub(crate) partition: PartitionId,
    /// Environment variables with the address of the partition.
    pub(crate) env: BTreeMap<String, String>,
    /// Label of the nodes that can reach the partition.
    pub(crate) node_label: Option<(String, String)>,
}

/// Builder of the objects of one job.
#[derive(Clone, Debug)]
pub(crate) struct ResourceBuilder<'a> {
    job: &'a IpuJob,
    spec: &'a JobSpec,
    installation: &'a InstallationDefaults,
    template: PodTemplateSpec,
}

impl<'a> ResourceBuilder<'a> {
    /// Reads the Pod template of a job. Returns a message if it has a value of a wrong kind, which the schema
    /// of the CRD refuses.
    pub(crate) fn new(
        job: &'a IpuJob,
        spec: &'a JobSpec,
        installation: &'a InstallationDefaults,
    ) -> Result<Self, String> {
        let workers = job.spec.workers.as_ref();
        let template = workers.and_then(|workers| workers.template.as_ref());
        Ok(Self {
            job,
            spec,
            installation,
            template: match template {
                Some(template) => serde_json::from_value(template.0.clone())
                    .map_err(|error| format!("spec.workers.template cannot be read: {error}"))?,
                None => PodTemplateSpec::default(),
            },
        })
    }

    fn network(&self) -> Network {
        if self.job.declines_host_network() {
            Network::Pod
        } else {
            self.installation.network
        }
    }

    /// Returns the metadata of an object of the job, with the labels of the job.
    fn metadata(&self, name: String) -> ObjectMeta {
        let key = self.spec.key();
        let labels = [(JOB_NAME, key.name.as_str()), (JOB_UID, key.uid.as_str())];
        ObjectMeta {
            name: Some(name),
            namespace: Some(key.namespace.to_string()),
            labels: Some(
                labels
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
            ),
            owner_references: Some(vec![OwnerReference {
                api_version: IpuJob::API_VERSION.to_owned(),
                kind: IpuJob::KIND.to_owned(),
                name: key.name.to_string(),
                uid: key.uid.to_string(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        }
    }

    /// Returns the name of the job's container in the template.
    fn job_container_name<'c>(&self, containers: &'c [Container]) -> Option<&'c str> {
        let metadata = self.template.metadata.as_ref();
        let annotations = metadata.and_then(|metadata| metadata.annotations.as_ref());
        job_container(annotations, containers.iter().map(|container| &*container.name))
    }

    /// Returns the headless Service of the job, which resolves to its ready workers.
    pub(crate) fn headless_service(&self) -> Service {
        let name = self.spec.key().name.to_string();
        let selector = [(JOB_NAME, &*name), (ROLE, PodRole::Worker.label())];
        let selector = selector.map(|(label, value)| (label.to_owned(), value.to_owned()));
        Service {
            spec: Some(ServiceSpec {
                cluster_ip: Some("None".to_owned()),
                selector: Some(selector.into()),
                ..ServiceSpec::default()
            }),
            metadata: self.metadata(name),
            ..Service::default()
        }
    }

    /// Returns a Pod with the labels and annotations of the template, overridden by the operator's.
    fn pod(&self, name: String, role: PodRole, place: ProcessPlace, spec: PodSpec) -> Pod {
        let template = self.template.metadata.clone().unwrap_or_default();
        let mut metadata = self.metadata(name);
        let mut labels = template.labels.unwrap_or_default();
        labels.append(&mut metadata.labels.take().unwrap_or_default());
        labels.insert(ROLE.to_owned(), role.label().to_owned());
        labels.insert(INSTANCE.to_owned(), place.instance.to_string());
        labels.insert(ATTEMPT.to_owned(), place.attempt.to_string());
        if let Some(worker) = place.worker {
            labels.insert(WORKER.to_owned(), worker.to_string());
        }
        metadata.labels = Some(labels);
        // An injector may put a container in front of the job's.
        let container = match role {
            PodRole::Launcher => Some(LAUNCHER_CONTAINER),
            PodRole::Worker => self.job_container_name(&spec.containers),
        };
        let mut annotations = template.annotations.unwrap_or_default();
        annotations.extend(container.map(|name| (DEFAULT_CONTAINER.to_owned(), name.to_owned())));
        metadata.annotations = Some(annotations);
        metadata.finalizers = Some(vec![IpuJob::POD_FINALIZER.to_owned()]);
        Pod {
            metadata,
            spec: Some(spec),
            status: None,
        }
    }

    /// Applies settings that all Pods of the job share: network, node selector, no restarts.
    fn apply_pod_defaults(&self, spec: &mut PodSpec, endpoint: &PartitionEndpoint) {
        spec.restart_policy = Some("Never".to_owned());
        // The API server removes a Pod without a grace period at once, even if its node cannot end it.
        let grace = spec.termination_grace_period_seconds;
        spec.termination_grace_period_seconds = grace.map(|seconds| seconds.max(1));
        if let Some((key, value)) = endpoint.node_label.clone() {
            spec.node_selector.get_or_insert_default().insert(key, value);
        }
        match self.network() {
            Network::Host => {
                spec.host_network = Some(true);
                spec.dns_policy = Some("ClusterFirstWithHostNet".to_owned());
                for container in &mut spec.containers {
                    let security = container.security_context.get_or_insert_default();
                    security.privileged = Some(true);
                    // The API server refuses a privileged container with `allowPrivilegeEscalation: false`.
                    security.allow_privilege_escalation = None;
                }
            }
            // The template cannot enable the host network if the job or the installation disables it.
            Network::Pod => spec.host_network = None,
        }
        for container in all_containers(spec) {
            let policy = &mut container.termination_message_policy;
            policy.get_or_insert_with(|| "FallbackToLogsOnError".to_owned());
        }
    }
}

/// Place of a process in its job.
#[derive(Clone, Copy, Debug)]
struct ProcessPlace {
    instance: u32,
    /// Index of the worker within the instance; `None` for a launcher.
    worker: Option<u32>,
    attempt: u32,
}

/// Returns the containers of a Pod spec, including init containers and sidecars.
fn all_containers(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    let first = spec.init_containers.iter_mut().flatten();
    first.chain(&mut spec.containers)
}

/// Inserts variables into a container, before those of the user, which may refer to them. Variables that
/// select IPUs are always the operator's, or absent; the user may override all others.
fn set_env(container: &mut Container, variables: &BTreeMap<String, String>) {
    let mut own = container.env.take().unwrap_or_default();
    own.retain(|var| !IpuofEnv::selects_ipus(&var.name));
    let defaults = variables
        .iter()
        .filter(|(name, _)| own.iter().all(|var| var.name != **name));
    let mut env: Vec<EnvVar> = defaults.map(|(name, value)| variable(name, value)).collect();
    env.append(&mut own);
    container.env = Some(env);
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_from: None,
    }
}
