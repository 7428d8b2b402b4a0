//! What a fake controller has, and its moves.

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

/// Says who uses a partition at a moment, if anybody.
pub(crate) type Users = dyn Fn(&PartitionId, Instant) -> Option<String> + Send + Sync;

/// IPUs as one bit mask for each link domain.
pub(crate) type Masks = Vec<(u32, u64)>;

/// A partition that is there.
pub(crate) struct HeldPartition {
    pub(crate) id: PartitionId,
    pub(crate) state: PartitionState,
    pub(crate) generation: u64,
    /// Its IPUs.
    pub(crate) masks: Masks,
}

/// A call that changes something.
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
    /// When the operation under way is over.
    done: Instant,
    /// What the operation under way leads to.
    then: Option<PartitionState>,
    /// Counts makes and resets, of all partitions of this controller.
    pub(super) generation: u64,
    /// Whether somebody was granted it since it was made or reset.
    pub(super) used: bool,
    /// Whether workers use it now.
    pub(super) in_use: bool,
}

/// Where the answer to a call is put.
pub(super) type Reply = Arc<Mutex<Option<Result<(), VipuError>>>>;

/// A call under way. It arrives whatever becomes of its caller.
struct Arrival {
    due: Instant,
    number: u64,
    call: MutatingCall,
    reply: Option<Reply>,
}

/// The state that all clones share.
pub(super) struct SharedState {
    pub(super) inventory: Inventory,
    pub(super) made: BTreeMap<PartitionId, CreatedPartition>,
    inbox: Vec<Arrival>,
    pub(super) script: Vec<Option<Fault>>,
    pub(super) injections: Vec<(CallKind, Fault)>,
    pub(super) rates: FaultRates,
    pub(super) random: Random,
    pub(super) operation: Duration,
    /// Whether a create that arrives twice may hear that there is no room: for the second.
    pub(super) room_first: bool,
    pub(super) down: bool,
    pub(super) choice: BlockChoice,
    pub(super) calls: Vec<String>,
    pub(super) disturbed: Vec<String>,
    pub(super) injected: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) users: Option<Arc<Users>>,
    pub(super) finish_dropped: u32,
    /// A planted defect, and how many creates each partition had.
    pub(super) on_create: Option<CreateHook>,
    creates: BTreeMap<PartitionId, u32>,
    generation: u64,
    /// Numbers the calls.
    sent: u64,
}

impl SharedState {
    pub(super) fn new(inventory: Inventory, seed: u64) -> Self {
        Self {
            inventory,
            made: BTreeMap::new(),
            inbox: Vec::new(),
            script: Vec::new(),
            injections: Vec::new(),
            rates: FaultRates::none(),
            random: Random::new(seed),
            operation: Duration::from_millis(20),
            room_first: false,
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

    /// What happens to the next call, of which `name` and whether it changes something are known.
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

    /// Plants the defect of the hook, if there is one, into a create request.
    pub(super) fn plant(&mut self, request: &mut CreatePartition) {
        if let Some(hook) = self.on_create.clone() {
            let before = self.creates.entry(request.id.clone()).or_default();
            hook(request, *before);
            *before += 1;
        }
    }

    /// Lets everything happen whose time has come, in the order of time.
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
                .made
                .iter()
                .filter(|(_, made)| made.then.is_some())
                .map(|(id, made)| (made.done, id))
                .min();
            match (next, over) {
                (Some((due, _, at)), over) if due <= now && over.is_none_or(|(done, _)| due < done) => {
                    let arrival = self.inbox.remove(at);
                    let answer = self.take(&arrival.call, due);
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

    /// Puts a call on its way; returns its number.
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

    /// The caller of a call has died. The call does not arrive then, but for a part of them.
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
        let Some(made) = self.made.get_mut(id) else {
            return;
        };
        match made.then.take() {
            Some(PartitionState::Removing) => self.forget(id),
            Some(state) => made.state = state,
            None => {}
        }
    }

    pub(super) fn forget(&mut self, id: &PartitionId) {
        self.made.remove(id);
        self.inventory
            .vacate(id)
            .expect("what was made has its place in the inventory");
    }

    /// Takes a call on at `now`.
    pub(super) fn take(&mut self, call: &MutatingCall, now: Instant) -> Result<(), VipuError> {
        match call {
            MutatingCall::Create(request) => self.create(request, now),
            MutatingCall::Reset(id) => self.reset(id, now),
            MutatingCall::Remove(id) => self.remove(id, now),
        }
    }

    pub(super) fn create(&mut self, request: &CreatePartition, now: Instant) -> Result<(), VipuError> {
        self.check(request)?;
        if self.made.contains_key(&request.id) {
            if self.room_first {
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
            .map_err(|error| no_room(error.to_string()))?;
        self.generation += 1;
        self.made.insert(
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
            pinned = Pinned::to(self.addresses_of(request)?).map_err(|error| refused(error.to_string()))?;
            &pinned
        } else if self.choice == BlockChoice::Lowest {
            &FirstFit
        } else {
            &BestFit
        };
        match place(&self.inventory, &wanted, policy) {
            Placement::Fits(block) => Ok(block),
            Placement::Impossible(why) => Err(no_room(why.to_string())),
            other => Err(no_room(format!("{other:?}"))),
        }
    }

    /// The IPUs that a request names, in its order.
    fn addresses_of(&self, request: &CreatePartition) -> Result<Vec<IpuAddress>, VipuError> {
        let topology = self.inventory.topology();
        let addresses = topology.clusters().iter().find_map(|cluster| {
            let ipus = request.ipus.iter();
            ipus.map(|at| topology.address(&cluster.id, *at)).collect()
        });
        addresses.ok_or_else(|| refused("no such IPUs"))
    }

    pub(super) fn find(&mut self, id: &PartitionId) -> Result<&mut CreatedPartition, VipuError> {
        self.made
            .get_mut(id)
            .ok_or_else(|| VipuError::NotFound { id: id.clone() })
    }

    fn reset(&mut self, id: &PartitionId, now: Instant) -> Result<(), VipuError> {
        let done = now + self.operation;
        let generation = self.generation + 1;
        let made = self.find(id)?;
        if made.then.is_some() {
            return Err(VipuError::Refused {
                detail: "busy".into(),
            });
        }
        made.state = PartitionState::Resetting;
        made.then = Some(PartitionState::Active);
        made.done = done;
        made.generation = generation;
        made.used = false;
        let in_use = std::mem::take(&mut made.in_use);
        self.generation = generation;
        self.disturb("reset", id, in_use, now);
        Ok(())
    }

    fn remove(&mut self, id: &PartitionId, now: Instant) -> Result<(), VipuError> {
        let done = now + self.operation;
        let made = self.find(id)?;
        if made.state == PartitionState::Removing {
            return Ok(());
        }
        made.state = PartitionState::Removing;
        made.then = Some(PartitionState::Removing);
        made.done = done;
        let in_use = std::mem::take(&mut made.in_use);
        self.disturb("remove", id, in_use, now);
        Ok(())
    }

    fn disturb(&mut self, what: &str, id: &PartitionId, in_use: bool, now: Instant) {
        if in_use {
            self.disturbed.push(format!("{what} {id}"));
        }
        if let Some(user) = self.users.as_ref().and_then(|users| users(id, now)) {
            self.disturbed.push(format!("{what} {id} under {user}"));
        }
    }

    pub(super) fn held(&self) -> Vec<HeldPartition> {
        let held = self.made.iter().map(|(id, made)| HeldPartition {
            id: id.clone(),
            state: made.state.clone(),
            generation: made.generation,
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

    /// The partitions of one allocation, or all.
    pub(super) fn list(&self, allocation: Option<&AllocationId>) -> Result<Vec<Partition>, VipuError> {
        let wanted = allocation.map(|of| self.drawing_from(of)).transpose()?;
        let topology = self.inventory.topology();
        let place = |at: &IpuAddress| topology.place(*at).map(|(_, place): (_, IpuPlace)| place);
        let listed = self
            .made
            .iter()
            .filter(|(id, _)| wanted.as_ref().is_none_or(|wanted| wanted.contains(id)));
        let listed = listed.map(|(id, made)| Partition {
            id: id.clone(),
            spec: made.spec.clone(),
            cluster: None,
            ipus: made.ipus.iter().filter_map(place).collect(),
            state: made.state.clone(),
        });
        Ok(listed.collect())
    }

    pub(super) fn addresses(&self, id: &PartitionId) -> Vec<IpuAddress> {
        self.made.get(id).map_or_else(Vec::new, |made| made.ipus.clone())
    }

    /// Cordons all IPUs without any listing showing it.
    pub(super) fn hide_everything(&mut self) {
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

fn no_room(detail: String) -> VipuError {
    VipuError::NoCapacity { detail }
}

/// The kind of the call of this name.
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
