//! How controllers are talked to: with the secrets of each, which may change while the proxy runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{AgentId, AllocationId, ControllerName, Partition, PartitionId};
use ipu_vipu_client::{
    AgentIpus, ConnectError, ConnectOptions, ControllerEndpoint, ControllerSecrets, CreatePartition,
    GrpcController, IpuofConfig, PartitionStatus, SecretsError, VipuController, VipuError,
};
use vipu_sim::SimulatorService;

use crate::app::{AnyController, App};
use crate::instrumented_controller::measured;
use crate::metrics::Metrics;

/// How often the secrets are looked at. What mounts them may need most of the minute within which changes are promised.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

type ReadResult = Result<ControllerSecrets, SecretsError>;

/// Makes the connections to controllers.
pub(crate) struct Connector {
    pub(crate) metrics: Arc<Metrics>,
    /// Where the secrets are: a folder for each controller.
    directory: Option<PathBuf>,
    /// The controller that is simulated in this process, if one is: no connection is needed for it.
    simulated: Option<SimulatorService>,
    /// What each connection was made with.
    known: Mutex<BTreeMap<ControllerName, ReadResult>>,
}

impl Connector {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        directory: Option<PathBuf>,
        simulated: Option<SimulatorService>,
    ) -> Self {
        Self {
            metrics,
            directory,
            simulated,
            known: Mutex::default(),
        }
    }

    /// The controller at `endpoint`. If its secrets cannot be used, it is one that cannot be reached: the others can.
    pub(crate) fn connect(&self, endpoint: &ControllerEndpoint) -> Result<AnyController, ConnectError> {
        self.connect_with(endpoint, self.read(endpoint))
    }

    fn connect_with(
        &self,
        endpoint: &ControllerEndpoint,
        read: ReadResult,
    ) -> Result<AnyController, ConnectError> {
        self.known().insert(endpoint.name().clone(), read.clone());
        match read {
            Ok(secrets) => {
                let options = secrets.apply(ConnectOptions::default());
                let controller = match &self.simulated {
                    Some(service) => GrpcController::in_process(endpoint, service.clone(), &options)?,
                    None => GrpcController::connect(endpoint, &options)?,
                };
                Ok(measured(controller, endpoint, &self.metrics))
            }
            Err(error) => {
                tracing::error!(controller = %endpoint.name(), %error, "its secrets cannot be used");
                Ok(Arc::new(UnusableController {
                    endpoint: endpoint.name().to_string(),
                    detail: error.to_string(),
                }))
            }
        }
    }

    fn read(&self, endpoint: &ControllerEndpoint) -> ReadResult {
        match &self.directory {
            Some(directory) => ControllerSecrets::read(directory, endpoint),
            None => Ok(ControllerSecrets::default()),
        }
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn known(&self) -> MutexGuard<'_, BTreeMap<ControllerName, ReadResult>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the secrets of `endpoint`, and answers the controller to talk to if there are others.
    fn changed(
        &self,
        endpoint: &ControllerEndpoint,
        told: &mut BTreeMap<ControllerName, String>,
    ) -> Option<AnyController> {
        let read = self.read(endpoint);
        let name = endpoint.name();
        let known = self.known().get(name).cloned();
        if known.as_ref() == Some(&read) {
            told.remove(name);
            return None;
        }
        let refused = match (&read, known) {
            (Err(error), Some(Ok(_))) => error.to_string(),
            _ => match self.connect_with(endpoint, read) {
                Ok(controller) => {
                    tracing::info!(controller = %name, "its secrets were changed and are used");
                    told.remove(name);
                    return Some(controller);
                }
                Err(error) => error.to_string(),
            },
        };
        if told.get(name) != Some(&refused) {
            tracing::error!(controller = %name, error = refused, "its changed secrets are not used; those before stay");
            told.insert(name.clone(), refused);
        }
        None
    }
}

/// Uses the secrets of controllers whenever they are others, until the proxy stops.
pub(crate) async fn follow_secrets(app: Arc<App>) {
    if app.connector.directory.is_none() {
        return;
    }
    let mut stopping = app.stopping();
    let mut told = BTreeMap::new();
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
        }
        let pool = app.ledger.pool();
        for member in pool.members().into_iter().chain(pool.draining()) {
            let changed = member
                .endpoint
                .and_then(|endpoint| app.connector.changed(&endpoint, &mut told));
            if let Some(controller) = changed {
                pool.reconnect(&member.name, Arc::new(controller));
            }
        }
    }
}

/// A controller that cannot be talked to. Nothing is concluded from that, as from any that does not answer.
struct UnusableController {
    endpoint: String,
    detail: String,
}

impl UnusableController {
    fn refuse<T>(&self) -> Result<T, VipuError> {
        Err(VipuError::Unreachable {
            endpoint: self.endpoint.clone(),
            detail: self.detail.clone(),
        })
    }
}

#[async_trait]
impl VipuController for UnusableController {
    async fn version(&self) -> Result<String, VipuError> {
        self.refuse()
    }

    async fn list_partitions(&self, _: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.refuse()
    }

    async fn create_partition(&self, _: CreatePartition) -> Result<PartitionId, VipuError> {
        self.refuse()
    }

    async fn partition_status(&self, _: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.refuse()
    }

    async fn ipuof_config(&self, _: &PartitionId, _: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.refuse()
    }

    async fn reset_partition(&self, _: &PartitionId) -> Result<(), VipuError> {
        self.refuse()
    }

    async fn remove_partition(&self, _: &PartitionId, _: bool) -> Result<(), VipuError> {
        self.refuse()
    }

    async fn ipu_attributes(&self, _: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.refuse()
    }
}
