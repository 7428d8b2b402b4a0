//! What ledgers are told of their owners: as the scheduler's own records have it, and sometimes nothing.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use ipu_core::{Claim, ControllerName, Entry, EntryState, OwnerLiveness, Request};
use ipu_ledger::Liveness;

use super::world::SimWorld;

/// How often a question is not answered in wild times, in percent.
const NO_ANSWER: u32 = 10;

/// How often an owner of whom nothing runs is taken for dead although he is not, in percent.
const TOO_EARLY: u32 = 30;

pub(super) struct Alive(Weak<SimWorld>);

impl Alive {
    pub(super) fn new(world: &Arc<SimWorld>) -> Self {
        Self(Arc::downgrade(world))
    }
}

#[async_trait]
impl Liveness for Alive {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
        let Some(world) = self.0.upgrade() else {
            return OwnerLiveness::Unknown;
        };
        if world.is_wild() && world.chance(NO_ANSWER) {
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
        let gone = number.is_none_or(|number| world.state().jobs[number].gone);
        let now = world.millis();
        if !gone {
            // Somebody who looked too early: the grace of orphans is for that.
            let held = matches!(entry.state, EntryState::Active | EntryState::Failed { .. });
            let idle = number.is_some_and(|number| !world.processes().any_of(number, now));
            let wrong =
                held && idle && world.profile.has_grace() && world.is_wild() && world.chance(TOO_EARLY);
            return if wrong {
                OwnerLiveness::Dead
            } else {
                OwnerLiveness::Live
            };
        }
        if number.is_some_and(|number| world.processes().any_of(number, now)) {
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
        // What a process was started with says where its partition is.
        let living: Vec<(usize, u32, u32, ControllerName)> = world
            .processes()
            .living(now)
            .map(|((job, instance, _), attempt, _, controller)| (job, instance, attempt, controller.clone()))
            .collect();
        let state = world.state();
        let claims = living.into_iter().filter(|(job, ..)| !state.jobs[*job].gone);
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
