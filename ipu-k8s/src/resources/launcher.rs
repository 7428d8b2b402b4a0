//! Launchers: `<job>-launcher` (seed 000 §6.6), with an init container that waits for the workers (§6.8.1).

use std::collections::BTreeMap;

use ipu_core::{JobKind, MpiEnv};
use serde_json::{Map, Value, json};

use super::launcher_objects::{AGENT, CONFIG_MOUNT, CONFIG_VOLUME, HOSTFILE, TOOLS_MOUNT, TOOLS_VOLUME};
use super::{JOB_UID, PartitionEndpoint, PodRole, ResourceBuilder, set_env};

/// Fields of the template's spec that a launcher copies. Not `serviceAccountName`, and no field about
/// devices.
const COPIED_POD_FIELDS: [&str; 13] = [
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
    // The grace period of ranks ends with that of their launcher.
    "terminationGracePeriodSeconds",
    "tolerations",
];

/// Fields of the first container that a launcher copies. Not its resources.
const COPIED_CONTAINER_FIELDS: [&str; 8] = [
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "securityContext",
    "terminationMessagePolicy",
    "volumeMounts",
    "workingDir",
];

/// Fields of the first container's security context that the wait container copies: with these a template
/// sets on its containers, instead of on the pod, what the `restricted` Pod Security Standard requires. The
/// user is the same so that both can read the token of the service account.
const COPIED_SECURITY_FIELDS: [&str; 4] = ["runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile"];

/// Command of an interactive launcher.
const INTERACTIVE_COMMAND: &str = "trap 'exit 0' TERM INT; sleep 365d & wait";

impl ResourceBuilder<'_> {
    /// Returns the pod of the launcher of instance `instance`, for attempt `attempt`.
    #[must_use]
    pub fn launcher(&self, instance: u32, attempt: u32, endpoint: &PartitionEndpoint) -> Value {
        let template = &self.template()["spec"];
        let first = &template["containers"][0];
        let copied = COPIED_POD_FIELDS.iter().filter_map(|field| {
            let value = template.get(*field)?;
            Some(((*field).to_owned(), value.clone()))
        });
        let mut spec: Map<String, Value> = copied.collect();
        let mut volumes = template["volumes"].as_array().cloned().unwrap_or_default();
        volumes.push(self.config_volume(instance));
        volumes.push(json!({"name": TOOLS_VOLUME, "emptyDir": {}}));
        spec.insert("volumes".to_owned(), Value::Array(volumes));
        spec.insert("serviceAccountName".to_owned(), self.launcher_account().into());
        spec.insert("initContainers".to_owned(), json!([self.wait_container(first)]));
        spec.insert(
            "containers".to_owned(),
            json!([self.launcher_container(first, endpoint)]),
        );
        self.apply_pod_defaults(&mut spec, endpoint);
        let name = self.spec.launcher_name(instance);
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.pod_metadata(&name, PodRole::Launcher, instance, None, attempt),
            "spec": spec,
        })
    }

    /// Returns the init container that waits until all workers are ready, and installs the program of remote
    /// execution.
    fn wait_container(&self, first: &Value) -> Value {
        // It satisfies the `restricted` Pod Security Standard if the template does.
        let mut security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        for field in COPIED_SECURITY_FIELDS {
            if let Some(value) = first["securityContext"].get(field) {
                security[field] = value.clone();
            }
        }
        json!({
            "name": "wait-for-workers",
            "image": self.installation.launcher_image,
            "imagePullPolicy": self.installation.launcher_image_pull_policy,
            "command": ["ipu-launcher", "wait", "--install", TOOLS_MOUNT],
            // A pod of another owner that took the name of a worker does not match.
            "env": [{"name": "IPU_LAUNCHER_SELECTOR", "value": format!("{JOB_UID}={}", self.spec.key().uid)}],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": security,
            "volumeMounts": [
                {"name": CONFIG_VOLUME, "mountPath": CONFIG_MOUNT, "readOnly": true},
                {"name": TOOLS_VOLUME, "mountPath": TOOLS_MOUNT},
            ],
        })
    }

    fn launcher_container(&self, first: &Value, endpoint: &PartitionEndpoint) -> Value {
        let copied = COPIED_CONTAINER_FIELDS.iter().filter_map(|field| {
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
            _ => json!(["/bin/sh", "-c", INTERACTIVE_COMMAND]),
        };
        container.insert("command".to_owned(), command);
        let own = self.job.spec.launcher.iter().flat_map(|launcher| &launcher.env);
        let own: Vec<Value> = own.filter_map(|var| serde_json::to_value(var).ok()).collect();
        if !own.is_empty() {
            let env = container.entry("env").or_insert_with(|| json!([]));
            if let Value::Array(env) = env {
                env.retain(|inherited| own.iter().all(|own| own["name"] != inherited["name"]));
                env.extend(own);
            }
        }
        // Regardless of their origin, variables with the address of the partition are the operator's.
        set_env(&mut container, &self.launcher_variables(endpoint));
        Value::Object(container)
    }

    /// Returns the variables of a launcher. It serves all GCDs; only if there is one it has a GCD itself, for
    /// interactive use.
    fn launcher_variables(&self, endpoint: &PartitionEndpoint) -> BTreeMap<String, String> {
        let mut variables = endpoint.env.clone();
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
        // Workers cannot start processes on other workers: the launcher starts all of them.
        variables.insert("OMPI_MCA_plm_rsh_no_tree_spawn".to_owned(), "1".to_owned());
        variables
    }

    /// Returns the name of the launchers' service account.
    pub(super) fn launcher_account(&self) -> String {
        format!("{}-launcher", self.spec.key().name)
    }
}
