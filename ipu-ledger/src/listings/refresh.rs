//! Asking one controller for its list, in a task of its own: whoever needs the list waits for it as long as he likes, and
//! what comes late is there for the next one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipu_core::{AgentId, ControllerName, IpuAddress, Listing, Reason, Topology};
use ipu_vipu_client::{ControllerPool, Member, VipuController, VipuError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::{call, listing, locked, unavailable};
use crate::options::{Clock, LedgerOptions};

/// What a controller listed, and whether it is being asked.
#[derive(Default)]
pub(super) struct ListingSlot {
    state: Mutex<SlotState>,
    /// Tells that a question is over, to those who wait in the order in which they came: a `watch` wakes them in any, and
    /// a simulation would not be the same twice.
    over: Notify,
}

#[derive(Default)]
struct SlotState {
    seen: Option<CachedListing>,
    /// Since when the controller is being asked.
    asked: Option<Instant>,
    hardware: Option<Hardware>,
}

#[derive(Clone)]
struct CachedListing {
    /// When the controller was asked.
    at: Instant,
    /// When it answered.
    came: Instant,
    listing: Result<Arc<Listing>, Reason>,
}

/// What a controller told of its hardware.
#[derive(Clone)]
pub(super) struct Hardware {
    at: Instant,
    /// None if the controller does not tell.
    known: Option<(Topology, Vec<IpuAddress>)>,
}

/// What somebody who needs a list can do.
pub(super) enum CacheLookup {
    /// Use this one.
    Use(Result<Arc<Listing>, Reason>),
    /// Wait for the question that was begun then.
    Wait(Instant),
    /// Ask; nobody does.
    Ask,
}

impl ListingSlot {
    /// Hears when a question is over, from now on.
    pub(super) fn over(&self) -> Notified<'_> {
        self.over.notified()
    }

    /// What is there for somebody who needs a list that was asked for at `not_before` or later.
    pub(super) fn lookup(&self, not_before: Instant) -> CacheLookup {
        let state = locked(&self.state);
        match (&state.seen, state.asked) {
            (Some(seen), _) if seen.at >= not_before => CacheLookup::Use(seen.listing.clone()),
            (_, Some(since)) => CacheLookup::Wait(since),
            _ => CacheLookup::Ask,
        }
    }

    /// The list of a controller that always needs longer than `patience`, if it came at most `age` ago.
    pub(super) fn of_slow(&self, patience: Duration, age: Duration) -> Option<Arc<Listing>> {
        let seen = locked(&self.state).seen.clone()?;
        let is_slow = seen.came.saturating_duration_since(seen.at) > patience;
        let listing = seen.listing.ok()?;
        (is_slow && seen.came.elapsed() <= age).then_some(listing)
    }

    /// Says that the controller is being asked from now on, unless somebody was quicker.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Asking> {
        let mut state = locked(&self.state);
        if state.asked.is_some() {
            return None;
        }
        let at = Instant::now();
        state.asked = Some(at);
        Some(Asking {
            slot: Arc::clone(self),
            at,
            hardware: state.hardware.clone(),
        })
    }

    /// What was listed last, unless there was no answer then.
    pub(super) fn newest(&self) -> Option<Arc<Listing>> {
        let seen = locked(&self.state).seen.clone()?;
        seen.listing.ok()
    }

    /// Changes what was listed last.
    pub(super) fn change(&self, change: impl FnOnce(&mut Arc<Listing>)) {
        if let Some(CachedListing {
            listing: Ok(listing), ..
        }) = &mut locked(&self.state).seen
        {
            change(listing);
        }
    }
}

/// A question that is under way. However it ends, somebody else may ask then.
pub(super) struct Asking {
    slot: Arc<ListingSlot>,
    at: Instant,
    hardware: Option<Hardware>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        locked(&self.slot.state).asked = None;
        self.slot.over.notify_waiters();
    }
}

/// All that it takes to ask, without whoever wants to know.
pub(super) struct Question<C: ?Sized> {
    pool: ControllerPool<C>,
    member: Member<C>,
    deadline: Duration,
    hardware_age: Duration,
    topology: Option<Topology>,
    clock: Clock,
}

impl<C: VipuController + ?Sized + 'static> Question<C> {
    pub(super) fn new(pool: &ControllerPool<C>, member: Member<C>, options: &LedgerOptions) -> Self {
        Self {
            pool: pool.clone(),
            deadline: options.call_deadline,
            hardware_age: options.hardware_age,
            topology: options.topologies.get(&member.name).cloned(),
            clock: Arc::clone(&options.clock),
            member,
        }
    }

    /// Asks, and leaves the answer for whoever waits.
    pub(super) async fn ask(self, mut asking: Asking) {
        let listing = self.list(&mut asking.hardware).await;
        let mut state = locked(&asking.slot.state);
        state.hardware = asking.hardware.take();
        state.seen = Some(CachedListing {
            at: asking.at,
            came: Instant::now(),
            listing,
        });
    }

    async fn list(&self, hardware: &mut Option<Hardware>) -> Result<Arc<Listing>, Reason> {
        let name = &self.member.name;
        let asked = (self.clock)();
        // First, so that a controller that hangs at the list does not pass for one that answers.
        let partitions = self.call(self.member.controller.list_partitions(None)).await;
        let partitions = partitions.map_err(|error| unavailable(name, Some(&error)))?;
        let now = Instant::now();
        if hardware
            .as_ref()
            .is_none_or(|known| now - known.at >= self.hardware_age)
        {
            let known = self.ask_hardware(name).await?;
            *hardware = Some(Hardware { at: now, known });
        }
        let known = hardware.as_ref().and_then(|hardware| hardware.known.as_ref());
        Ok(Arc::new(listing(name, partitions, known).requested_at(asked)))
    }

    async fn ask_hardware(
        &self,
        name: &ControllerName,
    ) -> Result<Option<(Topology, Vec<IpuAddress>)>, Reason> {
        let given = self.topology.clone();
        let answer = self.call(self.member.controller.ipu_attributes(&[])).await;
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

    async fn call<T>(
        &self,
        question: impl Future<Output = Result<T, VipuError>> + Send,
    ) -> Result<T, VipuError> {
        call(&self.pool, &self.member.name, self.deadline, question).await
    }
}
