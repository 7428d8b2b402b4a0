//! Workers: `<job>-worker-<n>` (seed 000 §6.6).

use std::collections::BTreeMap;

use ipu_core::JobKind;
use serde_json::{Value, json};

use super::{PartitionEndpoint, PodRole, ResourceBuilder, all_containers, containers, object, set_env};
use crate::resources::launcher_objects::{CONFIG_MOUNT, CONFIG_VOLUME};

/// Command of a worker that only hosts the processes of a launcher: it sleeps for 365 days (seed 000 §6.8.1),
/// and exits on SIGTERM.
const SLEEP_COMMAND: &str = "trap 'exit 0' TERM INT; sleep 365d & wait";

impl ResourceBuilder<'_> {
    /// Returns the pod of worker `worker` of instance `instance`, for attempt `attempt`.
    #[must_use]
    pub fn worker(&self, instance: u32, worker: u32, attempt: u32, endpoint: &PartitionEndpoint) -> Value {
        let name = self.spec.worker_name(instance, worker);
        let mut spec = object(&self.template()["spec"]);
        let has_launcher = !matches!(self.spec.shape(), JobKind::Workers);
        let mut env: BTreeMap<String, String> = endpoint.env.clone();
        env.insert("IPUOF_VIPU_API_GCD_ID".to_owned(), worker.to_string());
        // Init containers and sidecars too: they may access the IPUs, but never those of another job.
        for container in all_containers(&mut spec) {
            set_env(container, &env);
        }
        if let Some(first) = containers(&mut spec).next().filter(|_| has_launcher) {
            if first.get("command").is_none_or(|command| command == &json!([])) {
                first.insert("command".to_owned(), json!(["/bin/sh", "-c", SLEEP_COMMAND]));
                first.remove("args");
            }
            // Open MPI expects the program of remote execution on every host.
            let mut mounts = first
                .get("volumeMounts")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            mounts.push(json!({"name": CONFIG_VOLUME, "mountPath": CONFIG_MOUNT, "readOnly": true}));
            first.insert("volumeMounts".to_owned(), Value::Array(mounts));
        }
        if has_launcher {
            let mut volumes = spec
                .get("volumes")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            volumes.push(self.config_volume(instance));
            spec.insert("volumes".to_owned(), Value::Array(volumes));
        }
        self.apply_pod_defaults(&mut spec, endpoint);
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.pod_metadata(&name, PodRole::Worker, instance, Some(worker), attempt),
            "spec": spec,
        })
    }
}
