//! Listings of the controllers: one task for each, which lists at an interval and on request.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use ipu_core::allocator::{Capacity, InventoryCapacity, Listing, Unbounded};
use ipu_core::hardware::{Inventory, IpuAddress, Partition, Topology};
use ipu_core::placement::PlacementMode;
use ipu_core::{AgentId, ControllerName, Reason, ReasonCode};
use ipu_vipu_client::{ControllerPool, Member, VipuError};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::message::{ListingResult, Message};
use crate::options::Options;
use crate::runner::call_within;

/// Interval at which the list of controllers is compared with the running tasks.
const LIST_INTERVAL: Duration = Duration::from_millis(200);

/// The tasks of all controllers.
pub(crate) struct Listings {
    pool: ControllerPool,
    options: Arc<Options>,
    tasks: Mutex<BTreeMap<ControllerName, ListingTask>>,
    is_stopped: AtomicBool,
}

/// The task of one controller, which ends when this is dropped.
struct ListingTask {
    slot: Arc<Slot>,
    handle: JoinHandle<()>,
}

impl Drop for ListingTask {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// The orders for the task of a controller, and its last delivery.
struct Slot {
    wanted: Notify,
    /// Set if the next listing reads the hardware again, whatever its age.
    rereads_hardware: AtomicBool,
    delivered: watch::Sender<LastListing>,
}

/// The last listing of a controller.
enum LastListing {
    /// No listing yet.
    Never,
    /// The listing was requested at this time.
    At(Instant),
    /// The controller has not replied for so long that requests no longer wait for it.
    Late,
}

impl Listings {
    pub(crate) fn new(pool: ControllerPool, options: Arc<Options>) -> Arc<Self> {
        Arc::new(Self {
            pool,
            options,
            tasks: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Keeps one task for each controller of the pool, until the receiver of `inbox` is dropped.
    pub(crate) async fn run(self: Arc<Self>, inbox: mpsc::Sender<Message>) {
        while !inbox.is_closed() {
            self.start_tasks(&inbox);
            tokio::select! {
                () = inbox.closed() => break,
                () = tokio::time::sleep(LIST_INTERVAL) => {}
            }
        }
        self.stop();
    }

    /// Ends all tasks. None starts after that.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.tasks.lock().clear();
    }

    fn start_tasks(&self, inbox: &mpsc::Sender<Message>) {
        let members: Vec<Member> = self
            .pool
            .members()
            .into_iter()
            .chain(self.pool.draining())
            .collect();
        let mut tasks = self.tasks.lock();
        if self.is_stopped.load(Ordering::Relaxed) {
            return;
        }
        tasks.retain(|name, _| members.iter().any(|member| member.name == *name));
        for member in members {
            tasks.entry(member.name.clone()).or_insert_with(|| {
                let slot = Arc::new(Slot {
                    wanted: Notify::new(),
                    rereads_hardware: AtomicBool::new(false),
                    delivered: watch::Sender::new(LastListing::Never),
                });
                let lister = Lister {
                    pool: self.pool.clone(),
                    name: member.name,
                    options: Arc::clone(&self.options),
                    hardware: None,
                };
                let (inbox, own) = (inbox.clone(), Arc::clone(&slot));
                let handle = tokio::spawn(async move { lister.run(&own, &inbox).await });
                ListingTask { slot, handle }
            });
        }
    }

    /// Asks for a listing of the controller `name` soon.
    pub(crate) fn refresh(&self, name: &ControllerName) {
        if let Some(task) = self.tasks.lock().get(name) {
            task.slot.wanted.notify_one();
        }
    }

    /// Makes the next listing of every controller read its hardware again.
    pub(crate) fn reread_hardware(&self) {
        for task in self.tasks.lock().values() {
            task.slot.rereads_hardware.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until every controller was listed since `since`, at most for `timeout`.
    pub(crate) async fn wait_since(&self, since: Instant, timeout: Duration) {
        let slots: Vec<Arc<Slot>> = {
            let tasks = self.tasks.lock();
            tasks.values().map(|task| Arc::clone(&task.slot)).collect()
        };
        let all = slots.into_iter().map(async |slot| {
            let mut delivered = slot.delivered.subscribe();
            let is_new = |delivered: &LastListing| match delivered {
                LastListing::Never => false,
                LastListing::At(at) => *at >= since,
                LastListing::Late => true,
            };
            if !is_new(&delivered.borrow()) {
                slot.wanted.notify_one();
            }
            // It cannot fail: the sender is kept.
            let _ = delivered.wait_for(is_new).await;
        });
        let _ = tokio::time::timeout(timeout, join_all(all)).await;
    }

    /// Returns whether each controller has its task.
    pub(crate) fn has_all_tasks(&self) -> bool {
        let count = self.pool.members().len() + self.pool.draining().len();
        self.tasks.lock().len() == count
    }
}

/// Lists one controller.
struct Lister {
    pool: ControllerPool,
    name: ControllerName,
    options: Arc<Options>,
    hardware: Option<Hardware>,
}

/// The hardware that a controller reports.
struct Hardware {
    observed: Instant,
    /// None if the controller does not report its hardware.
    reported: Option<(Topology, Vec<IpuAddress>)>,
}

impl Lister {
    async fn run(mut self, slot: &Slot, inbox: &mpsc::Sender<Message>) {
        loop {
            let begun = Instant::now();
            let timeout = self.options.listing_timeout;
            let late = Message::Listed(self.name.clone(), Err(unresponsive(&self.name, timeout)), begun);
            if slot.rereads_hardware.swap(false, Ordering::Relaxed) {
                self.hardware = None;
            }
            let listed = {
                let listing = AssertUnwindSafe(self.list()).catch_unwind();
                tokio::pin!(listing);
                match tokio::time::timeout(timeout, &mut listing).await {
                    Ok(listed) => listed,
                    Err(_) => {
                        // A controller without a reply counts as unavailable meanwhile.
                        if inbox.send(late).await.is_err() {
                            return;
                        }
                        slot.delivered.send_replace(LastListing::Late);
                        listing.await
                    }
                }
            };
            let listed = listed.unwrap_or_else(|_| {
                tracing::error!(name = %self.name, "the listing panicked");
                Err(unavailable(&self.name, None))
            });
            if inbox
                .send(Message::Listed(self.name.clone(), listed, begun))
                .await
                .is_err()
            {
                return;
            }
            slot.delivered.send_replace(LastListing::At(begun));
            tokio::select! {
                () = slot.wanted.notified() => {}
                () = tokio::time::sleep(self.options.listing_interval) => {}
            }
        }
    }

    async fn list(&mut self) -> ListingResult {
        let name = self.name.clone();
        let Some(member) = self.pool.member(&name) else {
            return Err(unavailable(&name, None));
        };
        if !member.health.is_available(Instant::now()) {
            return Err(unavailable(&name, member.health.last_error.as_ref()));
        }
        let requested = (self.options.clock)();
        // The listing comes first, so that a controller that hangs there does not count as responsive.
        let partitions = self.call(member.controller.list_partitions(None)).await;
        let partitions = partitions.map_err(|error| unavailable(&name, Some(&error)))?;
        let is_old = |hardware: &Hardware| hardware.observed.elapsed() >= self.options.hardware_age;
        if self.hardware.as_ref().is_none_or(is_old) {
            let observed = Instant::now();
            let reported = self.fetch_hardware(&member).await?;
            self.hardware = Some(Hardware { observed, reported });
        }
        let reported = self
            .hardware
            .as_ref()
            .and_then(|hardware| hardware.reported.as_ref());
        let listing = listing_of(&name, partitions, reported, self.options.placement_of(&name));
        Ok(Arc::new(listing.requested_at(requested)))
    }

    async fn fetch_hardware(&self, member: &Member) -> Result<Option<(Topology, Vec<IpuAddress>)>, Reason> {
        let name = &self.name;
        let configured = self.options.topologies.get(name).cloned();
        let agents: BTreeMap<AgentId, _> = match self.call(member.controller.ipu_attributes(&[])).await {
            Ok(agents) => agents
                .into_iter()
                .map(|agent| (agent.agent, agent.ipus))
                .collect(),
            Err(error @ (VipuError::Refused { .. } | VipuError::BadReply { .. })) => {
                tracing::debug!(%name, %error, "the controller does not list its IPUs");
                BTreeMap::new()
            }
            Err(error) => return Err(unavailable(name, Some(&error))),
        };
        if agents.is_empty() {
            return Ok(configured.map(|topology| (topology, Vec::new())));
        }
        match (Topology::from_agents(&agents), configured) {
            (Ok(found), None) => Ok(Some((found.topology, found.unhealthy))),
            // With a configured topology, only the health comes from the controller, if the topologies match.
            (Ok(found), Some(topology)) if found.topology == topology => {
                Ok(Some((topology, found.unhealthy)))
            }
            (_, Some(topology)) => Ok(Some((topology, Vec::new()))),
            (Err(error), None) => {
                tracing::warn!(%name, %error, "the IPU attributes of the controller form no known topology");
                Ok(None)
            }
        }
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, VipuError>> + Send) -> Result<T, VipuError> {
        call_within(self.options.times.deadline, &self.pool, &self.name, call).await
    }
}

/// Returns a listing with the free capacity next to `partitions`.
fn listing_of(
    name: &ControllerName,
    partitions: Vec<Partition>,
    known: Option<&(Topology, Vec<IpuAddress>)>,
    placement: PlacementMode,
) -> Listing {
    let capacity: Box<dyn Capacity> = match known {
        Some((topology, unhealthy)) => {
            let observed = Inventory::from_listing(topology, unhealthy, &partitions, |_| true);
            for (id, misfit) in &observed.conflicts {
                tracing::debug!(%name, %id, %misfit, "a partition does not match the known hardware");
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

/// Returns the reason of a controller whose last call failed with `error`.
pub(crate) fn unavailable(name: &ControllerName, error: Option<&VipuError>) -> Reason {
    let detail = error.map_or_else(|| "the last call failed".to_owned(), ToString::to_string);
    let message = format!("controller {name} is unavailable: {detail}");
    Reason::new(ReasonCode::ControllerUnavailable, message)
}

/// Returns the reason of a controller that does not reply. The message is stable while the controller is
/// silent.
fn unresponsive(name: &ControllerName, timeout: Duration) -> Reason {
    let message = format!("controller {name} has not replied within {timeout:?}");
    Reason::new(ReasonCode::ControllerUnavailable, message)
}
