//! In place of the cluster, in a build without the feature `kubernetes`: there is none.

use std::sync::Arc;

use ipu_ledger::{Liveness, StoreError, UsageLog};

use crate::app::App;
use crate::auth::Authenticator;
use crate::settings::KubernetesChoice;
use crate::store::AnyStore;

/// No such value exists.
pub(crate) enum Cluster {}

impl Cluster {
    pub(crate) async fn connect(_: &KubernetesChoice) -> Result<Self, String> {
        Err("this build has no Kubernetes in it".to_owned())
    }

    pub(crate) fn store(&self) -> Result<(AnyStore, Arc<dyn UsageLog>, usize), StoreError> {
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

pub(crate) async fn follow(watch: Cluster, _: &Arc<App>) -> tokio::task::JoinHandle<()> {
    match watch {}
}
