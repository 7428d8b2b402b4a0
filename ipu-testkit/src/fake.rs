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

/// Duration of a call without faults.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// Rule by which a fake controller chooses a free block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockChoice {
    /// The tightest block, as the ledger expects.
    #[default]
    Tightest,
    /// The lowest block.
    Lowest,
}

/// In-memory V-IPU controller for tokio's paused time.
///
/// It follows the rules of a real controller: unique ids, no IPU in two partitions, operations that take
/// time. It injects faults and checks its client. A granted partition must be active and unused since it was
/// created or reset ([`mark_in_use`](Self::mark_in_use)). Nothing may be reset or removed under running
/// workers ([`disturbed`](Self::disturbed)). Clones share their state.
#[derive(Clone)]
pub struct FakeController(Arc<Mutex<SharedState>>);

impl fmt::Debug for FakeController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeController").finish_non_exhaustive()
    }
}

impl FakeController {
    /// Creates a controller of `topology` without faults; `seed` determines those of
    /// [`set_fault_rate`](Self::set_fault_rate).
    #[must_use]
    pub fn new(topology: &Topology, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(SharedState::new(
            Inventory::new(topology),
            seed,
        ))))
    }

    // A panic while the mutex is locked is a failed test expectation; the state is no longer used then.
    fn state(&self) -> MutexGuard<'_, SharedState> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.settle();
        state
    }

    /// Sets the faults of the next mutating calls (create, reset, remove), in order.
    pub fn script(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.state().script = faults.into_iter().collect();
    }

    /// Injects `fault` into the next call of `kind`, before the faults of [`script`](Self::script). Faults of
    /// one kind happen in order.
    pub fn inject(&self, kind: CallKind, fault: Fault) {
        self.state().injections.push((kind, fault));
    }

    /// Injects random faults into `percent` of 100 calls, including read-only calls.
    pub fn set_fault_rate(&self, percent: u32) {
        self.state().rates = FaultRates { percent };
    }

    /// Sets the time to create, reset or remove a partition; 20 ms by default.
    pub fn set_operation_time(&self, takes: Duration) {
        self.state().operation = takes;
    }

    /// Checks capacity before existence, so that a duplicate create may be rejected for lack of capacity
    /// although the first one created the partition.
    pub fn check_capacity_first(&self) {
        self.state().capacity_first = true;
    }

    /// Refuses create calls that name IPUs.
    pub fn refuse_ipus(&self) {
        self.state().refuses_ipus = true;
    }

    /// Stops answering calls. Calls in flight continue.
    pub fn start_outage(&self) {
        self.state().down = true;
    }

    /// Starts answering calls again. Returns whether the controller was down.
    pub fn end_outage(&self) -> bool {
        std::mem::take(&mut self.state().down)
    }

    /// Chooses blocks by `choice` from now on.
    pub fn choose(&self, choice: BlockChoice) {
        self.state().choice = choice;
    }

    /// Returns every mutating call that arrived, such as `create ipu-…`.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Returns the calls that disturbed running workers; not empty if the client broke its contract.
    #[must_use]
    pub fn disturbed(&self) -> Vec<String> {
        self.state().disturbed.clone()
    }

    /// Returns the number of injected faults, by the fault's label and the call's name.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.state().injected.clone()
    }

    /// Returns the existing partitions, including those being removed.
    #[must_use]
    pub fn ids(&self) -> Vec<PartitionId> {
        self.state().created.keys().cloned().collect()
    }

    /// Returns the IPUs of `id`; none if it does not exist.
    #[must_use]
    pub fn ipus(&self, id: &PartitionId) -> Vec<IpuAddress> {
        self.state().addresses(id)
    }

    /// Returns the state of `id`, without a call.
    #[must_use]
    pub fn state_of(&self, id: &PartitionId) -> Option<PartitionState> {
        self.state().created.get(id).map(|created| created.state.clone())
    }

    /// Returns a number that changes whenever `id` is created or reset; none if it does not exist.
    #[must_use]
    pub fn generation(&self, id: &PartitionId) -> Option<u64> {
        self.state().created.get(id).map(|created| created.generation)
    }

    /// Creates a partition of `size` IPUs that does not belong to the ledger, and marks it used.
    ///
    /// # Panics
    ///
    /// If it does not fit, or the id is taken or invalid.
    pub fn create_foreign(&self, id: &str, size: u32) {
        let request = CreatePartition {
            id: id.parse().expect("a valid partition id"),
            spec: PartitionSpec::of_size(size.try_into().expect("a valid partition size")),
            ipus: Vec::new(),
        };
        let mut state = self.state();
        state
            .create(&request, Instant::now())
            .expect("capacity for the partition");
        if let Some(created) = state.created.get_mut(&request.id) {
            created.used = true;
        }
    }

    /// Puts the partition into the error state, if it is active.
    pub fn break_partition(&self, id: &PartitionId) {
        if let Some(created) = self.state().created.get_mut(id)
            && created.state == PartitionState::Active
        {
            created.state = PartitionState::Failed {
                errors: vec!["link down".into()],
            };
        }
    }

    /// Makes the partition active again after an error, without a reset.
    pub fn heal_partition(&self, id: &PartitionId) {
        if let Some(created) = self.state().created.get_mut(id)
            && matches!(created.state, PartitionState::Failed { .. })
        {
            created.state = PartitionState::Active;
        }
    }

    /// Loses all partitions. Late calls still arrive.
    pub fn lose_partitions(&self) {
        let mut state = self.state();
        let ids: Vec<_> = state.created.keys().cloned().collect();
        for id in ids {
            state.forget(&id);
        }
    }

    /// Rejects every create for lack of capacity although the listing shows free IPUs.
    pub fn hide_partitions(&self) {
        self.state().cordon_all_hidden();
    }

    /// Marks `id` as granted and in use, until [`leave`](Self::mark_unused).
    ///
    /// # Panics
    ///
    /// If the partition does not exist, or was used before without a reset since.
    pub fn mark_in_use(&self, id: &PartitionId) {
        let mut state = self.state();
        let created = state
            .created
            .get_mut(id)
            .unwrap_or_else(|| panic!("partition {id} was granted but does not exist"));
        assert!(!created.used, "partition {id} was granted again without a reset");
        created.used = true;
        created.in_use = true;
    }

    /// Marks `id` as no longer in use: its workers have ended.
    pub fn mark_unused(&self, id: &PartitionId) {
        if let Some(created) = self.state().created.get_mut(id) {
            created.in_use = false;
        }
    }

    /// Sets the function that returns the user of a partition whenever one is reset or removed.
    pub(crate) fn set_users(&self, users: Arc<Users>) {
        self.state().users = Some(users);
    }

    /// Sets a hook that may change every create request before it arrives.
    pub(crate) fn on_create(&self, hook: CreateHook) {
        self.state().on_create = Some(hook);
    }

    /// Processes all events that are due.
    pub(crate) fn settle(&self) {
        drop(self.state());
    }

    /// Lets `percent` of 100 calls whose caller was dropped still arrive.
    pub(crate) fn finish_dropped_calls(&self, percent: u32) {
        self.state().finish_dropped = percent;
    }

    /// Returns the listing, and the remaining capacity.
    pub(crate) fn snapshot(&self) -> (Vec<Partition>, Inventory) {
        let state = self.state();
        (state.list(None).unwrap_or_default(), state.inventory.clone())
    }

    /// Returns the existing partitions.
    pub(crate) fn held(&self) -> Vec<HeldPartition> {
        self.state().held()
    }

    async fn query<T>(
        &self,
        name: &'static str,
        reply_to: impl Fn(&mut SharedState) -> Result<T, VipuError>,
    ) -> Result<T, VipuError> {
        let fault = self.arrive(name, None)?;
        tokio::time::sleep(ROUND_TRIP).await;
        match fault {
            Some(Fault::Broken | Fault::LostReply | Fault::Late(_)) => Err(broken()),
            Some(Fault::Failed | Fault::FailedAfter) => Err(failed()),
            Some(Fault::Refused) => Err(refused()),
            Some(Fault::Slow(later)) => {
                tokio::time::sleep(later).await;
                reply_to(&mut self.state())
            }
            Some(Fault::Duplicate) | None => reply_to(&mut self.state()),
        }
    }

    async fn change(&self, name: &'static str, call: MutatingCall) -> Result<(), VipuError> {
        let fault = self.arrive(name, Some(&call))?;
        let replied = Instant::now() + ROUND_TRIP;
        if let Some(Fault::Broken | Fault::Failed | Fault::Refused) = fault {
            tokio::time::sleep_until(replied).await;
            return Err(match fault {
                Some(Fault::Refused) => self.refusal(&call),
                Some(Fault::Failed) => failed(),
                _ => broken(),
            });
        }
        if fault == Some(Fault::Duplicate) {
            self.state().send(replied, &call, None);
        }
        let (arrives, replied) = match fault {
            Some(Fault::Late(later)) => (replied + later, replied),
            Some(Fault::Slow(later)) => (replied + later, replied + later),
            _ => (replied, replied),
        };
        let reply = Reply::default();
        let in_flight = CallInFlight {
            controller: self,
            number: self.state().send(arrives, &call, Some(&reply)),
        };
        tokio::time::sleep_until(replied).await;
        // From here on the call arrives.
        std::mem::forget(in_flight);
        self.settle();
        let reply_to = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (fault, reply_to) {
            (Some(Fault::FailedAfter), _) => Err(failed()),
            (Some(Fault::LostReply | Fault::Late(_)), _) | (_, None) => Err(broken()),
            (_, Some(reply_to)) => reply_to,
        }
    }

    /// Returns the error of a rejected call: for half of the creates, a lack of capacity that no listing
    /// shows.
    fn refusal(&self, call: &MutatingCall) -> VipuError {
        if matches!(call, MutatingCall::Create(_)) && self.state().random.chance(50) {
            return VipuError::NoCapacity {
                detail: "some IPUs are unhealthy".into(),
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

/// Call in flight. If its caller is dropped before it arrives, it may still arrive.
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
        self.query("version", |_| Ok("fake".into())).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.query("list", |state| state.list(allocation.as_ref())).await
    }

    async fn create_partition(&self, mut request: CreatePartition) -> Result<PartitionId, VipuError> {
        let id = request.id.clone();
        self.state().apply_create_hook(&mut request);
        self.change("create", MutatingCall::Create(request)).await?;
        Ok(id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.query("status", |state| state.status(id)).await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.query("ipuof", |state| state.ipuof_config(id, gcd)).await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.change("reset", MutatingCall::Reset(id.clone())).await
    }

    async fn remove_partition(&self, id: &PartitionId, _: bool) -> Result<(), VipuError> {
        self.change("remove", MutatingCall::Remove(id.clone())).await
    }

    // Only an outage affects this call: hardware attributes are polled rarely and are not part of the
    // simulation.
    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        let state = self.state();
        if state.down {
            return Err(broken());
        }
        state.attributes(agents)
    }
}
