//! What a job with a launcher has besides: the ConfigMap of MPI, and the launcher's rights (seed 000 §6.8.1).

use ipu_core::hostfile;
use serde_json::{Map, Value, json};

use super::Blueprint;

/// Where script and hostfile are, in workers and launchers.
pub(super) const CONFIG_MOUNT: &str = "/etc/mpi";
/// The program of remote execution.
pub(super) const AGENT: &str = "/etc/mpi/kubexec.sh";
/// The hostfile of the instance.
pub(super) const HOSTFILE: &str = "/etc/mpi/hostfile";
/// Where the init container leaves `ipu-launcher`.
pub(super) const TOOLS_MOUNT: &str = "/opt/ipu";
pub(super) const CONFIG_VOLUME: &str = "ipu-mpi-config";
pub(super) const TOOLS_VOLUME: &str = "ipu-tools";

/// `mpirun` gives it a host, which is the name of a worker, and a command.
const SCRIPT: &str = "#!/bin/sh\nexec /opt/ipu/ipu-launcher agent \"$@\"\n";

/// The most workers that a Role names one by one; of more the launcher may start processes in any Kubernetes Pod of its
/// namespace, which is still no more than who submits jobs there may do.
const MOST_NAMED: u32 = 1024;

impl Blueprint<'_> {
    pub(super) fn shared_objects(&self) -> Vec<Value> {
        let name = self.launcher_account();
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": self.metadata(&name, self.labels()),
            "rules": self.launcher_rules(),
        });
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": self.metadata(&name, self.labels()),
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": self.metadata(&name, self.labels()),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{
                "kind": "ServiceAccount",
                "name": name,
                "namespace": self.spec.key().namespace.as_str(),
            }],
        });
        vec![self.config_map(), account, role, binding]
    }

    /// Script and hostfiles: `hostfile` of the first instance, `hostfile-<instance>` of the others.
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

    /// The volume of script and hostfile, as instance `instance` sees them.
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

    /// To see the workers, and to start processes in them.
    fn launcher_rules(&self) -> Value {
        let all = self
            .spec
            .instances()
            .saturating_mul(self.spec.workers_per_instance());
        let mut start = json!({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]});
        if all <= MOST_NAMED {
            let workers = (0..self.spec.instances()).flat_map(|instance| {
                (0..self.spec.workers_per_instance())
                    .map(move |worker| Value::from(self.spec.worker_name(instance, worker)))
            });
            start["resourceNames"] = Value::Array(workers.collect());
        }
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}, start])
    }
}

fn hostfile_key(instance: u32) -> String {
    match instance {
        0 => "hostfile".to_owned(),
        more => format!("hostfile-{more}"),
    }
}
