//! Cordons (cordons): hardware that gets nothing new, who said so, and why.
//!
//! They are part of the ledger's state, so that they count in the same compare-and-swap as the intent: nobody goes by a room
//! that was cordoned meanwhile. Who holds something there keeps it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, ControllerName, CordonId, CordonOwner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{Capacity, ControllersSnapshot};
use crate::ledger::change::Change;
use crate::ledger::queue::Blocker;
use crate::ledger::transition_error::TransitionError;
use crate::ledger::transitions::Transition;
use crate::units::Timestamp;

/// What of a controller gets nothing new.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum CordonTarget {
    /// All of it. The only target at a controller whose hardware is not known.
    Controller,
    /// The machine of this agent.
    Machine(AgentId),
    /// One IPU of the machine of this agent: 0 to 3, by its place in the machine.
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

/// Hardware that gets nothing new until its owner lifts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Cordon {
    /// Which.
    pub id: CordonId,
    /// At which controller.
    pub controller: ControllerName,
    /// What.
    pub what: CordonTarget,
    /// Who cordoned it, and alone lifts it.
    pub owner: CordonOwner,
    /// Why, for people.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

impl Cordon {
    /// The version of the stored form of a ledger with cordons.
    pub const FORMAT: u32 = 2;

    /// The most bytes of a reason: two sentences. The ledger has to keep room for releases beside all cordons.
    pub const MAX_REASON_LEN: usize = 256;

    /// An cordon that is to be recorded; `since` is set then.
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
            what,
            owner,
            reason: reason.into(),
            since: Timestamp::from_millis(0),
        }
    }

    fn same_but_since(&self, other: &Self) -> bool {
        let mut other = other.clone();
        other.since = self.since;
        *self == other
    }
}

/// What an cordon comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CordonEffect {
    /// As it is recorded.
    #[serde(rename = "exclusion")]
    pub cordon: Cordon,
    /// Owners that hold or may hold something there and keep it, by id: those whose IPUs are there, and those whose
    /// IPUs are not known yet. If the controller does not answer: all that the ledger records at this controller.
    pub holders: Vec<Blocker>,
}

impl LedgerState {
    /// The same, with these cordons besides.
    #[must_use]
    pub fn with_cordons(mut self, cordons: impl IntoIterator<Item = Cordon>) -> Self {
        for cordon in cordons {
            self.cordons.insert(cordon.id.clone(), Arc::new(cordon));
        }
        self
    }

    /// All cordons, by id.
    pub fn cordons(&self) -> impl Iterator<Item = &Cordon> {
        self.cordons.values().map(|cordon| &**cordon)
    }

    /// Somebody cordons hardware. To say the same again changes nothing. A controller that does not answer is cordoned
    /// from all the same; what of it does not exist is seen when it answers again, and does no harm.
    ///
    /// # Errors
    ///
    /// [`TransitionError::OtherCordon`] if the id is taken by another cordon, [`TransitionError::CannotCordon`] if the controller is
    /// not configured, has no such hardware, or does not tell its hardware, or the reason is too long.
    pub fn cordon(
        &self,
        mut cordon: Cordon,
        world: &ControllersSnapshot,
        now: Timestamp,
    ) -> Result<Transition<CordonEffect>, TransitionError> {
        cordon.since = now;
        let cannot = |why: String| TransitionError::CannotCordon {
            what: Box::new(cordon.what.clone()),
            controller: cordon.controller.clone(),
            why,
        };
        if cordon.owner.is_reserved() {
            return Err(cannot(alloc::format!(
                "the name {} is the ledger's own",
                cordon.owner
            )));
        }
        let recorded = self.cordons.get(&cordon.id);
        if let Some(recorded) = recorded
            && !recorded.same_but_since(&cordon)
        {
            return Err(other(recorded));
        }
        if recorded.is_none() && cordon.reason.len() > Cordon::MAX_REASON_LEN {
            return Err(cannot(alloc::format!(
                "its reason has {} bytes and may have {}; shorten it",
                cordon.reason.len(),
                Cordon::MAX_REASON_LEN
            )));
        }
        let world = &*self.by_controller(world);
        let primary = world.primary(&cordon.controller);
        let view = world
            .controllers
            .iter()
            .find(|view| view.name == *primary)
            .ok_or_else(|| cannot(String::from("it is not configured")))?;
        let holders = match &view.listing {
            Ok(listing) => {
                let mut room = listing.capacity().fork();
                let unplaced = self.enter_holders(world, &view.name, &mut *room);
                let mut holders = room
                    .cordon(&cordon.owner, &cordon.what)
                    .map_err(|reason| cannot(reason.message))?;
                // Their partitions may turn up there.
                holders.extend(unplaced);
                holders.sort_unstable();
                holders.dedup();
                holders
            }
            Err(_) => self.holders_at(world, &view.name),
        };
        let changes = match recorded {
            Some(_) => Vec::new(),
            None => Vec::from([Change::Cordon(Arc::new(cordon.clone()))]),
        };
        let outcome = CordonEffect {
            cordon: recorded.map_or(cordon, |recorded| Cordon::clone(recorded)),
            holders: holders
                .into_iter()
                .map(|id| self.blocker(world, id, now))
                .collect(),
        };
        Ok(Transition { outcome, changes })
    }

    /// The owner of an cordon lifts it. Answers what it was; none if there is none of that id.
    ///
    /// # Errors
    ///
    /// [`TransitionError::OtherCordon`] if it is somebody else's.
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
            Some(recorded) => Err(other(recorded)),
        }
    }

    /// Takes what is cordoned at `controller`, under any of its names, off `room`, in which all holders have their places
    /// already.
    pub(crate) fn take_off_cordoned(
        &self,
        world: &ControllersSnapshot,
        controller: &ControllerName,
        room: &mut dyn Capacity,
    ) {
        let here = |cordon: &&Cordon| world.primary(&cordon.controller) == controller;
        for cordon in self.cordons().filter(here) {
            // What does not exist takes nothing off; a room that cannot cordon a part of itself is closed then.
            let _ = room.cordon(&cordon.owner, &cordon.what);
        }
    }

    /// Gives the holders that `room` does not show the IPUs that the ledger has recorded. Returns those that hold IPUs
    /// which it cannot name: a call for them is under way, or another partition has theirs.
    pub(crate) fn enter_holders(
        &self,
        world: &ControllersSnapshot,
        controller: &ControllerName,
        room: &mut dyn Capacity,
    ) -> Vec<PartitionId> {
        let mut unplaced = Vec::new();
        for entry in self.entries().filter(|entry| entry.state.holds()) {
            if entry.is_at(world, controller)
                && !room.has(&entry.id)
                && (entry.places.is_empty() || room.reserve(&entry.id, &entry.spec, &entry.places).is_err())
            {
                unplaced.push(entry.id.clone());
            }
        }
        unplaced
    }

    fn holders_at(&self, world: &ControllersSnapshot, controller: &ControllerName) -> Vec<PartitionId> {
        let holders = self.entries().filter(|entry| entry.state.holds());
        let there = holders.filter(|entry| entry.is_at(world, controller));
        there.map(|entry| entry.id.clone()).collect()
    }

    fn blocker(&self, world: &ControllersSnapshot, id: PartitionId, now: Timestamp) -> Blocker {
        let entry = self.get(&id);
        let listed = || world.find(&id).map(|(_, partition)| partition.spec.size);
        Blocker {
            owner: entry.and_then(|entry| entry.owner.clone()),
            size: entry.map(|entry| entry.spec.size).or_else(listed),
            until: entry.and_then(|entry| entry.until(now)),
            id,
        }
    }
}

fn other(recorded: &Cordon) -> TransitionError {
    TransitionError::OtherCordon {
        recorded: Box::new(recorded.clone()),
    }
}
