//! Slots that are shared between kinds of clients, so that anonymous clients do not crowd out identified
//! ones.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use ipu_serve::Peer;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::auth::Identity;

/// Kind of a client, which determines its share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// Anonymous client with its network, if the request came over a connection.
    Anonymous(Option<IpAddr>),
    /// Client for owners of these namespaces, which have one share.
    Tenant(Arc<str>),
    /// Client for owners of all namespaces, such as the operator.
    Administrator,
}

impl Client {
    pub(crate) fn new(identity: Option<&Identity>, peer: Option<&Peer>) -> Self {
        match identity {
            None => Self::Anonymous(peer.map(Peer::network)),
            Some(identity) => match identity.namespaces() {
                Some(namespaces) => {
                    let names: Vec<_> = namespaces.iter().map(String::as_str).collect();
                    Self::Tenant(names.join(",").into())
                }
                None => Self::Administrator,
            },
        }
    }
}

/// Maximum number of slots by kind of client.
#[derive(Clone, Copy, Debug)]
struct Limits {
    network: usize,
    anonymous: usize,
    /// Clients of one set of namespaces.
    tenant: usize,
    /// Anonymous clients and all tenants together.
    tenants: usize,
    all: usize,
}

/// Pool of slots with a share for each kind of client.
#[derive(Debug)]
pub(crate) struct Shares {
    limits: Limits,
    taken: Mutex<TakenSlots>,
}

#[derive(Debug, Default)]
struct TakenSlots {
    by_network: HashMap<IpAddr, usize>,
    by_tenant: HashMap<Arc<str>, usize>,
    anonymous: usize,
    tenants: usize,
    all: usize,
}

impl Shares {
    /// Creates a pool of `all` slots. If it is `split`, anonymous clients have at most half of them, those of
    /// one network a quarter, the clients of one set of namespaces a quarter, and the last quarter is for
    /// administrators.
    pub(crate) fn new(all: usize, split: bool) -> Arc<Self> {
        let part = |quarters: usize| if split { (all * quarters).div_ceil(4) } else { all };
        Arc::new(Self {
            limits: Limits {
                network: part(1),
                anonymous: part(2),
                tenant: part(1),
                tenants: part(3),
                all,
            },
            taken: Mutex::default(),
        })
    }

    /// Takes `number` slots, or the whole share if `number` is greater; returns none if they are not free.
    pub(crate) fn take(self: &Arc<Self>, client: Client, number: usize) -> Option<SlotGuard> {
        let Limits {
            network,
            anonymous,
            tenant,
            tenants,
            all,
        } = self.limits;
        let number = number.min(match &client {
            Client::Anonymous(_) => network,
            Client::Tenant(_) => tenant,
            Client::Administrator => all,
        });
        let mut taken = self.taken.lock();
        let mut free = taken.all + number <= all;
        if client != Client::Administrator {
            free &= taken.tenants + number <= tenants;
        }
        if let Client::Tenant(namespaces) = &client {
            free &= taken.by_tenant.get(namespaces).copied().unwrap_or(0) + number <= tenant;
        }
        if let Client::Anonymous(address) = client {
            let in_network = address
                .and_then(|address| taken.by_network.get(&address))
                .copied();
            free &= taken.anonymous + number <= anonymous && in_network.unwrap_or(0) + number <= network;
        }
        free.then(|| {
            taken.change(&client, |count| *count += number);
            SlotGuard {
                client,
                number,
                shares: Arc::clone(self),
            }
        })
    }

    /// Returns the limit of the clients of one set of namespaces, and of all tenants together.
    pub(crate) const fn tenant_limits(&self) -> (usize, usize) {
        (self.limits.tenant, self.limits.tenants)
    }
}

impl TakenSlots {
    /// Changes all counts that include `client`.
    fn change(&mut self, client: &Client, change: impl Fn(&mut usize)) {
        change(&mut self.all);
        if *client != Client::Administrator {
            change(&mut self.tenants);
        }
        if let Client::Anonymous(network) = client {
            change(&mut self.anonymous);
            if let Some(network) = network {
                change_one(&mut self.by_network, network, &change);
            }
        }
        if let Client::Tenant(namespaces) = client {
            change_one(&mut self.by_tenant, namespaces, &change);
        }
    }
}

/// Changes the count of `key`, and removes it at zero.
fn change_one<K: Clone + Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K, change: impl Fn(&mut usize)) {
    let count = counts.entry(key.clone()).or_default();
    change(count);
    if *count == 0 {
        counts.remove(key);
    }
}

/// Turns of clients: each does one thing at a time, so that it keeps at most one thread from all others.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<Client, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for the next turn of `client`, which ends when the guard is dropped. Administrators never wait.
    pub(crate) async fn take(&self, client: &Client) -> Option<OwnedMutexGuard<()>> {
        if *client == Client::Administrator {
            return None;
        }
        let turn = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(client.clone()).or_default())
        };
        Some(turn.lock_owned().await)
    }
}

/// Slots that are taken until the guard is dropped.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    client: Client,
    number: usize,
    shares: Arc<Shares>,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
        taken.change(&self.client, |count| *count -= self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn network(last: u8) -> Client {
        Client::Anonymous(Some([192, 0, 2, last].into()))
    }

    fn tenant(namespaces: &str) -> Client {
        Client::Tenant(namespaces.into())
    }

    /// Takes single slots for `client` until its share is used up.
    fn fill(shares: &Arc<Shares>, client: Client) -> Vec<SlotGuard> {
        std::iter::from_fn(|| shares.take(client.clone(), 1)).collect()
    }

    #[test]
    fn each_kind_of_client_has_its_share_when_other_shares_are_full() {
        let shares = Shares::new(16, true);
        let one = fill(&shares, network(1));
        let anonymous: Vec<_> = (2..9).flat_map(|last| fill(&shares, network(last))).collect();
        let unknown = fill(&shares, Client::Anonymous(None));
        let tenant = fill(&shares, tenant("team-a"));
        let administrators = fill(&shares, Client::Administrator);
        assert_eq!(
            [&one, &anonymous, &unknown, &tenant, &administrators].map(Vec::len),
            [4, 4, 0, 4, 4]
        );
        drop(one);
        assert_eq!(fill(&shares, network(9)).len(), 4);
        drop((anonymous, tenant, administrators));
        let taken = shares.taken.lock();
        assert_eq!((taken.by_network.len(), taken.all, taken.tenants), (0, 0, 0));
        assert!(taken.by_tenant.is_empty());
    }

    #[test]
    fn one_tenant_leaves_slots_to_other_tenants() {
        let shares = Shares::new(16, true);
        let taken_by = |names: &str| fill(&shares, tenant(names));
        let taken = [
            taken_by("team-a"),
            taken_by("team-a"),
            taken_by("team-b"),
            taken_by("team-a,team-c"),
            taken_by("team-d"),
        ];
        assert_eq!(taken.each_ref().map(Vec::len), [4, 0, 4, 4, 0]);
    }

    #[test]
    fn a_client_has_one_turn_at_a_time_and_others_do_not_wait_for_it() {
        let turns = Turns::default();
        let take = |client: &Client| turns.take(client).now_or_never();
        let (one, other) = (tenant("team-a"), network(1));
        let first = take(&one);
        assert!(matches!(first, Some(Some(_))));
        assert!(take(&one).is_none());
        assert!(matches!(take(&other), Some(Some(_))));
        assert!(matches!(take(&Client::Administrator), Some(None)));
        drop(first);
        assert!(matches!(take(&one), Some(Some(_))));
    }

    #[test]
    fn every_client_can_take_all_slots_of_an_unsplit_pool() {
        let shares = Shares::new(3, false);
        assert_eq!(fill(&shares, network(1)).len(), 3);
        assert_eq!(fill(&shares, Client::Administrator).len(), 3);
    }

    #[test]
    fn a_client_that_needs_more_than_its_share_gets_all_of_it_while_it_holds_no_slot() {
        let shares = Shares::new(16, true);
        let large = shares.take(network(1), 100).unwrap();
        assert!(shares.take(network(1), 1).is_none());
        assert!(shares.take(network(2), 4).is_some());
        drop(large);
        assert!(shares.take(network(1), 1).is_some());
    }
}
