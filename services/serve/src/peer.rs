//! The client end of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use crate::unidentified::Connection;

/// Prefix length of an IPv6 network in bits: one client can use all addresses of a /64.
const NETWORK_BITS: u32 = 64;

/// Process at the other end of a Unix socket, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalProcess {
    /// User id of the process when it connected.
    pub user: u32,
    /// Process id in the pid namespace of the server; none if the server cannot see the process.
    pub pid: Option<u32>,
}

/// Client of a request, an extension of every request that [`serve`](crate::serve) passes to the handler.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    local: Option<SocketAddr>,
    names: Arc<[String]>,
    connection: Connection,
    process: Option<LocalProcess>,
}

impl Peer {
    /// Creates a peer without a certificate.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            local: None,
            names: Arc::default(),
            connection: Connection::default(),
            process: None,
        }
    }

    /// Sets the connection of the peer.
    pub(crate) fn with_connection(mut self, connection: Connection) -> Self {
        self.connection = connection;
        self
    }

    /// Sets the names of the verified client `certificate`. An unreadable certificate has no names.
    pub(crate) fn with_certificate(mut self, certificate: &CertificateDer<'_>) -> Self {
        self.names = webpki::EndEntityCert::try_from(certificate)
            .map(|certificate| {
                let dns = certificate.valid_dns_names().map(str::to_owned);
                let uris = certificate.valid_uri_names().map(str::to_owned);
                uris.chain(dns).collect()
            })
            .unwrap_or_default();
        self
    }

    /// Sets the local address of the connection.
    #[must_use]
    pub const fn with_local_address(mut self, local: Option<SocketAddr>) -> Self {
        self.local = local;
        self
    }

    /// Sets the process at the other end of a Unix socket.
    #[must_use]
    pub const fn with_process(mut self, process: LocalProcess) -> Self {
        self.process = Some(process);
        self
    }

    /// Process at the other end of a Unix socket; none for TCP.
    #[must_use]
    pub const fn process(&self) -> Option<LocalProcess> {
        self.process
    }

    /// Local address of the connection, if available.
    #[must_use]
    pub const fn local_address(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Remote address of the connection; `127.0.0.1:0` on a Unix socket.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Remote address without its port. For IPv6 it is the /64 network, all of which one client can use.
    #[must_use]
    pub fn network(&self) -> IpAddr {
        match self.address.ip().to_canonical() {
            IpAddr::V6(address) => {
                let bits = address.to_bits() & (u128::MAX << NETWORK_BITS);
                Ipv6Addr::from_bits(bits).into()
            }
            address @ IpAddr::V4(_) => address,
        }
    }

    /// Exempts the connection from [`UnidentifiedLimits`](crate::UnidentifiedLimits), because the handler has
    /// identified its client.
    pub fn identify(&self) {
        self.connection.release();
    }

    /// Subject alternative names of the client certificate, URIs (SPIFFE ids) before DNS names.
    ///
    /// Empty without a certificate. The TLS handshake has already refused certificates of untrusted issuers.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_an_ipv4_address_or_an_ipv6_prefix() {
        for (address, network) in [
            ("192.0.2.7:80", "192.0.2.7"),
            ("[::ffff:192.0.2.7]:80", "192.0.2.7"),
            ("[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::"),
            ("[::1]:80", "::"),
        ] {
            let peer = Peer::new(address.parse().unwrap());
            assert_eq!(peer.network(), network.parse::<IpAddr>().unwrap(), "{address}");
        }
    }
}
