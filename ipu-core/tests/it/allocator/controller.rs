//! A simulated controller: the ground truth.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::allocator::{
    CallKind, Capacity, ControllerView, CordonTarget, IpuCounts, Listing, Reply, ServiceState, Unbounded,
};
use ipu_core::hardware::{IpuPlace, Partition, PartitionSpec, PartitionState};
use ipu_core::{ControllerName, CordonOwner, PartitionId, Reason, ReasonCode, Timestamp};

/// One use of a partition: the number of the owner and of its run.
pub(super) type User = (usize, u32);

/// The use of a partition that was made by hand.
pub(super) const BY_HAND: User = (usize::MAX, 0);

/// A partition that exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Truth {
    pub(super) spec: PartitionSpec,
    /// Its IPUs, one bit each.
    pub(super) ipus: u64,
    pub(super) state: PartitionState,
    /// The first user since it was created or reset.
    pub(super) used_by: Option<User>,
    /// Whether it was made by hand.
    pub(super) is_foreign: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Controller {
    pub(super) name: ControllerName,
    /// Number of IPUs, at most 64.
    pub(super) ipus: u32,
    /// Whether it reports its IPUs and those of its partitions.
    pub(super) reports_ipus: bool,
    /// Whether operations take time.
    pub(super) is_slow: bool,
    /// Whether it refuses to create partitions.
    pub(super) refuses: bool,
    /// Whether it does not answer listings.
    pub(super) is_silent: bool,
    pub(super) partitions: BTreeMap<PartitionId, Truth>,
    /// Partitions that the controller lost, or that were removed by hand, with the IPUs that they had.
    pub(super) lost: BTreeMap<PartitionId, u64>,
}

impl Controller {
    pub(super) fn new(number: usize, ipus: u32) -> Self {
        Self {
            name: ControllerName::new(format!("c{number}")).unwrap(),
            ipus,
            reports_ipus: true,
            is_slow: false,
            refuses: false,
            is_silent: false,
            partitions: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    /// Executes a call.
    pub(super) fn execute(&mut self, id: &PartitionId, kind: &CallKind) -> Reply {
        let listed = self.listed(id);
        let Some(truth) = self.partitions.get_mut(id) else {
            return match kind {
                CallKind::Create { spec, ipus } => self.create(id, spec, ipus),
                _ => Reply::Absent,
            };
        };
        match kind {
            CallKind::Create { .. } => Reply::Exists(listed),
            CallKind::Status { locate } => Reply::Status {
                state: truth.state.clone(),
                listed: listed.filter(|_| *locate),
            },
            _ if truth.state == PartitionState::Removing => Reply::Accepted,
            CallKind::Reset => {
                truth.used_by = None;
                truth.state = PartitionState::Resetting;
                self.finish_unless_slow(id);
                Reply::Accepted
            }
            CallKind::Remove { force } => {
                if !force && matches!(truth.state, PartitionState::Failed { .. }) {
                    return Reply::NeedsForce {
                        message: String::from("in error"),
                    };
                }
                truth.state = PartitionState::Removing;
                self.finish_unless_slow(id);
                Reply::Accepted
            }
        }
    }

    fn create(&mut self, id: &PartitionId, spec: &PartitionSpec, ipus: &[IpuPlace]) -> Reply {
        let block = match ipus {
            [] => free_block(self.free(), spec.size.get(), self.ipus),
            _ => Some(mask(ipus)).filter(|ipus| ipus & !self.free() == 0),
        };
        let Some(ipus) = block.filter(|_| !self.refuses) else {
            return Reply::Refused {
                message: String::from("no"),
            };
        };
        self.lost.remove(id);
        let truth = Truth {
            spec: spec.clone(),
            ipus,
            state: PartitionState::Creating,
            used_by: None,
            is_foreign: false,
        };
        self.partitions.insert(id.clone(), truth);
        self.finish_unless_slow(id);
        Reply::Accepted
    }

    fn finish_unless_slow(&mut self, id: &PartitionId) {
        if !self.is_slow {
            self.finish(id);
        }
    }

    /// Ends the operation on `id`.
    pub(super) fn finish(&mut self, id: &PartitionId) {
        let Some(truth) = self.partitions.get_mut(id) else {
            return;
        };
        match truth.state {
            PartitionState::Creating | PartitionState::Resetting => {
                truth.used_by = None;
                truth.state = PartitionState::Active;
            }
            PartitionState::Removing => {
                self.partitions.remove(id);
            }
            PartitionState::Active | PartitionState::Failed { .. } => {}
        }
    }

    pub(super) fn finish_creations(&mut self) {
        let ids: Vec<_> = self.partitions.keys().cloned().collect();
        let is_creating = |truth: &Truth| truth.state == PartitionState::Creating;
        for id in &ids {
            if self.partitions.get(id).is_some_and(is_creating) {
                self.finish(id);
            }
        }
    }

    pub(super) fn finish_removals(&mut self) {
        self.partitions
            .retain(|_, truth| truth.state != PartitionState::Removing);
    }

    /// Loses a partition, as a controller that restarts without it.
    pub(super) fn lose(&mut self, id: &PartitionId) {
        if let Some(truth) = self.partitions.remove(id) {
            self.lost.insert(id.clone(), truth.ipus);
        }
    }

    pub(super) fn fail(&mut self, index: usize) {
        let active = |truth: &&mut Truth| truth.state == PartitionState::Active;
        if let Some(truth) = self.partitions.values_mut().nth(index).filter(active) {
            truth.state = PartitionState::Failed {
                errors: vec![String::from("broken")],
            };
        }
    }

    /// Creates a partition that was used already, if there is space.
    pub(super) fn make_by_hand(&mut self, id: &PartitionId, size: u32, is_foreign: bool) {
        let block = free_block(self.free(), size, self.ipus);
        if let Some(ipus) = block.filter(|_| !self.partitions.contains_key(id)) {
            let truth = Truth {
                spec: PartitionSpec::of_size(size.try_into().unwrap()),
                ipus,
                state: PartitionState::Active,
                used_by: Some(BY_HAND),
                is_foreign,
            };
            self.partitions.insert(id.clone(), truth);
        }
    }

    pub(super) fn free(&self) -> u64 {
        let taken = self.partitions.values().fold(0, |taken, one| taken | one.ipus);
        all_ipus(self.ipus) & !taken
    }

    /// Returns the partition as it is listed.
    pub(super) fn listed(&self, id: &PartitionId) -> Option<Partition> {
        let truth = self.partitions.get(id)?;
        Some(Partition {
            id: id.clone(),
            spec: truth.spec.clone(),
            cluster: None,
            ipus: if self.reports_ipus {
                places(truth.ipus)
            } else {
                Vec::new()
            },
            state: truth.state.clone(),
        })
    }

    pub(super) fn snapshot(&self) -> Vec<Partition> {
        let ids = self.partitions.keys();
        ids.filter_map(|id| self.listed(id)).collect()
    }

    pub(super) fn listing(&self, requested: Timestamp) -> Listing {
        let capacity: Box<dyn Capacity> = if self.reports_ipus {
            let taken = self.partitions.iter();
            Box::new(Pool {
                ipus: self.ipus,
                taken: taken.map(|(id, truth)| (id.clone(), truth.ipus)).collect(),
                kept: 0,
            })
        } else {
            let mut capacity = Unbounded::default();
            for (id, truth) in &self.partitions {
                capacity.reserve(id, &truth.spec, &[]).unwrap();
            }
            Box::new(capacity)
        };
        Listing::new(self.snapshot(), capacity).requested_at(requested)
    }

    /// Returns the open controller as it is listed.
    pub(super) fn view(&self, requested: Timestamp) -> ControllerView {
        ControllerView {
            name: self.name.clone(),
            service: ServiceState::Open,
            alias_of: None,
            listing: Ok(Arc::new(self.listing(requested))),
        }
    }
}

const fn all_ipus(ipus: u32) -> u64 {
    u64::MAX >> (64 - ipus)
}

/// Returns the first aligned block of `size` IPUs in `free`.
fn free_block(free: u64, size: u32, ipus: u32) -> Option<u64> {
    let starts = (0..ipus).step_by(size as usize);
    let mut blocks = starts.map(|start| all_ipus(size) << start);
    blocks.find(|block| block & !free == 0)
}

pub(super) fn places(ipus: u64) -> Vec<IpuPlace> {
    let numbers = (0..64).filter(|ipu| ipus >> ipu & 1 == 1);
    numbers.map(|ipu| IpuPlace { link_domain: 0, ipu }).collect()
}

pub(super) fn mask(places: &[IpuPlace]) -> u64 {
    places.iter().fold(0, |mask, place| mask | 1 << place.ipu)
}

/// The capacity of up to 64 IPUs. Partitions are aligned blocks; machine `mK` has the IPUs 4K to 4K + 3.
#[derive(Clone)]
struct Pool {
    ipus: u32,
    taken: Vec<(PartitionId, u64)>,
    kept: u64,
}

impl Pool {
    fn available(&self) -> u64 {
        let taken = self.taken.iter().fold(self.kept, |taken, (_, ipus)| taken | ipus);
        all_ipus(self.ipus) & !taken
    }
}

impl Capacity for Pool {
    fn boxed_clone(&self) -> Box<dyn Capacity> {
        Box::new(self.clone())
    }

    fn free(&self) -> u32 {
        self.available().count_ones()
    }

    fn largest_block(&self) -> u32 {
        let sizes = (0..7).rev().map(|order| 1 << order);
        let mut sizes = sizes.filter(|size| *size <= self.ipus);
        sizes
            .find(|size| free_block(self.available(), *size, self.ipus).is_some())
            .unwrap_or(0)
    }

    fn has(&self, id: &PartitionId) -> bool {
        self.taken.iter().any(|(other, _)| other == id)
    }

    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        wanted: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason> {
        let (size, free) = (spec.size.get(), self.available());
        if size > self.ipus {
            return Err(Reason::new(ReasonCode::TooLarge, "there are too few IPUs"));
        }
        let block = match wanted.len() {
            0 => free_block(free, size, self.ipus),
            length if length > size as usize => free_block(free & mask(wanted), size, self.ipus),
            _ => Some(mask(wanted)).filter(|wanted| wanted & !free == 0),
        };
        let code = match self.kept {
            0 => ReasonCode::NotEnoughFree,
            _ => ReasonCode::Cordoned,
        };
        let block = block.ok_or_else(|| Reason::new(code, "too few IPUs are free"))?;
        self.taken.push((id.clone(), block));
        Ok(places(block))
    }

    fn release(&mut self, id: &PartitionId) {
        self.taken.retain(|(other, _)| other != id);
    }

    fn withhold(&mut self, wanted: &[IpuPlace]) {
        self.kept |= mask(wanted);
    }

    fn cordon(&mut self, _: &CordonOwner, target: &CordonTarget) -> Result<Vec<PartitionId>, Reason> {
        let cordoned = cordoned(target, self.ipus);
        self.kept |= cordoned;
        let holders = self.taken.iter().filter(|(_, ipus)| ipus & cordoned != 0);
        Ok(holders.map(|(id, _)| id.clone()).collect())
    }

    fn counts(&self) -> Option<IpuCounts> {
        Some(IpuCounts::new(self.ipus, self.free()))
    }

    fn fit_count(&self, spec: &PartitionSpec) -> u32 {
        self.free() / spec.size.get()
    }

    fn blockers(&self, _: &PartitionSpec, _: &[IpuPlace]) -> Vec<PartitionId> {
        self.taken.iter().map(|(id, _)| id.clone()).collect()
    }
}

/// Returns the IPUs of `target` at a controller of `ipus` IPUs.
pub(super) fn cordoned(target: &CordonTarget, ipus: u32) -> u64 {
    let first = |agent: &ipu_core::AgentId| agent.as_str()[1..].parse::<u32>().unwrap() * 4;
    let cordoned = match target {
        CordonTarget::Controller => u64::MAX,
        CordonTarget::Machine(agent) => 0b1111 << first(agent),
        CordonTarget::Ipu(agent, ipu) => 1 << (first(agent) + ipu),
    };
    cordoned & all_ipus(ipus)
}
