//! Owner liveness for ledgers: according to the scheduler's own records, and sometimes unknown.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use ipu_core::{Claim, ControllerName, Entry, EntryState, OwnerLiveness, Request};
use ipu_ledger::Liveness;

use super::world::SimWorld;

/// Probability that the liveness is unknown while faults are injected, in percent.
const UNKNOWN_PERCENT: u32 = 10;

/// Probability that an owner without processes is reported dead although it is live, in percent.
const PREMATURE_PERCENT: u32 = 30;

pub(super) struct Alive(Weak<SimWorld>);

impl Alive {
    pub(super) fn new(world: &Arc<SimWorld>) -> Self {
        Self(Arc::downgrade(world))
    }
}

#[async_trait]
impl Liveness for Alive {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        let Some(world) = self.0.upgrade() else {
            return OwnerLiveness::Unknown;
        };
        if world.is_wild() && world.chance(UNKNOWN_PERCENT) {
            return OwnerLiveness::Unknown;
        }
        let Some(owner) = &entry.owner else {
            return OwnerLiveness::Unknown;
        };
        if world.state().flood.as_ref() == Some(owner) {
            return if world.state().flood_is_over {
                OwnerLiveness::Dead
            } else {
                OwnerLiveness::Live
            };
        }
        let number = world.state().jobs.iter().position(|job| job.owner == *owner);
        let is_deleted = number.is_none_or(|number| world.state().jobs[number].removed);
        let now = world.millis();
        if !is_deleted {
            // Premature report: the grace period of orphans covers it.
            let held = matches!(entry.state, EntryState::Active | EntryState::Failed { .. });
            let idle = number.is_some_and(|number| !world.processes().has_running(number, now));
            let wrong = held
                && idle
                && world.profile.has_grace()
                && world.is_wild()
                && world.chance(PREMATURE_PERCENT);
            return if wrong {
                OwnerLiveness::Dead
            } else {
                OwnerLiveness::Live
            };
        }
        if number.is_some_and(|number| world.processes().has_running(number, now)) {
            OwnerLiveness::Unknown
        } else {
            OwnerLiveness::Dead
        }
    }

    async fn claims(&self) -> Vec<Claim> {
        let Some(world) = self.0.upgrade() else {
            return Vec::new();
        };
        let now = world.millis();
        // The start parameters of a process contain the location of its partition.
        let living: Vec<(usize, u32, u32, ControllerName)> = world
            .processes()
            .running(now)
            .map(|((job, instance, _), attempt, _, controller)| (job, instance, attempt, controller.clone()))
            .collect();
        let state = world.state();
        let claims = living.into_iter().filter(|(job, ..)| !state.jobs[*job].removed);
        claims
            .map(|(number, instance, attempt, controller)| {
                let job = &state.jobs[number];
                let spec = job.spec.partition().clone();
                let mut request = Request::of_instance(job.owner.clone(), instance, spec);
                request.attempt = attempt;
                Claim::at(request, controller)
            })
            .collect()
    }
}
