//! Who is at the other end of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use crate::unidentified::Connection;

/// The bits of an IPv6 address that name a network: a client has all addresses of a /64.
const NETWORK_BITS: u32 = 64;

/// Who asks: among the extensions of every request that [`serve`](crate::serve) hands on.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    local: Option<SocketAddr>,
    names: Arc<[String]>,
    connection: Connection,
}

impl Peer {
    /// A peer without a certificate.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            local: None,
            names: Arc::default(),
            connection: Connection::default(),
        }
    }

    /// The peer, with its connection.
    pub(crate) fn on(mut self, connection: Connection) -> Self {
        self.connection = connection;
        self
    }

    /// The peer, which proved to have the key of `certificate`. A certificate that cannot be read has no names.
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

    /// The peer of a connection whose address here is `local`.
    #[must_use]
    pub const fn reached_at(mut self, local: Option<SocketAddr>) -> Self {
        self.local = local;
        self
    }

    /// The address of this end, if it is known.
    #[must_use]
    pub const fn local_address(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The address of the other end.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address without its port; of an IPv6 address the /64 network, all of which one client may have.
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

    /// Exempts the connection from [`UnidentifiedLimits`](crate::UnidentifiedLimits): the handler has identified its
    /// client.
    pub fn identify(&self) {
        self.connection.leave();
    }

    /// The names that the peer's certificate was issued for, those in the form of a URI (SPIFFE ids) before DNS names.
    /// Empty without a certificate; one that is not signed by a trusted issuer never comes this far.
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
            let peer = Peer::at(address.parse().unwrap());
            assert_eq!(peer.network(), network.parse::<IpAddr>().unwrap(), "{address}");
        }
    }
}
