//! Further objects of a job with a launcher: the ConfigMap of MPI, and the launcher's rights (seed 000
//! §6.8.1).

use ipu_core::hostfile;
use serde_json::{Map, Value, json};

use super::ResourceBuilder;

/// Mount path of the script and the hostfile in workers and launchers.
pub(super) const CONFIG_MOUNT: &str = "/etc/mpi";
/// Program of remote execution.
pub(super) const AGENT: &str = "/etc/mpi/kubexec.sh";
/// Hostfile of the instance.
pub(super) const HOSTFILE: &str = "/etc/mpi/hostfile";
/// Mount path of `ipu-launcher`, which the init container installs.
pub(super) const TOOLS_MOUNT: &str = "/opt/ipu";
pub(super) const CONFIG_VOLUME: &str = "ipu-mpi-config";
pub(super) const TOOLS_VOLUME: &str = "ipu-tools";

/// Script that `mpirun` runs with a host, which is the name of a worker, and a command.
const SCRIPT: &str = "#!/bin/sh\nexec /opt/ipu/ipu-launcher agent \"$@\"\n";

/// Returns the name of the Role of an instance's launcher, and of its binding: that of the launcher,
/// `<job>-launcher[-<instance>]`.
pub(crate) fn launcher_role(job: &str, instance: u32) -> String {
    match instance {
        0 => format!("{job}-launcher"),
        index => format!("{job}-launcher-{index}"),
    }
}

impl ResourceBuilder<'_> {
    pub(super) fn shared_objects(&self) -> Vec<Value> {
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": self.metadata(&self.launcher_account(), self.labels()),
        });
        vec![self.config_map(), account]
    }

    /// Returns the Role that lets a launcher read the workers of instance `instance` and exec into them, and
    /// its binding, to be applied in this order.
    ///
    /// RBAC identifies pods by name alone. Apply these objects only while every worker of the instance exists
    /// and the job is its controller: otherwise they grant rights over pods of other owners.
    #[must_use]
    pub fn launcher_rights(&self, instance: u32) -> [Value; 2] {
        let name = launcher_role(self.spec.key().name.as_str(), instance);
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": self.metadata(&name, self.labels()),
            "rules": self.launcher_rules(instance),
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": self.metadata(&name, self.labels()),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{
                "kind": "ServiceAccount",
                "name": self.launcher_account(),
                "namespace": self.spec.key().namespace.as_str(),
            }],
        });
        [role, binding]
    }

    /// Returns the ConfigMap with the script and the hostfiles: `hostfile` of the first instance,
    /// `hostfile-<instance>` of the others.
    fn config_map(&self) -> Value {
        let mut data: Map<String, Value> = (0..self.spec.instances())
            .map(|instance| (hostfile_key(instance), hostfile(self.spec, instance).into()))
            .collect();
        data.insert("kubexec.sh".to_owned(), SCRIPT.into());
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self.metadata(&self.config_name(), self.labels()),
            "data": data,
        })
    }

    fn config_name(&self) -> String {
        format!("{}-config", self.spec.key().name)
    }

    /// Returns the volume with the script and the hostfile of instance `instance`.
    pub(super) fn config_volume(&self, instance: u32) -> Value {
        json!({
            "name": CONFIG_VOLUME,
            "configMap": {
                "name": self.config_name(),
                "items": [
                    {"key": "kubexec.sh", "path": "kubexec.sh", "mode": 0o555},
                    {"key": hostfile_key(instance), "path": "hostfile", "mode": 0o444},
                ],
            },
        })
    }

    /// Returns rules to read the workers of one instance and to exec into them.
    fn launcher_rules(&self, instance: u32) -> Value {
        let workers: Vec<String> = (0..self.spec.workers_per_instance())
            .map(|worker| self.spec.worker_name(instance, worker))
            .collect();
        json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"], "resourceNames": workers},
            {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"], "resourceNames": workers},
        ])
    }
}

fn hostfile_key(instance: u32) -> String {
    match instance {
        0 => "hostfile".to_owned(),
        index => format!("hostfile-{index}"),
    }
}
