//! Requests the listing of one controller in a separate task. Callers wait with their own timeout, and a late
//! reply serves the next caller.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipu_core::{AgentId, ControllerName, IpuAddress, Listing, PlacementMode, Reason, Topology};
use ipu_vipu_client::{ControllerPool, Member, VipuController, VipuError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::{call, listing, locked, unavailable};
use crate::options::{Clock, LedgerOptions};

/// The cached listing of a controller, and its request in flight.
#[derive(Default)]
pub(super) struct ListingSlot {
    state: Mutex<SlotState>,
    /// Notifies waiters in the order of their arrival when a request ends. A `watch` wakes them in any order,
    /// which would make a simulation nondeterministic.
    finished: Notify,
}

#[derive(Default)]
struct SlotState {
    latest: Option<CachedListing>,
    /// The start of the request in flight.
    in_flight_since: Option<Instant>,
    hardware: Option<Hardware>,
    /// Hardware that was observed earlier is fetched again.
    hardware_not_before: Option<Instant>,
    /// Whether the controller refused create calls that name IPUs, and chooses them itself.
    is_delegated: bool,
}

#[derive(Clone)]
struct CachedListing {
    /// The start of the request.
    requested_at: Instant,
    /// The time of the reply.
    replied_at: Instant,
    listing: Result<Arc<Listing>, Reason>,
}

/// The hardware that a controller reports.
#[derive(Clone)]
pub(super) struct Hardware {
    observed_at: Instant,
    /// `None` if the controller does not report its hardware.
    reported: Option<(Topology, Vec<IpuAddress>)>,
}

/// The options of a caller that needs a listing.
pub(super) enum CacheLookup {
    /// Use this listing.
    Use(Result<Arc<Listing>, Reason>),
    /// Wait for the request that started at this time.
    Wait(Instant),
    /// Start a request; none is in flight.
    Start,
}

impl ListingSlot {
    /// Returns a future that resolves when the next request ends.
    pub(super) fn finished(&self) -> Notified<'_> {
        self.finished.notified()
    }

    /// Returns the option of a caller that needs a listing from `not_before` or later.
    pub(super) fn lookup(&self, not_before: Instant) -> CacheLookup {
        let state = locked(&self.state);
        match (&state.latest, state.in_flight_since) {
            (Some(latest), _) if latest.requested_at >= not_before => {
                CacheLookup::Use(latest.listing.clone())
            }
            (_, Some(since)) => CacheLookup::Wait(since),
            _ => CacheLookup::Start,
        }
    }

    /// Returns the listing of a controller that always needs longer than `timeout`, if it arrived at most
    /// `age` ago.
    pub(super) fn slow_listing(&self, timeout: Duration, age: Duration) -> Option<Arc<Listing>> {
        let latest = locked(&self.state).latest.clone()?;
        let is_slow = latest.replied_at.saturating_duration_since(latest.requested_at) > timeout;
        let listing = latest.listing.ok()?;
        (is_slow && latest.replied_at.elapsed() <= age).then_some(listing)
    }

    /// Marks a request as in flight, unless there is one already.
    pub(super) fn begin(self: &Arc<Self>) -> Option<RequestGuard> {
        let mut state = locked(&self.state);
        if state.in_flight_since.is_some() {
            return None;
        }
        let requested_at = Instant::now();
        state.in_flight_since = Some(requested_at);
        Some(RequestGuard {
            slot: Arc::clone(self),
            requested_at,
            hardware: state.hardware.clone(),
            hardware_not_before: state.hardware_not_before,
        })
    }

    /// Lets the controller choose the IPUs of new partitions. That applies to the cached listing and the one
    /// in flight too. Returns whether it did not choose before.
    pub(super) fn delegate_placement(&self) -> bool {
        let mut state = locked(&self.state);
        let is_new = !std::mem::replace(&mut state.is_delegated, true);
        if is_new
            && let Some(CachedListing {
                listing: Ok(listing), ..
            }) = &mut state.latest
        {
            *listing = Arc::new(listing.delegated());
        }
        is_new
    }

    /// Returns whether the controller chooses because of [`delegate_placement`](Self::delegate_placement).
    pub(super) fn is_delegated(&self) -> bool {
        locked(&self.state).is_delegated
    }

    /// Fetches the hardware with the next listing that is requested at `time` or later.
    pub(super) fn refresh_hardware(&self, time: Instant) {
        locked(&self.state).hardware_not_before = Some(time);
    }

    /// Returns the latest listing; `None` if the latest request failed.
    pub(super) fn newest(&self) -> Option<Arc<Listing>> {
        let latest = locked(&self.state).latest.clone()?;
        latest.listing.ok()
    }

    /// Modifies the latest listing.
    pub(super) fn change(&self, change: impl FnOnce(&mut Arc<Listing>)) {
        if let Some(CachedListing {
            listing: Ok(listing), ..
        }) = &mut locked(&self.state).latest
        {
            change(listing);
        }
    }
}

/// A request in flight. Its end, in any way, allows the next request.
pub(super) struct RequestGuard {
    slot: Arc<ListingSlot>,
    requested_at: Instant,
    hardware: Option<Hardware>,
    hardware_not_before: Option<Instant>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        locked(&self.slot.state).in_flight_since = None;
        self.slot.finished.notify_waiters();
    }
}

/// The parameters of a request, independent of its callers.
pub(super) struct ListingRequest<C: ?Sized> {
    pool: ControllerPool<C>,
    member: Member<C>,
    deadline: Duration,
    hardware_age: Duration,
    topology: Option<Topology>,
    placement: PlacementMode,
    clock: Clock,
}

impl<C: VipuController + ?Sized + 'static> ListingRequest<C> {
    pub(super) fn new(pool: &ControllerPool<C>, member: Member<C>, options: &LedgerOptions) -> Self {
        Self {
            pool: pool.clone(),
            deadline: options.call_deadline,
            hardware_age: options.hardware_age,
            topology: options.topologies.get(&member.name).cloned(),
            placement: options.placement_of(&member.name),
            clock: Arc::clone(&options.clock),
            member,
        }
    }

    /// Runs the request, and stores the reply for all waiters.
    pub(super) async fn run(self, mut guard: RequestGuard) {
        let not_before = guard.hardware_not_before;
        let listing = self.list(&mut guard.hardware, not_before).await;
        let mut state = locked(&guard.slot.state);
        let listing = match listing {
            Ok(listing) if state.is_delegated => Ok(Arc::new(listing.delegated())),
            other => other.map(Arc::new),
        };
        state.hardware = guard.hardware.take();
        state.latest = Some(CachedListing {
            requested_at: guard.requested_at,
            replied_at: Instant::now(),
            listing,
        });
    }

    async fn list(
        &self,
        hardware: &mut Option<Hardware>,
        hardware_not_before: Option<Instant>,
    ) -> Result<Listing, Reason> {
        let name = &self.member.name;
        let requested_at = (self.clock)();
        // The listing comes first, so that a controller that hangs there does not count as responsive.
        let partitions = self.call(self.member.controller.list_partitions(None)).await;
        let partitions = partitions.map_err(|error| unavailable(name, Some(&error)))?;
        let now = Instant::now();
        let is_outdated = |current: &Hardware| {
            now - current.observed_at >= self.hardware_age
                || hardware_not_before.is_some_and(|time| current.observed_at < time)
        };
        if hardware.as_ref().is_none_or(is_outdated) {
            let reported = self.fetch_hardware(name).await?;
            *hardware = Some(Hardware {
                observed_at: now,
                reported,
            });
        }
        let reported = hardware.as_ref().and_then(|hardware| hardware.reported.as_ref());
        let listing = listing(name, partitions, reported, self.placement.clone());
        Ok(listing.requested_at(requested_at))
    }

    async fn fetch_hardware(
        &self,
        name: &ControllerName,
    ) -> Result<Option<(Topology, Vec<IpuAddress>)>, Reason> {
        let configured = self.topology.clone();
        let reply = self.call(self.member.controller.ipu_attributes(&[])).await;
        let agents: BTreeMap<AgentId, _> = match reply {
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
            // With a configured topology, only the health comes from the controller, if the topologies
            // match.
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

    async fn call<T>(
        &self,
        request: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        call(&self.pool, &self.member.name, self.deadline, request).await
    }
}
