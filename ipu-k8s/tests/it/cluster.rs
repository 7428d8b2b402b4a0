//! Tests against a real API server on a real etcd.

mod concurrent_writers;
mod conformance;
mod controller_list;
mod definition;
mod fault_injection;
mod fixtures;
mod installation;
mod launcher_objects;
mod liveness;
#[path = "../../../ipu-ledger/tests/it/format_compat.rs"]
mod previous;
mod size_limit;
mod tokens;
mod upgrading;
mod usage;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipu_k8s::kube::Config;
use ipu_k8s::kube::config::{KubeConfigOptions, Kubeconfig};
use ipu_k8s::store::{ConfigMapOptions, ConfigMapStore};
use ipu_test_cluster::Cluster;

/// How an administrator calls the API server of `cluster`.
pub(crate) async fn config(cluster: &Cluster) -> Config {
    config_of(&cluster.kubeconfig()).await
}

/// What a file for `KUBECONFIG` says.
pub(crate) async fn config_of(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

/// The definition of the IPUJob.
pub(crate) const DEFINITION: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/crd/ipujobs.graphcore.ai.yaml"
);

/// Makes `cluster` know IPUJobs, if it does not yet.
pub(crate) fn install(cluster: &Cluster) {
    // Of two that create it at once, one fails.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    cluster.kubectl(&["apply", "-f", DEFINITION]).unwrap();
    wait_for_ipujobs(cluster);
}

/// Waits until `cluster`, which was given a definition of the IPUJob, serves it.
pub(crate) fn wait_for_ipujobs(cluster: &Cluster) {
    // kubectl cannot wait for a condition before there are any.
    for what in [
        "jsonpath={.status.acceptedNames.kind}=IPUJob",
        "condition=Established",
    ] {
        let words = [
            "wait",
            "--for",
            what,
            "crd/ipujobs.graphcore.ai",
            "--timeout=120s",
        ];
        cluster.kubectl(&words).unwrap();
    }
}

/// The ledger in the ConfigMap `name`, as one more process sees it.
pub(crate) async fn store(cluster: &Cluster, name: &str) -> ConfigMapStore {
    ConfigMapStore::new(config(cluster).await, options(name)).unwrap()
}

pub(crate) fn options(name: &str) -> ConfigMapOptions {
    let mut options = ConfigMapOptions::of("default");
    options.name = name.into();
    // A machine that is busy with other things is not what these tests are about.
    options.timeout = Duration::from_secs(120);
    options
}
