//! The controllers of an installation: an ordered list that may change while partitions are held, and the
//! health of each controller.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use ipu_core::ControllerName;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::controller::VipuController;
use crate::endpoint::ControllerEndpoint;
use crate::error::VipuError;

/// Number of consecutive failures after which a controller counts as unavailable. One may be a lost packet,
/// and two a restart of the controller.
const FAILURE_THRESHOLD: u32 = 3;

/// Initial pause of an unavailable controller; doubled after every further failure. One second is the
/// duration of a restart.
const INITIAL_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause: half of the 60 seconds within which a change of the controller list takes effect
/// (Kubernetes IPU user guide). A controller that returns is therefore used as soon.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The controllers of an installation, in the order of their list. Cheap to clone; clones share all state.
///
/// A controller that [`replace`](Self::replace) removes from the list gets no new partitions. It stays
/// reachable by name, so that its partitions can be released, until [`forget`](Self::forget).
///
/// ```
/// use std::sync::Arc;
///
/// use ipu_vipu_client::{ConnectOptions, ControllerPool, GrpcController, VipuController, parse_controllers};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let list = parse_controllers("pod001,pod002")?;
/// let pool: ControllerPool = ControllerPool::connect(&list, |endpoint| {
///     let controller = GrpcController::connect(endpoint, &ConnectOptions::default())?;
///     Ok::<_, ipu_vipu_client::ConnectError>(Arc::new(controller) as Arc<dyn VipuController>)
/// })?;
/// assert_eq!(pool.members().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ControllerPool<C: ?Sized = dyn VipuController> {
    members: Arc<Mutex<Vec<Member<C>>>>,
}

impl<C: ?Sized> Clone for ControllerPool<C> {
    fn clone(&self) -> Self {
        Self {
            members: Arc::clone(&self.members),
        }
    }
}

/// One controller of a pool.
#[derive(Debug)]
pub struct Member<C: ?Sized = dyn VipuController> {
    /// The name of the controller in the ledger.
    pub name: ControllerName,
    /// The address and the label of the nodes that reach its IPUs; `None` for a controller that was passed in
    /// as an object.
    pub endpoint: Option<ControllerEndpoint>,
    /// The client of the controller.
    pub controller: Arc<C>,
    /// The results of the last calls.
    pub health: CircuitBreaker,
    /// Whether the controller may get new partitions.
    pub state: MemberState,
    /// The controller of which this is a second name, if known: see [`ControllerPool::set_same_as`].
    pub same_as: Option<ControllerName>,
}

impl<C: ?Sized> Clone for Member<C> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            controller: Arc::clone(&self.controller),
            health: self.health.clone(),
            state: self.state,
            same_as: self.same_as.clone(),
        }
    }
}

/// Whether a controller is on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// The controller is listed and may get new partitions.
    Listed,
    /// The controller was removed from the list and only releases its partitions.
    Draining,
}

/// The health of a controller according to its last calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitBreaker {
    /// The time of the last reply.
    pub last_success: Option<Instant>,
    /// The error of the last failure.
    pub last_error: Option<VipuError>,
    /// The number of failures since the last reply, without those of calls that were under way when the
    /// controller became unavailable.
    pub consecutive_failures: u32,
    unavailable_until: Option<Instant>,
}

impl CircuitBreaker {
    /// Returns whether the controller may be called at `now`. After too many failures one call may try it
    /// again after a pause.
    #[must_use]
    pub fn is_available(&self, now: Instant) -> bool {
        self.unavailable_until.is_none_or(|until| until <= now)
    }

    /// Returns whether the last calls failed too often, since the last reply.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.unavailable_until.is_some()
    }

    fn record(&mut self, now: Instant, error: Option<&VipuError>) {
        let Some(error) = error else {
            self.last_success = Some(now);
            self.consecutive_failures = 0;
            self.unavailable_until = None;
            return;
        };
        self.last_error = Some(error.clone());
        // The calls of one broken connection fail together.
        if !self.is_available(now) {
            return;
        }
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        let excess = self.consecutive_failures.checked_sub(FAILURE_THRESHOLD);
        self.unavailable_until = excess.map(|excess| {
            let pause = INITIAL_PAUSE.saturating_mul(2_u32.saturating_pow(excess));
            now + pause.min(MAX_PAUSE)
        });
    }
}

impl<C: ?Sized> Member<C> {
    fn new(name: ControllerName, endpoint: Option<ControllerEndpoint>, controller: Arc<C>) -> Self {
        Self {
            name,
            endpoint,
            controller,
            health: CircuitBreaker::default(),
            state: MemberState::Listed,
            same_as: None,
        }
    }
}

impl ControllerPool {
    /// Creates a pool of one controller.
    #[must_use]
    pub fn single(name: ControllerName, controller: Arc<dyn VipuController>) -> Self {
        Self::new([(name, controller)])
    }
}

impl<C: ?Sized> ControllerPool<C> {
    /// Creates a pool of the given controllers, in the order of preference. Of two controllers with one name,
    /// the first is kept.
    #[must_use]
    pub fn new(controllers: impl IntoIterator<Item = (ControllerName, Arc<C>)>) -> Self {
        let mut members: Vec<Member<C>> = Vec::new();
        for (name, controller) in controllers {
            if members.iter().all(|existing| existing.name != name) {
                members.push(Member::new(name, None, controller));
            }
        }
        Self {
            members: Arc::new(Mutex::new(members)),
        }
    }

    /// Creates a pool of the controllers at `endpoints`, each created by `connect`.
    ///
    /// # Errors
    ///
    /// The first error of `connect`.
    pub fn connect<E>(
        endpoints: &[ControllerEndpoint],
        connect: impl FnMut(&ControllerEndpoint) -> Result<Arc<C>, E>,
    ) -> Result<Self, E> {
        let pool = Self::new([]);
        pool.replace(endpoints, connect)?;
        Ok(pool)
    }

    /// Replaces the list by `endpoints`. Controllers on both lists keep connection and health. New ones are
    /// created by `connect`. Controllers that are no longer listed drain: [`get`](Self::get) returns them
    /// until [`forget`](Self::forget).
    ///
    /// # Errors
    ///
    /// The first error of `connect`; the list is then unchanged.
    pub fn replace<E>(
        &self,
        endpoints: &[ControllerEndpoint],
        mut connect: impl FnMut(&ControllerEndpoint) -> Result<Arc<C>, E>,
    ) -> Result<(), E> {
        let mut members = self.lock();
        let mut list = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let name = endpoint.name();
            list.push(match members.iter().find(|member| member.name == *name) {
                Some(member) => Member {
                    endpoint: Some(endpoint.clone()),
                    state: MemberState::Listed,
                    ..member.clone()
                },
                None => Member::new(name.clone(), Some(endpoint.clone()), connect(endpoint)?),
            });
        }
        for member in members.drain(..) {
            if list.iter().all(|listed| listed.name != member.name) {
                list.push(Member {
                    state: MemberState::Draining,
                    ..member
                });
            }
        }
        *members = list;
        Ok(())
    }

    /// Adds the controller at `endpoint` as a draining one unless its name is in the pool: for a controller
    /// that has ledger entries but is on no list.
    ///
    /// # Errors
    ///
    /// The error of `connect`; the pool is then unchanged.
    pub fn drain<E>(
        &self,
        endpoint: &ControllerEndpoint,
        connect: impl FnOnce(&ControllerEndpoint) -> Result<Arc<C>, E>,
    ) -> Result<(), E> {
        let mut members = self.lock();
        let name = endpoint.name();
        if members.iter().all(|member| member.name != *name) {
            let controller = connect(endpoint)?;
            members.push(Member {
                state: MemberState::Draining,
                ..Member::new(name.clone(), Some(endpoint.clone()), controller)
            });
        }
        Ok(())
    }

    /// Replaces the client of the controller `name` by `controller`, for example for other credentials. Calls
    /// in flight continue on the old client, and its failures are reset. Has no effect if there is no such
    /// controller.
    pub fn reconnect(&self, name: &ControllerName, controller: Arc<C>) {
        self.update(name, |member| {
            member.controller = controller;
            member.health = CircuitBreaker::default();
        });
    }

    /// Records whether the controller `name` is a second name of `other`. Their IPUs then count once, and
    /// only one of the names takes new partitions. Has no effect if there is no controller `name`.
    pub fn set_same_as(&self, name: &ControllerName, other: Option<ControllerName>) {
        self.update(name, |member| member.same_as = other);
    }

    /// Returns the pairs of names that were recorded as those of one controller.
    #[must_use]
    pub fn aliases(&self) -> BTreeSet<(ControllerName, ControllerName)> {
        let members = self.lock();
        let pair = |member: &Member<C>| Some((member.name.clone(), member.same_as.clone()?));
        members.iter().filter_map(pair).collect()
    }

    /// Removes the controller `name` if it is draining. Call this when the ledger has no entry of it any
    /// more.
    pub fn forget(&self, name: &ControllerName) {
        self.lock()
            .retain(|member| member.name != *name || member.state == MemberState::Listed);
    }

    /// Returns the controllers that may get new partitions, in the order of the list.
    #[must_use]
    pub fn members(&self) -> Vec<Member<C>> {
        self.with_state(MemberState::Listed)
    }

    /// Returns the controllers that were removed from the list and still have partitions.
    #[must_use]
    pub fn draining(&self) -> Vec<Member<C>> {
        self.with_state(MemberState::Draining)
    }

    fn with_state(&self, state: MemberState) -> Vec<Member<C>> {
        let members = self.lock();
        let selected = members.iter().filter(|member| member.state == state);
        selected.cloned().collect()
    }

    /// Returns the client of the controller `name`, listed or draining.
    #[must_use]
    pub fn get(&self, name: &ControllerName) -> Option<Arc<C>> {
        self.member(name).map(|member| member.controller)
    }

    /// Returns the member `name`, listed or draining.
    #[must_use]
    pub fn member(&self, name: &ControllerName) -> Option<Member<C>> {
        self.lock().iter().find(|member| member.name == *name).cloned()
    }

    /// Records the result of a call to the controller `name`, at the current time. A refusal is a reply too:
    /// only errors with [`VipuError::is_unhealthy`] count as failures.
    pub fn record<T>(&self, name: &ControllerName, result: &Result<T, VipuError>) {
        let error = result.as_ref().err().filter(|error| error.is_unhealthy());
        let now = Instant::now();
        self.update(name, |member| member.health.record(now, error));
    }

    fn update(&self, name: &ControllerName, change: impl FnOnce(&mut Member<C>)) {
        if let Some(member) = self.lock().iter_mut().find(|member| member.name == *name) {
            change(member);
        }
    }

    // Only `connect` may panic in a critical section, and it runs before any change, so that the
    // list stays consistent.
    fn lock(&self) -> MutexGuard<'_, Vec<Member<C>>> {
        self.members.lock()
    }
}

#[cfg(test)]
mod tests;
