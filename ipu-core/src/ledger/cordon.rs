//! Cordons: hardware that takes no new partitions, with an owner and a reason.
//!
//! Cordons are part of the ledger's state, so that the compare-and-swap that commits an intent covers them
//! too. No request starts on capacity that was cordoned meanwhile. Partitions there keep their IPUs.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, ControllerName, CordonId, CordonOwner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{Capacity, ControllersSnapshot, Listing, ODD, digest};
use crate::ledger::capacity_snapshot::allows;
use crate::ledger::change::Change;
use crate::ledger::entry::Entry;
use crate::ledger::queue::Blocker;
use crate::ledger::transition_error::TransitionError;
use crate::ledger::transitions::Transition;
use crate::reason::Reason;
use crate::units::Timestamp;

/// Number of cordons that a message describes.
const MAX_NAMES: usize = 3;

/// The part of a controller that is cordoned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CordonTarget {
    /// All of it. The only target at a controller whose hardware is not known.
    Controller,
    /// The machine of this agent.
    Machine(AgentId),
    /// One IPU of the machine of this agent: 0 to 3, by its number in the machine.
    Ipu(AgentId, u32),
}

impl fmt::Display for CordonTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str("the whole controller"),
            Self::Machine(agent) => write!(f, "machine {agent}"),
            Self::Ipu(agent, ipu) => write!(f, "IPU {ipu} of machine {agent}"),
        }
    }
}

/// Hardware that takes no new partitions until the owner of the cordon removes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Cordon {
    /// The cordon id.
    pub id: CordonId,
    /// Name of the controller.
    pub controller: ControllerName,
    /// The cordoned hardware.
    #[serde(rename = "what")]
    pub target: CordonTarget,
    /// Owner of the cordon, and the only one that may remove it.
    pub owner: CordonOwner,
    /// Reason, shown to users.
    pub reason: String,
    /// Time of the record.
    pub since: Timestamp,
}

impl Cordon {
    /// The version of the stored form of a ledger with cordons.
    pub const FORMAT: u32 = 2;

    /// Maximum length of a reason in bytes: two sentences. The ledger has to keep space for releases beside
    /// all cordons.
    pub const MAX_REASON_LEN: usize = 256;

    /// Creates a cordon to be recorded, which sets `since`.
    #[must_use]
    pub fn new(
        id: CordonId,
        controller: ControllerName,
        what: CordonTarget,
        owner: CordonOwner,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            id,
            controller,
            target: what,
            owner,
            reason: reason.into(),
            since: Timestamp::from_millis(0),
        }
    }

    fn equals_except_since(&self, other: &Self) -> bool {
        let mut other = other.clone();
        other.since = self.since;
        *self == other
    }
}

impl fmt::Display for Cordon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            target,
            owner,
            reason,
            ..
        } = self;
        write!(f, "{id} ({target}) by {owner}: {reason}")
    }
}

/// The effect of a cordon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CordonEffect {
    /// The recorded cordon.
    #[serde(rename = "exclusion")]
    pub cordon: Cordon,
    /// Holders of cordoned IPUs, by id, which keep them. Includes holders whose IPUs are not known yet. If
    /// the controller cannot be queried: all holders that the ledger records at it.
    pub holders: Vec<Blocker>,
}

impl LedgerState {
    /// Appends the cordons of the controllers that `entry` may use to the message of `reason`, at most three.
    pub(crate) fn append_cordons(&self, reason: &mut Reason, snapshot: &ControllersSnapshot, entry: &Entry) {
        let is_allowed = |cordon: &&Cordon| allows(entry, snapshot.primary(&cordon.controller));
        let mut cordons = self.cordons().filter(is_allowed).peekable();
        if cordons.peek().is_none() {
            return;
        }
        let texts: Vec<String> = cordons
            .by_ref()
            .take(MAX_NAMES)
            .map(ToString::to_string)
            .collect();
        reason.message = format!("{}; cordons: {}", reason.message, texts.join(", "));
        if let more @ 1.. = cordons.count() {
            reason.message.push_str(&format!(" and {more} more"));
        }
    }

    /// Returns the state with these cordons added.
    #[must_use]
    pub fn with_cordons(mut self, cordons: impl IntoIterator<Item = Cordon>) -> Self {
        for cordon in cordons {
            self.cordons.insert(cordon.id.clone(), Arc::new(cordon));
        }
        self
    }

    /// Iterates over all cordons, by id.
    pub fn cordons(&self) -> impl Iterator<Item = &Cordon> {
        self.cordons.values().map(|cordon| &**cordon)
    }

    /// Cordons hardware. Repeating the same cordon changes nothing. A controller that cannot be queried is
    /// cordoned too. Hardware of it that does not exist is detected at the next query, and does no harm.
    ///
    /// # Errors
    ///
    /// [`TransitionError::OtherCordon`] if another cordon has the id. [`TransitionError::CannotCordon`] if
    /// the controller is not configured, has no such hardware, or does not report its hardware, or if the
    /// reason is too long.
    pub fn cordon(
        &self,
        mut cordon: Cordon,
        snapshot: &ControllersSnapshot,
        now: Timestamp,
    ) -> Result<Transition<CordonEffect>, TransitionError> {
        cordon.since = now;
        let rejected = |why: String| TransitionError::CannotCordon {
            what: Box::new(cordon.target.clone()),
            controller: cordon.controller.clone(),
            why,
        };
        if cordon.owner.is_reserved() {
            return Err(rejected(alloc::format!("the name {} is reserved", cordon.owner)));
        }
        let recorded = self.cordons.get(&cordon.id);
        if let Some(recorded) = recorded
            && !recorded.equals_except_since(&cordon)
        {
            return Err(other_cordon(recorded));
        }
        if recorded.is_none() && cordon.reason.len() > Cordon::MAX_REASON_LEN {
            return Err(rejected(alloc::format!(
                "its reason has {} bytes and may have {}; shorten it",
                cordon.reason.len(),
                Cordon::MAX_REASON_LEN
            )));
        }
        let snapshot = &*self.by_controller(snapshot);
        let primary = snapshot.primary(&cordon.controller);
        let view = snapshot
            .controllers
            .iter()
            .find(|view| view.name == *primary)
            .ok_or_else(|| rejected(String::from("it is not configured")))?;
        let holders = match &view.listing {
            Ok(listing) => {
                let mut capacity = listing.capacity().fork();
                let unplaced = self.reserve_recorded(snapshot, &view.name, &mut *capacity);
                let mut holders = capacity
                    .cordon(&cordon.owner, &cordon.target)
                    .map_err(|reason| rejected(reason.message))?;
                // Their partitions may appear there.
                holders.extend(unplaced);
                holders.sort_unstable();
                holders.dedup();
                holders
            }
            // Another name without a listing may be this controller: no evidence tells them apart.
            Err(_) => self.holders_without_listing(snapshot),
        };
        let changes = match recorded {
            Some(_) => Vec::new(),
            None => Vec::from([Change::Cordon(Arc::new(cordon.clone()))]),
        };
        let outcome = CordonEffect {
            cordon: recorded.map_or(cordon, |recorded| Cordon::clone(recorded)),
            holders: holders
                .into_iter()
                .map(|id| self.blocker(snapshot, id, now))
                .collect(),
        };
        Ok(Transition { outcome, changes })
    }

    /// Removes a cordon on behalf of its owner. Returns the cordon; none if there is none of that id.
    ///
    /// # Errors
    ///
    /// [`TransitionError::OtherCordon`] if the cordon has another owner.
    pub fn uncordon(
        &self,
        id: &CordonId,
        owner: &CordonOwner,
    ) -> Result<Transition<Option<Cordon>>, TransitionError> {
        match self.cordons.get(id) {
            None => Ok(Transition::unchanged(None)),
            Some(recorded) if recorded.owner == *owner => Ok(Transition {
                outcome: Some(Cordon::clone(recorded)),
                changes: Vec::from([Change::Lift(id.clone())]),
            }),
            Some(recorded) => Err(other_cordon(recorded)),
        }
    }

    /// Subtracts the cordoned hardware of `controller`, under any of its names, from `capacity`, in which all
    /// holders have their IPUs already. Returns the first cordon.
    pub(crate) fn cordon_capacity(
        &self,
        snapshot: &ControllersSnapshot,
        controller: &ControllerName,
        capacity: &mut dyn Capacity,
    ) -> Option<&Cordon> {
        for cordon in self.cordons_at(snapshot, controller) {
            // Hardware that does not exist subtracts nothing. Capacity that cannot cordon a part of itself is
            // closed then.
            let _ = capacity.cordon(&cordon.owner, &cordon.target);
        }
        self.cordons_at(snapshot, controller).next()
    }

    /// Returns the first cordon of the controller `name`, under any of its names.
    #[must_use]
    pub fn cordon_at(&self, snapshot: &ControllersSnapshot, name: &ControllerName) -> Option<&Cordon> {
        let snapshot = &*self.with_primaries(snapshot);
        self.cordons_at(snapshot, snapshot.primary(name)).next()
    }

    /// Returns the fingerprint for a [`ControllerRejection`](crate::ControllerRejection) by the controller
    /// `name`: that of its listing, and of its cordons. None if the controller could not be queried.
    #[must_use]
    pub fn capacity_fingerprint(&self, snapshot: &ControllersSnapshot, name: &ControllerName) -> Option<u64> {
        let snapshot = &*self.with_primaries(snapshot);
        let primary = snapshot.primary(name);
        Some(self.fingerprint_at(snapshot, primary, snapshot.listing(primary)?))
    }

    /// Returns the fingerprint of `listing`, the one of the controller `primary`, and of its cordons.
    pub(crate) fn fingerprint_at(
        &self,
        snapshot: &ControllersSnapshot,
        primary: &ControllerName,
        listing: &Listing,
    ) -> u64 {
        let cordons = self.cordons_at(snapshot, primary).map(|cordon| {
            // A cordon never changes, but another one may have its id later.
            digest(cordon.id.as_str()) ^ cordon.since.as_millis().wrapping_mul(ODD)
        });
        cordons.fold(listing.fingerprint(), |all, cordon| all ^ cordon)
    }

    /// Iterates over the cordons of `controller`, under any of its names, by id.
    pub(crate) fn cordons_at(
        &self,
        snapshot: &ControllersSnapshot,
        controller: &ControllerName,
    ) -> impl Iterator<Item = &Cordon> {
        let is_here = move |cordon: &&Cordon| snapshot.primary(&cordon.controller) == controller;
        self.cordons().filter(is_here)
    }

    /// Reserves the recorded IPUs of the holders that `capacity` does not show. Returns the holders without a
    /// reservation: a call for them is under way, or another partition has their IPUs.
    pub(crate) fn reserve_recorded(
        &self,
        snapshot: &ControllersSnapshot,
        controller: &ControllerName,
        capacity: &mut dyn Capacity,
    ) -> Vec<PartitionId> {
        let mut unplaced = Vec::new();
        for entry in self.entries().filter(|entry| entry.state.holds()) {
            if entry.is_at(snapshot, controller)
                && !capacity.has(&entry.id)
                && (entry.places.is_empty()
                    || capacity.reserve(&entry.id, &entry.spec, &entry.places).is_err())
            {
                unplaced.push(entry.id.clone());
            }
        }
        unplaced
    }

    /// Returns the holders at controllers that are not configured or do not answer.
    fn holders_without_listing(&self, snapshot: &ControllersSnapshot) -> Vec<PartitionId> {
        let is_unlisted = |entry: &&Entry| {
            let controller = entry.controller.as_ref();
            controller.is_some_and(|name| snapshot.listing(snapshot.primary(name)).is_none())
        };
        let holders = self.entries().filter(|entry| entry.state.holds());
        holders
            .filter(is_unlisted)
            .map(|entry| entry.id.clone())
            .collect()
    }

    fn blocker(&self, snapshot: &ControllersSnapshot, id: PartitionId, now: Timestamp) -> Blocker {
        let entry = self.get(&id);
        let listed = || snapshot.find(&id).map(|(_, partition)| partition.spec.size);
        Blocker {
            owner: entry.and_then(|entry| entry.owner.clone()),
            size: entry.map(|entry| entry.spec.size).or_else(listed),
            until: entry.and_then(|entry| entry.declared_end(now)),
            id,
        }
    }
}

fn other_cordon(recorded: &Cordon) -> TransitionError {
    TransitionError::OtherCordon {
        recorded: Box::new(recorded.clone()),
    }
}
