//! Launchers: `<job>-launcher` (seed 000 §6.6), with an init container that waits for the workers (§6.8.1).

use std::collections::BTreeMap;

use ipu_core::{JobKind, MpiEnv};
use serde_json::{Map, Value, json};

use super::launcher_objects::{AGENT, CONFIG_MOUNT, CONFIG_VOLUME, HOSTFILE, TOOLS_MOUNT, TOOLS_VOLUME};
use super::{JOB_UID, PartitionEndpoint, PodRole, ResourceBuilder, set_env};

/// What of the template's spec a launcher has too. Not `serviceAccountName`, and nothing that makes room for devices.
const COPIED: [&str; 13] = [
    "affinity",
    "dnsConfig",
    "enableServiceLinks",
    "hostAliases",
    "imagePullSecrets",
    "nodeSelector",
    "priority",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    // Ranks that are given time to end have it only as long as their launcher does.
    "terminationGracePeriodSeconds",
    "tolerations",
];

/// What of the first container a launcher has too. Not its resources.
const COPIED_OF_CONTAINER: [&str; 8] = [
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "securityContext",
    "terminationMessagePolicy",
    "volumeMounts",
    "workingDir",
];

/// What of the first container's security context the container has that waits for the workers: with these a template says on
/// its containers, instead of for the Pod, what the strictest profile of Kubernetes asks for. The user is the same so that both
/// may read the token of the service account.
const COPIED_OF_SECURITY: [&str; 4] = ["runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile"];

/// What a launcher does in which people work.
const SESSION: &str = "trap 'exit 0' TERM INT; sleep 365d & wait";

impl ResourceBuilder<'_> {
    /// The Kubernetes Pod of the launcher of instance `instance`, for attempt `attempt`.
    #[must_use]
    pub fn launcher(&self, instance: u32, attempt: u32, place: &PartitionEndpoint) -> Value {
        let template = &self.template()["spec"];
        let first = &template["containers"][0];
        let copied = COPIED.iter().filter_map(|field| {
            let value = template.get(*field)?;
            Some(((*field).to_owned(), value.clone()))
        });
        let mut spec: Map<String, Value> = copied.collect();
        let mut volumes = template["volumes"].as_array().cloned().unwrap_or_default();
        volumes.push(self.config_volume(instance));
        volumes.push(json!({"name": TOOLS_VOLUME, "emptyDir": {}}));
        spec.insert("volumes".to_owned(), Value::Array(volumes));
        spec.insert("serviceAccountName".to_owned(), self.launcher_account().into());
        spec.insert(
            "initContainers".to_owned(),
            json!([self.waiting_container(first)]),
        );
        spec.insert(
            "containers".to_owned(),
            json!([self.launching_container(first, place)]),
        );
        self.apply_pod_defaults(&mut spec, place);
        let name = self.spec.launcher_name(instance);
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.pod_metadata(&name, PodRole::Launcher, instance, None, attempt),
            "spec": spec,
        })
    }

    /// Waits until all workers are ready, and leaves the program of remote execution behind.
    fn waiting_container(&self, first: &Value) -> Value {
        // The strictest profile of Kubernetes lets it in, if it lets in what the template has.
        let mut security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        for field in COPIED_OF_SECURITY {
            if let Some(value) = first["securityContext"].get(field) {
                security[field] = value.clone();
            }
        }
        json!({
            "name": "wait-for-workers",
            "image": self.installation.launcher_image,
            "imagePullPolicy": self.installation.launcher_image_pull_policy,
            "command": ["ipu-launcher", "wait", "--install", TOOLS_MOUNT],
            // A Pod of another owner that took the name of a worker is none.
            "env": [{"name": "IPU_LAUNCHER_SELECTOR", "value": format!("{JOB_UID}={}", self.spec.key().uid)}],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": security,
            "volumeMounts": [
                {"name": CONFIG_VOLUME, "mountPath": CONFIG_MOUNT, "readOnly": true},
                {"name": TOOLS_VOLUME, "mountPath": TOOLS_MOUNT},
            ],
        })
    }

    fn launching_container(&self, first: &Value, place: &PartitionEndpoint) -> Value {
        let copied = COPIED_OF_CONTAINER.iter().filter_map(|field| {
            let value = first.get(*field)?;
            Some(((*field).to_owned(), value.clone()))
        });
        let mut container: Map<String, Value> = copied.collect();
        container.insert("name".to_owned(), "launcher".into());
        let mut mounts = container
            .get("volumeMounts")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        mounts.push(json!({"name": CONFIG_VOLUME, "mountPath": CONFIG_MOUNT, "readOnly": true}));
        mounts.push(json!({"name": TOOLS_VOLUME, "mountPath": TOOLS_MOUNT, "readOnly": true}));
        container.insert("volumeMounts".to_owned(), Value::Array(mounts));
        let command = match self.spec.shape() {
            JobKind::Launcher { command } => json!(command),
            _ => json!(["/bin/sh", "-c", SESSION]),
        };
        container.insert("command".to_owned(), command);
        let own = self.job.spec.launcher.iter().flat_map(|launcher| &launcher.env);
        let own: Vec<Value> = own.filter_map(|var| serde_json::to_value(var).ok()).collect();
        if !own.is_empty() {
            let env = container.entry("env").or_insert_with(|| json!([]));
            if let Value::Array(env) = env {
                env.retain(|known| own.iter().all(|own| own["name"] != known["name"]));
                env.extend(own);
            }
        }
        // Whoever said them: those that lead to the partition are ours alone.
        set_env(&mut container, &self.launcher_variables(place));
        Value::Object(container)
    }

    /// A launcher serves all GCDs; only if there is one it has a GCD itself, for who works in it by hand.
    fn launcher_variables(&self, place: &PartitionEndpoint) -> BTreeMap<String, String> {
        let mut variables = place.env.clone();
        if self.spec.workers_per_instance() == 1 {
            variables.insert("IPUOF_VIPU_API_GCD_ID".to_owned(), "0".to_owned());
        } else {
            variables.remove("IPUOF_VIPU_API_GCD_ID");
        }
        let mpi = MpiEnv {
            remote_agent: AGENT,
            hostfile: HOSTFILE,
            tcp_interface: self.spec.tcp_interface(),
        };
        variables.extend(
            mpi.vars()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        // Workers cannot start one another's processes: the launcher starts all of them.
        variables.insert("OMPI_MCA_plm_rsh_no_tree_spawn".to_owned(), "1".to_owned());
        variables
    }

    /// The name of the launchers' service account.
    pub(super) fn launcher_account(&self) -> String {
        format!("{}-launcher", self.spec.key().name)
    }
}
