//! Detection of two names of one controller by their addresses, so that its IPUs do not count twice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use ipu_core::ControllerName;
use ipu_vipu_client::{ControllerEndpoint, ControllerPool};
use tokio::task::JoinSet;

/// Timeout of a DNS query. A name that does not resolve keeps its state until the next repair.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Compares the addresses of all controllers, and marks each second name of an earlier controller.
pub(crate) async fn mark_aliases<C: ?Sized>(pool: &ControllerPool<C>) {
    mark(pool, compare(pool, &[]).await);
}

/// Returns each resolvable name of `listed` and of the pool, with an earlier name of the same address, if
/// there is one.
pub(crate) async fn compare<C: ?Sized>(
    pool: &ControllerPool<C>,
    listed: &[ControllerEndpoint],
) -> Vec<(ControllerName, Option<ControllerName>)> {
    let members = pool.members().into_iter().chain(pool.draining());
    let mut endpoints = listed.to_vec();
    for endpoint in members.filter_map(|member| member.endpoint) {
        if endpoints.iter().all(|other| other.name() != endpoint.name()) {
            endpoints.push(endpoint);
        }
    }
    if endpoints.len() < 2 {
        return Vec::new();
    }
    let mut resolved = resolve(&endpoints).await;
    let mut distinct: Vec<(ControllerName, BTreeSet<SocketAddr>)> = Vec::new();
    let mut compared = Vec::new();
    for endpoint in endpoints {
        let name = endpoint.name();
        let Some(addresses) = resolved.remove(name) else {
            continue;
        };
        let alias_of = distinct
            .iter()
            .find(|(_, others)| !others.is_disjoint(&addresses));
        let alias_of = alias_of.map(|(name, _)| name.clone());
        if alias_of.is_none() {
            distinct.push((name.clone(), addresses));
        }
        compared.push((name.clone(), alias_of));
    }
    compared
}

/// Marks the compared names in the pool.
pub(crate) fn mark<C: ?Sized>(
    pool: &ControllerPool<C>,
    compared: Vec<(ControllerName, Option<ControllerName>)>,
) {
    for (name, alias_of) in compared {
        pool.set_same_as(&name, alias_of);
    }
}

/// Resolves `endpoints`; omits names without a timely response.
async fn resolve(endpoints: &[ControllerEndpoint]) -> BTreeMap<ControllerName, BTreeSet<SocketAddr>> {
    let mut tasks = JoinSet::new();
    for endpoint in endpoints {
        let (name, host, port) = (
            endpoint.name().clone(),
            endpoint.host().to_owned(),
            endpoint.port(),
        );
        tasks.spawn(async move {
            let lookup = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port)));
            let addresses: BTreeSet<SocketAddr> = lookup.await.ok()?.ok()?.collect();
            Some((name, addresses))
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}
