//! A V-IPU controller in memory with faults, on tokio's time.

mod fault;
mod hardware;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{
    AgentId, AllocationId, Inventory, IpuAddress, Partition, PartitionId, PartitionSpec, PartitionState,
    Topology,
};
use ipu_vipu_client::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError};
use tokio::time::Instant;

use crate::controller_suite::CallKind;
use crate::sim::CreateHook;
pub use fault::Fault;
use fault::FaultRates;
pub(crate) use state::{HeldPartition, Masks, Users};
use state::{MutatingCall, Reply, SharedState};

/// How long a call takes that nothing happens to.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// Which free block a fake controller takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockChoice {
    /// The tightest, as the ledger supposes.
    #[default]
    Tightest,
    /// The lowest.
    Lowest,
}

/// A V-IPU controller in memory, to be used under tokio's paused time.
///
/// It keeps the rules of a real one (an id once, an IPU once, operations that take time), has faults, and checks its user:
/// whoever is granted a partition has to find it active and unused since it was made or reset ([`use_it`](Self::use_it)),
/// and nothing may be reset or removed under workers ([`disturbed`](Self::disturbed)). Clones share everything.
#[derive(Clone)]
pub struct FakeController(Arc<Mutex<SharedState>>);

impl fmt::Debug for FakeController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeController").finish_non_exhaustive()
    }
}

impl FakeController {
    /// A controller of `topology`, without faults; `seed` repeats those that [`set_fault_rate`](Self::set_fault_rate)
    /// makes.
    #[must_use]
    pub fn new(topology: &Topology, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(SharedState::new(
            Inventory::new(topology),
            seed,
        ))))
    }

    // What panics while it is locked is a broken expectation of a test, which is over then.
    fn state(&self) -> MutexGuard<'_, SharedState> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.settle();
        state
    }

    /// What happens to the next calls that change something (create, reset, remove), first come first.
    pub fn script(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.state().script = faults.into_iter().collect();
    }

    /// `fault` happens to the next call of `kind`, before all that [`script`](Self::script) says. What is injected for one
    /// kind happens in order.
    pub fn inject(&self, kind: CallKind, fault: Fault) {
        self.state().injections.push((kind, fault));
    }

    /// Has a random fault happen to `percent` of 100 calls, also to those that only ask.
    pub fn set_fault_rate(&self, percent: u32) {
        self.state().rates = FaultRates { percent };
    }

    /// How long it takes to make, reset or remove a partition from now on; 20 ms unless set.
    pub fn operation(&self, takes: Duration) {
        self.state().operation = takes;
    }

    /// Looks for room before it looks whether the partition is there, so that a create that arrives twice may be answered
    /// with no room although the first made the partition.
    pub fn check_capacity_first(&self) {
        self.state().room_first = true;
    }

    /// Stops answering anybody. What is under way goes on.
    pub fn go_down(&self) {
        self.state().down = true;
    }

    /// Answers again. Says whether it did not.
    pub fn come_up(&self) -> bool {
        std::mem::take(&mut self.state().down)
    }

    /// Takes blocks by `choice` from now on.
    pub fn choose(&self, choice: BlockChoice) {
        self.state().choice = choice;
    }

    /// Every call that arrived and was to change something, such as `create ipu-…`.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// What was done to partitions under their workers: empty, or its user has broken the promise.
    #[must_use]
    pub fn disturbed(&self) -> Vec<String> {
        self.state().disturbed.clone()
    }

    /// How many faults happened, by the fault's label and the call's name.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.state().injected.clone()
    }

    /// The partitions that are there, also those that are being removed.
    #[must_use]
    pub fn ids(&self) -> Vec<PartitionId> {
        self.state().made.keys().cloned().collect()
    }

    /// The IPUs of `id`; none if it is not there.
    #[must_use]
    pub fn ipus(&self, id: &PartitionId) -> Vec<IpuAddress> {
        self.state().addresses(id)
    }

    /// The state of `id`, without a call.
    #[must_use]
    pub fn state_of(&self, id: &PartitionId) -> Option<PartitionState> {
        self.state().made.get(id).map(|made| made.state.clone())
    }

    /// A number that changes whenever `id` is made or reset; none if it is not there.
    #[must_use]
    pub fn generation(&self, id: &PartitionId) -> Option<u64> {
        self.state().made.get(id).map(|made| made.generation)
    }

    /// Somebody who is not the ledger makes a partition of `size` IPUs, and uses it.
    ///
    /// # Panics
    ///
    /// If it does not fit, or the id is taken or is none.
    pub fn make_foreign(&self, id: &str, size: u32) {
        let request = CreatePartition {
            id: id.parse().expect("an id of a partition"),
            spec: PartitionSpec::of_size(size.try_into().expect("a size of a partition")),
            ipus: Vec::new(),
        };
        let mut state = self.state();
        state
            .create(&request, Instant::now())
            .expect("room for the partition");
        if let Some(made) = state.made.get_mut(&request.id) {
            made.used = true;
        }
    }

    /// The partition goes into error, if it is active.
    pub fn break_partition(&self, id: &PartitionId) {
        if let Some(made) = self.state().made.get_mut(id)
            && made.state == PartitionState::Active
        {
            made.state = PartitionState::Failed {
                errors: vec!["link down".into()],
            };
        }
    }

    /// The partition is active again after an error, without a reset.
    pub fn heal_partition(&self, id: &PartitionId) {
        if let Some(made) = self.state().made.get_mut(id)
            && matches!(made.state, PartitionState::Failed { .. })
        {
            made.state = PartitionState::Active;
        }
    }

    /// The controller loses all that it knows. Calls that are late come all the same.
    pub fn lose_partitions(&self) {
        let mut state = self.state();
        let ids: Vec<_> = state.made.keys().cloned().collect();
        for id in ids {
            state.forget(&id);
        }
    }

    /// Has no room any more, although everything that it lists seems to leave some.
    pub fn hide_partitions(&self) {
        self.state().hide_everything();
    }

    /// Somebody was granted `id`. From now on it is used, until [`leave`](Self::leave).
    ///
    /// # Panics
    ///
    /// If it is not there, or was used before without a reset since.
    pub fn use_it(&self, id: &PartitionId) {
        let mut state = self.state();
        let made = state
            .made
            .get_mut(id)
            .unwrap_or_else(|| panic!("{id} was granted and is not there"));
        assert!(!made.used, "{id} was granted again without a reset");
        made.used = true;
        made.in_use = true;
    }

    /// The workers on `id` have ended.
    pub fn leave(&self, id: &PartitionId) {
        if let Some(made) = self.state().made.get_mut(id) {
            made.in_use = false;
        }
    }

    /// Has `users` asked who uses a partition whenever one is reset or removed.
    pub(crate) fn watch(&self, users: Arc<Users>) {
        self.state().users = Some(users);
    }

    /// Has `hook` change every create request before it arrives.
    pub(crate) fn on_create(&self, hook: CreateHook) {
        self.state().on_create = Some(hook);
    }

    /// Lets everything happen whose time has come.
    pub(crate) fn settle(&self) {
        drop(self.state());
    }

    /// Has `percent` of 100 calls arrive all the same whose callers give up while they are under way.
    pub(crate) fn finish_dropped_calls(&self, percent: u32) {
        self.state().finish_dropped = percent;
    }

    /// What it lists, and the room that is left.
    pub(crate) fn look(&self) -> (Vec<Partition>, Inventory) {
        let state = self.state();
        (state.list(None).unwrap_or_default(), state.inventory.clone())
    }

    /// What is there.
    pub(crate) fn held(&self) -> Vec<HeldPartition> {
        self.state().held()
    }

    async fn ask<T>(
        &self,
        name: &'static str,
        answer: impl Fn(&mut SharedState) -> Result<T, VipuError>,
    ) -> Result<T, VipuError> {
        let fault = self.arrive(name, None)?;
        tokio::time::sleep(ROUND_TRIP).await;
        match fault {
            Some(Fault::Broken | Fault::LostReply | Fault::Late(_)) => Err(broken()),
            Some(Fault::Failed | Fault::FailedAfter) => Err(failed()),
            Some(Fault::Refused) => Err(refused()),
            Some(Fault::Slow(later)) => {
                tokio::time::sleep(later).await;
                answer(&mut self.state())
            }
            Some(Fault::Duplicate) | None => answer(&mut self.state()),
        }
    }

    async fn change(&self, name: &'static str, call: MutatingCall) -> Result<(), VipuError> {
        let fault = self.arrive(name, Some(&call))?;
        let heard = Instant::now() + ROUND_TRIP;
        if let Some(Fault::Broken | Fault::Failed | Fault::Refused) = fault {
            tokio::time::sleep_until(heard).await;
            return Err(match fault {
                Some(Fault::Refused) => self.refusal(&call),
                Some(Fault::Failed) => failed(),
                _ => broken(),
            });
        }
        if fault == Some(Fault::Duplicate) {
            self.state().send(heard, &call, None);
        }
        let (arrives, heard) = match fault {
            Some(Fault::Late(later)) => (heard + later, heard),
            Some(Fault::Slow(later)) => (heard + later, heard + later),
            _ => (heard, heard),
        };
        let reply = Reply::default();
        let way = CallInFlight {
            controller: self,
            number: self.state().send(arrives, &call, Some(&reply)),
        };
        tokio::time::sleep_until(heard).await;
        // From here on the call arrives.
        std::mem::forget(way);
        self.settle();
        let answer = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (fault, answer) {
            (Some(Fault::FailedAfter), _) => Err(failed()),
            (Some(Fault::LostReply | Fault::Late(_)), _) | (_, None) => Err(broken()),
            (_, Some(answer)) => answer,
        }
    }

    /// How a call is refused: a create in half of the cases for want of room that nobody sees.
    fn refusal(&self, call: &MutatingCall) -> VipuError {
        if matches!(call, MutatingCall::Create(_)) && self.state().random.chance(50) {
            return VipuError::NoCapacity {
                detail: "some IPUs are not well".into(),
            };
        }
        refused()
    }

    fn arrive(&self, name: &'static str, call: Option<&MutatingCall>) -> Result<Option<Fault>, VipuError> {
        let mut state = self.state();
        if let Some(call) = call {
            state.calls.push(format!("{name} {}", call.id()));
        }
        if state.down {
            return Err(broken());
        }
        Ok(state.next_fault(name, call.is_some()))
    }
}

/// A call under way. Its caller may die before it arrives, which does not always keep it from arriving.
struct CallInFlight<'a> {
    controller: &'a FakeController,
    number: u64,
}

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        self.controller.state().drop_call(self.number);
    }
}

fn broken() -> VipuError {
    VipuError::Unreachable {
        endpoint: "fake".into(),
        detail: "connection reset".into(),
    }
}

fn refused() -> VipuError {
    VipuError::Refused {
        detail: "not now".into(),
    }
}

fn failed() -> VipuError {
    VipuError::Failed {
        detail: "internal error".into(),
    }
}

#[async_trait]
impl VipuController for FakeController {
    async fn version(&self) -> Result<String, VipuError> {
        self.ask("version", |_| Ok("fake".into())).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.ask("list", |state| state.list(allocation.as_ref())).await
    }

    async fn create_partition(&self, mut request: CreatePartition) -> Result<PartitionId, VipuError> {
        let id = request.id.clone();
        self.state().plant(&mut request);
        self.change("create", MutatingCall::Create(request)).await?;
        Ok(id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.ask("status", |state| state.status(id)).await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.ask("ipuof", |state| state.ipuof_config(id, gcd)).await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.change("reset", MutatingCall::Reset(id.clone())).await
    }

    async fn remove_partition(&self, id: &PartitionId, _: bool) -> Result<(), VipuError> {
        self.change("remove", MutatingCall::Remove(id.clone())).await
    }

    // Only going down keeps it from being answered: the hardware is looked at now and then, and has no part in a life.
    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        let state = self.state();
        if state.down {
            return Err(broken());
        }
        state.attributes(agents)
    }
}
