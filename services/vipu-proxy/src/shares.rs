//! Places of which a client gets a share: anonymous clients do not crowd out identified ones.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipu_serve::Peer;

use crate::auth::Identity;

/// A client, as far as its share is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// Not identified; its network, if the request came over a connection.
    Anonymous(Option<IpAddr>),
    /// Identified, for owners of these namespaces, which have one share.
    Tenant(Arc<str>),
    /// Identified, for owners of all namespaces, such as the operator.
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

/// The most places that clients have together.
#[derive(Clone, Copy, Debug)]
struct Limits {
    network: usize,
    anonymous: usize,
    /// The client of one set of namespaces.
    tenant: usize,
    /// Anonymous clients and tenants.
    tenants: usize,
    all: usize,
}

/// A number of places.
#[derive(Debug)]
pub(crate) struct Shares {
    limits: Limits,
    taken: Mutex<TakenSlots>,
}

#[derive(Debug, Default)]
struct TakenSlots {
    networks: HashMap<IpAddr, usize>,
    of_tenants: HashMap<Arc<str>, usize>,
    anonymous: usize,
    tenants: usize,
    all: usize,
}

impl Shares {
    /// Returns `all` places. If they are `split`, anonymous clients have at most half of them, those of one network a
    /// quarter, the clients of one set of namespaces a quarter, and the last quarter is for administrators.
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

    /// Takes `number` places; all of the share if `number` is greater.
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
        let mut taken = self.taken();
        let mut free = taken.all + number <= all;
        if client != Client::Administrator {
            free &= taken.tenants + number <= tenants;
        }
        if let Client::Tenant(namespaces) = &client {
            free &= taken.of_tenants.get(namespaces).copied().unwrap_or(0) + number <= tenant;
        }
        if let Client::Anonymous(of) = client {
            let of_network = of.and_then(|of| taken.networks.get(&of)).copied();
            free &= taken.anonymous + number <= anonymous && of_network.unwrap_or(0) + number <= network;
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

    /// The most places of the clients of one set of namespaces, and of all tenants together.
    pub(crate) const fn of_tenants(&self) -> (usize, usize) {
        (self.limits.tenant, self.limits.tenants)
    }

    // Nothing panics while it is locked.
    fn taken(&self) -> MutexGuard<'_, TakenSlots> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenSlots {
    /// Changes the counts that `client` is part of.
    fn change(&mut self, client: &Client, change: impl Fn(&mut usize)) {
        change(&mut self.all);
        if *client != Client::Administrator {
            change(&mut self.tenants);
        }
        if let Client::Anonymous(network) = client {
            change(&mut self.anonymous);
            if let Some(network) = network {
                change_one(&mut self.networks, network, &change);
            }
        }
        if let Client::Tenant(namespaces) = client {
            change_one(&mut self.of_tenants, namespaces, &change);
        }
    }
}

/// Changes the count of `key`, and forgets it at zero.
fn change_one<K: Clone + Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K, change: impl Fn(&mut usize)) {
    let count = counts.entry(key.clone()).or_default();
    change(count);
    if *count == 0 {
        counts.remove(key);
    }
}

/// Places that are taken until this is dropped.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    client: Client,
    number: usize,
    shares: Arc<Shares>,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut taken = self.shares.taken();
        taken.change(&self.client, |count| *count -= self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(last: u8) -> Client {
        Client::Anonymous(Some([192, 0, 2, last].into()))
    }

    fn tenant(namespaces: &str) -> Client {
        Client::Tenant(namespaces.into())
    }

    /// As many single places as `client` gets.
    fn fill(shares: &Arc<Shares>, client: Client) -> Vec<SlotGuard> {
        std::iter::from_fn(|| shares.take(client.clone(), 1)).collect()
    }

    #[test]
    fn each_kind_of_client_has_its_share_whatever_the_others_take() {
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
        let taken = shares.taken();
        assert_eq!((taken.networks.len(), taken.all, taken.tenants), (0, 0, 0));
        assert!(taken.of_tenants.is_empty());
    }

    #[test]
    fn one_tenant_leaves_places_to_the_others() {
        let shares = Shares::new(16, true);
        let of = |names: &str| fill(&shares, tenant(names));
        let taken = [
            of("team-a"),
            of("team-a"),
            of("team-b"),
            of("team-a,team-c"),
            of("team-d"),
        ];
        assert_eq!(taken.each_ref().map(Vec::len), [4, 0, 4, 4, 0]);
    }

    #[test]
    fn places_that_are_not_split_are_for_every_client() {
        let shares = Shares::new(3, false);
        assert_eq!(fill(&shares, network(1)).len(), 3);
        assert_eq!(fill(&shares, Client::Administrator).len(), 3);
    }

    #[test]
    fn a_client_that_needs_more_than_its_share_gets_it_while_it_has_nothing_else() {
        let shares = Shares::new(16, true);
        let large = shares.take(network(1), 100).unwrap();
        assert!(shares.take(network(1), 1).is_none());
        assert!(shares.take(network(2), 4).is_some());
        drop(large);
        assert!(shares.take(network(1), 1).is_some());
    }
}
