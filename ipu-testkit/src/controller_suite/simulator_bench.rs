//! A bench for transports: a simulated controller at the other end, with every fault of the suite.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::PartitionId;
use ipu_vipu_client::VipuController;
use tempfile::TempDir;
use tokio::sync::Mutex;
use vipu_sim::{Fault, FaultKind, Method, Simulator};

use super::{
    CallFault, CallKind, ControllerBench, FaultSupport, Persistence, Setup, SuiteReport, controller_suite,
};

/// Runs all cases of [`controller_suite`](super::controller_suite) against a transport whose other end is a
/// simulated controller. The simulator loses, repeats and delays requests and replies, restarts, and stops.
///
/// `connect` is called once for each case, with the address of the controller, which serves gRPC and REST,
/// and with the deadline of each call.
///
/// ```
/// use ipu_testkit::transport_suite;
/// use ipu_vipu_client::{ConnectOptions, GrpcController};
///
/// # #[tokio::main]
/// # async fn main() {
/// // In your test, under `#[tokio::test(flavor = "multi_thread")]`, with your transport:
/// let report = transport_suite(|address, deadline| {
///     let options = ConnectOptions::default().with_deadline(deadline);
///     let endpoint = address.try_into().expect("an address is an endpoint");
///     GrpcController::connect(&endpoint, &options).expect("the options are valid")
/// });
/// println!("{}", report.await);
/// # }
/// ```
///
/// # Panics
///
/// If a rule is broken: after the last case, with all broken rules.
pub async fn transport_suite<C: VipuController + 'static>(
    connect: impl Fn(SocketAddr, Duration) -> C + Send + Sync + 'static,
) -> SuiteReport {
    let connect = Arc::new(connect);
    let start = move |setup| {
        let connect = Arc::clone(&connect);
        async move { SimulatorBench::start(setup, |address, deadline| connect(address, deadline)).await }
    };
    controller_suite(start, &[]).await
}

/// A simulated controller behind a transport.
struct SimulatorBench {
    controller: Arc<dyn VipuController>,
    /// None while the simulator is stopped.
    simulator: Mutex<Option<Simulator>>,
    address: SocketAddr,
    setup: Setup,
    /// Directory of the state, for a case that restarts the simulator.
    files: Option<TempDir>,
}

impl SimulatorBench {
    async fn start<C: VipuController + 'static>(
        setup: Setup,
        connect: impl Fn(SocketAddr, Duration) -> C,
    ) -> Self {
        let mut builder = Simulator::builder(setup.topology.clone()).delay(setup.operation);
        let mut files = None;
        if setup.persistence == Persistence::Durable {
            let directory = tempfile::tempdir().expect("a temporary directory");
            // Not the address of outgoing connections: one of them could take the port during the restart.
            let address = SocketAddr::from(([127, 0, 0, 2], 0));
            builder = builder.state_file(state_file(&directory)).listen(address);
            files = Some(directory);
        }
        let simulator = builder.start().await.expect("a free port");
        Self {
            controller: Arc::new(connect(simulator.addr(), setup.deadline)),
            address: simulator.addr(),
            simulator: Mutex::new(Some(simulator)),
            setup,
            files,
        }
    }

    async fn stop_simulator(&self) {
        if let Some(simulator) = self.simulator.lock().await.take() {
            simulator.shutdown().await;
        }
    }
}

fn state_file(directory: &TempDir) -> PathBuf {
    directory.path().join("pod.json")
}

fn supported(is_done: bool) -> FaultSupport {
    if is_done {
        FaultSupport::Done
    } else {
        FaultSupport::Unsupported
    }
}

#[async_trait]
impl ControllerBench for SimulatorBench {
    fn controller(&self) -> Arc<dyn VipuController> {
        Arc::clone(&self.controller)
    }

    async fn inject(&self, call: CallKind, fault: CallFault) -> FaultSupport {
        let method = match call {
            CallKind::Create => Method::CreatePartition,
            CallKind::Reset => Method::ResetPartition,
            CallKind::Remove => Method::RemovePartition,
            CallKind::Status => Method::GetPartitionStatus,
            CallKind::List => Method::ListPartitions,
            CallKind::Other => return FaultSupport::Unsupported,
        };
        let kind = match fault {
            CallFault::LostRequest => FaultKind::Refuse,
            CallFault::LostReply => FaultKind::DropReply,
            CallFault::CutReply => FaultKind::CutReply,
            CallFault::Twice => FaultKind::Twice,
            CallFault::Unavailable => FaultKind::Error { rate: 1.0, seed: 0 },
            CallFault::Silence => FaultKind::Hang,
            CallFault::Delayed(by) => FaultKind::Latency {
                millis: u64::try_from(by.as_millis()).unwrap_or(u64::MAX),
            },
        };
        let simulator = self.simulator.lock().await;
        if let Some(simulator) = &*simulator {
            simulator
                .faults()
                .add(Fault::new(kind).for_method(method).times(1));
        }
        supported(simulator.is_some())
    }

    async fn set_operation_time(&self, operation: Duration) -> FaultSupport {
        match &*self.simulator.lock().await {
            Some(simulator) => supported(simulator.set_delay(operation).await.is_ok()),
            None => FaultSupport::Unsupported,
        }
    }

    async fn break_partition(&self, id: &PartitionId) -> FaultSupport {
        match &*self.simulator.lock().await {
            Some(simulator) => supported(simulator.break_partition(id).await.is_ok()),
            None => FaultSupport::Unsupported,
        }
    }

    async fn restart(&self) -> FaultSupport {
        let Some(files) = &self.files else {
            return FaultSupport::Unsupported;
        };
        self.stop_simulator().await;
        let builder = Simulator::builder(self.setup.topology.clone())
            .listen(self.address)
            .state_file(state_file(files));
        *self.simulator.lock().await = Some(builder.start().await.expect("the port of before"));
        FaultSupport::Done
    }

    async fn stop(&self) -> FaultSupport {
        self.stop_simulator().await;
        FaultSupport::Done
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.setup.deadline)
    }
}
