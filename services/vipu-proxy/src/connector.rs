//! Connections to controllers with their secrets, which can change while the proxy runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::allocator::CallTimes;
use ipu_core::hardware::Partition;
use ipu_core::{AgentId, AllocationId, ControllerName, PartitionId};
use ipu_vipu_client::{
    AgentIpus, ConnectError, ConnectOptions, ControllerEndpoint, ControllerPool, ControllerSecrets,
    CreatePartition, GrpcController, IpuofConfig, PartitionStatus, SecretsError, VipuController, VipuError,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use vipu_sim::SimulatorService;

use crate::instrumented_controller;
use crate::metrics::Metrics;

/// Interval between two reads of the secrets. Changes apply within a minute, of which a volume mount may need
/// the most.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

type ReadResult = Result<ControllerSecrets, SecretsError>;

/// Creates connections to controllers.
pub(crate) struct Connector {
    pub(crate) metrics: Arc<Metrics>,
    /// Deadline of the allocator for one call.
    call_deadline: Duration,
    /// Deadline of a connection for one call. With the time in which the allocator sends it, this is the time
    /// after which the allocator counts a call as settled.
    deadline: Duration,
    /// Directory of the secrets, with a folder for each controller.
    directory: Option<PathBuf>,
    /// Controller that this process simulates, which needs no connection.
    simulated: Option<SimulatorService>,
    /// Secrets of each connection.
    used: Mutex<BTreeMap<ControllerName, ReadResult>>,
}

impl Connector {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        times: CallTimes,
        directory: Option<PathBuf>,
        simulated: Option<SimulatorService>,
    ) -> Self {
        Self {
            metrics,
            call_deadline: times.deadline,
            deadline: times.settle.saturating_sub(times.deadline).max(times.deadline),
            directory,
            simulated,
            used: Mutex::default(),
        }
    }

    /// Connects to the controller at `endpoint`. With unusable secrets, the returned controller is
    /// unreachable, so that the others work.
    pub(crate) fn connect(
        &self,
        endpoint: &ControllerEndpoint,
    ) -> Result<Arc<dyn VipuController>, ConnectError> {
        self.connect_with(endpoint, self.read(endpoint))
    }

    fn connect_with(
        &self,
        endpoint: &ControllerEndpoint,
        read: ReadResult,
    ) -> Result<Arc<dyn VipuController>, ConnectError> {
        self.used.lock().insert(endpoint.name().clone(), read.clone());
        match read {
            Ok(secrets) => {
                let options = secrets.apply(ConnectOptions::default().with_deadline(self.deadline));
                let controller = match &self.simulated {
                    Some(service) => GrpcController::in_process(endpoint, service.clone(), &options)?,
                    None => GrpcController::connect(endpoint, &options)?,
                };
                Ok(instrumented_controller::with_metrics(
                    controller,
                    endpoint,
                    &self.metrics,
                    self.call_deadline,
                ))
            }
            Err(error) => {
                tracing::error!(controller = %endpoint.name(), %error, "the secrets of the controller are unusable");
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

    /// Reads the secrets of `endpoint`; returns a new connection if they have changed.
    fn reload(
        &self,
        endpoint: &ControllerEndpoint,
        logged: &mut BTreeMap<ControllerName, String>,
    ) -> Option<Arc<dyn VipuController>> {
        let read = self.read(endpoint);
        let name = endpoint.name();
        let previous = self.used.lock().get(name).cloned();
        if previous.as_ref() == Some(&read) {
            logged.remove(name);
            return None;
        }
        let error = match (&read, previous) {
            (Err(error), Some(Ok(_))) => error.to_string(),
            // A deleted folder must not turn TLS off.
            (Ok(now), Some(Ok(before))) if now.tls.is_none() && before.tls.is_some() => {
                "the certificates are gone; to connect without TLS, restart the proxy".to_owned()
            }
            _ => match self.connect_with(endpoint, read) {
                Ok(controller) => {
                    tracing::info!(controller = %name, "reloaded changed secrets");
                    logged.remove(name);
                    return Some(controller);
                }
                Err(error) => error.to_string(),
            },
        };
        if logged.get(name) != Some(&error) {
            tracing::error!(controller = %name, error, "cannot use changed secrets; keeping the previous ones");
            logged.insert(name.clone(), error);
        }
        None
    }

    /// Reloads changed secrets of the controllers of `pool` until the proxy stops.
    pub(crate) async fn watch_secrets(&self, pool: &ControllerPool, mut stopping: watch::Receiver<bool>) {
        if self.directory.is_none() {
            return;
        }
        let mut logged = BTreeMap::new();
        loop {
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            }
            for member in pool.members().into_iter().chain(pool.draining()) {
                let reloaded = member
                    .endpoint
                    .and_then(|endpoint| self.reload(&endpoint, &mut logged));
                if let Some(controller) = reloaded {
                    pool.reconnect(&member.name, controller);
                }
            }
        }
    }
}

/// Controller with unusable secrets. Like an unresponsive controller, it is not evidence about partitions.
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

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[tokio::test]
    async fn a_deleted_folder_of_secrets_keeps_the_secured_connection() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("pod1_8090");
        std::fs::create_dir(&folder).unwrap();
        let params = CertificateParams::new(vec!["pod1".to_owned()]).unwrap();
        let authority = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
        let connector = Connector::new(
            Arc::default(),
            CallTimes::default(),
            Some(scratch.path().to_owned()),
            None,
        );
        let endpoint: ControllerEndpoint = "pod1:8090".parse().unwrap();
        drop(connector.connect(&endpoint).unwrap());

        std::fs::remove_dir_all(&folder).unwrap();
        let mut logged = BTreeMap::new();
        assert!(connector.reload(&endpoint, &mut logged).is_none());
        let text = &logged[endpoint.name()];
        assert!(text.contains("restart the proxy"), "{text}");
        let used = connector.used.lock()[endpoint.name()].clone();
        assert!(used.unwrap().tls.is_some());
    }
}
