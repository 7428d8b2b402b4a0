//! The controllers of an installation: an ordered list that may change while partitions are held, and how each one is.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};

use ipu_core::ControllerName;
use tokio::time::Instant;

use crate::endpoint::ControllerEndpoint;
use crate::error::VipuError;

/// How many calls in a row have to fail before a controller counts as unavailable: one may be a lost packet and two a
/// restart of the controller, the third is a pattern.
const FAILURES_TO_OPEN: u32 = 3;

/// How long a controller is left alone then; doubled with every further failure. A second is what a restart takes.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// The longest that it is left alone: half of the 60 seconds in which the documents promise that a change of the list of
/// controllers is noticed (seed 000 §6.4), so that a controller that returns is used as soon.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The controllers of an installation, in the order of their list. Cheap to clone; clones share everything.
///
/// A controller that is taken off the list by [`replace`](Self::replace) gets no new partitions and stays reachable by
/// name, so that what it holds can be given back; [`forget`](Self::forget) ends that.
#[derive(Debug)]
pub struct ControllerPool<C: ?Sized> {
    members: Arc<RwLock<Vec<Member<C>>>>,
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
pub struct Member<C: ?Sized> {
    /// Its name in the ledger.
    pub name: ControllerName,
    /// Where it is, and which nodes reach its IPUs; unknown for a controller that was handed in ready-made.
    pub endpoint: Option<ControllerEndpoint>,
    /// The way to talk to it.
    pub controller: Arc<C>,
    /// How the last calls to it ended.
    pub health: CircuitBreaker,
    /// Whether it may get new partitions.
    pub listing: MemberState,
    /// The controller that this is another name of, if that is known: see [`ControllerPool::set_same_as`].
    pub same_as: Option<ControllerName>,
}

impl<C: ?Sized> Clone for Member<C> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            controller: Arc::clone(&self.controller),
            health: self.health.clone(),
            listing: self.listing,
            same_as: self.same_as.clone(),
        }
    }
}

/// Whether a controller is on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// It is: it may get new partitions.
    Listed,
    /// It was taken off: it only gives back what it holds.
    Draining,
}

/// How the last calls to a controller ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitBreaker {
    /// When it last answered.
    pub last_success: Option<Instant>,
    /// When it last failed to.
    pub last_failure: Option<Instant>,
    /// How it failed then.
    pub last_error: Option<VipuError>,
    /// How often it failed since it last answered.
    pub failures_in_a_row: u32,
}

impl CircuitBreaker {
    /// Until when the controller should be left alone, if it failed too often; passed, it may be tried once more.
    #[must_use]
    pub fn unavailable_until(&self) -> Option<Instant> {
        let over = self.failures_in_a_row.checked_sub(FAILURES_TO_OPEN)?;
        let pause = PAUSE_FIRST
            .saturating_mul(2_u32.saturating_pow(over))
            .min(PAUSE_MAX);
        Some(self.last_failure? + pause)
    }

    /// Whether it makes sense to ask the controller at `now`.
    #[must_use]
    pub fn is_available(&self, now: Instant) -> bool {
        self.unavailable_until().is_none_or(|until| until <= now)
    }

    fn record(&mut self, now: Instant, error: Option<&VipuError>) {
        match error {
            None => {
                self.last_success = Some(now);
                self.failures_in_a_row = 0;
            }
            Some(error) => {
                self.last_failure = Some(now);
                self.last_error = Some(error.clone());
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
            }
        }
    }
}

impl<C: ?Sized> ControllerPool<C> {
    /// A pool of the one controller `controller`.
    #[must_use]
    pub fn single(name: ControllerName, controller: Arc<C>) -> Self {
        Self::new([(name, controller)])
    }

    /// A pool of ready-made controllers, in the order in which they are to be tried. Of two with the same name the first
    /// stays.
    #[must_use]
    pub fn new(controllers: impl IntoIterator<Item = (ControllerName, Arc<C>)>) -> Self {
        let mut members: Vec<Member<C>> = Vec::new();
        for (name, controller) in controllers {
            if members.iter().all(|known| known.name != name) {
                members.push(Member {
                    name,
                    endpoint: None,
                    controller,
                    health: CircuitBreaker::default(),
                    listing: MemberState::Listed,
                    same_as: None,
                });
            }
        }
        Self {
            members: Arc::new(RwLock::new(members)),
        }
    }

    /// A pool of the controllers at `endpoints`, each made by `connect`.
    ///
    /// # Errors
    ///
    /// The first error of `connect`.
    pub fn connect<E>(
        endpoints: &[ControllerEndpoint],
        connect: impl FnMut(&ControllerEndpoint) -> Result<C, E>,
    ) -> Result<Self, E>
    where
        C: Sized,
    {
        let pool = Self::new([]);
        pool.replace(endpoints, connect)?;
        Ok(pool)
    }

    /// Makes `endpoints` the list. Controllers that are on both lists keep connection and health, new ones are made by
    /// `connect`, and those that are no longer listed are drained: still found by [`get`](Self::get), until
    /// [`forget`](Self::forget).
    ///
    /// # Errors
    ///
    /// The first error of `connect`; the list is then unchanged.
    pub fn replace<E>(
        &self,
        endpoints: &[ControllerEndpoint],
        mut connect: impl FnMut(&ControllerEndpoint) -> Result<C, E>,
    ) -> Result<(), E>
    where
        C: Sized,
    {
        let mut members = self.write();
        let mut list = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let known = members.iter().find(|member| member.name == *endpoint.name());
            list.push(Member {
                name: endpoint.name().clone(),
                endpoint: Some(endpoint.clone()),
                controller: match known {
                    Some(member) => Arc::clone(&member.controller),
                    None => Arc::new(connect(endpoint)?),
                },
                health: known.map(|member| member.health.clone()).unwrap_or_default(),
                listing: MemberState::Listed,
                same_as: known.and_then(|member| member.same_as.clone()),
            });
        }
        for member in members.drain(..) {
            if list.iter().all(|listed| listed.name != member.name) {
                list.push(Member {
                    listing: MemberState::Draining,
                    ..member
                });
            }
        }
        *members = list;
        Ok(())
    }

    /// Adds the controller at `endpoint` as one that only gives back what it holds, unless it is known: for one that the
    /// ledger remembers and no list names.
    ///
    /// # Errors
    ///
    /// That of `connect`; the pool is then unchanged.
    pub fn drain<E>(
        &self,
        endpoint: &ControllerEndpoint,
        connect: impl FnOnce(&ControllerEndpoint) -> Result<C, E>,
    ) -> Result<(), E>
    where
        C: Sized,
    {
        let mut members = self.write();
        if members.iter().all(|member| member.name != *endpoint.name()) {
            let controller = Arc::new(connect(endpoint)?);
            members.push(Member {
                name: endpoint.name().clone(),
                endpoint: Some(endpoint.clone()),
                controller,
                health: CircuitBreaker::default(),
                listing: MemberState::Draining,
                same_as: None,
            });
        }
        Ok(())
    }

    /// Talks to the controller `name` by way of `controller` from now on, such as with other credentials. Calls that are
    /// under way go on by the old way; its failures so far are forgotten. Nothing happens if there is no such controller.
    pub fn reconnect(&self, name: &ControllerName, controller: Arc<C>) {
        if let Some(member) = self.write().iter_mut().find(|member| member.name == *name) {
            member.controller = controller;
            member.health = CircuitBreaker::default();
        }
    }

    /// Records that the controller `name` is `other` under a second name, or that it is not: their IPUs count once, and only
    /// one of the names takes new partitions. Nothing happens if there is no controller `name`.
    pub fn set_same_as(&self, name: &ControllerName, other: Option<ControllerName>) {
        if let Some(member) = self.write().iter_mut().find(|member| member.name == *name) {
            member.same_as = other;
        }
    }

    /// The pairs of names that were recorded as those of one controller.
    #[must_use]
    pub fn aliases(&self) -> BTreeSet<(ControllerName, ControllerName)> {
        let members = self.read();
        let pair = |member: &Member<C>| Some((member.name.clone(), member.same_as.clone()?));
        members.iter().filter_map(pair).collect()
    }

    /// Drops the controller `name` if it is draining; to be called when the ledger has no entry of it any more.
    pub fn forget(&self, name: &ControllerName) {
        self.write()
            .retain(|member| member.name != *name || member.listing == MemberState::Listed);
    }

    /// The controllers that may get new partitions, in the order of the list.
    #[must_use]
    pub fn members(&self) -> Vec<Member<C>> {
        self.by_listing(MemberState::Listed)
    }

    /// The controllers that were taken off the list and not forgotten.
    #[must_use]
    pub fn draining(&self) -> Vec<Member<C>> {
        self.by_listing(MemberState::Draining)
    }

    fn by_listing(&self, listing: MemberState) -> Vec<Member<C>> {
        let members = self.read();
        let chosen = members.iter().filter(|member| member.listing == listing);
        chosen.cloned().collect()
    }

    /// The controller `name`, listed or draining.
    #[must_use]
    pub fn get(&self, name: &ControllerName) -> Option<Arc<C>> {
        self.member(name).map(|member| member.controller)
    }

    /// The member `name`, listed or draining.
    #[must_use]
    pub fn member(&self, name: &ControllerName) -> Option<Member<C>> {
        self.read().iter().find(|member| member.name == *name).cloned()
    }

    /// Books how a call to the controller `name` ended, now. An answer is an answer even if it is a refusal: only
    /// [`VipuError::is_unhealthy`] errors count against the controller.
    pub fn record<T>(&self, name: &ControllerName, result: &Result<T, VipuError>) {
        let error = result.as_ref().err().filter(|error| error.is_unhealthy());
        let now = Instant::now();
        if let Some(member) = self.write().iter_mut().find(|member| member.name == *name) {
            member.health.record(now, error);
        }
    }

    // Nothing panics while the lock is held but `connect`, before which nothing is changed: a poisoned list is whole.
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Member<C>>> {
        self.members
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Vec<Member<C>>> {
        self.members
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
