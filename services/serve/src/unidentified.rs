//! Limits of connections on which no request has identified its client: a new connection closes the oldest
//! one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Limits of connections on which no request has identified its client with
/// [`Peer::identify`](crate::Peer::identify).
///
/// Beyond a limit the server accepts the new connection and closes an older one, because only a later request
/// can identify the client of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnidentifiedLimits {
    /// Maximum number of connections. Beyond it the network with the most connections loses its oldest one.
    pub total: usize,
    /// Maximum number of connections of one [network](crate::Peer::network). Beyond it the network loses its
    /// oldest one.
    pub per_network: usize,
}

/// Unidentified connections of one server.
#[derive(Debug)]
pub(crate) struct UnidentifiedClients {
    limits: UnidentifiedLimits,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next_number: u64,
    /// Connections by number; an older connection has a smaller number.
    connections: BTreeMap<u64, (IpAddr, Arc<Notify>)>,
}

impl OpenConnections {
    fn count_of(&self, network: IpAddr) -> usize {
        self.connections
            .values()
            .filter(|(other, _)| *other == network)
            .count()
    }

    /// Returns the network with the most connections.
    fn largest_network(&self) -> Option<IpAddr> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for (network, _) in self.connections.values() {
            *counts.entry(*network).or_default() += 1;
        }
        counts
            .into_iter()
            .max_by_key(|(_, count)| *count)
            .map(|(network, _)| network)
    }

    /// Closes the oldest connection of `network`.
    fn close_oldest(&mut self, network: IpAddr) {
        let oldest = self.connections.iter().find(|(_, (other, _))| *other == network);
        if let Some(number) = oldest.map(|(number, _)| *number)
            && let Some((_, close)) = self.connections.remove(&number)
        {
            close.notify_one();
        }
    }
}

impl UnidentifiedClients {
    pub(crate) fn new(limits: UnidentifiedLimits) -> Self {
        Self {
            limits,
            open: Mutex::default(),
        }
    }

    /// Records a new connection from `network`, and closes an older one if a limit is reached.
    pub(crate) fn admit(self: &Arc<Self>, network: IpAddr) -> Connection {
        let mut open = self.open.lock();
        let full = if open.count_of(network) >= self.limits.per_network {
            Some(network)
        } else if open.connections.len() >= self.limits.total {
            open.largest_network()
        } else {
            None
        };
        if let Some(network) = full {
            open.close_oldest(network);
        }
        let (number, close) = (open.next_number, Arc::new(Notify::new()));
        open.next_number += 1;
        open.connections.insert(number, (network, Arc::clone(&close)));
        Connection(Some(ConnectionGuard {
            number,
            close,
            clients: Arc::clone(self),
        }))
    }
}

/// Handle of one connection, which is counted only if there are limits. Clones refer to the same connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection(Option<ConnectionGuard>);

#[derive(Clone, Debug)]
struct ConnectionGuard {
    number: u64,
    close: Arc<Notify>,
    clients: Arc<UnidentifiedClients>,
}

impl Connection {
    /// Stops counting the connection, because its client is identified or it has ended.
    pub(crate) fn release(&self) {
        if let Some(guard) = &self.0 {
            guard.clients.open.lock().connections.remove(&guard.number);
        }
    }

    /// Returns when the connection must close in favour of a newer one.
    pub(crate) async fn closed(&self) {
        match &self.0 {
            Some(guard) => guard.close.notified().await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    async fn is_closed(connection: &Connection) -> bool {
        tokio::time::timeout(std::time::Duration::from_millis(1), connection.closed())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_network_with_the_most_connections_loses_its_oldest() {
        let clients = Arc::new(UnidentifiedClients::new(UnidentifiedLimits {
            total: 4,
            per_network: 3,
        }));
        let one: Vec<_> = (0..3).map(|_| clients.admit(network(1))).collect();
        let other = clients.admit(network(2));
        one[0].release();
        let newer = clients.admit(network(1));
        let newest = clients.admit(network(1));
        let third = clients.admit(network(3));
        let mut closed = Vec::new();
        for connection in [&one[0], &one[1], &one[2], &other, &newer, &newest, &third] {
            closed.push(is_closed(connection).await);
        }
        // The first is identified. The limit of its network closes the second, the total limit closes the
        // third.
        assert_eq!(closed, [false, true, true, false, false, false, false]);
    }
}
