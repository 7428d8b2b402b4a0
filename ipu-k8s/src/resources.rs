//! The Kubernetes objects of a job: pure functions from what was parsed and granted to what is asked of the API server.
//!
//! Seed 000 §6.8.1 says which there are: workers; and, for a job with a launcher, a ConfigMap (the script of remote
//! execution and the hostfiles), a ServiceAccount, a Role and a RoleBinding for each instance, and the launcher.
//!
//! | of `spec.workers.template` | workers | launcher |
//! |---|---|---|
//! | labels and annotations | copied | copied |
//! | all containers and init containers | copied | the image, environment, mounts, working directory and security context of the first container |
//! | `resources` | copied | never: a launcher computes nothing, and `rdma/*` is the workers' |
//! | `volumes` | copied | copied |
//! | `imagePullSecrets`, `nodeSelector`, `tolerations`, `affinity`, `securityContext`, `priorityClassName`, `priority`, `schedulerName`, `runtimeClassName`, `hostAliases`, `dnsConfig`, `enableServiceLinks`, `terminationGracePeriodSeconds` | copied | copied |
//! | everything else | copied | not |
//! | `hostNetwork` | as the installation and `spec.workers.hostNetwork` say, whatever is there | the same |
//! | `restartPolicy` | always Never: the operator restarts | the same |
//! | `terminationMessagePolicy` | FallbackToLogsOnError unless it says otherwise | the same |
//! | `serviceAccountName` | copied | the job's own |
//!
//! Init containers, sidecars among them, get what containers get, but no privileges.

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

use crate::crd::{IpuJob, leads_to_partition};

/// The field manager of everything that the operator writes.
pub const FIELD_MANAGER: &str = "ipu-operator";

/// What an installation decides for all jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstallationDefaults {
    /// Whether workers and launchers are on their node's network and privileged (`worker.hostNetwork`, seed 000 §6.11).
    pub network: Network,
    /// The image that `ipu-launcher` is in.
    pub launcher_image: String,
    /// Its `imagePullPolicy`.
    pub launcher_image_pull_policy: String,
    /// The most instances of one job that are in the queue of the proxy, or have their partition made ready, at once.
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

/// Which network workers and launchers are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Their node's, privileged, with `ClusterFirstWithHostNet`: what reaches an RDMA interface. Privileges are for what
    /// computes: init containers have those that the template gives them.
    Host,
    /// Their own, also if the template asks for the node's, and with no privileges but those of the template, whose
    /// `dnsPolicy` is kept.
    Pod,
}

/// The partition that a process runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionEndpoint {
    /// Its id.
    pub partition: PartitionId,
    /// The variables that lead to it.
    pub env: BTreeMap<String, String>,
    /// The label of the nodes that reach it.
    pub node_label: Option<(String, String)>,
}

/// Makes the objects of one job.
#[derive(Clone, Copy, Debug)]
pub struct ResourceBuilder<'a> {
    /// The job as it was submitted.
    pub job: &'a IpuJob,
    /// The same, parsed.
    pub spec: &'a JobSpec,
    /// What the installation decides.
    pub installation: &'a InstallationDefaults,
}

impl ResourceBuilder<'_> {
    /// Everything but workers, launchers and [their rights](Self::launcher_rights) that a job with a launcher needs, to be
    /// applied in this order.
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

    /// The metadata of an object of the job.
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

    /// The labels of every object of the job.
    fn labels(&self) -> Map<String, Value> {
        let key = self.spec.key();
        Map::from_iter([
            (JOB_NAME.to_owned(), key.name.as_str().into()),
            (JOB_UID.to_owned(), key.uid.as_str().into()),
        ])
    }

    /// The Pod template, which may lack anything.
    fn template(&self) -> &Value {
        let workers = self.job.spec.workers.as_ref();
        workers
            .and_then(|workers| workers.template.as_ref())
            .map_or(&Value::Null, |template| &template.0)
    }

    /// Metadata of a Kubernetes Pod: the template's labels and annotations, and ours over them.
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

    /// What a Kubernetes Pod of the job has, whatever it is for: the network, the nodes, no restarts.
    fn apply_pod_defaults(&self, spec: &mut Map<String, Value>, place: &PartitionEndpoint) {
        spec.insert("restartPolicy".to_owned(), "Never".into());
        if let Some((key, value)) = &place.node_label {
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
                    // The API server refuses a privileged container that may not gain privileges.
                    security.remove("allowPrivilegeEscalation");
                    container.insert("securityContext".to_owned(), Value::Object(security));
                }
            }
            // A template that asks for the node's network does not overrule who said no.
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

/// The containers of a Pod's spec that are objects, without its init containers.
fn containers(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    spec.iter_mut()
        .filter(|(field, _)| *field == "containers")
        .flat_map(|(_, list)| objects(list))
}

/// The same with its init containers, sidecars among them.
fn all_containers(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    spec.iter_mut()
        .filter(|(field, _)| matches!(field.as_str(), "initContainers" | "containers"))
        .flat_map(|(_, list)| objects(list))
}

fn objects(list: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let list = list.as_array_mut().into_iter().flatten();
    list.filter_map(Value::as_object_mut)
}

/// The object that `value` is, or an empty one.
fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Puts variables into a container, at the front, so that the user's may refer to them. What leads to the partition is ours
/// alone, whether or not the container gets it; anything else the user may say otherwise.
fn set_env(container: &mut Map<String, Value>, ours: &BTreeMap<String, String>) {
    let theirs = container
        .get("env")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let ours_first = ours
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}));
    let kept = theirs
        .into_iter()
        .filter(|var| !leads_to_partition(var["name"].as_str().unwrap_or_default()));
    let kept: Vec<Value> = kept.collect();
    let overridden = |name: &Value| kept.iter().any(|var| var["name"] == *name);
    let mut env: Vec<Value> = ours_first.filter(|var| !overridden(&var["name"])).collect();
    env.extend(kept);
    container.insert("env".to_owned(), Value::Array(env));
}
