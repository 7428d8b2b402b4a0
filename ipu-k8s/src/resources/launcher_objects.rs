//! Further objects of a job with a launcher: the ConfigMap of MPI, and the launcher's rights (V-IPU guide
//! §6.8.1).

use std::collections::BTreeMap;

use ipu_core::render::hostfile;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, KeyToPath, ServiceAccount, Volume, VolumeMount,
};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

use super::ResourceBuilder;

/// Mount path of the script and the hostfile in workers and launchers.
const CONFIG_MOUNT: &str = "/etc/mpi";
/// Script of remote execution, which `mpirun` calls in place of `ssh`.
pub(super) const REMOTE_SHELL_SCRIPT: &str = "/etc/mpi/kubexec.sh";
/// Hostfile of the instance.
pub(super) const HOSTFILE: &str = "/etc/mpi/hostfile";
/// Mount path of `ipu-launcher`, which the init container installs.
pub(super) const TOOLS_MOUNT: &str = "/opt/ipu";
const CONFIG_VOLUME: &str = "ipu-mpi-config";
pub(super) const TOOLS_VOLUME: &str = "ipu-tools";

/// Returns the text of the script. `mpirun` runs it with a host, which is the name of a worker, and a
/// command.
fn remote_shell_script() -> String {
    format!("#!/bin/sh\nexec {TOOLS_MOUNT}/ipu-launcher agent \"$@\"\n")
}

/// Returns the name of the Role of an instance's launcher, and of its binding: that of the launcher,
/// `<job>-launcher[-<instance>]`.
pub(crate) fn launcher_role(job: &str, instance: u32) -> String {
    match instance {
        0 => format!("{job}-launcher"),
        index => format!("{job}-launcher-{index}"),
    }
}

/// Returns the mount of the script and the hostfile.
pub(super) fn config_mount() -> VolumeMount {
    VolumeMount {
        name: CONFIG_VOLUME.to_owned(),
        mount_path: CONFIG_MOUNT.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

impl ResourceBuilder<'_> {
    /// Returns the service account of the launchers of the job.
    pub(crate) fn service_account(&self) -> ServiceAccount {
        ServiceAccount {
            metadata: self.metadata(self.launcher_account()),
            ..ServiceAccount::default()
        }
    }

    /// Returns the Role that lets a launcher read the workers of instance `instance` and exec into them.
    ///
    /// RBAC identifies Pods by name alone. The Role may exist only while every worker of the instance exists
    /// and belongs to the job: otherwise it grants rights over Pods of other owners.
    pub(crate) fn role(&self, instance: u32) -> Role {
        let workers =
            (0..self.spec.workers_per_instance()).map(|worker| self.spec.worker_name(instance, worker));
        let workers: Vec<String> = workers.collect();
        let rule = |resource: &str, verbs: &[&str]| PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![resource.to_owned()]),
            resource_names: Some(workers.clone()),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            non_resource_urls: None,
        };
        Role {
            metadata: self.metadata(launcher_role(self.spec.key().name.as_str(), instance)),
            rules: Some(vec![
                rule("pods", &["get", "list", "watch"]),
                rule("pods/exec", &["create", "get"]),
            ]),
        }
    }

    /// Returns the binding of that Role to the account of the launcher.
    pub(crate) fn role_binding(&self, instance: u32) -> RoleBinding {
        let name = launcher_role(self.spec.key().name.as_str(), instance);
        RoleBinding {
            metadata: self.metadata(name.clone()),
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                kind: "Role".to_owned(),
                name,
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: self.launcher_account(),
                namespace: Some(self.spec.key().namespace.to_string()),
                api_group: None,
            }]),
        }
    }

    /// Returns the ConfigMap with the script and the hostfiles: `hostfile` of the first instance,
    /// `hostfile-<instance>` of the others.
    pub(crate) fn config_map(&self) -> ConfigMap {
        let hostfiles = (0..self.spec.instances())
            .map(|instance| (hostfile_key(instance), hostfile(self.spec, instance)));
        let mut data: BTreeMap<String, String> = hostfiles.collect();
        data.insert("kubexec.sh".to_owned(), remote_shell_script());
        ConfigMap {
            metadata: self.metadata(self.config_name()),
            data: Some(data),
            ..ConfigMap::default()
        }
    }

    fn config_name(&self) -> String {
        format!("{}-config", self.spec.key().name)
    }

    /// Returns the volume with the script and the hostfile of instance `instance`.
    pub(super) fn config_volume(&self, instance: u32) -> Volume {
        let file = |key: String, path: &str, mode| KeyToPath {
            key,
            path: path.to_owned(),
            mode: Some(mode),
        };
        Volume {
            name: CONFIG_VOLUME.to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: self.config_name(),
                items: Some(vec![
                    file("kubexec.sh".to_owned(), "kubexec.sh", 0o555),
                    file(hostfile_key(instance), "hostfile", 0o444),
                ]),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        }
    }
}

fn hostfile_key(instance: u32) -> String {
    match instance {
        0 => "hostfile".to_owned(),
        index => format!("hostfile-{index}"),
    }
}
