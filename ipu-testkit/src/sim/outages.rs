//! Controller outages, and controllers that restart without their partitions.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{Change, ControllerName, EntryState, PartitionId};

use super::owners::{is_held_at, is_quarantined};
use super::profile::primary;
use super::world::SimWorld;

/// Maximum delay between a commit and the drawn restart of a controller, in milliseconds: longer than most
/// controller operations, so that the restart falls before, during and after the call and its poll.
const MAX_RESTART_DELAY_MS: u32 = 4_000;

fn any_controller(world: &SimWorld) -> usize {
    world.below(u32::try_from(world.controllers.len()).unwrap_or(1)) as usize
}

pub(super) fn go_down(world: &SimWorld) {
    let (name, controller) = &world.controllers[any_controller(world)];
    controller.start_outage();
    world.count_event("controller down");
    world.log("world", format_args!("controller {name} goes down"));
}

pub(super) fn come_up(world: &SimWorld) {
    for (name, controller) in &world.controllers {
        if controller.end_outage() {
            world.log("world", format_args!("controller {name} comes up"));
        }
    }
}

/// Restarts any controller without its partitions.
pub(super) fn empty_any(world: &SimWorld) {
    let name = world.controllers[any_controller(world)].0.clone();
    empty(world, &name);
}

/// Draws whether the controller of a just committed partition restarts empty soon.
pub(super) fn empty_after(world: &Arc<SimWorld>, changes: &[Change]) {
    let touched = changes.iter().find_map(|change| match change {
        Change::Put(entry) if matches!(entry.state, EntryState::Intent { .. } | EntryState::Active) => {
            entry.controller.as_ref().map(primary)
        }
        _ => None,
    });
    let Some(name) = touched.filter(|_| world.is_wild() && world.chance(world.profile.empties)) else {
        return;
    };
    let pause = Duration::from_millis(u64::from(world.below(MAX_RESTART_DELAY_MS)));
    let world = Arc::clone(world);
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        if world.is_wild() {
            empty(&world, &name);
        }
    });
}

/// Restarts a controller without its partitions. Workers keep their IPUs.
fn empty(world: &SimWorld, name: &ControllerName) {
    let Some(controller) = world.controller(name) else {
        return;
    };
    let held = controller.held();
    let forgotten: Vec<String> = held
        .iter()
        .map(|held| format!("{} on {:x?}", held.id, held.masks))
        .collect();
    let lost: Vec<PartitionId> = held.into_iter().map(|held| held.id).collect();
    controller.lose_partitions();
    controller.end_outage();
    let entries = world.store.entries();
    // After a ledger loss, the controller had the only record of some partitions, and the owners of others
    // are unknown.
    let unclaimed =
        |job: usize, id: &PartitionId| is_quarantined(&entries, id) && world.state().jobs[job].removed;
    world
        .processes()
        .exempt(|job, id, at| at != name || is_held_at(&entries, id, at) && !unclaimed(job, id));
    let recorded = || {
        entries
            .values()
            .filter(|entry| entry.controller.as_ref() == Some(name))
    };
    let intents = recorded().any(|entry| matches!(entry.state, EntryState::Intent { .. }));
    let unknown = recorded().any(|entry| entry.state == EntryState::Active && entry.places.is_empty());
    let mut state = world.state();
    state.lost.extend(lost.into_iter().map(|id| (name.clone(), id)));
    drop(state);
    world.count_event("controller emptied");
    if intents {
        world.count_event("controller emptied with intents open");
    }
    if unknown {
        world.count_event("controller emptied with owners of unknown IPUs");
    }
    let message = format!(
        "controller {name} restarts empty; it had {}",
        forgotten.join(", ")
    );
    world.log("world", message);
}
