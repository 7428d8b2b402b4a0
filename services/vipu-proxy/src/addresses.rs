//! Two names of one controller, by their addresses: its IPUs must not count twice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use ipu_core::ControllerName;
use ipu_vipu_client::ControllerEndpoint;
use tokio::task::JoinSet;

use crate::app::App;

/// How long a name server may take. A name that it does not answer for stays as it was, and is resolved again at the next
/// repair.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Marks every controller with an address of an earlier one of the list, which gets nothing new then.
pub(crate) async fn mark_same(app: &App) {
    let pool = app.ledger.pool();
    let members: Vec<_> = pool.members().into_iter().chain(pool.draining()).collect();
    if members.len() < 2 {
        return;
    }
    let mut resolved = resolve(members.iter().filter_map(|member| member.endpoint.as_ref())).await;
    let mut distinct: Vec<(ControllerName, BTreeSet<SocketAddr>)> = Vec::new();
    for member in members {
        let Some(addresses) = resolved.remove(&member.name) else {
            continue;
        };
        let same = distinct
            .iter()
            .find(|(_, others)| !others.is_disjoint(&addresses));
        let same = same.map(|(name, _)| name.clone());
        if same.is_none() {
            distinct.push((member.name.clone(), addresses));
        }
        if same != member.same_as {
            pool.set_same_as(&member.name, same);
        }
    }
}

/// The addresses of those that resolve in time.
async fn resolve<'a>(
    endpoints: impl Iterator<Item = &'a ControllerEndpoint>,
) -> BTreeMap<ControllerName, BTreeSet<SocketAddr>> {
    let mut tasks = JoinSet::new();
    for endpoint in endpoints {
        let (name, host, port) = (
            endpoint.name().clone(),
            endpoint.host().to_owned(),
            endpoint.port(),
        );
        tasks.spawn(async move {
            let found = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port)));
            let addresses: BTreeSet<SocketAddr> = found.await.ok()?.ok()?.collect();
            Some((name, addresses))
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}
