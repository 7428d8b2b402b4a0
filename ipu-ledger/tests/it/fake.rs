//! A controller in memory with faults, on virtual time.
//!
//! It keeps the rules of a real one (an id once, an IPU once, operations that take time) and checks ours: whoever is
//! granted a partition has to find it active and unused since it was made or reset.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{
    AgentId, AllocationId, ExclusionOwner, Inventory, IpuPlace, Partition, PartitionId, PartitionSpec,
    PartitionState, PlacementRequest, Topology,
};
use ipu_core::{BestFit, FirstFit, Pinned, Placement, PlacementPolicy, place};
use ipu_vipu_client::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError};
use tokio::time::Instant;

use crate::random::Random;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done and the connection breaks.
    Broken,
    /// It is done and the reply is lost.
    LostReply,
    /// The caller hears nothing, and it is done this much later.
    Late(Duration),
    /// It is answered this much later.
    Slow(Duration),
}

#[derive(Clone, Debug)]
enum Call {
    Create(CreatePartition),
    Reset(PartitionId),
    Remove(PartitionId),
}

#[derive(Clone, Debug)]
struct Made {
    spec: PartitionSpec,
    state: PartitionState,
    /// When the operation under way is over.
    done: Instant,
    /// Whether somebody was granted it since it was made or reset.
    used: bool,
    /// Whether workers use it now.
    in_use: bool,
    /// The list of operations waits for this one.
    then: Option<PartitionState>,
}

/// The state that all clones share.
pub(crate) struct Inside {
    inventory: Inventory,
    made: BTreeMap<PartitionId, Made>,
    late: Vec<(Instant, Call)>,
    /// Faults of the next mutating calls, first come first.
    pub(crate) script: Vec<Option<Fault>>,
    /// How likely a fault is, in percent.
    pub(crate) fault_rate: u32,
    random: Random,
    pub(crate) operation: Duration,
    pub(crate) down: bool,
    /// Whether it takes the lowest block that is free instead of the tightest.
    pub(crate) lowest_first: bool,
    /// Every mutating call that arrived, for tests that count.
    pub(crate) calls: Vec<String>,
    /// What was done to partitions under their workers.
    pub(crate) disturbed: Vec<String>,
}

/// The controller. Clones share everything.
#[derive(Clone)]
pub(crate) struct FakeController(Arc<Mutex<Inside>>);

impl FakeController {
    pub(crate) fn new(topology: &Topology, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Inside {
            inventory: Inventory::new(topology),
            made: BTreeMap::new(),
            late: Vec::new(),
            script: Vec::new(),
            fault_rate: 0,
            random: Random::new(seed),
            operation: Duration::from_millis(20),
            down: false,
            lowest_first: false,
            calls: Vec::new(),
            disturbed: Vec::new(),
        })))
    }

    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside> {
        let mut inside = self.0.lock().unwrap();
        inside.settle();
        inside
    }

    pub(crate) fn ids(&self) -> Vec<PartitionId> {
        self.inside().made.keys().cloned().collect()
    }

    /// Somebody else makes a partition.
    pub(crate) fn make_foreign(&self, id: &str, size: u32) {
        let request = CreatePartition {
            id: id.parse().unwrap(),
            spec: PartitionSpec::of_size(size.try_into().unwrap()),
            ipus: Vec::new(),
        };
        let mut inside = self.inside();
        inside.create(&request).unwrap();
        inside.made.get_mut(&request.id).unwrap().used = true;
    }

    /// The partition goes into error.
    pub(crate) fn break_partition(&self, id: &PartitionId) {
        if let Some(made) = self.inside().made.get_mut(id)
            && made.state == PartitionState::Active
        {
            made.state = PartitionState::Failed {
                errors: vec!["link down".into()],
            };
        }
    }

    /// The controller loses all that it knows.
    pub(crate) fn lose_everything(&self) {
        let mut inside = self.inside();
        let ids: Vec<_> = inside.made.keys().cloned().collect();
        for id in ids {
            inside.forget(&id);
        }
    }

    /// Somebody was granted `id`: it has to be there, active and fresh. From now on it is used.
    pub(crate) fn use_it(&self, id: &PartitionId) {
        let mut inside = self.inside();
        let made = inside
            .made
            .get_mut(id)
            .unwrap_or_else(|| panic!("{id} was granted and is not there"));
        assert!(!made.used, "{id} was granted again without a reset");
        made.used = true;
        made.in_use = true;
    }

    /// The workers on `id` have ended.
    pub(crate) fn leave(&self, id: &PartitionId) {
        if let Some(made) = self.inside().made.get_mut(id) {
            made.in_use = false;
        }
    }

    async fn call<T>(
        &self,
        name: &str,
        call: Option<Call>,
        answer: impl Fn(&mut Inside) -> Result<T, VipuError>,
    ) -> Result<T, VipuError> {
        let fault = {
            let mut inside = self.inside();
            if let Some(call) = &call {
                inside.calls.push(format!("{name} {}", call.id()));
            }
            if inside.down {
                return Err(broken());
            }
            inside.next_fault(call.is_some())
        };
        tokio::time::sleep(Duration::from_millis(1)).await;
        match (fault, call) {
            (Some(Fault::Broken), _) | (Some(Fault::LostReply | Fault::Late(_)), None) => Err(broken()),
            (Some(Fault::LostReply), Some(_)) => {
                let _ = answer(&mut self.inside());
                Err(broken())
            }
            (Some(Fault::Late(later)), Some(call)) => {
                self.inside().late.push((Instant::now() + later, call));
                Err(broken())
            }
            (Some(Fault::Slow(later)), _) => {
                tokio::time::sleep(later).await;
                answer(&mut self.inside())
            }
            (None, _) => answer(&mut self.inside()),
        }
    }
}

impl Call {
    const fn id(&self) -> &PartitionId {
        match self {
            Self::Create(request) => &request.id,
            Self::Reset(id) | Self::Remove(id) => id,
        }
    }
}

fn broken() -> VipuError {
    VipuError::Unreachable {
        endpoint: "fake".into(),
        detail: "connection reset".into(),
    }
}

impl Inside {
    fn next_fault(&mut self, mutating: bool) -> Option<Fault> {
        if mutating && !self.script.is_empty() {
            return self.script.remove(0);
        }
        if self.random.below(100) >= self.fault_rate {
            return None;
        }
        Some(match self.random.below(4) {
            0 => Fault::Broken,
            1 => Fault::LostReply,
            2 => Fault::Late(Duration::from_millis(u64::from(self.random.below(15_000)))),
            _ => Fault::Slow(Duration::from_millis(u64::from(self.random.below(12_000)))),
        })
    }

    /// Lets everything happen whose time has come.
    fn settle(&mut self) {
        let now = Instant::now();
        self.late.sort_by_key(|(at, _)| *at);
        while self.late.first().is_some_and(|(at, _)| *at <= now) {
            let (_, call) = self.late.remove(0);
            let _ = match call {
                Call::Create(request) => self.create(&request).map(|_| ()),
                Call::Reset(id) => self.reset(&id),
                Call::Remove(id) => self.remove(&id),
            };
        }
        let over: Vec<_> = self
            .made
            .iter()
            .filter(|(_, made)| made.done <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            match self.made.get_mut(&id).and_then(|made| made.then.take()) {
                Some(PartitionState::Removing) => self.forget(&id),
                Some(state) => self.made.get_mut(&id).unwrap().state = state,
                None => {}
            }
        }
    }

    fn forget(&mut self, id: &PartitionId) {
        self.made.remove(id);
        self.inventory.vacate(id).unwrap();
    }

    fn create(&mut self, request: &CreatePartition) -> Result<PartitionId, VipuError> {
        if self.made.contains_key(&request.id) {
            return Err(VipuError::AlreadyExists {
                id: request.id.clone(),
            });
        }
        let topology = self.inventory.topology().clone();
        let wanted =
            PlacementRequest::of_size(request.spec.size).in_allocation(request.spec.allocation.clone());
        let cluster = topology.clusters()[0].id.clone();
        let addresses: Vec<_> = request
            .ipus
            .iter()
            .map(|at| topology.address(&cluster, *at).unwrap())
            .collect();
        let pinned;
        let policy: &dyn PlacementPolicy = if addresses.is_empty() && self.lowest_first {
            &FirstFit
        } else if addresses.is_empty() {
            &BestFit
        } else {
            pinned = Pinned::to(addresses).unwrap();
            &pinned
        };
        match place(&self.inventory, &wanted, policy) {
            Placement::Fits(block) => self.inventory.occupy(request.id.clone(), block).unwrap(),
            Placement::Impossible(why) => {
                return Err(VipuError::NoCapacity {
                    detail: why.to_string(),
                });
            }
            _ => unreachable!(),
        }
        self.made.insert(
            request.id.clone(),
            Made {
                spec: request.spec.clone(),
                state: PartitionState::Creating,
                done: Instant::now() + self.operation,
                used: false,
                in_use: false,
                then: Some(PartitionState::Active),
            },
        );
        Ok(request.id.clone())
    }

    fn find(&mut self, id: &PartitionId) -> Result<&mut Made, VipuError> {
        self.made
            .get_mut(id)
            .ok_or_else(|| VipuError::NotFound { id: id.clone() })
    }

    fn reset(&mut self, id: &PartitionId) -> Result<(), VipuError> {
        let done = Instant::now() + self.operation;
        let made = self.find(id)?;
        if made.then.is_some() {
            return Err(VipuError::Refused {
                detail: "busy".into(),
            });
        }
        made.state = PartitionState::Resetting;
        made.then = Some(PartitionState::Active);
        made.done = done;
        made.used = false;
        if std::mem::take(&mut made.in_use) {
            self.disturbed.push(format!("reset {id}"));
        }
        Ok(())
    }

    fn remove(&mut self, id: &PartitionId) -> Result<(), VipuError> {
        let done = Instant::now() + self.operation;
        let made = self.find(id)?;
        if made.state != PartitionState::Removing {
            made.state = PartitionState::Removing;
            made.then = Some(PartitionState::Removing);
            made.done = done;
            if std::mem::take(&mut made.in_use) {
                self.disturbed.push(format!("remove {id}"));
            }
        }
        Ok(())
    }

    /// Excludes IPUs without any listing showing it, so that it seems to have room that it has not.
    pub(crate) fn hide_everything(&mut self) {
        let all: Vec<_> = (0..self.inventory.topology().link_domains())
            .flat_map(|domain| {
                (0..64).map(move |ipu| ipu_core::IpuAddress {
                    link_domain: domain,
                    ipu,
                })
            })
            .filter(|at| self.inventory.topology().contains(*at))
            .collect();
        self.inventory.exclude(&ExclusionOwner::health(), all).unwrap();
    }
}

#[async_trait]
impl VipuController for FakeController {
    async fn version(&self) -> Result<String, VipuError> {
        Ok("fake".into())
    }

    async fn list_partitions(&self, _: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.call("list", None, |inside| {
            let topology = inside.inventory.topology();
            let listed = inside.made.iter().map(|(id, made)| {
                let block = inside.inventory.block_of(id).unwrap();
                let place = |at| topology.place(at).map(|(_, place): (_, IpuPlace)| place).unwrap();
                Partition {
                    id: id.clone(),
                    spec: made.spec.clone(),
                    cluster: None,
                    ipus: block.addresses().map(place).collect(),
                    state: made.state.clone(),
                }
            });
            Ok(listed.collect())
        })
        .await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let call = Call::Create(request.clone());
        self.call("create", Some(call), |inside| inside.create(&request))
            .await
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.call("status", None, |inside| {
            let state = inside.find(id)?.state.clone();
            Ok(PartitionStatus {
                id: id.clone(),
                state,
                max_auto_resets: 0,
                auto_resets: 0,
                last_auto_reset: None,
            })
        })
        .await
    }

    async fn ipuof_config(&self, id: &PartitionId, _: Option<u32>) -> Result<IpuofConfig, VipuError> {
        Err(VipuError::NotFound { id: id.clone() })
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.call("reset", Some(Call::Reset(id.clone())), |inside| inside.reset(id))
            .await
    }

    async fn remove_partition(&self, id: &PartitionId, _: bool) -> Result<(), VipuError> {
        self.call("remove", Some(Call::Remove(id.clone())), |inside| {
            inside.remove(id)
        })
        .await
    }

    async fn ipu_attributes(&self, _: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        Err(VipuError::Refused {
            detail: "not implemented".into(),
        })
    }
}
