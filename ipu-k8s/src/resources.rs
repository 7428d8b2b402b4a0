//! The Kubernetes objects of a job: pure functions from the parsed job and its partitions to manifests.
//!
//! The objects are those of seed 000 §6.8.1: workers; and, for a job with a launcher, a ConfigMap (the script
//! of remote execution and the hostfiles), a ServiceAccount, a Role and a RoleBinding for each instance, and
//! the launcher.
//!
//! | of `spec.workers.template` | workers | launcher |
//! |---|---|---|
//! | labels and annotations | copied | copied |
//! | all containers and init containers | copied | the image, environment, mounts, working directory and security context of the first container |
//! | `resources` | copied | never: a launcher computes nothing, and `rdma/*` is the workers' |
//! | `volumes` | copied | copied |
//! | `imagePullSecrets`, `nodeSelector`, `tolerations`, `affinity`, `securityContext`, `priorityClassName`, `priority`, `schedulerName`, `runtimeClassName`, `hostAliases`, `dnsConfig`, `enableServiceLinks`, `terminationGracePeriodSeconds` | copied | copied |
//! | everything else | copied | not |
//! | `hostNetwork` | as the installation and `spec.workers.hostNetwork` set it, whatever the template has |
//! the same |
//! | `restartPolicy` | always Never: the operator restarts | the same |
//! | `terminationMessagePolicy` | FallbackToLogsOnError unless the template sets it | the same |
//! | `serviceAccountName` | copied | the job's own |
//!
//! Init containers, including sidecars, get the same settings as containers, but no privileges.

mod labels;
mod launcher;
mod launcher_objects;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::BTreeMap;

use ipu_core::{JobKind, JobSpec, Limits, PartitionId};
use serde_json::{Map, Value, json};

pub use self::labels::{ATTEMPT, INSTANCE, JOB_NAME, JOB_UID, PodRole, ROLE, WORKER, selector};
pub(crate) use self::launcher_objects::launcher_role;

use crate::crd::{IpuJob, is_partition_variable};

/// Field manager of all writes of the operator.
pub const FIELD_MANAGER: &str = "ipu-operator";

/// Settings of an installation for all jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstallationDefaults {
    /// Network and privileges of workers and launchers (`worker.hostNetwork`, seed 000 §6.11).
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
    /// The network of the pod, even if the template requests that of the node, and with only the privileges
    /// and the `dnsPolicy` of the template.
    Pod,
}

/// Access to the partition of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionEndpoint {
    /// Id of the partition.
    pub partition: PartitionId,
    /// Environment variables with the address of the partition.
    pub env: BTreeMap<String, String>,
    /// Label of the nodes that can reach the partition.
    pub node_label: Option<(String, String)>,
}

/// Builder of the objects of one job.
#[derive(Clone, Copy, Debug)]
pub struct ResourceBuilder<'a> {
    /// Job as it was submitted.
    pub job: &'a IpuJob,
    /// Parsed job.
    pub spec: &'a JobSpec,
    /// Settings of the installation.
    pub installation: &'a InstallationDefaults,
}

impl ResourceBuilder<'_> {
    /// Returns the objects that a job with a launcher needs besides workers, launchers and [their
    /// rights](Self::launcher_rights), to be applied in this order.
    #[must_use]
    pub fn shared(&self) -> Vec<Value> {
        match self.spec.shape() {
            JobKind::Workers => Vec::new(),
            _ => self.shared_objects(),
        }
    }

    fn network(&self) -> Network {
        if self.job.declines_host_network() {
            Network::Pod
        } else {
            self.installation.network
        }
    }

    /// Returns the metadata of an object of the job.
    fn metadata(&self, name: &str, labels: Map<String, Value>) -> Value {
        let key = self.spec.key();
        json!({
            "name": name,
            "namespace": key.namespace.as_str(),
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": IpuJob::API_VERSION,
                "kind": IpuJob::KIND,
                "name": key.name.as_str(),
                "uid": key.uid.as_str(),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        })
    }

    /// Returns the labels of every object of the job.
    fn labels(&self) -> Map<String, Value> {
        let key = self.spec.key();
        Map::from_iter([
            (JOB_NAME.to_owned(), key.name.as_str().into()),
            (JOB_UID.to_owned(), key.uid.as_str().into()),
        ])
    }

    /// Returns the pod template, which may lack any field.
    fn template(&self) -> &Value {
        let workers = self.job.spec.workers.as_ref();
        workers
            .and_then(|workers| workers.template.as_ref())
            .map_or(&Value::Null, |template| &template.0)
    }

    /// Returns the metadata of a pod: the labels and annotations of the template, overridden by the
    /// operator's.
    fn pod_metadata(
        &self,
        name: &str,
        role: PodRole,
        instance: u32,
        worker: Option<u32>,
        attempt: u32,
    ) -> Value {
        let template = &self.template()["metadata"];
        let mut labels = object(&template["labels"]);
        labels.extend(self.labels());
        labels.insert(ROLE.to_owned(), role.label().into());
        labels.insert(INSTANCE.to_owned(), instance.to_string().into());
        labels.insert(ATTEMPT.to_owned(), attempt.to_string().into());
        if let Some(worker) = worker {
            labels.insert(WORKER.to_owned(), worker.to_string().into());
        }
        let mut metadata = self.metadata(name, labels);
        if let Value::Object(annotations) = &template["annotations"] {
            metadata["annotations"] = Value::Object(annotations.clone());
        }
        metadata
    }

    /// Applies settings that all pods of the job share: network, node selector, no restarts.
    fn apply_pod_defaults(&self, spec: &mut Map<String, Value>, endpoint: &PartitionEndpoint) {
        spec.insert("restartPolicy".to_owned(), "Never".into());
        if let Some((key, value)) = &endpoint.node_label {
            let mut nodes = object(spec.get("nodeSelector").unwrap_or(&Value::Null));
            nodes.insert(key.clone(), value.as_str().into());
            spec.insert("nodeSelector".to_owned(), Value::Object(nodes));
        }
        match self.network() {
            Network::Host => {
                spec.insert("hostNetwork".to_owned(), true.into());
                spec.insert("dnsPolicy".to_owned(), "ClusterFirstWithHostNet".into());
                for container in containers(spec) {
                    let mut security = object(container.get("securityContext").unwrap_or(&Value::Null));
                    security.insert("privileged".to_owned(), true.into());
                    // The API server refuses a privileged container with `allowPrivilegeEscalation: false`.
                    security.remove("allowPrivilegeEscalation");
                    container.insert("securityContext".to_owned(), Value::Object(security));
                }
            }
            // The template cannot enable the host network if the job or the installation disables it.
            Network::Pod => {
                spec.remove("hostNetwork");
            }
        }
        for container in all_containers(spec) {
            container
                .entry("terminationMessagePolicy")
                .or_insert_with(|| "FallbackToLogsOnError".into());
        }
    }
}

/// Returns the containers of a pod spec that are objects, without init containers.
fn containers(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    spec.iter_mut()
        .filter(|(field, _)| *field == "containers")
        .flat_map(|(_, list)| objects(list))
}

/// Returns the containers of a pod spec that are objects, including init containers and sidecars.
fn all_containers(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    spec.iter_mut()
        .filter(|(field, _)| matches!(field.as_str(), "initContainers" | "containers"))
        .flat_map(|(_, list)| objects(list))
}

fn objects(list: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let list = list.as_array_mut().into_iter().flatten();
    list.filter_map(Value::as_object_mut)
}

/// Returns the object in `value`, or an empty one.
fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Inserts variables into a container, before those of the user, which may refer to them. Variables with the
/// address of the partition are always the operator's, or absent; the user may override all others.
fn set_env(container: &mut Map<String, Value>, variables: &BTreeMap<String, String>) {
    let user_variables = container
        .get("env")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let defaults = variables
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}));
    let user_variables = user_variables
        .into_iter()
        .filter(|var| !is_partition_variable(var["name"].as_str().unwrap_or_default()));
    let user_variables: Vec<Value> = user_variables.collect();
    let overridden = |name: &Value| user_variables.iter().any(|var| var["name"] == *name);
    let mut env: Vec<Value> = defaults.filter(|var| !overridden(&var["name"])).collect();
    env.extend(user_variables);
    container.insert("env".to_owned(), Value::Array(env));
}
