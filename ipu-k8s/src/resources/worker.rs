//! Workers: `<job>-worker-<n>` (V-IPU guide §6.6).

use ipu_core::job::JobKind;
use k8s_openapi::api::core::v1::Pod;

use super::launcher_objects::config_mount;
use super::{PartitionEndpoint, PodRole, ProcessPlace, ResourceBuilder, all_containers, set_env};

/// Command of a worker that only hosts the processes of a launcher: it sleeps for 365 days (V-IPU guide
/// §6.8.1), and exits on SIGTERM.
const SLEEP_COMMAND: &str = "trap 'exit 0' TERM INT; sleep 365d & wait";

impl ResourceBuilder<'_> {
    /// Returns the Pod of worker `worker` of instance `instance`, for attempt `attempt`.
    pub(crate) fn worker(
        &self,
        instance: u32,
        worker: u32,
        attempt: u32,
        endpoint: &PartitionEndpoint,
    ) -> Pod {
        let mut spec = self.template.spec.clone().unwrap_or_default();
        let mut env = endpoint.env.clone();
        env.insert("IPUOF_VIPU_API_GCD_ID".to_owned(), worker.to_string());
        // Init containers and sidecars too: they may access the IPUs, but never those of another job.
        for container in all_containers(&mut spec) {
            set_env(container, &env);
        }
        if !matches!(self.spec.shape(), JobKind::Workers) {
            let name = self.job_container_name(&spec.containers).map(str::to_owned);
            if let Some(first) = spec
                .containers
                .iter_mut()
                .find(|one| Some(&one.name) == name.as_ref())
            {
                if first.command.as_ref().is_none_or(Vec::is_empty) {
                    let command = ["/bin/sh", "-c", SLEEP_COMMAND];
                    first.command = Some(command.map(str::to_owned).into());
                    first.args = None;
                }
                // Open MPI expects the program of remote execution on every host.
                first.volume_mounts.get_or_insert_default().push(config_mount());
            }
            spec.volumes
                .get_or_insert_default()
                .push(self.config_volume(instance));
        }
        self.apply_pod_defaults(&mut spec, endpoint);
        let place = ProcessPlace {
            instance,
            worker: Some(worker),
            attempt,
        };
        self.pod(
            self.spec.worker_name(instance, worker),
            PodRole::Worker,
            place,
            spec,
        )
    }
}
