//! State of a fake controller and its transitions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipu_core::{
    AllocationId, BestFit, Block, CordonOwner, FirstFit, Inventory, IpuAddress, IpuPlace, Partition,
    PartitionId, PartitionSpec, PartitionState, Pinned, Placement, PlacementPolicy, PlacementRequest, place,
};
use ipu_vipu_client::{CreatePartition, PartitionStatus, VipuError};
use tokio::time::Instant;

use super::hardware::refused;
use super::{BlockChoice, Fault, FaultRates};
use crate::controller_suite::CallKind;
use crate::random::Random;
use crate::sim::CreateHook;

/// Returns the user of a partition at a time, if any.
pub(crate) type Users = dyn Fn(&PartitionId, Instant) -> Option<String> + Send + Sync;

/// IPUs as one bit mask per link domain.
pub(crate) type Masks = Vec<(u32, u64)>;

/// Existing partition.
pub(crate) struct HeldPartition {
    pub(crate) id: PartitionId,
    pub(crate) state: PartitionState,
    pub(crate) generation: u64,
    /// IPUs of the partition.
    pub(crate) masks: Masks,
}

/// Mutating call.
#[derive(Clone, Debug)]
pub(super) enum MutatingCall {
    Create(CreatePartition),
    Reset(PartitionId),
    Remove(PartitionId),
}

impl MutatingCall {
    pub(super) const fn id(&self) -> &PartitionId {
        match self {
            Self::Create(request) => &request.id,
            Self::Reset(id) | Self::Remove(id) => id,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct CreatedPartition {
    pub(super) spec: PartitionSpec,
    /// In routing order.
    pub(super) ipus: Vec<IpuAddress>,
    pub(super) state: PartitionState,
    /// Time at which the current operation ends.
    done: Instant,
    /// State after the current operation.
    then: Option<PartitionState>,
    /// Number of creations and resets of this controller at the last one of this partition.
    pub(super) generation: u64,
    /// Whether it was granted since it was created or reset.
    pub(super) used: bool,
    /// Whether workers use it now.
    pub(super) in_use: bool,
}

/// Slot for the result of a call.
pub(super) type Reply = Arc<Mutex<Option<Result<(), VipuError>>>>;

/// Call in flight. It arrives whatever happens to its caller.
struct Arrival {
    due: Instant,
    number: u64,
    call: MutatingCall,
    reply: Option<Reply>,
}

/// State that all clones share.
pub(super) struct SharedState {
    pub(super) inventory: Inventory,
    pub(super) created: BTreeMap<PartitionId, CreatedPartition>,
    inbox: Vec<Arrival>,
    pub(super) script: Vec<Option<Fault>>,
    pub(super) injections: Vec<(CallKind, Fault)>,
    pub(super) rates: FaultRates,
    pub(super) random: Random,
    pub(super) operation: Duration,
    /// Whether a duplicate create may be rejected for lack of capacity.
    pub(super) capacity_first: bool,
    /// Whether create calls that name IPUs are refused.
    pub(super) refuses_ipus: bool,
    pub(super) down: bool,
    pub(super) choice: BlockChoice,
    pub(super) calls: Vec<String>,
    pub(super) disturbed: Vec<String>,
    pub(super) injected: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) users: Option<Arc<Users>>,
    pub(super) finish_dropped: u32,
    /// Fault injection hook for creates, and the number of creates of each partition.
    pub(super) on_create: Option<CreateHook>,
    creates: BTreeMap<PartitionId, u32>,
    generation: u64,
    /// Number of the last call.
    sent: u64,
}

impl SharedState {
    pub(super) fn new(inventory: Inventory, seed: u64) -> Self {
        Self {
            inventory,
            created: BTreeMap::new(),
            inbox: Vec::new(),
            script: Vec::new(),
            injections: Vec::new(),
            rates: FaultRates::none(),
            random: Random::new(seed),
            operation: Duration::from_millis(20),
            capacity_first: false,
            refuses_ipus: false,
            down: false,
            choice: BlockChoice::Tightest,
            calls: Vec::new(),
            disturbed: Vec::new(),
            injected: BTreeMap::new(),
            users: None,
            finish_dropped: 0,
            on_create: None,
            creates: BTreeMap::new(),
            generation: 0,
            sent: 0,
        }
    }

    /// Returns the fault of the next call, given its name and whether it mutates.
    pub(super) fn next_fault(&mut self, name: &'static str, changes: bool) -> Option<Fault> {
        let kind = kind_of(name);
        let fault = if let Some(at) = self.injections.iter().position(|(of, _)| *of == kind) {
            Some(self.injections.remove(at).1)
        } else if changes && !self.script.is_empty() {
            self.script.remove(0)
        } else {
            self.rates.draw(&mut self.random)
        };
        if let Some(fault) = fault {
            *self.injected.entry((fault.label(), name)).or_default() += 1;
        }
        fault
    }

    /// Applies the create hook, if there is one, to a request.
    pub(super) fn apply_create_hook(&mut self, request: &mut CreatePartition) {
        if let Some(hook) = self.on_create.clone() {
            let before = self.creates.entry(request.id.clone()).or_default();
            hook(request, *before);
            *before += 1;
        }
    }

    /// Processes all events that are due, in the order of time.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        loop {
            let next = self
                .inbox
                .iter()
                .enumerate()
                .map(|(at, arrival)| (arrival.due, arrival.number, at))
                .min();
            let over = self
                .created
                .iter()
                .filter(|(_, created)| created.then.is_some())
                .map(|(id, created)| (created.done, id))
                .min();
            match (next, over) {
                (Some((due, _, at)), over) if due <= now && over.is_none_or(|(done, _)| due < done) => {
                    let arrival = self.inbox.remove(at);
                    let answer = self.execute(&arrival.call, due);
                    if let Some(reply) = arrival.reply {
                        *reply.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
                    }
                }
                (_, Some((done, id))) if done <= now => {
                    let id = id.clone();
                    self.complete(&id);
                }
                _ => return,
            }
        }
    }

    /// Sends a call and returns its number.
    pub(super) fn send(&mut self, due: Instant, call: &MutatingCall, reply: Option<&Reply>) -> u64 {
        self.sent += 1;
        self.inbox.push(Arrival {
            due,
            number: self.sent,
            call: call.clone(),
            reply: reply.cloned(),
        });
        self.sent
    }

    /// Handles a dropped caller: its call does not arrive, except for a configured percentage.
    pub(super) fn drop_call(&mut self, number: u64) {
        let Some(at) = self.inbox.iter().position(|arrival| arrival.number == number) else {
            return;
        };
        let percent = self.finish_dropped;
        if !self.random.chance(percent) {
            self.inbox.remove(at);
        }
    }

    fn complete(&mut self, id: &PartitionId) {
        let Some(created) = self.created.get_mut(id) else {
            return;
        };
        match created.then.take() {
            Some(PartitionState::Removing) => self.forget(id),
            Some(state) => created.state = state,
            None => {}
        }
    }

    pub(super) fn forget(&mut self, id: &PartitionId) {
        self.created.remove(id);
        self.inventory
            .vacate(id)
            .expect("a created partition occupies its block");
    }

    /// Executes a call at `now`.
    pub(super) fn execute(&mut self, call: &MutatingCall, now: Instant) -> Result<(), VipuError> {
        match call {
            MutatingCall::Create(request) => self.create(request, now),
            MutatingCall::Reset(id) => self.reset(id, now),
            MutatingCall::Remove(id) => self.remove(id, now),
        }
    }

    pub(super) fn create(&mut self, request: &CreatePartition, now: Instant) -> Result<(), VipuError> {
        self.check(request)?;
        if self.refuses_ipus && !request.ipus.is_empty() {
            return Err(refused("this controller does not accept IPUs"));
        }
        if self.created.contains_key(&request.id) {
            if self.capacity_first {
                self.choose_block(request)?;
            }
            return Err(VipuError::AlreadyExists {
                id: request.id.clone(),
            });
        }
        let block = self.choose_block(request)?;
        let ipus = match request.ipus.as_slice() {
            [] => block.addresses().collect(),
            _ => self.addresses_of(request)?,
        };
        self.inventory
            .occupy(request.id.clone(), block)
            .map_err(|error| no_capacity(error.to_string()))?;
        self.generation += 1;
        self.created.insert(
            request.id.clone(),
            CreatedPartition {
                spec: request.spec.clone(),
                ipus,
                state: PartitionState::Creating,
                done: now + self.operation,
                then: Some(PartitionState::Active),
                generation: self.generation,
                used: false,
                in_use: false,
            },
        );
        Ok(())
    }

    fn choose_block(&self, request: &CreatePartition) -> Result<Block, VipuError> {
        let wanted =
            PlacementRequest::of_size(request.spec.size).in_allocation(request.spec.allocation.clone());
        let pinned;
        let policy: &dyn PlacementPolicy = if !request.ipus.is_empty() {
            pinned = Pinned::new(self.addresses_of(request)?).map_err(|error| refused(error.to_string()))?;
            &pinned
        } else if self.choice == BlockChoice::Lowest {
            &FirstFit
        } else {
            &BestFit
        };
        match place(&self.inventory, &wanted, policy) {
            Placement::Fits(block) => Ok(block),
            Placement::Impossible(impossible) => Err(no_capacity(impossible.to_string())),
        }
    }

    /// Returns the IPUs that a request names, in its order.
    fn addresses_of(&self, request: &CreatePartition) -> Result<Vec<IpuAddress>, VipuError> {
        let topology = self.inventory.topology();
        let addresses = topology.clusters().iter().find_map(|cluster| {
            let ipus = request.ipus.iter();
            ipus.map(|at| topology.address(&cluster.id, *at)).collect()
        });
        addresses.ok_or_else(|| refused("unknown IPUs"))
    }

    pub(super) fn find(&mut self, id: &PartitionId) -> Result<&mut CreatedPartition, VipuError> {
        self.created
            .get_mut(id)
            .ok_or_else(|| VipuError::NotFound { id: id.clone() })
    }

    fn reset(&mut self, id: &PartitionId, now: Instant) -> Result<(), VipuError> {
        let done = now + self.operation;
        let generation = self.generation + 1;
        let created = self.find(id)?;
        if created.then.is_some() {
            return Err(VipuError::Refused {
                detail: "busy".into(),
            });
        }
        created.state = PartitionState::Resetting;
        created.then = Some(PartitionState::Active);
        created.done = done;
        created.generation = generation;
        created.used = false;
        let in_use = std::mem::take(&mut created.in_use);
        self.generation = generation;
        self.record_disturbance("reset", id, in_use, now);
        Ok(())
    }

    fn remove(&mut self, id: &PartitionId, now: Instant) -> Result<(), VipuError> {
        let done = now + self.operation;
        let created = self.find(id)?;
        if created.state == PartitionState::Removing {
            return Ok(());
        }
        created.state = PartitionState::Removing;
        created.then = Some(PartitionState::Removing);
        created.done = done;
        let in_use = std::mem::take(&mut created.in_use);
        self.record_disturbance("remove", id, in_use, now);
        Ok(())
    }

    fn record_disturbance(&mut self, action: &str, id: &PartitionId, in_use: bool, now: Instant) {
        if in_use {
            self.disturbed.push(format!("{action} {id}"));
        }
        if let Some(user) = self.users.as_ref().and_then(|users| users(id, now)) {
            self.disturbed.push(format!("{action} {id} under {user}"));
        }
    }

    pub(super) fn held(&self) -> Vec<HeldPartition> {
        let held = self.created.iter().map(|(id, created)| HeldPartition {
            id: id.clone(),
            state: created.state.clone(),
            generation: created.generation,
            masks: self
                .inventory
                .block_of(id)
                .map_or_else(Vec::new, |block| block.masks().collect()),
        });
        held.collect()
    }

    pub(super) fn status(&mut self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        let state = self.find(id)?.state.clone();
        Ok(PartitionStatus {
            id: id.clone(),
            state,
            max_auto_resets: 0,
            auto_resets: 0,
            last_auto_reset: None,
        })
    }

    /// Returns the partitions of one allocation, or all.
    pub(super) fn list(&self, allocation: Option<&AllocationId>) -> Result<Vec<Partition>, VipuError> {
        let wanted = allocation.map(|of| self.using_allocation(of)).transpose()?;
        let topology = self.inventory.topology();
        let place = |at: &IpuAddress| topology.place(*at).map(|(_, place): (_, IpuPlace)| place);
        let listed = self
            .created
            .iter()
            .filter(|(id, _)| wanted.as_ref().is_none_or(|wanted| wanted.contains(id)));
        let listed = listed.map(|(id, created)| Partition {
            id: id.clone(),
            spec: created.spec.clone(),
            cluster: None,
            ipus: created.ipus.iter().filter_map(place).collect(),
            state: created.state.clone(),
        });
        Ok(listed.collect())
    }

    pub(super) fn addresses(&self, id: &PartitionId) -> Vec<IpuAddress> {
        self.created
            .get(id)
            .map_or_else(Vec::new, |created| created.ipus.clone())
    }

    /// Cordons all IPUs without showing it in any listing.
    pub(super) fn cordon_all_hidden(&mut self) {
        let topology = self.inventory.topology();
        let all: Vec<_> = (0..topology.link_domains())
            .flat_map(|link_domain| (0..64).map(move |ipu| IpuAddress { link_domain, ipu }))
            .filter(|at| topology.contains(*at))
            .collect();
        self.inventory
            .cordon(&CordonOwner::health(), all)
            .expect("the IPUs of a topology are in its inventory");
    }
}

fn no_capacity(detail: String) -> VipuError {
    VipuError::NoCapacity { detail }
}

/// Returns the kind of the call with this name.
fn kind_of(name: &str) -> CallKind {
    match name {
        "create" => CallKind::Create,
        "reset" => CallKind::Reset,
        "remove" => CallKind::Remove,
        "status" => CallKind::Status,
        "list" => CallKind::List,
        _ => CallKind::Other,
    }
}
