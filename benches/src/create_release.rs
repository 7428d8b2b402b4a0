//! Create + release pairs of a ledger in an SQLite file, over a controller fast enough not to be the
//! bottleneck.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ipu_core::{
    AgentId, AllocationId, ControllerName, IpuCount, IpuPlace, JobKey, Partition, PartitionId, PartitionSpec,
    PartitionState, Topology,
};
use ipu_ledger::{Ledger, LedgerOptions, Owner, Request, SqliteStore};
use ipu_vipu_client::{
    AgentIpus, ControllerPool, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Full link domains of the controller: 8,192 IPUs.
const LINK_DOMAINS: u32 = 128;

/// Number of concurrent callers that fill the ledger.
const FILLERS: u64 = 64;

/// A file ledger with durable commits and other entries.
pub struct Pairs {
    ledger: Ledger<InstantController, SqliteStore>,
    names: Arc<AtomicU64>,
    _directory: TempDir,
}

impl Pairs {
    /// Creates a ledger in which `others` entries hold one IPU each, on a controller that responds after
    /// `latency`. The file is in the directory for temporary files: set `TMPDIR` to measure another disk.
    ///
    /// # Panics
    ///
    /// If the file cannot be created, or the other entries do not fit.
    pub async fn new(others: u64, latency: Duration) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the ledger");
        let store = SqliteStore::open(directory.path().join("ledger.db")).expect("a ledger in it");
        let name = ControllerName::new("prompt").expect("a name");
        let topology: Topology = format!("{LINK_DOMAINS}x16").parse().expect("a topology");
        let mut options = LedgerOptions::default();
        options.topologies.insert(name.clone(), topology);
        let pool = ControllerPool::single(name, Arc::new(InstantController::new(latency)));
        let pairs = Self {
            ledger: Ledger::new(pool, store, options),
            names: Arc::default(),
            _directory: directory,
        };
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
            let (ledger, remaining, names) = (
                self.ledger.clone(),
                Arc::clone(&remaining),
                Arc::clone(&self.names),
            );
            tasks.spawn(async move {
                let decrement = |remaining: u64| remaining.checked_sub(1);
                while remaining
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement)
                    .is_ok()
                {
                    pair(&ledger, names.fetch_add(1, Ordering::Relaxed), keep).await;
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

async fn pair(ledger: &Ledger<InstantController, SqliteStore>, number: u64, keep: Keep) {
    let owner = Owner {
        kind: "Bench".into(),
        job: JobKey::new("bench", format!("job{number}"), "uid").expect("a key"),
    };
    let size = IpuCount::try_from(1).expect("a size");
    let request = Request::of_instance(owner.clone(), 0, PartitionSpec::of_size(size));
    let id = request.id.clone();
    let granted = ledger.ensure_active(request, &mut |_| {}).await;
    granted.expect("a grant");
    if keep == Keep::No {
        ledger.release(&id, &owner, None).await.expect("a release");
    }
}

/// An in-memory controller whose operations complete at once.
struct InstantController {
    latency: Duration,
    capacity: Mutex<CapacityState>,
}

#[derive(Default)]
struct CapacityState {
    partitions: BTreeMap<PartitionId, IpuPlace>,
    free: BTreeSet<IpuPlace>,
}

impl InstantController {
    fn new(latency: Duration) -> Self {
        let place = |number| IpuPlace {
            link_domain: number / 64,
            ipu: number % 64,
        };
        let capacity = CapacityState {
            partitions: BTreeMap::new(),
            free: (0..LINK_DOMAINS * 64).map(place).collect(),
        };
        Self {
            latency,
            capacity: Mutex::new(capacity),
        }
    }

    async fn capacity(&self) -> MutexGuard<'_, CapacityState> {
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl VipuController for InstantController {
    async fn version(&self) -> Result<String, VipuError> {
        Ok("prompt".into())
    }

    async fn list_partitions(&self, _: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        let capacity = self.capacity().await;
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
        let mut capacity = self.capacity().await;
        let place = capacity.free.pop_first().ok_or_else(|| VipuError::NoCapacity {
            detail: "full".into(),
        })?;
        capacity.partitions.insert(request.id.clone(), place);
        Ok(request.id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        let capacity = self.capacity().await;
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
        let mut capacity = self.capacity().await;
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
