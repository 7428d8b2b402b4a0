//! Tests against a real API server on a real etcd.

mod alive;
mod competing;
mod conformance;
mod disasters;
mod ledgers;
mod lists;
#[path = "../../../ipu-ledger/tests/it/previous.rs"]
mod previous;
mod size;
mod tokens;
mod upgrading;
mod usage;

use std::path::Path;
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
