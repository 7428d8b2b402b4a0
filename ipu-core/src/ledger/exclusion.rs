//! Exclusions (cordons): hardware that gets nothing new, who said so, and why.
//!
//! They are part of the ledger's state, so that they count in the same compare-and-swap as the intent: nobody goes by a room
//! that was excluded meanwhile. Who holds something there keeps it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, ControllerName, ExclusionId, ExclusionOwner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{Capacity, World};
use crate::ledger::change::Change;
use crate::ledger::illegal::Illegal;
use crate::ledger::line::Blocker;
use crate::ledger::moves::Step;
use crate::units::Timestamp;

/// What of a controller gets nothing new.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ExclusionTarget {
    /// All of it. The only target at a controller whose hardware is not known.
    Controller,
    /// The machine of this agent.
    Machine(AgentId),
    /// One IPU of the machine of this agent: 0 to 3, by its place in the machine.
    Ipu(AgentId, u32),
}

impl fmt::Display for ExclusionTarget {
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
pub struct Exclusion {
    /// Which.
    pub id: ExclusionId,
    /// At which controller.
    pub controller: ControllerName,
    /// What.
    pub what: ExclusionTarget,
    /// Who excluded it, and alone lifts it.
    pub owner: ExclusionOwner,
    /// Why, for people.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

impl Exclusion {
    /// The version of the stored form of a ledger with exclusions.
    pub const FORMAT: u32 = 2;

    /// The most bytes of a reason: two sentences. The ledger has to keep room for releases beside all exclusions.
    pub const MAX_REASON_LEN: usize = 256;

    /// An exclusion that is to be recorded; `since` is set then.
    #[must_use]
    pub fn new(
        id: ExclusionId,
        controller: ControllerName,
        what: ExclusionTarget,
        owner: ExclusionOwner,
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

/// What an exclusion comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Excluded {
    /// As it is recorded.
    pub exclusion: Exclusion,
    /// Owners that hold or may hold something there and keep it, by id: those whose IPUs are there, and those whose
    /// IPUs are not known yet. If the controller does not answer: all that the ledger records at this controller.
    pub holders: Vec<Blocker>,
}

impl LedgerState {
    /// The same, with these exclusions besides.
    #[must_use]
    pub fn with_exclusions(mut self, exclusions: impl IntoIterator<Item = Exclusion>) -> Self {
        for exclusion in exclusions {
            self.exclusions.insert(exclusion.id.clone(), Arc::new(exclusion));
        }
        self
    }

    /// All exclusions, by id.
    pub fn exclusions(&self) -> impl Iterator<Item = &Exclusion> {
        self.exclusions.values().map(|exclusion| &**exclusion)
    }

    /// Somebody excludes hardware. To say the same again changes nothing. A controller that does not answer is excluded
    /// from all the same; what of it does not exist is seen when it answers again, and does no harm.
    ///
    /// # Errors
    ///
    /// [`Illegal::OtherExclusion`] if the id is taken by another exclusion, [`Illegal::CannotExclude`] if the controller is
    /// not configured, has no such hardware, or does not tell its hardware, or the reason is too long.
    pub fn exclude(
        &self,
        mut exclusion: Exclusion,
        world: &World,
        now: Timestamp,
    ) -> Result<Step<Excluded>, Illegal> {
        exclusion.since = now;
        let cannot = |why: String| Illegal::CannotExclude {
            what: Box::new(exclusion.what.clone()),
            controller: exclusion.controller.clone(),
            why,
        };
        if exclusion.owner.is_reserved() {
            return Err(cannot(alloc::format!(
                "the name {} is the ledger's own",
                exclusion.owner
            )));
        }
        let recorded = self.exclusions.get(&exclusion.id);
        if let Some(recorded) = recorded
            && !recorded.same_but_since(&exclusion)
        {
            return Err(other(recorded));
        }
        if recorded.is_none() && exclusion.reason.len() > Exclusion::MAX_REASON_LEN {
            return Err(cannot(alloc::format!(
                "its reason has {} bytes and may have {}; shorten it",
                exclusion.reason.len(),
                Exclusion::MAX_REASON_LEN
            )));
        }
        let world = &*self.by_controller(world);
        let primary = world.primary(&exclusion.controller);
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
                    .exclude(&exclusion.owner, &exclusion.what)
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
            None => Vec::from([Change::Exclude(Arc::new(exclusion.clone()))]),
        };
        let outcome = Excluded {
            exclusion: recorded.map_or(exclusion, |recorded| Exclusion::clone(recorded)),
            holders: holders
                .into_iter()
                .map(|id| self.blocker(world, id, now))
                .collect(),
        };
        Ok(Step { outcome, changes })
    }

    /// The owner of an exclusion lifts it. Answers what it was; none if there is none of that id.
    ///
    /// # Errors
    ///
    /// [`Illegal::OtherExclusion`] if it is somebody else's.
    pub fn lift(&self, id: &ExclusionId, owner: &ExclusionOwner) -> Result<Step<Option<Exclusion>>, Illegal> {
        match self.exclusions.get(id) {
            None => Ok(Step::nothing(None)),
            Some(recorded) if recorded.owner == *owner => Ok(Step {
                outcome: Some(Exclusion::clone(recorded)),
                changes: Vec::from([Change::Lift(id.clone())]),
            }),
            Some(recorded) => Err(other(recorded)),
        }
    }

    /// Takes what is excluded at `controller`, under any of its names, off `room`, in which all holders have their places
    /// already.
    pub(crate) fn take_off_excluded(
        &self,
        world: &World,
        controller: &ControllerName,
        room: &mut dyn Capacity,
    ) {
        let here = |exclusion: &&Exclusion| world.primary(&exclusion.controller) == controller;
        for exclusion in self.exclusions().filter(here) {
            // What does not exist takes nothing off; a room that cannot exclude a part of itself is closed then.
            let _ = room.exclude(&exclusion.owner, &exclusion.what);
        }
    }

    /// Gives the holders that `room` does not show the IPUs that the ledger has recorded. Returns those that hold IPUs
    /// which it cannot name: a call for them is under way, or another partition has theirs.
    pub(crate) fn enter_holders(
        &self,
        world: &World,
        controller: &ControllerName,
        room: &mut dyn Capacity,
    ) -> Vec<PartitionId> {
        let mut unplaced = Vec::new();
        for entry in self.entries().filter(|entry| entry.state.holds()) {
            if entry.is_at(world, controller)
                && !room.has(&entry.id)
                && (entry.places.is_empty() || room.take(&entry.id, &entry.spec, &entry.places).is_err())
            {
                unplaced.push(entry.id.clone());
            }
        }
        unplaced
    }

    fn holders_at(&self, world: &World, controller: &ControllerName) -> Vec<PartitionId> {
        let holders = self.entries().filter(|entry| entry.state.holds());
        let there = holders.filter(|entry| entry.is_at(world, controller));
        there.map(|entry| entry.id.clone()).collect()
    }

    fn blocker(&self, world: &World, id: PartitionId, now: Timestamp) -> Blocker {
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

fn other(recorded: &Exclusion) -> Illegal {
    Illegal::OtherExclusion {
        recorded: Box::new(recorded.clone()),
    }
}
