//! Launchers: `<job>-launcher` (V-IPU guide §6.6), with an init container that waits for the workers
//! (§6.8.1).

use std::collections::BTreeMap;

use ipu_core::job::JobKind;
use ipu_core::render::MpiEnv;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, Pod, PodSpec, ResourceRequirements,
    SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::launcher_objects::{HOSTFILE, REMOTE_SHELL_SCRIPT, TOOLS_MOUNT, TOOLS_VOLUME, config_mount};
use super::{
    JOB_UID, LAUNCHER_CONTAINER, PartitionEndpoint, PodRole, ProcessPlace, ResourceBuilder, set_env, variable,
};

/// Command of an interactive launcher.
const INTERACTIVE_COMMAND: &str = "trap 'exit 0' TERM INT; sleep 365d & wait";

/// Default requests of a launcher: `mpirun` and its agents wait most of the time.
const DEFAULT_REQUESTS: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "256Mi")];
/// Default limits of a launcher: room for the output of many ranks, and for a shell of an interactive job.
const DEFAULT_LIMITS: [(&str, &str); 2] = [("cpu", "2"), ("memory", "4Gi")];

impl ResourceBuilder<'_> {
    /// Returns the Pod of the launcher of instance `instance`, for attempt `attempt`.
    pub(crate) fn launcher(&self, instance: u32, attempt: u32, endpoint: &PartitionEndpoint) -> Pod {
        let template = self.template.spec.clone().unwrap_or_default();
        let name = self.job_container_name(&template.containers);
        let first = template
            .containers
            .iter()
            .find(|container| Some(&*container.name) == name);
        let first = first.cloned().unwrap_or_default();
        let mut volumes = template.volumes.unwrap_or_default();
        volumes.push(self.config_volume(instance));
        volumes.push(Volume {
            name: TOOLS_VOLUME.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        });
        // Not `serviceAccountName`, and no field about devices.
        let mut spec = PodSpec {
            affinity: template.affinity,
            dns_config: template.dns_config,
            enable_service_links: template.enable_service_links,
            host_aliases: template.host_aliases,
            image_pull_secrets: template.image_pull_secrets,
            node_selector: template.node_selector,
            priority: template.priority,
            priority_class_name: template.priority_class_name,
            runtime_class_name: template.runtime_class_name,
            scheduler_name: template.scheduler_name,
            security_context: template.security_context,
            // The grace period of ranks ends with that of their launcher.
            termination_grace_period_seconds: template.termination_grace_period_seconds,
            tolerations: template.tolerations,
            volumes: Some(volumes),
            service_account_name: Some(self.launcher_account()),
            init_containers: Some(vec![self.wait_container(first.security_context.as_ref())]),
            containers: vec![self.launcher_container(first, endpoint)],
            ..PodSpec::default()
        };
        self.apply_pod_defaults(&mut spec, endpoint);
        let place = ProcessPlace {
            instance,
            worker: None,
            attempt,
        };
        self.pod(self.spec.launcher_name(instance), PodRole::Launcher, place, spec)
    }

    /// Returns the init container that waits until all workers are ready, and installs the program of remote
    /// execution.
    fn wait_container(&self, first: Option<&SecurityContext>) -> Container {
        let first = first.cloned().unwrap_or_default();
        let selector = format!("{JOB_UID}={}", self.spec.key().uid);
        Container {
            name: "wait-for-workers".to_owned(),
            image: Some(self.installation.launcher_image.clone()),
            image_pull_policy: Some(self.installation.launcher_image_pull_policy.clone()),
            resources: Some(self.launcher_resources()),
            command: Some(
                ["ipu-launcher", "wait", "--install", TOOLS_MOUNT]
                    .map(str::to_owned)
                    .into(),
            ),
            // A Pod of another owner that took the name of a worker does not match.
            env: Some(vec![variable("IPU_LAUNCHER_SELECTOR", &selector)]),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            // With the copied fields a template sets on its containers, instead of on the Pod, what the
            // `restricted` Pod Security Standard requires. The user is the same so that both containers can
            // read the token of the service account.
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities {
                    add: None,
                    drop: Some(vec!["ALL".to_owned()]),
                }),
                run_as_group: first.run_as_group,
                run_as_non_root: first.run_as_non_root,
                run_as_user: first.run_as_user,
                seccomp_profile: first.seccomp_profile,
                ..SecurityContext::default()
            }),
            volume_mounts: Some(vec![config_mount(), tools_mount(None)]),
            ..Container::default()
        }
    }

    fn launcher_container(&self, first: Container, endpoint: &PartitionEndpoint) -> Container {
        let mut mounts = first.volume_mounts.unwrap_or_default();
        mounts.push(config_mount());
        mounts.push(tools_mount(Some(true)));
        let interactive = || ["/bin/sh", "-c", INTERACTIVE_COMMAND].map(str::to_owned).into();
        let mut container = Container {
            name: LAUNCHER_CONTAINER.to_owned(),
            command: Some(match self.spec.shape() {
                JobKind::Launcher { command } => command.clone(),
                _ => interactive(),
            }),
            env: first.env,
            env_from: first.env_from,
            image: first.image,
            image_pull_policy: first.image_pull_policy,
            // Not those of the worker: a launcher computes nothing.
            resources: Some(self.launcher_resources()),
            security_context: first.security_context,
            termination_message_policy: first.termination_message_policy,
            volume_mounts: Some(mounts),
            working_dir: first.working_dir,
            ..Container::default()
        };
        let own = self.job.spec.launcher.iter().flat_map(|launcher| &launcher.env);
        let own = own.filter_map(|var| serde_json::from_value(serde_json::to_value(var).ok()?).ok());
        let mut own: Vec<EnvVar> = own.collect();
        let inherited = container.env.get_or_insert_default();
        inherited.retain(|inherited| own.iter().all(|own| own.name != inherited.name));
        inherited.append(&mut own);
        // Regardless of their origin, variables with the address of the partition are the operator's.
        set_env(&mut container, &self.launcher_variables(endpoint));
        container
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
            remote_agent: REMOTE_SHELL_SCRIPT,
            hostfile: HOSTFILE,
            tcp_interface: self.spec.tcp_interface(),
        };
        let mpi = mpi.vars().into_iter();
        variables.extend(mpi.map(|(name, value)| (name.to_owned(), value)));
        // Workers cannot start processes on other workers: the launcher starts all of them.
        variables.insert("OMPI_MCA_plm_rsh_no_tree_spawn".to_owned(), "1".to_owned());
        variables
    }

    /// Returns the resources of the containers of a launcher. With requests and limits for both, a namespace
    /// with a ResourceQuota accepts it.
    fn launcher_resources(&self) -> ResourceRequirements {
        let launcher = self.job.spec.launcher.as_ref();
        let given = launcher.and_then(|launcher| launcher.resources.clone());
        given
            .and_then(|given| serde_json::from_value(given).ok())
            .unwrap_or_else(|| {
                let list = |list: [(&str, &str); 2]| {
                    let list = list.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
                    Some(list.into())
                };
                ResourceRequirements {
                    requests: list(DEFAULT_REQUESTS),
                    limits: list(DEFAULT_LIMITS),
                    claims: None,
                }
            })
    }

    /// Returns the name of the launchers' service account.
    pub(super) fn launcher_account(&self) -> String {
        format!("{}-launcher", self.spec.key().name)
    }
}

fn tools_mount(read_only: Option<bool>) -> VolumeMount {
    VolumeMount {
        name: TOOLS_VOLUME.to_owned(),
        mount_path: TOOLS_MOUNT.to_owned(),
        read_only,
        ..VolumeMount::default()
    }
}
