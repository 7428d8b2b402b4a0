//! The `/v1/controllers` endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipu_allocator::View;
use ipu_core::allocator::{Capacity, CapacityBySize, CordonTarget};
use ipu_core::placement::PlacementMode;
use ipu_core::{AgentId, ControllerName, CordonOwner, ErrorChain, Reason, ReasonCode};
use ipu_proxy_client::{ControllerList, ControllerStatus, FitDocument, MachineDocument, UnrecordedPartition};
use ipu_vipu_client::{ControllerEndpoint, ControllerPool, Member, MemberState};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::app::App;
use crate::partition_api::controller_document;
use crate::problem::Problem;

/// Timeout of a version query, so that one slow controller does not delay the list.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// Handles `GET /v1/controllers`.
pub(crate) async fn controllers(app: &App) -> Result<ControllerList, Problem> {
    let view = app.allocator.fresh_view().await?;
    let mut capacities: BTreeMap<ControllerName, Result<CapacityBySize, Reason>> =
        view.capacity_by_size().into_iter().collect();
    let pool = app.allocator.pool();
    // Read after the query, which has updated the health of the controllers.
    let members: Vec<_> = pool.members().into_iter().chain(pool.draining()).collect();
    let mut versions = versions(&members).await;
    let status = |member: Member| {
        let capacity = capacities.remove(&member.name);
        let is_same = matches!(&capacity, Some(Err(reason)) if reason.code == ReasonCode::SameController);
        let (capacity, error) = match capacity {
            Some(Ok(capacity)) => (Some(capacity), None),
            Some(Err(reason)) => (None, Some(reason.message)),
            None => (None, None),
        };
        let version = versions.remove(&member.name);
        let since = member
            .health
            .last_success
            .map(|at| Instant::now().duration_since(at));
        let mut status = ControllerStatus::new(controller_document(&member.name, member.endpoint.as_ref()));
        // A second name of a controller responds and has no capacity of its own.
        status.available = capacity.is_some() || (version.is_some() && !is_same);
        status.draining = member.state == MemberState::Draining;
        status.version = version;
        status.free = capacity.as_ref().map(|capacity| capacity.free);
        status.largest_block = capacity.as_ref().map(|capacity| capacity.largest_block);
        status.fits = capacity
            .iter()
            .flat_map(|capacity| &capacity.fits)
            .map(FitDocument::from)
            .collect();
        status.machines = machines(&view, &member.name);
        status.foreign = foreign(&view, &member.name);
        // A controller that answers without hardware always chooses.
        let chooses = capacity.as_ref().is_some_and(|capacity| capacity.fits.is_empty());
        status.placement = Some(if chooses {
            PlacementMode::Delegated.name().to_owned()
        } else {
            app.allocator.placement_of(&member.name).name().to_owned()
        });
        status.failures_in_a_row = member.health.consecutive_failures;
        status.error = error;
        status.last_success_seconds_ago = since.map(|since| since.as_secs());
        status
    };
    Ok(ControllerList::new(members.into_iter().map(status).collect()))
}

/// Returns the machines of a controller with their listed partitions: those that a cordon would keep.
fn machines(view: &View, controller: &ControllerName) -> Vec<MachineDocument> {
    let Some(listing) = view.hardware().listing(controller) else {
        return Vec::new();
    };
    let free = |capacity: &dyn Capacity| capacity.counts().map_or(0, |counts| counts.free);
    let machine = |name: AgentId| {
        let mut without = listing.capacity().boxed_clone();
        let owner = CordonOwner::new("machines").ok()?;
        let holders = without
            .cordon(&owner, &CordonTarget::Machine(name.clone()))
            .ok()?;
        let free = free(listing.capacity()).saturating_sub(free(&*without));
        Some(MachineDocument::new(name, free, holders))
    };
    listing
        .capacity()
        .machines()
        .into_iter()
        .filter_map(machine)
        .collect()
}

/// Returns the partitions that a controller lists and the ledger does not record.
fn foreign(view: &View, controller: &ControllerName) -> Vec<UnrecordedPartition> {
    let listing = view.hardware().listing(controller);
    let listed = listing
        .into_iter()
        .flat_map(|listing| listing.partitions().values());
    listed
        .filter(|partition| {
            let entry = view.state().get(&partition.id);
            entry.is_none_or(|entry| !entry.phase.holds())
        })
        .map(|partition| UnrecordedPartition::new(partition.id.clone(), partition.spec.size.get()))
        .collect()
}

/// Drains the controllers of ledger entries that are not on the list: they were removed from it while no
/// proxy ran, or before this one started.
async fn drain_unlisted(app: &App) {
    // Without the record there is nothing to drain.
    let Ok(view) = app.allocator.view().await else {
        return;
    };
    let pool = app.allocator.pool();
    let recorded: BTreeSet<ControllerName> = view
        .state()
        .entries()
        .filter_map(|entry| entry.controller.clone())
        .collect();
    for name in recorded.into_iter().filter(|name| pool.get(name).is_none()) {
        let connect = |endpoint: &ControllerEndpoint| app.connector.connect(endpoint);
        let drained = match name.as_str().parse::<ControllerEndpoint>() {
            Ok(endpoint) => pool
                .drain(&endpoint, connect)
                .map_err(|error| ErrorChain(&error).to_string()),
            Err(error) => Err(ErrorChain(&error).to_string()),
        };
        match drained {
            Ok(()) => tracing::info!(controller = %name, "the controller is not on the list and is drained"),
            Err(error) => {
                tracing::warn!(controller = %name, error, "cannot release the partitions of the controller")
            }
        }
    }
}

/// Compares the list of controllers with the record at every `interval`, until the proxy stops: drains those
/// that are off the list, and forgets them once they have no partition left.
pub(crate) async fn maintain(app: Arc<App>, interval: Duration) {
    let mut stopping = app.stopping();
    loop {
        drain_unlisted(&app).await;
        let aliases = app.allocator.pool().aliases();
        crate::addresses::mark_aliases(app.allocator.pool()).await;
        if app.allocator.pool().aliases() != aliases {
            app.allocator.compare_soon();
        }
        remove_drained(&app).await;
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// Removes controllers from the pool that are off the list and have no partition left.
async fn remove_drained(app: &App) {
    let pool = app.allocator.pool();
    let draining = pool.draining();
    if draining.is_empty() {
        return;
    }
    let Ok(view) = app.allocator.view().await else {
        return;
    };
    for member in draining {
        let mut entries = view.state().entries();
        if entries.all(|entry| entry.controller.as_ref() != Some(&member.name)) {
            tracing::info!(controller = %member.name, "removed a drained controller");
            pool.forget(&member.name);
        }
    }
}

/// Logs the controllers that have a placement of their own and are not on the watched list. They may be added
/// later, or were removed: a proxy that refused them would not restart then.
pub(crate) fn warn_of_unlisted_placements<C: ?Sized>(
    placements: &BTreeMap<ControllerName, PlacementMode>,
    pool: &ControllerPool<C>,
) {
    let listed: BTreeSet<_> = pool.members().into_iter().map(|member| member.name).collect();
    for (name, placement) in placements.iter().filter(|(name, _)| !listed.contains(name)) {
        tracing::warn!(
            %name,
            %placement,
            "a controller of `placements` is not on the list of controllers, so that its placement has no \
             effect; name one of the list as HOST:PORT, or add it to the list"
        );
    }
}

/// Queries the versions of all available controllers concurrently.
pub(crate) async fn versions(members: &[Member]) -> BTreeMap<ControllerName, String> {
    let mut queries = JoinSet::new();
    for member in members
        .iter()
        .filter(|member| member.health.is_available(Instant::now()))
    {
        let (name, controller) = (member.name.clone(), member.controller.clone());
        queries.spawn(async move {
            let version = tokio::time::timeout(VERSION_TIMEOUT, controller.version()).await;
            version.ok()?.ok().map(|version| (name, version))
        });
    }
    let versions = queries.join_all().await;
    versions.into_iter().flatten().collect()
}
