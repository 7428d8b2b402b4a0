//! List of controllers, which an administrator edits while partitions are held. Each process follows some
//! time later.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::ControllerName;
use ipu_vipu_client::{ControllerEndpoint, ControllerPool};

use super::driver::SimLedger;
use super::profile::primary;
use super::world::SimWorld;
use crate::fake::FakeController;

/// Maximum time until a process follows an edit, in milliseconds: the documented minute.
const MAX_FOLLOW_MS: u32 = 60_000;

/// Removes a controller from the list, adds one, or changes the order.
pub(super) fn edit(world: &Arc<SimWorld>) {
    let missing: Vec<ControllerName> = {
        let state = world.state();
        let is_missing = |name: &&ControllerName| !state.listed.contains(name);
        let names = world.controllers.iter().map(|(name, _)| name.clone());
        names
            .chain(world.profile.alias())
            .filter(|name| is_missing(&name))
            .collect()
    };
    let (add, place) = (world.chance(60), world.below(4) as usize);
    let mut state = world.state();
    let last = state.listed.len().saturating_sub(1);
    let event = if add && let Some(name) = missing.first() {
        let at = place.min(state.listed.len());
        state.listed.insert(at, name.clone());
        "controller listed again"
    } else if place == 0 {
        state.listed.reverse();
        "controllers listed in another order"
    } else if !state.listed.is_empty() {
        state.listed.remove(place.min(last));
        "controller taken off the list"
    } else {
        return;
    };
    drop(state);
    announce(world, event);
}

fn announce(world: &Arc<SimWorld>, event: &'static str) {
    let listed = world.state().listed.clone();
    let names: Vec<String> = listed.iter().map(ToString::to_string).collect();
    world.count_event(event);
    world.log("world", format_args!("{event}: {}", names.join(", ")));
    for driver in 0..world.profile.drivers {
        let pause = Duration::from_millis(u64::from(world.below(MAX_FOLLOW_MS)));
        let world = Arc::clone(world);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            follow(&world, driver);
        });
    }
}

/// Lists all controllers again.
pub(super) fn list_all(world: &Arc<SimWorld>) {
    {
        let mut state = world.state();
        let names = world.controllers.iter().map(|(name, _)| name.clone());
        for name in names.chain(world.profile.alias()) {
            if !state.listed.contains(&name) {
                state.listed.push(name);
            }
        }
    }
    for driver in 0..world.profile.drivers {
        follow(world, driver);
    }
}

/// Applies the list to a driver.
fn follow(world: &SimWorld, driver: usize) {
    let ledger = world.state().drivers[driver].ledger.clone();
    if let Some(ledger) = ledger {
        replace(world, ledger.pool());
    }
}

/// Applies the list to a pool.
pub(super) fn replace(world: &SimWorld, pool: &ControllerPool<FakeController>) {
    let listed = world.state().listed.clone();
    let endpoints: Vec<ControllerEndpoint> = listed.iter().map(endpoint).collect();
    let connect = |endpoint: &ControllerEndpoint| Ok::<_, Infallible>(at(world, endpoint));
    match pool.replace(&endpoints, connect) {
        Ok(()) => mark_alias(pool),
        Err(never) => match never {},
    }
}

/// Marks the alias of a controller, as the proxy does by its address.
fn mark_alias(pool: &ControllerPool<FakeController>) {
    for member in pool.members().into_iter().chain(pool.draining()) {
        let other = primary(&member.name);
        if other != member.name {
            pool.set_same_as(&member.name, Some(other));
        }
    }
}

/// Drains the controllers that the ledger remembers and the list does not contain, and forgets those without
/// partitions, as the proxy does with every repair.
pub(super) async fn drain(world: &SimWorld, ledger: &SimLedger) {
    let Ok(entries) = ledger.list().await else { return };
    let held: BTreeSet<ControllerName> = entries.into_iter().filter_map(|entry| entry.controller).collect();
    let pool = ledger.pool();
    for name in &held {
        let connect = |endpoint: &ControllerEndpoint| Ok::<_, Infallible>(at(world, endpoint));
        match pool.drain(&endpoint(name), connect) {
            Ok(()) => mark_alias(pool),
            Err(never) => match never {},
        }
    }
    for member in pool.draining() {
        if !held.contains(&member.name) {
            pool.forget(&member.name);
        }
    }
}

fn endpoint(name: &ControllerName) -> ControllerEndpoint {
    name.as_str()
        .parse()
        .expect("a simulated controller is named like its endpoint")
}

fn at(world: &SimWorld, endpoint: &ControllerEndpoint) -> FakeController {
    let found = world.controller(endpoint.name());
    found.expect("only simulated controllers are listed").clone()
}
