//! What the controllers list, not older than asked for: one listing at a time per controller, shared by all callers.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ipu_core::{
    AgentId, Capacity, ControllerName, ControllerView, Inventory, IpuAddress, Listing, Partition,
    PartitionId, Reason, Service, Space, Topology, Unbounded, World,
};
use ipu_vipu_client::{ControllerPool, Member, VipuController, VipuError};
use tokio::time::Instant;

use crate::options::LedgerOptions;

pub(crate) struct Views<C: ?Sized> {
    pool: ControllerPool<C>,
    slots: Mutex<BTreeMap<ControllerName, Arc<Slot>>>,
}

#[derive(Default)]
struct Slot {
    /// Held while the controller is asked, so that everybody else waits for that answer.
    asking: tokio::sync::Mutex<Option<Hardware>>,
    seen: Mutex<Option<Seen>>,
}

#[derive(Clone)]
struct Seen {
    /// When the controller was asked.
    at: Instant,
    listing: Result<Arc<Listing>, Reason>,
}

struct Hardware {
    at: Instant,
    /// None if the controller does not tell.
    known: Option<(Topology, Vec<IpuAddress>)>,
}

impl<C: VipuController + ?Sized + 'static> Views<C> {
    pub(crate) const fn new(pool: ControllerPool<C>) -> Self {
        Self {
            pool,
            slots: Mutex::new(BTreeMap::new()),
        }
    }

    pub(crate) const fn pool(&self) -> &ControllerPool<C> {
        &self.pool
    }

    /// All controllers, none seen longer ago than `not_before`.
    pub(crate) async fn world(&self, options: &LedgerOptions, not_before: Instant) -> World {
        let open = self
            .pool
            .members()
            .into_iter()
            .map(|member| (member, Service::Open));
        let draining = self
            .pool
            .draining()
            .into_iter()
            .map(|member| (member, Service::Draining));
        let views = open.chain(draining).map(|(member, service)| async move {
            ControllerView {
                listing: self.listing(&member, options, not_before).await,
                name: member.name,
                service,
            }
        });
        World {
            controllers: join(views).await,
        }
    }

    async fn listing(
        &self,
        member: &Member<C>,
        options: &LedgerOptions,
        not_before: Instant,
    ) -> Result<Arc<Listing>, Reason> {
        let slot = self.slot(&member.name);
        if let Some(seen) = slot.seen_since(not_before) {
            return seen.listing;
        }
        let mut hardware = slot.asking.lock().await;
        // Somebody else may have asked while this caller waited.
        if let Some(seen) = slot.seen_since(not_before) {
            return seen.listing;
        }
        let at = Instant::now();
        let listing = if member.health.is_available(at) {
            self.ask(member, options, &mut hardware).await
        } else {
            Err(unavailable(&member.name, member.health.last_error.as_ref()))
        };
        *locked(&slot.seen) = Some(Seen {
            at,
            listing: listing.clone(),
        });
        listing
    }

    async fn ask(
        &self,
        member: &Member<C>,
        options: &LedgerOptions,
        hardware: &mut Option<Hardware>,
    ) -> Result<Arc<Listing>, Reason> {
        // First, so that a controller that hangs at the list does not pass for one that answers.
        let partitions = self
            .call(
                &member.name,
                options.call_deadline,
                member.controller.list_partitions(None),
            )
            .await
            .map_err(|error| unavailable(&member.name, Some(&error)))?;
        let now = Instant::now();
        if hardware
            .as_ref()
            .is_none_or(|known| now - known.at >= options.hardware_age)
        {
            let known = self.ask_hardware(member, options).await?;
            *hardware = Some(Hardware { at: now, known });
        }
        let known = hardware.as_ref().and_then(|hardware| hardware.known.as_ref());
        Ok(Arc::new(listing(&member.name, partitions, known)))
    }

    async fn ask_hardware(
        &self,
        member: &Member<C>,
        options: &LedgerOptions,
    ) -> Result<Option<(Topology, Vec<IpuAddress>)>, Reason> {
        let name = &member.name;
        let given = options.topologies.get(name).cloned();
        let answer = self
            .call(name, options.call_deadline, member.controller.ipu_attributes(&[]))
            .await;
        let agents: BTreeMap<AgentId, _> = match answer {
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
            return Ok(given.map(|topology| (topology, Vec::new())));
        }
        match (Topology::from_agents(&agents), given) {
            (Ok(found), None) => Ok(Some((found.topology, found.unhealthy))),
            // Where the hardware was configured, only the health is taken from the controller, if it fits.
            (Ok(found), Some(topology)) if found.topology == topology => {
                Ok(Some((topology, found.unhealthy)))
            }
            (_, Some(topology)) => Ok(Some((topology, Vec::new()))),
            (Err(error), None) => {
                tracing::warn!(%name, %error, "what the controller lists of its IPUs is not understood");
                Ok(None)
            }
        }
    }

    /// One call under a deadline, booked as the controller's health.
    pub(crate) async fn call<T>(
        &self,
        name: &ControllerName,
        deadline: Duration,
        call: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        let answer = tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| {
            Err(VipuError::Timeout {
                endpoint: name.to_string(),
                waited: deadline,
            })
        });
        self.pool.record(name, &answer);
        answer
    }

    /// The controller said that `id` is gone: nobody need wait for the next listing to use its room.
    pub(crate) fn forget(&self, name: &ControllerName, id: &PartitionId) {
        let slot = self.slot(name);
        let mut seen = locked(&slot.seen);
        if let Some(Seen {
            listing: Ok(listing), ..
        }) = seen.as_mut()
            && listing.partitions().contains_key(id)
        {
            *listing = Arc::new(listing.without(id));
        }
    }

    fn slot(&self, name: &ControllerName) -> Arc<Slot> {
        Arc::clone(locked(&self.slots).entry(name.clone()).or_default())
    }
}

impl Slot {
    fn seen_since(&self, not_before: Instant) -> Option<Seen> {
        locked(&self.seen).clone().filter(|seen| seen.at >= not_before)
    }
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
            for (id, misfit) in &observed.misfits {
                tracing::warn!(%name, %id, %misfit, "a partition does not fit what is known of the hardware");
            }
            Box::new(Space::new(observed.inventory))
        }
        None => {
            let mut room = Unbounded::default();
            for partition in &partitions {
                // It never refuses.
                let _ = room.take(&partition.id, &partition.spec, &partition.ipus);
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
