//! Who is at the other end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

/// Who asks: among the extensions of every request that [`serve`](crate::serve) hands on.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    local: Option<SocketAddr>,
    names: Arc<[String]>,
}

impl Peer {
    /// A peer without a certificate.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            local: None,
            names: Arc::default(),
        }
    }

    /// The peer at `address` who proved to have the key of `certificate`. A certificate that cannot be read names nobody.
    pub(crate) fn with_certificate(address: SocketAddr, certificate: &CertificateDer<'_>) -> Self {
        let names = webpki::EndEntityCert::try_from(certificate)
            .map(|certificate| {
                let dns = certificate.valid_dns_names().map(str::to_owned);
                let uris = certificate.valid_uri_names().map(str::to_owned);
                uris.chain(dns).collect()
            })
            .unwrap_or_default();
        Self {
            address,
            local: None,
            names,
        }
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

    /// The names that the peer's certificate was issued for, those in the form of a URI (SPIFFE ids) before DNS names.
    /// Empty without a certificate; one that is not signed by a trusted issuer never comes this far.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}
