//! How to connect to a controller: deadlines, certificates, credentials. Plain data; secrets never reach `Debug`.

use core::fmt;
use core::time::Duration;

/// The longest that one call may take: far more than any user call needs, as all of them only read or start something,
/// and as long as the V-IPU client of the Slurm plugin waits (seed 004 §8.5.2, `ApiTimeout` 50 s).
const CALL_TIMEOUT: Duration = Duration::from_secs(50);

/// The longest that making a connection may take: three tries of TCP's first retransmission timer (1 s, 2 s, 4 s).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(7);

/// How to connect to a controller, and how long to wait for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The longest that one call may take, the connection included; 50 s unless set.
    pub deadline: Duration,
    /// The longest that making a connection may take; 7 s unless set.
    pub connect_deadline: Duration,
    /// TLS; without it everything travels in the clear, as with a controller that runs without `--secure`.
    pub tls: Option<TlsOptions>,
    /// Who we are, to a controller that runs with `--secure`.
    pub credentials: Option<Credentials>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            deadline: CALL_TIMEOUT,
            connect_deadline: CONNECT_TIMEOUT,
            tls: None,
            credentials: None,
        }
    }
}

impl ConnectOptions {
    /// The same options with another deadline for one call.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The same options with another deadline for making a connection.
    #[must_use]
    pub fn with_connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = deadline;
        self
    }

    /// The same options with TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The same options with credentials.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }
}

/// TLS towards a controller. `vipu-server --tls-init` writes such files for its clients (V-IPU admin guide, "Securing
/// the installation"); the fields take their contents.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// The certificates, as PEM, of which one must have signed the controller's. The system's are not consulted.
    pub ca_pem: Vec<u8>,
    /// Our own certificate chain and key, for mutual TLS.
    pub identity: Option<ClientIdentity>,
    /// The name that the controller's certificate must carry, if it is not the host that we connect to.
    pub server_name: Option<String>,
}

impl TlsOptions {
    /// TLS that trusts the certificates of `ca_pem`.
    #[must_use]
    pub fn new(ca_pem: impl Into<Vec<u8>>) -> Self {
        Self {
            ca_pem: ca_pem.into(),
            identity: None,
            server_name: None,
        }
    }

    /// The same options with a client certificate.
    #[must_use]
    pub fn with_identity(mut self, cert_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.identity = Some(ClientIdentity {
            cert_pem: cert_pem.into(),
            key_pem: key_pem.into(),
        });
        self
    }

    /// The same options with another name for the controller's certificate to carry.
    #[must_use]
    pub fn with_server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("ca_pem", &format_args!("{} bytes", self.ca_pem.len()))
            .field("identity", &self.identity)
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// A client certificate chain with its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientIdentity {
    /// The certificate, then those between it and the CA.
    pub cert_pem: Vec<u8>,
    /// The private key.
    pub key_pem: Vec<u8>,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity")
            .field("cert_pem", &format_args!("{} bytes", self.cert_pem.len()))
            .field("key_pem", &"(secret)")
            .finish()
    }
}

/// A V-IPU user and its access key, as `vipu-admin create user` prints them (V-IPU admin guide, "Users and
/// allocations"). They travel as [`USER_ID_HEADER`] and [`ACCESS_KEY_HEADER`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The user's id.
    pub user_id: String,
    /// The user's access key.
    pub access_key: String,
}

impl Credentials {
    /// The credentials of user `user_id`.
    #[must_use]
    pub fn new(user_id: impl Into<String>, access_key: impl Into<String>) -> Self {
        Self {
            user_id: user_id.into(),
            access_key: access_key.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user_id", &self.user_id)
            .field("access_key", &"(secret)")
            .finish()
    }
}

/// The gRPC metadata key and HTTP header of the user id.
///
/// An assumption: no public source says how a secured V-IPU controller takes it.
pub const USER_ID_HEADER: &str = "vipu-user-id";

/// The gRPC metadata key and HTTP header of the access key.
///
/// An assumption: no public source says how a secured V-IPU controller takes it.
pub const ACCESS_KEY_HEADER: &str = "vipu-access-key";

/// Why a controller cannot even be addressed: what is wrong with the options. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A PEM text has no certificate in it, or a broken one.
    #[error(
        "read the {what} certificate: {detail}; give the contents of a PEM file with one or more certificates"
    )]
    Certificate {
        /// `CA` or `client`.
        what: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// The client's private key cannot be read or does not fit the certificate.
    #[error(
        "read the client's private key: {detail}; give the contents of the PEM file that belongs to the certificate"
    )]
    PrivateKey {
        /// What is wrong.
        detail: String,
    },
    /// The name to expect in the controller's certificate is no DNS name or address.
    #[error("{name:?} is not a server name: give a DNS name or an IP address")]
    ServerName {
        /// What was given.
        name: String,
    },
    /// A credential cannot travel in a header.
    #[error("the {what} has characters that cannot be sent: give visible ASCII characters")]
    Credential {
        /// `user id` or `access key`.
        what: &'static str,
    },
    /// The transport refuses the address or its settings.
    #[error("set up the transport to {endpoint}: {detail}")]
    Transport {
        /// `host:port` of the controller.
        endpoint: String,
        /// What the transport says.
        detail: String,
    },
    /// There is no tokio runtime to drive the connection.
    #[error("connect to {endpoint} outside of a tokio runtime; call this from within one")]
    NoRuntime {
        /// `host:port` of the controller.
        endpoint: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_never_reach_debug() {
        let options = ConnectOptions::default()
            .with_tls(TlsOptions::new("ca").with_identity("certificate", "HUSH"))
            .with_credentials(Credentials::new("alice", "HUSH"));
        let text = format!("{options:?}");
        assert!(!text.contains("HUSH"), "{text}");
        assert!(text.contains("alice"), "{text}");
    }
}
