//! Replacement of the Kubernetes integration in a build without the feature `kubernetes`.

use std::sync::Arc;

use ipu_allocator::{Liveness, Store, StoreError};

use crate::app::App;
use crate::auth::Authenticator;
use crate::settings::KubernetesChoice;

/// Uninhabited: this build cannot connect to a cluster.
pub(crate) enum Cluster {}

impl Cluster {
    pub(crate) async fn connect(_: &KubernetesChoice) -> Result<Self, String> {
        Err("this build does not have the feature kubernetes".to_owned())
    }

    pub(crate) fn store(&self) -> Result<(Arc<dyn Store>, usize), StoreError> {
        match *self {}
    }

    pub(crate) fn authenticator(&self) -> Result<Arc<dyn Authenticator>, String> {
        match *self {}
    }

    pub(crate) fn liveness(&self, _: Arc<dyn Liveness>) -> Result<Arc<dyn Liveness>, String> {
        match *self {}
    }

    pub(crate) fn controllers(&self) -> Result<Option<Self>, String> {
        match *self {}
    }
}

pub(crate) async fn watch_controllers(watch: Cluster, _: &Arc<App>) -> tokio::task::JoinHandle<()> {
    match watch {}
}
