//! The controller conformance suite, over both transports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::PartitionId;
use ipu_core::hardware::Topology;
use ipu_testkit::{
    CallFault, CallKind, ControllerBench, FaultSupport, Persistence, Setup, SuiteReport, controller_suite,
};
use ipu_vipu_client::{ConnectOptions, VipuController};
use tempfile::TempDir;
use tokio::sync::Mutex;
use vipu_sim::{Fault, FaultKind, Method, Simulator};

use super::{Transport, endpoint, set_delay, set_health};

/// A simulator behind a transport, with every capability that the suite requires of a bench.
struct SuiteFixture {
    controller: Arc<dyn VipuController>,
    /// `None` while the simulator is stopped.
    simulator: Mutex<Option<Simulator>>,
    address: SocketAddr,
    topology: Topology,
    deadline: Duration,
    files: Option<TempDir>,
}

impl SuiteFixture {
    async fn start(transport: Transport, setup: Setup) -> Self {
        let mut builder = Simulator::builder(setup.topology.clone()).delay(setup.operation);
        let mut files = None;
        if setup.persistence == Persistence::Durable {
            let directory = tempfile::tempdir().unwrap();
            // Not the address of outgoing connections: one of them could take the port during the restart.
            let address = SocketAddr::from(([127, 0, 0, 2], 0));
            builder = builder
                .state_file(directory.path().join("pod.json"))
                .listen(address);
            files = Some(directory);
        }
        let simulator = builder.start().await.unwrap();
        let options = ConnectOptions::default().with_deadline(setup.deadline);
        Self {
            controller: transport.connect(&endpoint(&simulator), &options),
            address: simulator.addr(),
            simulator: Mutex::new(Some(simulator)),
            topology: setup.topology,
            deadline: setup.deadline,
            files,
        }
    }

    async fn add_fault(&self, fault: Fault) {
        if let Some(simulator) = &*self.simulator.lock().await {
            simulator.faults().add(fault);
        }
    }

    async fn stop_simulator(&self) {
        if let Some(simulator) = self.simulator.lock().await.take() {
            simulator.shutdown().await;
        }
    }
}

fn method_for(call: CallKind) -> Option<Method> {
    match call {
        CallKind::Create => Some(Method::CreatePartition),
        CallKind::Reset => Some(Method::ResetPartition),
        CallKind::Remove => Some(Method::RemovePartition),
        CallKind::Status => Some(Method::GetPartitionStatus),
        CallKind::List => Some(Method::ListPartitions),
        _ => None,
    }
}

fn kind_for(fault: CallFault) -> Option<FaultKind> {
    match fault {
        CallFault::LostRequest => Some(FaultKind::Refuse),
        CallFault::LostReply => Some(FaultKind::DropReply),
        CallFault::Unavailable => Some(FaultKind::Error { rate: 1.0, seed: 0 }),
        CallFault::Silence => Some(FaultKind::Hang),
        CallFault::Delayed(by) => Some(FaultKind::Latency {
            millis: u64::try_from(by.as_millis()).unwrap(),
        }),
        _ => None,
    }
}

/// Defines the bench of one transport.
macro_rules! suite_bench {
    ($name:ident, $transport:expr) => {
        struct $name(SuiteFixture);

        #[async_trait]
        impl ControllerBench for $name {
            async fn start(setup: Setup) -> Self {
                Self(SuiteFixture::start($transport, setup).await)
            }

            fn controller(&self) -> Arc<dyn VipuController> {
                Arc::clone(&self.0.controller)
            }

            async fn inject(&self, call: CallKind, fault: CallFault) -> FaultSupport {
                let (Some(method), Some(kind)) = (method_for(call), kind_for(fault)) else {
                    return FaultSupport::Unsupported;
                };
                self.0
                    .add_fault(Fault::new(kind).for_method(method).times(1))
                    .await;
                FaultSupport::Done
            }

            async fn set_operation_time(&self, operation: Duration) -> FaultSupport {
                set_delay(self.0.address, operation).await;
                FaultSupport::Done
            }

            async fn break_partition(&self, id: &PartitionId) -> FaultSupport {
                let listed = self.0.controller.list_partitions(None).await.unwrap();
                let broken = listed.iter().find(|partition| partition.id == *id).unwrap();
                let cluster = broken.cluster.as_ref().unwrap();
                let at = self.0.topology.address(cluster, broken.ipus[0]).unwrap();
                set_health(self.0.address, &self.0.topology, at, "bad").await;
                FaultSupport::Done
            }

            async fn restart(&self) -> FaultSupport {
                let Some(files) = &self.0.files else {
                    return FaultSupport::Unsupported;
                };
                self.0.stop_simulator().await;
                let builder = Simulator::builder(self.0.topology.clone()).listen(self.0.address);
                let restarted = builder
                    .state_file(files.path().join("pod.json"))
                    .start()
                    .await;
                *self.0.simulator.lock().await = Some(restarted.unwrap());
                FaultSupport::Done
            }

            async fn stop(&self) -> FaultSupport {
                self.0.stop_simulator().await;
                FaultSupport::Done
            }

            fn deadline(&self) -> Option<Duration> {
                Some(self.0.deadline)
            }
        }
    };
}

suite_bench!(Grpc, Transport::Grpc);
suite_bench!(Rest, Transport::Rest);

/// Asserts that every case ran except duplicate delivery, which the simulator does not support.
fn assert_only_duplicate_delivery_was_skipped(report: &SuiteReport) {
    let skipped: Vec<_> = report.skipped.iter().map(|skipped| skipped.case).collect();
    assert_eq!(skipped, ["a_call_delivered_twice_takes_effect_once"], "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulator_passes_the_suite_over_grpc() {
    assert_only_duplicate_delivery_was_skipped(&controller_suite::<Grpc>().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulator_passes_the_suite_over_rest() {
    assert_only_duplicate_delivery_was_skipped(&controller_suite::<Rest>().await);
}
