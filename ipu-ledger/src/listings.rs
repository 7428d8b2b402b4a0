//! What the controllers list, not older than asked for: one listing at a time per controller, shared by all callers.

mod refresh;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ipu_core::{
    Capacity, ControllerName, ControllerView, ControllersSnapshot, Inventory, InventoryCapacity, IpuAddress,
    Listing, Location, Partition, PartitionId, Reason, ServiceState, Topology, Unbounded,
};
use ipu_vipu_client::{ControllerPool, Member, VipuController, VipuError};
use tokio::time::Instant;

use crate::options::LedgerOptions;
use refresh::{CacheLookup, ListingSlot, Question};

pub(crate) struct ListingCache<C: ?Sized> {
    pool: ControllerPool<C>,
    slots: Mutex<BTreeMap<ControllerName, Arc<ListingSlot>>>,
}

/// How long somebody waits for the list of a controller.
#[derive(Clone, Copy)]
enum ListTimeout {
    /// As long as a caller likes to be kept waiting. Of a controller that always needs longer he takes an older list.
    Shortly,
    /// As long as the controller may take.
    ForAnswer,
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

    /// All controllers, none seen longer ago than `not_before` unless it is slow; one that does not answer shortly counts
    /// as silent.
    pub(crate) async fn world(&self, options: &LedgerOptions, not_before: Instant) -> ControllersSnapshot {
        self.see(options, not_before, ListTimeout::Shortly).await
    }

    /// All controllers, as they are now. Takes as long as the slowest that answers within the deadline of a call.
    pub(crate) async fn world_now(&self, options: &LedgerOptions) -> ControllersSnapshot {
        self.see(options, Instant::now(), ListTimeout::ForAnswer).await
    }

    async fn see(
        &self,
        options: &LedgerOptions,
        not_before: Instant,
        waits: ListTimeout,
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
                listing: self.listing(&member, options, not_before, waits).await,
                name: member.name,
                service,
            }
        });
        let mut world = ControllersSnapshot::of(join(views).await);
        world.aliases = self.pool.aliases();
        world
    }

    async fn listing(
        &self,
        member: &Member<C>,
        options: &LedgerOptions,
        not_before: Instant,
        waits: ListTimeout,
    ) -> Result<Arc<Listing>, Reason> {
        let slot = self.slot(&member.name);
        let patience = match waits {
            ListTimeout::Shortly => options.list_timeout,
            // The list and the hardware.
            ListTimeout::ForAnswer => options.call_deadline.saturating_mul(2),
        };
        loop {
            let over = slot.over();
            let since = match slot.lookup(not_before) {
                CacheLookup::Use(listing) => return listing,
                CacheLookup::Wait(since) => since,
                CacheLookup::Ask => {
                    self.begin(&slot, member, options)?;
                    Instant::now()
                }
            };
            if let ListTimeout::Shortly = waits
                && let Some(listing) = slot.of_slow(patience, options.call_deadline)
            {
                return Ok(listing);
            }
            tokio::select! {
                // So that a test on virtual time goes the same way every time.
                biased;
                () = over => {}
                () = tokio::time::sleep_until(since + patience) => return Err(silent(&member.name, patience)),
            }
        }
    }

    /// Has the controller asked, unless it is to be left alone.
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
        if let Some(asking) = slot.begin() {
            // Of its own: whoever wants to know may lose his patience, and the answer is of use all the same.
            tokio::spawn(Question::new(&self.pool, member, options).ask(asking));
        }
        Ok(())
    }

    /// One call under a deadline, booked as the controller's health.
    pub(crate) async fn call<T>(
        &self,
        name: &ControllerName,
        deadline: Duration,
        call: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        self::call(&self.pool, name, deadline, call).await
    }

    /// What the controller listed last; none if it did not answer then, or was never asked.
    pub(crate) fn newest(&self, name: &ControllerName) -> Option<Arc<Listing>> {
        self.slot(name).newest()
    }

    /// The IPUs of a partition that the controller listed. The cluster counts if the hardware is known to have several.
    pub(crate) fn location_of(&self, name: &ControllerName, partition: Partition) -> Location {
        match self.newest(name) {
            Some(listing) => listing.locate(&partition),
            None => Location {
                cluster: None,
                ipus: partition.ipus,
            },
        }
    }

    /// Has the controller list what it has now.
    pub(crate) async fn look_at(&self, name: &ControllerName, options: &LedgerOptions) {
        if let Some(member) = self.pool.member(name) {
            // That it does not answer is booked, and seen by the next one who asks.
            let _ = self
                .listing(&member, options, Instant::now(), ListTimeout::Shortly)
                .await;
        }
    }

    /// The controller said that `id` is gone: nobody need wait for the next listing to use its room.
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
    // A process that was suspended sends nothing after the deadline: the fence of the intent may have passed, and
    // `timeout` polls the call once more before it looks at the time.
    let in_time = poll_fn(|context| {
        if Instant::now() >= until {
            return Poll::Ready(Err(late()));
        }
        call.as_mut().poll(context)
    });
    let answer = tokio::time::timeout_at(until, in_time)
        .await
        .unwrap_or_else(|_| Err(late()));
    pool.record(name, &answer);
    answer
}

/// A listing with the room that is left beside `partitions`.
fn listing(
    name: &ControllerName,
    partitions: Vec<Partition>,
    known: Option<&(Topology, Vec<IpuAddress>)>,
) -> Listing {
    let room: Box<dyn Capacity> = match known {
        Some((topology, unhealthy)) => {
            let observed = Inventory::observe(topology, unhealthy, &partitions, |_| true);
            for (id, misfit) in &observed.conflicts {
                tracing::warn!(%name, %id, %misfit, "a partition does not fit what is known of the hardware");
            }
            Box::new(InventoryCapacity::new(observed.inventory))
        }
        None => {
            let mut room = Unbounded::default();
            for partition in &partitions {
                // It never refuses.
                let _ = room.reserve(&partition.id, &partition.spec, &partition.ipus);
            }
            Box::new(room)
        }
    };
    Listing::new(partitions, room)
}

pub(crate) fn unavailable(name: &ControllerName, error: Option<&VipuError>) -> Reason {
    let detail = error.map_or_else(|| "it failed lately".to_owned(), ToString::to_string);
    Reason::new(
        "ControllerUnavailable",
        format!("controller {name} cannot be asked: {detail}"),
    )
}

/// Why nobody waits for the controller `name` any longer. The words stay the same as long as it is silent.
fn silent(name: &ControllerName, patience: Duration) -> Reason {
    Reason::new(
        "ControllerUnavailable",
        format!("controller {name} has been silent for more than {patience:?}"),
    )
}

/// Runs all of `futures` at the same time, on this task.
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
                    Poll::Ready(answer) => *slot = Slot::Done(Some(answer)),
                    Poll::Pending => running = true,
                }
            }
        }
        if running { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let answers = slots.into_iter().filter_map(|slot| match slot {
        Slot::Running(_) => None,
        Slot::Done(answer) => answer,
    });
    answers.collect()
}

// Nothing panics while it is locked, so that what a poisoned lock holds is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
