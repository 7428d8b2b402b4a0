//! The controller operations, one method each. gRPC and REST only translate to and from them.

use std::sync::Arc;

use ipu_core::Timestamp;
use ipu_vipu_client::wire;
use tracing::{info, warn};

use crate::error::SimError;
use crate::state::{Force, Relocation, SimState};
use crate::store::Store;

/// The controller operations over the shared state.
#[derive(Clone)]
pub(crate) struct Api {
    store: Arc<Store>,
    version: Arc<str>,
    /// Refuse create calls that name IPUs.
    refuses_ipus: bool,
}

impl Api {
    pub(crate) fn new(store: Store, version: &str, refuses_ipus: bool) -> Self {
        Self {
            store: Arc::new(store),
            version: version.into(),
            refuses_ipus,
        }
    }

    /// Returns the store, for callers that may block on disk I/O.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Reads the state without blocking the async runtime.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&SimState) -> Result<T, SimError> + Send + 'static,
    ) -> Result<T, SimError> {
        if !self.store.blocks() {
            return self.store.read(query);
        }
        let store = Arc::clone(&self.store);
        flatten_join(tokio::task::spawn_blocking(move || store.read(query)).await)
    }

    /// Changes the state without blocking the async runtime. The change completes even if the caller is
    /// cancelled.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&mut SimState, Timestamp) -> Result<T, SimError> + Send + 'static,
    ) -> Result<T, SimError> {
        let result = if self.store.blocks() {
            let store = Arc::clone(&self.store);
            flatten_join(tokio::task::spawn_blocking(move || store.change(change)).await)
        } else {
            self.store.change(change)
        };
        match &result {
            Ok(_) => info!(call = operation, "accepted"),
            Err(refusal @ SimError::Storage { .. }) => warn!(call = operation, %refusal, "failed"),
            Err(refusal) => info!(call = operation, code = ?refusal.code(), %refusal, "refused"),
        }
        result
    }

    pub(crate) fn version(&self) -> wire::VersionReply {
        wire::VersionReply {
            version: self.version.to_string(),
        }
    }

    pub(crate) async fn list(
        &self,
        request: wire::ListPartitionsRequest,
    ) -> Result<wire::ListPartitionsReply, SimError> {
        let partitions = self.read(move |state| state.list(&request.allocation_id)).await?;
        Ok(wire::ListPartitionsReply { partitions })
    }

    pub(crate) async fn attributes(
        &self,
        request: wire::ListIpuAttributesRequest,
    ) -> Result<wire::ListIpuAttributesReply, SimError> {
        let entries = self.read(move |state| state.attributes(&request.agents)).await?;
        Ok(wire::ListIpuAttributesReply { entries })
    }

    #[tracing::instrument(level = "info", skip_all, fields(partition = %requested_id(&request), size = requested_size(&request)))]
    pub(crate) async fn create(
        &self,
        request: wire::CreatePartitionRequest,
    ) -> Result<wire::CreatePartitionReply, SimError> {
        if self.refuses_ipus && names_ipus(&request) {
            let rule = "this controller does not have this parameter";
            return Err(SimError::invalid("requirements.ipus", "given", rule));
        }
        let id = self
            .change("create", move |state, now| state.create(&request, now))
            .await?;
        Ok(wire::CreatePartitionReply {
            partition_id: id.into(),
        })
    }

    #[tracing::instrument(level = "info", skip_all, fields(partition = %request.partition_id, force = request.force))]
    pub(crate) async fn remove(
        &self,
        request: wire::RemovePartitionRequest,
    ) -> Result<wire::RemovePartitionReply, SimError> {
        let force = if request.force { Force::Yes } else { Force::No };
        self.change("remove", move |state, now| {
            state.remove(&request.partition_id, force, now)
        })
        .await?;
        Ok(wire::RemovePartitionReply {})
    }

    #[tracing::instrument(level = "info", skip_all, fields(partition = %request.partition_id))]
    pub(crate) async fn reset(
        &self,
        request: wire::ResetPartitionRequest,
    ) -> Result<wire::ResetPartitionReply, SimError> {
        let relocatable = if request.relocatable {
            Relocation::Yes
        } else {
            Relocation::Keep
        };
        self.change("reset", move |state, now| {
            state.reset(&request.partition_id, relocatable, now)
        })
        .await?;
        Ok(wire::ResetPartitionReply {})
    }

    pub(crate) async fn status(
        &self,
        request: wire::GetPartitionStatusRequest,
    ) -> Result<wire::GetPartitionStatusReply, SimError> {
        let status = self
            .read(move |state| state.status(&request.partition_id))
            .await?;
        Ok(wire::GetPartitionStatusReply { status: Some(status) })
    }

    pub(crate) async fn ipuof_config(
        &self,
        request: wire::GetPartitionIpuofConfigRequest,
    ) -> Result<wire::GetPartitionIpuofConfigReply, SimError> {
        let gcd = request.gcd_id.map(|gcd| gcd.id);
        let config = self
            .read(move |state| state.ipuof_config(&request.partition_id, gcd))
            .await?;
        Ok(wire::GetPartitionIpuofConfigReply {
            ipuof_config: Some(config),
        })
    }
}

fn requested_id(request: &wire::CreatePartitionRequest) -> &str {
    request
        .requirements
        .as_ref()
        .map_or("", |requirements| &requirements.id)
}

fn requested_size(request: &wire::CreatePartitionRequest) -> u32 {
    request
        .requirements
        .as_ref()
        .map_or(0, |requirements| requirements.size)
}

fn names_ipus(request: &wire::CreatePartitionRequest) -> bool {
    let requirements = request.requirements.as_ref();
    requirements.is_some_and(|requirements| !requirements.ipus.is_empty())
}

/// Flattens the result of a blocking task.
fn flatten_join<T>(joined: Result<Result<T, SimError>, tokio::task::JoinError>) -> Result<T, SimError> {
    joined.unwrap_or_else(|error| {
        Err(SimError::Storage {
            step: "read",
            detail: error.to_string(),
        })
    })
}
