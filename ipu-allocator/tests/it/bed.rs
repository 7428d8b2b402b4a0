//! An allocator with controllers whose partitions and errors the test sets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::{Allocator, EnsureOutcome, MemoryStore, Options};
use ipu_core::allocator::{Entry, Request};
use ipu_core::hardware::{IpuPlace, Partition, PartitionSpec, PartitionState, Topology};
use ipu_core::{AgentId, AllocationId, ControllerName, IpuCount, JobKey, Owner, PartitionId};
use ipu_vipu_client::{
    AgentIpus, ControllerPool, CreatePartition, GcdConfig, IpuofConfig, PartitionStatus, VipuController,
    VipuError,
};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A controller of one IPU-POD16, whose operations take no time.
#[derive(Default)]
pub(crate) struct FakeController {
    pub(crate) partitions: Mutex<BTreeMap<PartitionId, Partition>>,
    /// Methods that fail, and those that do not reply.
    errors: Mutex<BTreeMap<&'static str, VipuError>>,
    silent: Mutex<BTreeMap<&'static str, Arc<Notify>>>,
    /// The method that panics at its next call.
    pub(crate) panics: Mutex<Option<&'static str>>,
    calls: Mutex<Vec<&'static str>>,
    agents: Mutex<Vec<AgentIpus>>,
    /// Called while the controller answers an IPUoF configuration.
    pub(crate) meanwhile: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl FakeController {
    pub(crate) fn partitions(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Partition>> {
        self.partitions.lock().unwrap()
    }

    /// Makes a method fail.
    pub(crate) fn fail(&self, method: &'static str, error: VipuError) {
        self.errors.lock().unwrap().insert(method, error);
    }

    /// Makes a method reply again.
    pub(crate) fn heal(&self, method: &'static str) {
        self.errors.lock().unwrap().remove(method);
    }

    /// Makes a method not reply, until [`resume`](Self::resume).
    pub(crate) fn silence(&self, method: &'static str) {
        self.silent.lock().unwrap().insert(method, Arc::default());
    }

    /// Makes a silent method reply to the calls under way and to later ones.
    pub(crate) fn resume(&self, method: &str) {
        if let Some(silent) = self.silent.lock().unwrap().remove(method) {
            silent.notify_waiters();
        }
    }

    /// Makes a silent method reply to the calls under way, not to later ones.
    pub(crate) fn reply(&self, method: &str) {
        self.silent.lock().unwrap()[method].notify_waiters();
    }

    /// Reports the hardware, with one unhealthy IPU.
    pub(crate) fn report(&self, topology: &Topology) {
        let agents = topology.agents().enumerate().map(|(number, (agent, _))| {
            let health = |ipu| if (number, ipu) == (0, 0) { "bad" } else { "ok" };
            let attributes = |ipu| BTreeMap::from([("health".to_owned(), health(ipu).to_owned())]);
            AgentIpus {
                agent: agent.clone(),
                ipus: (0..4).map(|ipu| (ipu, attributes(ipu))).collect(),
            }
        });
        *self.agents.lock().unwrap() = agents.collect();
    }

    /// Returns the number of calls of a method.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|call| **call == method)
            .count()
    }

    /// Creates a partition after the others, as another client does.
    pub(crate) fn create_by_hand(&self, id: &PartitionId, size: u32) {
        let spec = PartitionSpec::of_size(IpuCount::try_from(size).unwrap());
        let first = self
            .partitions()
            .values()
            .map(|other| other.spec.size.get())
            .sum();
        let ipus = (first..first + size)
            .map(|ipu| IpuPlace { link_domain: 0, ipu })
            .collect();
        self.partitions().insert(id.clone(), active(id, spec, ipus));
    }

    async fn call(&self, method: &'static str) -> Result<(), VipuError> {
        self.calls.lock().unwrap().push(method);
        let panics = self.panics.lock().unwrap().take_if(|panics| *panics == method);
        assert_eq!(panics, None, "the client panics");
        let silent = self.silent.lock().unwrap().get(method).cloned();
        if let Some(silent) = silent {
            silent.notified().await;
        }
        match self.errors.lock().unwrap().get(method) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

fn active(id: &PartitionId, spec: PartitionSpec, ipus: Vec<IpuPlace>) -> Partition {
    Partition {
        id: id.clone(),
        spec,
        cluster: None,
        ipus,
        state: PartitionState::Active,
    }
}

fn not_found(id: &PartitionId) -> VipuError {
    VipuError::NotFound { id: id.clone() }
}

#[async_trait]
impl VipuController for FakeController {
    async fn version(&self) -> Result<String, VipuError> {
        Ok("1.18.0".into())
    }

    async fn list_partitions(&self, _: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        let listed = self.partitions().values().cloned().collect();
        self.call("list").await?;
        Ok(listed)
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        self.call("create").await?;
        let CreatePartition { id, spec, mut ipus } = request;
        let mut all = self.partitions();
        if ipus.is_empty() {
            let first = 16 * u32::try_from(all.len()).unwrap();
            let numbers = first..first + spec.size.get();
            ipus = numbers.map(|ipu| IpuPlace { link_domain: 0, ipu }).collect();
        }
        all.insert(id.clone(), active(&id, spec, ipus));
        Ok(id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.call("status").await?;
        let all = self.partitions();
        let found = all.get(id).ok_or_else(|| not_found(id))?;
        Ok(PartitionStatus {
            id: id.clone(),
            state: found.state.clone(),
            max_auto_resets: 0,
            auto_resets: 0,
            last_auto_reset: None,
        })
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.call("config").await?;
        let gcds = self.partitions()[id].spec.gcds;
        if let Some(meanwhile) = self.meanwhile.get() {
            meanwhile();
        }
        let count = gcd.map_or(gcds as usize, |_| 1);
        Ok(IpuofConfig {
            reconfigurable: false,
            gcds: vec![GcdConfig::default(); count],
            server_version: String::new(),
        })
    }

    async fn reset_partition(&self, _: &PartitionId) -> Result<(), VipuError> {
        self.call("reset").await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        self.call(if force { "remove with force" } else { "remove" })
            .await?;
        self.partitions()
            .remove(id)
            .map(drop)
            .ok_or_else(|| not_found(id))
    }

    async fn ipu_attributes(&self, _: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.call("attributes").await?;
        Ok(self.agents.lock().unwrap().clone())
    }
}

/// An allocator, and its controller.
pub(crate) struct Bed {
    pub(crate) allocator: Allocator,
    pub(crate) controller: Arc<FakeController>,
}

/// The name of the controller.
pub(crate) fn name() -> ControllerName {
    ControllerName::new("fake").unwrap()
}

/// Options for a controller of an IPU-POD16 that does not report its hardware, and is only listed on demand.
pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options
        .topologies
        .insert(name(), "pod16".parse::<Topology>().unwrap());
    options.listing_interval = Duration::from_secs(3_600);
    options.compare_interval = Duration::from_secs(3_600);
    options
}

impl Bed {
    pub(crate) async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let controller = Arc::new(FakeController::default());
        let pool = ControllerPool::single(name(), Arc::clone(&controller) as Arc<dyn VipuController>);
        let allocator = Allocator::start(options, Arc::new(MemoryStore::default()), pool);
        allocator.leading().wait_for(|leading| *leading).await.unwrap();
        Self {
            allocator,
            controller,
        }
    }

    pub(crate) async fn ensure(&self, request: &Request) -> Arc<Entry> {
        self.ensure_until(request, soon()).await
    }

    pub(crate) async fn ensure_until(&self, request: &Request, until: Instant) -> Arc<Entry> {
        match self.allocator.ensure(request.clone(), until).await.unwrap() {
            EnsureOutcome::Entry(entry) => entry,
            EnsureOutcome::Rejected(status) => panic!("{status:?}"),
        }
    }
}

pub(crate) fn request(name: &str, size: u32) -> Request {
    let owner = Owner {
        kind: "Test".into(),
        job: JobKey::new("default", name, "1").unwrap(),
    };
    Request::of_instance(
        owner,
        0,
        PartitionSpec::of_size(IpuCount::try_from(size).unwrap()),
    )
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}
