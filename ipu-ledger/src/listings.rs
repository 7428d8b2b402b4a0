//! Cached listings of the controllers, with a maximum age: one request at a time per controller, shared by
//! all callers.

mod refresh;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ipu_core::{
    Capacity, ControllerName, ControllerView, ControllersSnapshot, Inventory, InventoryCapacity, IpuAddress,
    Listing, Location, Partition, PartitionId, PlacementMode, Reason, ServiceState, Topology, Unbounded,
};
use ipu_vipu_client::{ControllerPool, Member, VipuController, VipuError};
use tokio::time::Instant;

use crate::options::LedgerOptions;
use refresh::{CacheLookup, ListingRequest, ListingSlot};

pub(crate) struct ListingCache<C: ?Sized> {
    pool: ControllerPool<C>,
    slots: Mutex<BTreeMap<ControllerName, Arc<ListingSlot>>>,
}

/// The time that a caller waits for the listing of a controller.
#[derive(Clone, Copy)]
enum ListTimeout {
    /// The configured `list_timeout`. A controller that always needs longer is represented by an older
    /// listing.
    Short,
    /// The full deadline of the calls.
    Full,
}

impl<C: VipuController + ?Sized + 'static> ListingCache<C> {
    pub(crate) const fn new(pool: ControllerPool<C>) -> Self {
        Self {
            pool,
            slots: Mutex::new(BTreeMap::new()),
        }
    }

    pub(crate) const fn pool(&self) -> &ControllerPool<C> {
        &self.pool
    }

    /// Returns a snapshot of all controllers. Listings are not older than `not_before`, except those of slow
    /// controllers. A controller that does not reply in time counts as unavailable.
    pub(crate) async fn snapshot(&self, options: &LedgerOptions, not_before: Instant) -> ControllersSnapshot {
        self.collect(options, not_before, ListTimeout::Short).await
    }

    /// Returns a snapshot of all controllers as they are now. Takes as long as the slowest controller that
    /// replies within the call deadline.
    pub(crate) async fn snapshot_now(&self, options: &LedgerOptions) -> ControllersSnapshot {
        self.collect(options, Instant::now(), ListTimeout::Full).await
    }

    async fn collect(
        &self,
        options: &LedgerOptions,
        not_before: Instant,
        timeout_kind: ListTimeout,
    ) -> ControllersSnapshot {
        let open = self
            .pool
            .members()
            .into_iter()
            .map(|member| (member, ServiceState::Open));
        let draining = self
            .pool
            .draining()
            .into_iter()
            .map(|member| (member, ServiceState::Draining));
        let views = open.chain(draining).map(|(member, service)| async move {
            ControllerView {
                listing: self.listing(&member, options, not_before, timeout_kind).await,
                name: member.name,
                service,
            }
        });
        let mut snapshot = ControllersSnapshot::new(join(views).await);
        snapshot.aliases = self.pool.aliases();
        snapshot
    }

    async fn listing(
        &self,
        member: &Member<C>,
        options: &LedgerOptions,
        not_before: Instant,
        timeout_kind: ListTimeout,
    ) -> Result<Arc<Listing>, Reason> {
        let slot = self.slot(&member.name);
        let timeout = match timeout_kind {
            ListTimeout::Short => options.list_timeout,
            // One deadline for the listing and one for the hardware.
            ListTimeout::Full => options.call_deadline.saturating_mul(2),
        };
        loop {
            let finished = slot.finished();
            let since = match slot.lookup(not_before) {
                CacheLookup::Use(listing) => return listing,
                CacheLookup::Wait(since) => since,
                CacheLookup::Start => {
                    self.begin(&slot, member, options)?;
                    Instant::now()
                }
            };
            if let ListTimeout::Short = timeout_kind
                && let Some(listing) = slot.slow_listing(timeout, options.call_deadline)
            {
                return Ok(listing);
            }
            tokio::select! {
                // A fixed order keeps tests on virtual time deterministic.
                biased;
                () = finished => {}
                () = tokio::time::sleep_until(since + timeout) => return Err(unresponsive(&member.name, timeout)),
            }
        }
    }

    /// Starts a request to the controller, unless it is unavailable.
    fn begin(
        &self,
        slot: &Arc<ListingSlot>,
        member: &Member<C>,
        options: &LedgerOptions,
    ) -> Result<(), Reason> {
        let member = self.pool.member(&member.name).unwrap_or_else(|| member.clone());
        if !member.health.is_available(Instant::now()) {
            return Err(unavailable(&member.name, member.health.last_error.as_ref()));
        }
        if let Some(guard) = slot.begin() {
            // A separate task: the caller may time out, and the reply is still useful.
            tokio::spawn(ListingRequest::new(&self.pool, member, options).run(guard));
        }
        Ok(())
    }

    /// Runs one call under a deadline and records its result in the controller's health.
    pub(crate) async fn call<T>(
        &self,
        name: &ControllerName,
        deadline: Duration,
        call: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        self::call(&self.pool, name, deadline, call).await
    }

    /// Fetches the hardware of a controller, or of all, with listings that are requested at `time` or later.
    pub(crate) fn refresh_hardware(&self, controller: Option<&ControllerName>, time: Instant) {
        for member in self.pool.members() {
            if controller.is_none_or(|name| *name == member.name) {
                self.slot(&member.name).refresh_hardware(time);
            }
        }
    }

    /// Lets the controller choose the IPUs of new partitions, because it refuses create calls that name them.
    /// Returns whether this is its first refusal.
    pub(crate) fn delegate_placement(&self, name: &ControllerName) -> bool {
        self.slot(name).delegate_placement()
    }

    /// Returns whether the controller is known to refuse create calls that name IPUs, and chooses them
    /// itself.
    pub(crate) fn is_delegated(&self, name: &ControllerName) -> bool {
        self.slot(name).is_delegated()
    }

    /// Returns whether placement is delegated to the controller because it refused IPUs.
    pub(crate) fn has_fallback(&self, name: &ControllerName) -> bool {
        self.slot(name).is_delegated()
    }

    /// Returns the controller's latest listing; `None` if the latest request failed or there was none.
    pub(crate) fn newest(&self, name: &ControllerName) -> Option<Arc<Listing>> {
        self.slot(name).newest()
    }

    /// Returns the IPUs of a listed partition. The cluster counts if the hardware is known to have several.
    pub(crate) fn location_of(&self, name: &ControllerName, partition: Partition) -> Location {
        match self.newest(name) {
            Some(listing) => listing.locate(&partition),
            None => Location {
                cluster: None,
                ipus: partition.ipus,
            },
        }
    }

    /// Refreshes the listing of the controller.
    pub(crate) async fn refresh(&self, name: &ControllerName, options: &LedgerOptions) {
        if let Some(member) = self.pool.member(name) {
            // A failure is recorded in the controller's health, which the next caller checks.
            let _ = self
                .listing(&member, options, Instant::now(), ListTimeout::Short)
                .await;
        }
    }

    /// Removes `id` from the cached listing after the controller reported it missing. Its capacity is then
    /// free before the next listing.
    pub(crate) fn forget(&self, name: &ControllerName, id: &PartitionId) {
        self.slot(name).change(|listing| {
            if listing.partitions().contains_key(id) {
                *listing = Arc::new(listing.without(id));
            }
        });
    }

    fn slot(&self, name: &ControllerName) -> Arc<ListingSlot> {
        Arc::clone(locked(&self.slots).entry(name.clone()).or_default())
    }
}

async fn call<C: ?Sized, T>(
    pool: &ControllerPool<C>,
    name: &ControllerName,
    deadline: Duration,
    call: impl Future<Output = Result<T, VipuError>> + Send,
) -> Result<T, VipuError> {
    let begun = Instant::now();
    let until = begun + deadline;
    let late = || VipuError::Timeout {
        endpoint: name.to_string(),
        waited: deadline,
    };
    let mut call = std::pin::pin!(call);
    // A process that was suspended must send nothing after the deadline, because the fence of the intent
    // may have passed. `timeout` polls the call once more before it checks the time.
    let in_time = poll_fn(|context| {
        if Instant::now() >= until {
            return Poll::Ready(Err(late()));
        }
        call.as_mut().poll(context)
    });
    let result = tokio::time::timeout_at(until, in_time)
        .await
        .unwrap_or_else(|_| Err(late()));
    pool.record(name, &result);
    result
}

/// Returns a listing with the free capacity beside `partitions`.
fn listing(
    name: &ControllerName,
    partitions: Vec<Partition>,
    known: Option<&(Topology, Vec<IpuAddress>)>,
    placement: PlacementMode,
) -> Listing {
    let capacity: Box<dyn Capacity> = match known {
        Some((topology, unhealthy)) => {
            let observed = Inventory::observe(topology, unhealthy, &partitions, |_| true);
            for (id, misfit) in &observed.conflicts {
                tracing::warn!(%name, %id, %misfit, "a partition does not match the known hardware");
            }
            Box::new(InventoryCapacity::new(observed.inventory).with_placement(placement))
        }
        None => {
            let mut capacity = Unbounded::default();
            for partition in &partitions {
                // `Unbounded` never refuses.
                let _ = capacity.reserve(&partition.id, &partition.spec, &partition.ipus);
            }
            Box::new(capacity)
        }
    };
    Listing::new(partitions, capacity)
}

pub(crate) fn unavailable(name: &ControllerName, error: Option<&VipuError>) -> Reason {
    let detail = error.map_or_else(|| "the last call failed".to_owned(), ToString::to_string);
    Reason::new(
        "ControllerUnavailable",
        format!("controller {name} is unavailable: {detail}"),
    )
}

/// Returns the reason for a controller that does not reply. The message is stable while the controller is
/// silent.
fn unresponsive(name: &ControllerName, timeout: Duration) -> Reason {
    Reason::new(
        "ControllerUnavailable",
        format!("controller {name} has not replied within {timeout:?}"),
    )
}

/// Runs all `futures` concurrently on this task.
async fn join<T, F: Future<Output = T>>(futures: impl Iterator<Item = F>) -> Vec<T> {
    enum Slot<T, F> {
        Running(Pin<Box<F>>),
        Done(Option<T>),
    }
    let mut slots: Vec<_> = futures.map(|future| Slot::Running(Box::pin(future))).collect();
    poll_fn(|context| {
        let mut running = false;
        for slot in &mut slots {
            if let Slot::Running(future) = slot {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *slot = Slot::Done(Some(output)),
                    Poll::Pending => running = true,
                }
            }
        }
        if running { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let outputs = slots.into_iter().filter_map(|slot| match slot {
        Slot::Running(_) => None,
        Slot::Done(output) => output,
    });
    outputs.collect()
}

// The critical sections do not panic, so the content of a poisoned lock is consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
