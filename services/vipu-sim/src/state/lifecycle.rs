//! Partition life cycle after creation: time, reset, remove, failure and automatic repair.

use std::time::Duration;

use ipu_core::{PartitionId, Timestamp};

use super::{AutoReset, Phase, SimState};
use crate::error::SimError;

/// Maximum number of automatic resets of a failed partition. The real limit is not public; three is enough
/// to distinguish a transient fault from a permanent one.
pub(crate) const MAX_AUTO_RESETS: u32 = 3;

impl Phase {
    /// Returns the time of the next timed transition.
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
    /// Applies all transitions that are due up to `to`, in order of time. The result does not depend on the
    /// number of calls.
    pub(crate) fn advance(&mut self, to: Timestamp) {
        loop {
            let due = self
                .partitions
                .iter()
                .filter_map(|(id, partition)| Some((partition.phase.due()?, id)));
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

    /// Returns the time `millis` from now.
    pub(super) fn time_after(&self, millis: u64) -> Timestamp {
        self.now.plus(Duration::from_millis(millis))
    }

    /// Applies the transition of this partition that is due at `at`.
    fn advance_partition(&mut self, id: &PartitionId, at: Timestamp) {
        match self.partitions.get(id).map(|partition| &partition.phase) {
            Some(Phase::Creating { .. }) => self.apply_health(id, 0),
            Some(Phase::Resetting { .. }) => {
                let auto_resets = self
                    .partitions
                    .get(id)
                    .map_or(0, |partition| partition.auto_resets);
                self.apply_health(id, auto_resets);
            }
            Some(Phase::Removing { .. }) => {
                self.partitions.remove(id);
            }
            Some(Phase::Failed { .. }) => self.attempt_auto_reset(id, at),
            Some(Phase::Active) | None => {}
        }
    }

    /// Sets the partition active if all its IPUs are healthy, else failed with `auto_resets` attempts used.
    fn apply_health(&mut self, id: &PartitionId, auto_resets: u32) {
        let errors = self.health_errors(id);
        let next = self.time_after(self.settings.auto_reset_ms);
        let Some(partition) = self.partitions.get_mut(id) else {
            return;
        };
        if errors.is_empty() {
            partition.phase = Phase::Active;
            return;
        }
        partition.auto_resets = auto_resets;
        let has_attempts_left = partition.auto_reset == AutoReset::On && auto_resets < MAX_AUTO_RESETS;
        partition.phase = Phase::Failed {
            errors,
            next_attempt: has_attempts_left.then_some(next),
        };
    }

    /// Returns the health errors of a partition's IPUs.
    fn health_errors(&self, id: &PartitionId) -> Vec<String> {
        let Some(partition) = self.partitions.get(id) else {
            return Vec::new();
        };
        let ipu_addresses = self.ipu_addresses(&partition.spec);
        let unhealthy = ipu_addresses
            .iter()
            .filter(|address| !self.hardware.is_good(**address));
        unhealthy
            .map(|address| format!("{} is bad", self.hardware.describe(*address)))
            .collect()
    }

    /// Starts one automatic repair of a failed partition: on its own IPUs, or on others if it is
    /// relocatable.
    fn attempt_auto_reset(&mut self, id: &PartitionId, at: Timestamp) {
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.auto_resets += 1;
            partition.last_auto_reset = Some(at);
        }
        self.start_reset(id);
    }

    /// Starts a reset. Moves the partition first if it is relocatable and has bad IPUs; the end of the
    /// reset shows whether that helped.
    fn start_reset(&mut self, id: &PartitionId) {
        let may_move = self
            .partitions
            .get(id)
            .is_some_and(|partition| partition.relocatable);
        let moved = if may_move && !self.health_errors(id).is_empty() {
            self.choose_replacement(id)
        } else {
            None
        };
        let done_at = self.time_after(self.settings.reset_ms);
        if let Some(partition) = self.partitions.get_mut(id) {
            if let Some(ipus) = moved {
                partition.spec.ipus = ipus;
            }
            partition.phase = Phase::Resetting { done_at };
        }
    }

    /// Fails every active partition with bad IPUs.
    pub(super) fn fail_unhealthy_partitions(&mut self) {
        let active = self
            .partitions
            .iter()
            .filter(|(_, partition)| partition.phase == Phase::Active);
        let active: Vec<PartitionId> = active.map(|(id, _)| id.clone()).collect();
        for id in active {
            self.apply_health(&id, 0);
        }
    }

    /// Starts resetting a partition: PENDING and RESETTING until the delay has passed. `relocatable`
    /// permits it to move from now on.
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
        let id = self.existing_id(id)?;
        let Some(partition) = self.partitions.get_mut(&id) else {
            return Err(SimError::no_partition(id.as_str()));
        };
        match partition.phase {
            Phase::Active | Phase::Failed { .. } => {}
            Phase::Creating { .. } | Phase::Resetting { .. } | Phase::Removing { .. } => {
                let state = partition.phase.label().to_owned();
                let fix = "wait until that operation has ended";
                return Err(SimError::Busy {
                    kind: "partition",
                    id: id.into(),
                    state,
                    fix,
                });
            }
        }
        partition.relocatable |= relocatable == Relocation::Yes;
        partition.auto_resets = 0;
        self.start_reset(&id);
        self.advance(now);
        Ok(())
    }

    /// Starts removing a partition. It holds its IPUs until the delay has passed, and is then unknown. A
    /// repeated call is accepted and changes nothing.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Busy` without `force` while it is being created or reset, or when it is in error.
    pub(crate) fn remove(&mut self, id: &str, force: Force, now: Timestamp) -> Result<(), SimError> {
        self.advance(now);
        let id = self.existing_id(id)?;
        let done_at = self.time_after(self.settings.remove_ms);
        let Some(partition) = self.partitions.get_mut(&id) else {
            return Err(SimError::no_partition(id.as_str()));
        };
        match (&partition.phase, force) {
            (Phase::Removing { .. }, _) => {}
            (Phase::Active, _)
            | (Phase::Creating { .. } | Phase::Resetting { .. } | Phase::Failed { .. }, Force::Yes) => {
                partition.phase = Phase::Removing { done_at };
            }
            (Phase::Creating { .. } | Phase::Resetting { .. }, Force::No) => {
                let state = partition.phase.label().to_owned();
                let fix = "wait until that operation has ended, or remove with force";
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

    /// Parses the id of an existing partition.
    pub(super) fn existing_id(&self, id: &str) -> Result<PartitionId, SimError> {
        let parsed = PartitionId::new(id)
            .ok()
            .filter(|id| self.partitions.contains_key(id));
        parsed.ok_or_else(|| SimError::no_partition(id))
    }
}

/// Relocation mode of a reset; `Keep` preserves the mode set at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relocation {
    Yes,
    Keep,
}

/// Whether to proceed despite errors and operations in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Force {
    Yes,
    No,
}
