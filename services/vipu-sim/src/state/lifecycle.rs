//! What happens to a partition after it was asked for: time passing, reset, remove, failure and automatic repair.

use std::time::Duration;

use ipu_core::{PartitionId, Timestamp};

use super::{AutoReset, Phase, SimState};
use crate::error::SimError;

/// How often the controller tries to repair a failed partition by itself. The real limit is not public; three is enough
/// to tell a passing fault from a lasting one.
pub(crate) const MAX_AUTO_RESETS: u32 = 3;

impl Phase {
    /// When something happens next without anybody asking.
    const fn due(&self) -> Option<Timestamp> {
        match self {
            Self::Creating { done_at } | Self::Resetting { done_at } | Self::Removing { done_at } => {
                Some(*done_at)
            }
            Self::Failed { next_attempt, .. } => *next_attempt,
            Self::Active => None,
        }
    }
}

impl SimState {
    /// Lets everything happen that falls due up to `to`, in order of time. Going on in steps or at once is the same.
    pub(crate) fn advance(&mut self, to: Timestamp) {
        loop {
            let due = self
                .partitions
                .iter()
                .filter_map(|(id, held)| Some((held.phase.due()?, id)));
            match due.min() {
                Some((at, id)) if at <= to => {
                    let id = id.clone();
                    self.now = self.now.max(at);
                    self.advance_partition(&id, at);
                }
                _ => break,
            }
        }
        self.now = self.now.max(to);
    }

    /// The moment `millis` from now.
    pub(super) fn after(&self, millis: u64) -> Timestamp {
        self.now.plus(Duration::from_millis(millis))
    }

    /// The one thing that falls due for this partition at `at`.
    fn advance_partition(&mut self, id: &PartitionId, at: Timestamp) {
        match self.partitions.get(id).map(|held| &held.phase) {
            Some(Phase::Creating { .. }) => self.settle_health(id, 0),
            Some(Phase::Resetting { .. }) => {
                let used = self.partitions.get(id).map_or(0, |held| held.auto_resets);
                self.settle_health(id, used);
            }
            Some(Phase::Removing { .. }) => {
                self.partitions.remove(id);
            }
            Some(Phase::Failed { .. }) => self.attempt_auto_reset(id, at),
            Some(Phase::Active) | None => {}
        }
    }

    /// Active if all its IPUs are good, else failed with `auto_resets` attempts used.
    fn settle_health(&mut self, id: &PartitionId, auto_resets: u32) {
        let errors = self.health_errors(id);
        let next = self.after(self.settings.auto_reset_ms);
        let Some(held) = self.partitions.get_mut(id) else {
            return;
        };
        if errors.is_empty() {
            held.phase = Phase::Active;
            return;
        }
        held.auto_resets = auto_resets;
        let goes_on = held.auto_reset == AutoReset::On && auto_resets < MAX_AUTO_RESETS;
        held.phase = Phase::Failed {
            errors,
            next_attempt: goes_on.then_some(next),
        };
    }

    /// What is wrong with the IPUs of a partition.
    fn health_errors(&self, id: &PartitionId) -> Vec<String> {
        let Some(held) = self.partitions.get(id) else {
            return Vec::new();
        };
        let places = self.places(&held.spec);
        let bad = places.iter().filter(|at| !self.hardware.is_good(**at));
        bad.map(|at| format!("{} is bad", self.hardware.describe(*at)))
            .collect()
    }

    /// One attempt of the controller to repair a failed partition: on its own IPUs, or on others if it may move.
    fn attempt_auto_reset(&mut self, id: &PartitionId, at: Timestamp) {
        if let Some(held) = self.partitions.get_mut(id) {
            held.auto_resets += 1;
            held.last_auto_reset = Some(at);
        }
        self.start_reset(id);
    }

    /// Moves the partition if it is on bad IPUs and may move, and starts the reset; the end of the reset tells whether it
    /// helped.
    fn start_reset(&mut self, id: &PartitionId) {
        let may_move = self.partitions.get(id).is_some_and(|held| held.relocatable);
        let moved = if may_move && !self.health_errors(id).is_empty() {
            self.choose_again(id)
        } else {
            None
        };
        let done_at = self.after(self.settings.reset_ms);
        if let Some(held) = self.partitions.get_mut(id) {
            if let Some(ipus) = moved {
                held.spec.ipus = ipus;
            }
            held.phase = Phase::Resetting { done_at };
        }
    }

    /// Fails every active partition that has become bad.
    pub(super) fn notice_bad_ipus(&mut self) {
        let active = self
            .partitions
            .iter()
            .filter(|(_, held)| held.phase == Phase::Active);
        let active: Vec<PartitionId> = active.map(|(id, _)| id.clone()).collect();
        for id in active {
            self.settle_health(&id, 0);
        }
    }

    /// Starts to reset a partition: PENDING and RESETTING until the delay has passed. `relocatable` lets it move from now on.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Busy` while it is being created, reset or removed.
    pub(crate) fn reset(
        &mut self,
        id: &str,
        relocatable: Relocation,
        now: Timestamp,
    ) -> Result<(), SimError> {
        self.advance(now);
        let id = self.known(id)?;
        let Some(held) = self.partitions.get_mut(&id) else {
            return Err(SimError::no_partition(id.as_str()));
        };
        match held.phase {
            Phase::Active | Phase::Failed { .. } => {}
            Phase::Creating { .. } | Phase::Resetting { .. } | Phase::Removing { .. } => {
                let state = held.phase.label().to_owned();
                let fix = "wait until that has ended";
                return Err(SimError::Busy {
                    kind: "partition",
                    id: id.into(),
                    state,
                    fix,
                });
            }
        }
        held.relocatable |= relocatable == Relocation::Yes;
        held.auto_resets = 0;
        self.start_reset(&id);
        self.advance(now);
        Ok(())
    }

    /// Starts to remove a partition: it still holds its IPUs until the delay has passed, and is unknown then. Asking again
    /// meanwhile is accepted and changes nothing.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Busy` without `force` while it is being created or reset, or when it is in error.
    pub(crate) fn remove(&mut self, id: &str, force: Force, now: Timestamp) -> Result<(), SimError> {
        self.advance(now);
        let id = self.known(id)?;
        let done_at = self.after(self.settings.remove_ms);
        let Some(held) = self.partitions.get_mut(&id) else {
            return Err(SimError::no_partition(id.as_str()));
        };
        match (&held.phase, force) {
            (Phase::Removing { .. }, _) => {}
            (Phase::Active, _)
            | (Phase::Creating { .. } | Phase::Resetting { .. } | Phase::Failed { .. }, Force::Yes) => {
                held.phase = Phase::Removing { done_at };
            }
            (Phase::Creating { .. } | Phase::Resetting { .. }, Force::No) => {
                let state = held.phase.label().to_owned();
                let fix = "wait until that has ended, or remove with force";
                return Err(SimError::Busy {
                    kind: "partition",
                    id: id.into(),
                    state,
                    fix,
                });
            }
            (Phase::Failed { errors, .. }, Force::No) => {
                let state = format!("in error ({})", errors.join("; "));
                let fix = "reset it, or remove with force";
                return Err(SimError::Busy {
                    kind: "partition",
                    id: id.into(),
                    state,
                    fix,
                });
            }
        }
        self.advance(now);
        Ok(())
    }

    /// The id of a partition that exists.
    pub(super) fn known(&self, id: &str) -> Result<PartitionId, SimError> {
        let parsed = PartitionId::new(id)
            .ok()
            .filter(|id| self.partitions.contains_key(id));
        parsed.ok_or_else(|| SimError::no_partition(id))
    }
}

/// Whether a partition may be given other IPUs; `Keep` leaves what was said when it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relocation {
    Yes,
    Keep,
}

/// Whether to go on in spite of errors and of operations under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Force {
    Yes,
    No,
}
