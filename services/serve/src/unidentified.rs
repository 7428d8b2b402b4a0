//! Connections on which no request has identified its client yet: bounded, and the oldest is closed for a new one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Limits of connections on which no request has identified its client with [`Peer::identify`](crate::Peer::identify).
///
/// A connection beyond a limit is accepted and an older one closed, because a connection shows only later whether it
/// is of an identified client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnidentifiedLimits {
    /// Most connections. Beyond it the network with the most connections loses its oldest.
    pub total: usize,
    /// Most connections of one [network](crate::Peer::network). Beyond it the network loses its oldest.
    pub per_network: usize,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct UnidentifiedClients {
    limits: UnidentifiedLimits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// An older connection has a smaller number.
    connections: BTreeMap<u64, (IpAddr, Arc<Notify>)>,
}

impl Open {
    fn of(&self, network: IpAddr) -> usize {
        self.connections.values().filter(|(of, _)| *of == network).count()
    }

    /// The network with the most connections.
    fn largest(&self) -> Option<IpAddr> {
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
    fn close(&mut self, network: IpAddr) {
        let oldest = self.connections.iter().find(|(_, (of, _))| *of == network);
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

    /// Counts a new connection from `network`, and closes an older one if there are too many.
    pub(crate) fn admit(self: &Arc<Self>, network: IpAddr) -> Connection {
        let mut open = self.open();
        let full = if open.of(network) >= self.limits.per_network {
            Some(network)
        } else if open.connections.len() >= self.limits.total {
            open.largest()
        } else {
            None
        };
        if let Some(network) = full {
            open.close(network);
        }
        let (number, close) = (open.next, Arc::new(Notify::new()));
        open.next += 1;
        open.connections.insert(number, (network, Arc::clone(&close)));
        Connection(Some(ConnectionGuard {
            number,
            close,
            all: Arc::clone(self),
        }))
    }

    // Nothing panics while it is locked.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection; without limits it is not counted. Clones are the same connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection(Option<ConnectionGuard>);

#[derive(Clone, Debug)]
struct ConnectionGuard {
    number: u64,
    close: Arc<Notify>,
    all: Arc<UnidentifiedClients>,
}

impl Connection {
    /// Counts it no longer: it is of an identified client, or over.
    pub(crate) fn leave(&self) {
        if let Some(counted) = &self.0 {
            counted.all.open().connections.remove(&counted.number);
        }
    }

    /// Returns when the connection must make room for another one.
    pub(crate) async fn closed(&self) {
        match &self.0 {
            Some(counted) => counted.close.notified().await,
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
        let all = Arc::new(UnidentifiedClients::new(UnidentifiedLimits {
            total: 4,
            per_network: 3,
        }));
        let one: Vec<_> = (0..3).map(|_| all.admit(network(1))).collect();
        let other = all.admit(network(2));
        one[0].leave();
        let newer = all.admit(network(1));
        let newest = all.admit(network(1));
        let third = all.admit(network(3));
        let mut closed = Vec::new();
        for connection in [&one[0], &one[1], &one[2], &other, &newer, &newest, &third] {
            closed.push(is_closed(connection).await);
        }
        // The first is identified. The limit of its network closes the second, the limit of all the third.
        assert_eq!(closed, [false, true, true, false, false, false, false]);
    }
}
