//! Tests against a real API server with a real etcd.

mod conformance;
mod controller_list;
mod definition;
mod fault_injection;
mod fixtures;
mod installation;
mod ipupartition;
mod liveness;
mod lossy_proxy;
mod pod_admission;
mod size_limit;
mod takeover;
mod tokens;
mod usage;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipu_k8s::kube::Config;
use ipu_k8s::kube::config::{KubeConfigOptions, Kubeconfig};
use ipu_k8s::store::{ConfigMapOptions, ConfigMapStore};
use ipu_test_cluster::Cluster;

/// Returns the administrator's configuration of `cluster`.
pub(crate) async fn config(cluster: &Cluster) -> Config {
    config_of(&cluster.kubeconfig()).await
}

/// Reads the configuration from a kubeconfig file.
pub(crate) async fn config_of(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

/// Path of the CRD.
pub(crate) const CRD_PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/crd/ipujobs.graphcore.ai.yaml"
);

/// Installs the CRD on `cluster`, if it is missing.
pub(crate) fn install(cluster: &Cluster) {
    // Two concurrent creations would make one of them fail.
    static INSTALL_LOCK: Mutex<()> = Mutex::new(());
    let _guard = INSTALL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    cluster.kubectl(&["apply", "-f", CRD_PATH]).unwrap();
    wait_for_ipujobs(cluster);
}

/// Waits until `cluster` serves the applied CRD.
pub(crate) fn wait_for_ipujobs(cluster: &Cluster) {
    // kubectl cannot wait for a condition before the first one is set.
    for condition in [
        "jsonpath={.status.acceptedNames.kind}=IPUJob",
        "condition=Established",
    ] {
        let arguments = [
            "wait",
            "--for",
            condition,
            "crd/ipujobs.graphcore.ai",
            "--timeout=120s",
        ];
        cluster.kubectl(&arguments).unwrap();
    }
}

/// Returns the store of the record in the ConfigMap `name`, as another process has it.
pub(crate) async fn store(cluster: &Cluster, name: &str) -> ConfigMapStore {
    ConfigMapStore::new(config(cluster).await, options(name)).unwrap()
}

pub(crate) fn options(name: &str) -> ConfigMapOptions {
    let mut options = ConfigMapOptions::in_namespace("default");
    options.name = name.into();
    // Avoids timeouts on a busy machine.
    options.timeout = Duration::from_secs(120);
    options
}
