//! The suite of controllers: the simulator passes it without faults, and each defect is detected. The tests
//! of `vipu-sim` run every case.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::hardware::{Partition, PartitionState};
use ipu_core::{AgentId, AllocationId, PartitionId};
use ipu_testkit::{ControllerBench, Setup, SuiteFailure, controller_suite, try_controller_suite};
use ipu_vipu_client::{
    AgentIpus, ConnectOptions, ControllerEndpoint, CreatePartition, GrpcController, IpuofConfig,
    PartitionStatus, VipuController, VipuError,
};
use tokio::sync::Mutex;
use vipu_sim::Simulator;

#[derive(Clone, Copy, PartialEq)]
enum Defect {
    None,
    SecondCreateSucceeds,
    UnknownIsRemoved,
    ListOmitsOne,
    NoCapacityIsUnreachable,
    ActiveAtOnce,
    KeepsIpus,
    WrongGcd,
    LosesSpecFields,
    Flickers,
    Panics,
    LosesDeadline,
}

/// The simulator behind gRPC, with a defect.
struct Flawed {
    inner: Arc<GrpcController>,
    defect: Defect,
    hidden: Mutex<BTreeSet<PartitionId>>,
    calls: AtomicU32,
}

fn not_found(id: &PartitionId) -> VipuError {
    VipuError::NotFound { id: id.clone() }
}

#[async_trait]
impl VipuController for Flawed {
    async fn version(&self) -> Result<String, VipuError> {
        assert!(self.defect != Defect::Panics, "the controller panics");
        self.inner.version().await
    }

    async fn list_partitions(&self, of: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        let mut listed = self.inner.list_partitions(of).await?;
        let hidden = self.hidden.lock().await;
        listed.retain(|one| !hidden.contains(&one.id));
        if self.defect == Defect::ListOmitsOne && listed.len() > 4 {
            listed.pop();
        }
        if self.defect == Defect::LosesSpecFields {
            listed.iter_mut().for_each(|one| one.spec.gcds = 1);
        }
        Ok(listed)
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let inner = Arc::clone(&self.inner);
        let create = async move { inner.create_partition(request).await };
        let answer = match self.defect {
            // The deadline belongs to the task of the caller.
            Defect::LosesDeadline => tokio::spawn(create).await.unwrap(),
            _ => create.await,
        };
        match answer {
            Err(VipuError::AlreadyExists { id }) if self.defect == Defect::SecondCreateSucceeds => Ok(id),
            Err(VipuError::NoCapacity { detail }) if self.defect == Defect::NoCapacityIsUnreachable => {
                let endpoint = "flawed".into();
                Err(VipuError::Unreachable { endpoint, detail })
            }
            other => other,
        }
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        let flickers = self.defect == Defect::Flickers && self.calls.fetch_add(1, Ordering::SeqCst) % 7 == 6;
        if flickers || self.hidden.lock().await.contains(id) {
            return Err(not_found(id));
        }
        let mut status = self.inner.partition_status(id).await?;
        if self.defect == Defect::ActiveAtOnce && status.state == PartitionState::Creating {
            status.state = PartitionState::Active;
        }
        Ok(status)
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        let is_wrong = self.defect == Defect::WrongGcd && gcd == Some(1);
        let gcd = if is_wrong { Some(0) } else { gcd };
        self.inner.ipuof_config(id, gcd).await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.inner.reset_partition(id).await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        if self.defect == Defect::KeepsIpus {
            self.partition_status(id).await?;
            self.hidden.lock().await.insert(id.clone());
            return Ok(());
        }
        match self.inner.remove_partition(id, force).await {
            Err(VipuError::NotFound { .. }) if self.defect == Defect::UnknownIsRemoved => Ok(()),
            other => other,
        }
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.inner.ipu_attributes(agents).await
    }
}

/// A bench that injects no fault.
struct Bench {
    controller: Arc<dyn VipuController>,
    deadline: Duration,
    _simulator: Simulator,
}

/// Each defect, with a case that detects it.
const DEFECTS: [(Defect, &str); 12] = [
    (Defect::None, ""),
    (
        Defect::SecondCreateSucceeds,
        "one_of_many_creates_of_an_id_succeeds",
    ),
    (Defect::UnknownIsRemoved, "a_removed_partition_is_unknown"),
    (Defect::ListOmitsOne, "every_partition_is_listed_and_has_a_status"),
    (
        Defect::NoCapacityIsUnreachable,
        "a_create_without_capacity_is_rejected",
    ),
    (
        Defect::ActiveAtOnce,
        "a_new_partition_is_creating_before_it_is_active",
    ),
    (Defect::KeepsIpus, "a_removed_partition_frees_its_ipus_and_id"),
    (
        Defect::WrongGcd,
        "the_ipuof_configuration_covers_each_gcd_and_all",
    ),
    (Defect::LosesSpecFields, "every_field_of_a_partition_is_listed"),
    (Defect::Flickers, "every_partition_is_listed_and_has_a_status"),
    (Defect::Panics, "the_version_is_reported"),
    (Defect::LosesDeadline, "a_call_after_its_deadline_is_not_sent"),
];

impl Bench {
    /// Starts the simulator with the defect of this number in [`DEFECTS`].
    async fn start(defect: usize, setup: Setup) -> Self {
        let simulator = Simulator::builder(setup.topology.clone()).delay(setup.operation);
        let simulator = simulator.start().await.unwrap();
        let endpoint: ControllerEndpoint = simulator.addr().try_into().unwrap();
        let options = ConnectOptions::default().with_deadline(setup.deadline);
        let inner = GrpcController::connect(&endpoint, &options).unwrap();
        let controller = Arc::new(Flawed {
            inner: Arc::new(inner),
            defect: DEFECTS[defect].0,
            hidden: Mutex::default(),
            calls: AtomicU32::default(),
        });
        Self {
            controller,
            deadline: setup.deadline,
            _simulator: simulator,
        }
    }
}

impl ControllerBench for Bench {
    fn controller(&self) -> Arc<dyn VipuController> {
        Arc::clone(&self.controller)
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.deadline)
    }
}

/// Cases that need more of a bench.
const UNSUPPORTED: [&str; 13] = [
    "a_reset_in_progress_is_visible",
    "a_failed_partition_is_in_error_and_can_be_removed",
    "a_lost_reply_is_ambiguous_and_the_status_resolves_it",
    "a_cut_reply_is_ambiguous_and_the_status_resolves_it",
    "a_lost_request_is_ambiguous_and_the_status_resolves_it",
    "an_unavailable_controller_error_is_retryable",
    "a_broken_connection_is_reestablished",
    "a_call_delivered_twice_takes_effect_once",
    "a_slow_reply_is_accepted",
    "silence_is_an_ambiguous_timeout",
    "a_late_reply_is_an_ambiguous_timeout",
    "a_restarted_controller_keeps_its_partitions",
    "a_stopped_controller_is_unreachable",
];

async fn failure_of(defect: usize) -> SuiteFailure {
    let start = move |setup| Bench::start(defect, setup);
    let failure = try_controller_suite(start, &UNSUPPORTED).await.unwrap_err();
    let case = DEFECTS[defect].1;
    assert!(failure.is_broken(case), "not detected by {case}: {failure}");
    failure
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bench_without_faults_runs_all_cases_that_need_none() {
    let report = controller_suite(|setup| Bench::start(0, setup), &UNSUPPORTED).await;
    assert!(report.ran.len() > 30, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_defect_is_detected_by_its_case() {
    tokio::join!(
        failure_of(1),
        failure_of(2),
        failure_of(3),
        failure_of(4),
        failure_of(5),
        failure_of(6),
        failure_of(8),
        failure_of(9),
        failure_of(10),
        failure_of(11),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_names_the_case_the_rule_and_both_values() {
    let failure = failure_of(7).await;
    let broken = &failure.broken[0];
    let text = failure.to_string();
    for part in [broken.case, &broken.rule, &broken.expected, &broken.actual] {
        assert!(!part.is_empty() && text.contains(part), "{part:?} in {text}");
    }
    assert!(failure.report.ran.len() > 30, "all other cases ran: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_case_that_cannot_run_fails_unless_it_is_named() {
    let failure = try_controller_suite(|setup| Bench::start(0, setup), &UNSUPPORTED[1..])
        .await
        .unwrap_err();
    assert!(failure.is_broken(UNSUPPORTED[0]), "{failure}");
    assert_eq!(failure.broken.len(), 1, "{failure}");
}
