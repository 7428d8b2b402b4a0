//! The clients, stores and settings that all reconciliations share.

use std::sync::Arc;

use ipu_core::Timestamp;
use ipu_core::job::Limits;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::Store;
use tokio::sync::watch;

use super::kueue::Kueue;
use super::partitions::Partitions;
use super::{StoredJob, StoredPartition};
use crate::resources::InstallationDefaults;

/// Clients, stores and settings of the controller.
pub(super) struct Context {
    pub(super) client: Client,
    /// IPUJobs of the watched namespaces.
    pub(super) jobs: Store<StoredJob>,
    /// Workers and launchers of the watched namespaces.
    pub(super) pods: Store<Pod>,
    /// IPUPartitions of the watched namespaces.
    pub(super) holders: Store<StoredPartition>,
    /// True once both stores have their first lists. A store's own `wait_until_ready` wakes one waiter only.
    pub(super) is_listed: watch::Receiver<bool>,
    pub(super) kueue: Option<Kueue>,
    pub(super) partitions: Arc<Partitions>,
    pub(super) recorder: Recorder,
    pub(super) installation: InstallationDefaults,
    pub(super) limits: Limits,
    pub(super) now: fn() -> Timestamp,
}
