//! Answers to owners, while partitions change behind them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use ipu_allocator::{Allocator, AllocatorError, EnsureOutcome, MemoryStore, Options};
use ipu_core::allocator::{Entry, Phase, Release, Request};
use ipu_core::hardware::{IpuPlace, Partition, PartitionState};
use ipu_core::render::{GcdConfig, IpuofConfig};
use ipu_core::{ControllerName, PartitionId};
use ipu_vipu_client::{ControllerPool, CreatePartition, MockVipuController, PartitionStatus, VipuError};

use crate::lifecycle::{request, soon};

/// An allocator with a controller whose partitions the test changes.
struct Bed {
    allocator: Allocator,
    partitions: Arc<Mutex<BTreeMap<PartitionId, Partition>>>,
    /// Called while the controller answers an IPUoF configuration.
    meanwhile: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

impl Bed {
    async fn start() -> Self {
        let partitions = Arc::new(Mutex::new(BTreeMap::<PartitionId, Partition>::new()));
        let meanwhile = Arc::new(OnceLock::<Box<dyn Fn() + Send + Sync>>::new());
        let mut mock = MockVipuController::new();
        let not_found = |id: &PartitionId| VipuError::NotFound { id: id.clone() };
        let all = Arc::clone(&partitions);
        mock.expect_list_partitions()
            .returning(move |_| Ok(all.lock().unwrap().values().cloned().collect()));
        mock.expect_ipu_attributes().returning(|_| Ok(Vec::new()));
        let all = Arc::clone(&partitions);
        mock.expect_create_partition().returning(move |request| {
            let CreatePartition { id, spec, .. } = request;
            let mut all = all.lock().unwrap();
            let first = 16 * u32::try_from(all.len()).unwrap();
            let numbers = first..first + spec.size.get();
            let ipus = numbers.map(|ipu| IpuPlace { link_domain: 0, ipu }).collect();
            let (state, cluster) = (PartitionState::Active, None);
            let made = Partition {
                id: id.clone(),
                spec,
                cluster,
                ipus,
                state,
            };
            all.insert(id.clone(), made);
            Ok(id)
        });
        let all = Arc::clone(&partitions);
        mock.expect_partition_status().returning(move |id| {
            let all = all.lock().unwrap();
            let found = all.get(id).ok_or_else(|| not_found(id))?;
            Ok(PartitionStatus {
                id: id.clone(),
                state: found.state.clone(),
                max_auto_resets: 0,
                auto_resets: 0,
                last_auto_reset: None,
            })
        });
        mock.expect_reset_partition().returning(|_| Ok(()));
        let all = Arc::clone(&partitions);
        mock.expect_remove_partition().returning(move |id, _| {
            all.lock()
                .unwrap()
                .remove(id)
                .map(drop)
                .ok_or_else(|| not_found(id))
        });
        let (all, during) = (Arc::clone(&partitions), Arc::clone(&meanwhile));
        mock.expect_ipuof_config().returning(move |id, gcd| {
            let gcds = all.lock().unwrap()[id].spec.gcds;
            if let Some(during) = during.get() {
                during();
            }
            let count = gcd.map_or(gcds as usize, |_| 1);
            Ok(IpuofConfig {
                reconfigurable: false,
                gcds: vec![GcdConfig::default(); count],
                server_version: String::new(),
            })
        });
        let pool: ControllerPool =
            ControllerPool::single(ControllerName::new("mock").unwrap(), Arc::new(mock));
        let allocator = Allocator::start(Options::default(), Arc::new(MemoryStore::default()), pool);
        allocator.leading().wait_for(|leading| *leading).await.unwrap();
        Self {
            allocator,
            partitions,
            meanwhile,
        }
    }

    async fn ensure(&self, request: &Request) -> Arc<Entry> {
        match self.allocator.ensure(request.clone(), soon()).await.unwrap() {
            EnsureOutcome::Entry(entry) => entry,
            EnsureOutcome::Rejected(status) => panic!("{status:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_for_a_lost_partition_is_answered_that_it_failed() {
    let bed = Bed::start().await;
    let request = request("one", 4);
    assert_eq!(bed.ensure(&request).await.phase, Phase::Active);
    bed.partitions.lock().unwrap().clear();
    let answered = bed.ensure(&request).await;
    assert!(matches!(answered.phase, Phase::Failed { .. }), "{answered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_ipuof_configuration_has_the_number_of_its_gcd() {
    let bed = Bed::start().await;
    let mut one = request("one", 4);
    let mut two = request("two", 4);
    (one.spec.replicas, two.spec.gcds, two.spec.replicas) = (2, 2, 2);
    let cases: [(&Request, Option<u32>, &[&str]); 5] = [
        (&one, None, &["0"]),
        (&one, Some(0), &["0"]),
        (&two, None, &["0", "1"]),
        (&two, Some(0), &["0"]),
        (&two, Some(1), &["1"]),
    ];
    for (request, gcd, expected) in cases {
        let entry = bed.ensure(request).await;
        let config = bed.allocator.ipuof_config(&entry, gcd).await.unwrap();
        let ids: Vec<&str> = config
            .gcds
            .iter()
            .map(|gcd| gcd.attributes["GCD Id"].as_str())
            .collect();
        assert_eq!(ids, expected, "{} {gcd:?}", request.id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_devices_of_a_partition_that_is_not_the_expected_one_any_more_are_not_answered() {
    // It is reset, released, or released and requested by the owner again, while the controller answers.
    for changes in 0..3 {
        let bed = Bed::start().await;
        let request = request("one", 4);
        let entry = bed.ensure(&request).await;
        let (allocator, runtime) = (bed.allocator.clone(), tokio::runtime::Handle::current());
        let during = move || {
            let (allocator, mut request) = (allocator.clone(), request.clone());
            let change = async move {
                if changes > 0 {
                    allocator.release(Release::of(&request), soon()).await.unwrap();
                }
                request.attempt += 1;
                if changes != 1 {
                    allocator.ensure(request, soon()).await.unwrap();
                }
            };
            tokio::task::block_in_place(|| runtime.block_on(change));
        };
        assert!(bed.meanwhile.set(Box::new(during)).is_ok());
        let answer = bed.allocator.ipuof_config(&entry, None).await;
        let now = bed.allocator.cached(&entry.id);
        let is_refused = matches!(answer, Err(AllocatorError::NotActive { .. }));
        assert!(is_refused, "{changes}: {answer:?}, {entry:?}, then {now:?}");
    }
}
