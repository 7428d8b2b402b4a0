//! The controllers as the API shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipu_core::{ControllerName, FreeCapacity, IpuCount, PartitionSpec, Reason};
use ipu_proxy_client::{ControllerList, ControllerStatus};
use ipu_vipu_client::{ControllerEndpoint, Member, MemberState};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::app::{AnyController, App};
use crate::partition_api::controller;
use crate::problem::{Problem, chain};

/// How long a controller may take to tell its version: whoever looks at a list of controllers does not wait for one.
const VERSION: Duration = Duration::from_secs(2);

/// `GET /v1/controllers`.
pub(crate) async fn controllers(app: &App) -> Result<ControllerList, Problem> {
    let rooms = app.ledger.query(&PartitionSpec::of_size(IpuCount::ONE)).await?;
    let mut rooms: BTreeMap<ControllerName, Result<FreeCapacity, Reason>> = rooms.into_iter().collect();
    let pool = app.ledger.pool();
    // After the question: it has booked how the controllers are.
    let members: Vec<_> = pool.members().into_iter().chain(pool.draining()).collect();
    let mut versions = versions(&members).await;
    let status = |member: Member<AnyController>| {
        let room = rooms.remove(&member.name);
        let is_same = matches!(&room, Some(Err(reason)) if reason.code == "SameController");
        let (room, error) = match room {
            Some(Ok(room)) => (Some(room), None),
            Some(Err(reason)) => (None, Some(reason.message)),
            None => (None, None),
        };
        let version = versions.remove(&member.name);
        let since = member
            .health
            .last_success
            .map(|at| Instant::now().duration_since(at));
        let mut status = ControllerStatus::new(controller(&member.name, member.endpoint.as_ref()));
        // A second name answers and has nothing to give.
        status.available = room.is_some() || (version.is_some() && !is_same);
        status.draining = member.listing == MemberState::Draining;
        status.version = version;
        status.free = room.as_ref().map(|room| room.free);
        status.largest_block = room.as_ref().map(|room| room.largest_block);
        status.failures_in_a_row = member.health.failures_in_a_row;
        status.error = error;
        status.last_success_seconds_ago = since.map(|since| since.as_secs());
        status
    };
    Ok(ControllerList::new(members.into_iter().map(status).collect()))
}

/// Drains the controllers that the ledger remembers and no list names: they were taken off it while no proxy ran, or before
/// this one was started.
pub(crate) async fn remember(app: &App) {
    // Without an answer nothing can be done of what this is for either.
    let entries = app.ledger.list().await.unwrap_or_default();
    let pool = app.ledger.pool();
    let held: BTreeSet<ControllerName> = entries.into_iter().filter_map(|entry| entry.controller).collect();
    for name in held.into_iter().filter(|name| pool.get(name).is_none()) {
        let connect = |endpoint: &ControllerEndpoint| app.connector.connect(endpoint);
        let drained = match name.as_str().parse::<ControllerEndpoint>() {
            Ok(endpoint) => pool.drain(&endpoint, connect).map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        match drained {
            Ok(()) => tracing::info!(controller = %name, "it is on no list, and is drained"),
            Err(error) => tracing::warn!(controller = %name, error, "cannot give back what it has"),
        }
    }
}

/// The versions of those who are well, all asked at the same time.
async fn versions(members: &[Member<AnyController>]) -> BTreeMap<ControllerName, String> {
    let mut asked = JoinSet::new();
    for member in members
        .iter()
        .filter(|member| member.health.is_available(Instant::now()))
    {
        let (name, controller) = (member.name.clone(), member.controller.clone());
        asked.spawn(async move {
            let version = tokio::time::timeout(VERSION, controller.version()).await;
            version.ok()?.ok().map(|version| (name, version))
        });
    }
    let told = asked.join_all().await;
    told.into_iter().flatten().collect()
}
