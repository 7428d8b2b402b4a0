//! Create + release pairs of an allocator with its record in an SQLite file, over a controller fast enough
//! not to be the bottleneck.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ipu_allocator::{Allocator, EnsureOutcome, Options, ReleaseOutcome, SqliteStore};
use ipu_core::allocator::{Phase, Release, Request};
use ipu_core::hardware::{IpuPlace, Partition, PartitionSpec, PartitionState, Topology};
use ipu_core::{AgentId, AllocationId, ControllerName, IpuCount, JobKey, Owner, PartitionId};
use ipu_vipu_client::{
    AgentIpus, ControllerPool, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Full link domains of the controller: 8,192 IPUs.
const LINK_DOMAINS: u32 = 128;

/// Number of concurrent callers that fill the record.
const FILLERS: u64 = 64;

/// Longest wait for a grant or a release.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An allocator with durable commits and other entries.
pub struct Pairs {
    allocator: Allocator,
    names: Arc<AtomicU64>,
    _directory: TempDir,
}

impl Pairs {
    /// Starts an allocator in which `others` entries hold one IPU each, on a controller that responds at
    /// once. The file is in the directory for temporary files: set `TMPDIR` to measure another disk.
    ///
    /// # Panics
    ///
    /// If the file cannot be created, or the other entries do not fit.
    pub async fn new(others: u64) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the record");
        let store = SqliteStore::at(directory.path().join("ledger.db")).expect("a local file system");
        let name = ControllerName::new("prompt").expect("a name");
        let topology: Topology = format!("{LINK_DOMAINS}x16").parse().expect("a topology");
        let mut options = Options::default();
        options.topologies.insert(name.clone(), topology);
        let controller = InstantController::new();
        let pool = ControllerPool::single(name, Arc::new(controller));
        let pairs = Self {
            allocator: Allocator::start(options, Arc::new(store), pool),
            names: Arc::default(),
            _directory: directory,
        };
        let mut leading = pairs.allocator.leading();
        leading
            .wait_for(|leading| *leading)
            .await
            .expect("a running allocator");
        pairs.run_pairs(others, FILLERS, Keep::Yes).await;
        pairs
    }

    /// Runs `pairs` create + release pairs of one IPU each, over `callers` concurrent callers. Returns the
    /// elapsed time.
    ///
    /// # Panics
    ///
    /// If a partition is not granted or not released.
    pub async fn run(&self, callers: u64, pairs: u64) -> Duration {
        let start = Instant::now();
        self.run_pairs(pairs, callers, Keep::No).await;
        start.elapsed()
    }

    async fn run_pairs(&self, pairs: u64, callers: u64, keep: Keep) {
        let remaining = Arc::new(AtomicU64::new(pairs));
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (allocator, remaining, names) = (
                self.allocator.clone(),
                Arc::clone(&remaining),
                Arc::clone(&self.names),
            );
            tasks.spawn(async move {
                let decrement = |remaining: u64| remaining.checked_sub(1);
                while remaining
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement)
                    .is_ok()
                {
                    pair(&allocator, names.fetch_add(1, Ordering::Relaxed), keep).await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("every caller succeeds");
        }
    }
}

/// Whether the partition is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Yes,
    No,
}

async fn pair(allocator: &Allocator, number: u64, keep: Keep) {
    let owner = Owner {
        kind: "Bench".into(),
        job: JobKey::new("bench", format!("job{number}"), "uid").expect("a key"),
    };
    let size = IpuCount::try_from(1).expect("a size");
    let request = Request::of_instance(owner.clone(), 0, PartitionSpec::of_size(size));
    let id = request.id.clone();
    let until = || (Instant::now() + TIMEOUT).into();
    match allocator.ensure(request, until()).await.expect("a grant") {
        EnsureOutcome::Entry(entry) if entry.phase == Phase::Active => {}
        other => panic!("not granted: {other:?}"),
    }
    if keep == Keep::No {
        let release = Release {
            id,
            owner: Some(owner),
            attempt: None,
            force: false,
            not_after: None,
        };
        let released = allocator.release(release, until()).await;
        assert_eq!(released.expect("a release"), ReleaseOutcome::Gone);
    }
}

/// An in-memory controller whose operations complete at once.
struct InstantController {
    capacity: Mutex<CapacityState>,
}

#[derive(Default)]
struct CapacityState {
    partitions: BTreeMap<PartitionId, IpuPlace>,
    free: BTreeSet<IpuPlace>,
}

impl InstantController {
    fn new() -> Self {
        let place = |number| IpuPlace {
            link_domain: number / 64,
            ipu: number % 64,
        };
        let capacity = CapacityState {
            partitions: BTreeMap::new(),
            free: (0..LINK_DOMAINS * 64).map(place).collect(),
        };
        Self {
            capacity: Mutex::new(capacity),
        }
    }

    fn capacity(&self) -> MutexGuard<'_, CapacityState> {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl VipuController for InstantController {
    async fn version(&self) -> Result<String, VipuError> {
        Ok("prompt".into())
    }

    async fn list_partitions(&self, _: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        let capacity = self.capacity();
        let listed = capacity.partitions.iter().map(|(id, place)| Partition {
            id: id.clone(),
            spec: PartitionSpec::of_size(IpuCount::try_from(1).expect("a size")),
            cluster: None,
            ipus: vec![*place],
            state: PartitionState::Active,
        });
        Ok(listed.collect())
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let mut capacity = self.capacity();
        let place = capacity.free.pop_first().ok_or_else(|| VipuError::NoCapacity {
            detail: "full".into(),
        })?;
        capacity.partitions.insert(request.id.clone(), place);
        Ok(request.id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        let capacity = self.capacity();
        if !capacity.partitions.contains_key(id) {
            return Err(VipuError::NotFound { id: id.clone() });
        }
        Ok(PartitionStatus {
            id: id.clone(),
            state: PartitionState::Active,
            max_auto_resets: 0,
            auto_resets: 0,
            last_auto_reset: None,
        })
    }

    async fn ipuof_config(&self, id: &PartitionId, _: Option<u32>) -> Result<IpuofConfig, VipuError> {
        Err(VipuError::NotFound { id: id.clone() })
    }

    async fn reset_partition(&self, _: &PartitionId) -> Result<(), VipuError> {
        Ok(())
    }

    async fn remove_partition(&self, id: &PartitionId, _: bool) -> Result<(), VipuError> {
        let mut capacity = self.capacity();
        let place = capacity
            .partitions
            .remove(id)
            .ok_or_else(|| VipuError::NotFound { id: id.clone() })?;
        capacity.free.insert(place);
        Ok(())
    }

    async fn ipu_attributes(&self, _: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        Err(VipuError::Refused {
            detail: "the topology is configured".into(),
        })
    }
}
