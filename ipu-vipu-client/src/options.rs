//! Connection options: deadlines, certificates, credentials. Plain data; secrets never appear in `Debug`
//! output.

use core::fmt;
use core::time::Duration;

/// Default deadline of one call. It exceeds the needs of any user call, because all of them only read or
/// start an operation. It equals the timeout of the V-IPU client of the Slurm plugin (`ApiTimeout`).
const CALL_TIMEOUT: Duration = Duration::from_secs(50);

/// Default deadline of connection setup: three tries of TCP's first retransmission timer (1 s, 2 s, 4 s).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(7);

/// Options of the connection to a controller.
///
/// ```
/// use std::time::Duration;
///
/// use ipu_vipu_client::{ConnectOptions, Credentials};
///
/// let options = ConnectOptions::default()
///     .with_deadline(Duration::from_secs(30))
///     .with_credentials(Credentials::new("alice", "the access key"));
/// assert!(!format!("{options:?}").contains("access key"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Deadline of one call, connection setup included; 50 s unless set.
    pub deadline: Duration,
    /// Deadline of connection setup; 7 s unless set.
    pub connect_deadline: Duration,
    /// TLS options. Without them the connection is unencrypted, as for a controller that runs without
    /// `--secure`.
    pub tls: Option<TlsOptions>,
    /// The user, for a controller that runs with `--secure`.
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
    /// Returns the options with another call deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Returns the options with another deadline of connection setup.
    #[must_use]
    pub fn with_connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = deadline;
        self
    }

    /// Returns the options with TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Returns the options with credentials.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }
}

/// TLS options for a controller. `vipu-server --tls-init` writes such files for its clients (V-IPU admin
/// guide, "Securing the installation"); the fields take their contents.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// The CA certificates, as PEM, one of which must have signed the controller's. The system's certificates
    /// are not used.
    pub ca_pem: Vec<u8>,
    /// The client certificate chain and key, for mutual TLS.
    pub identity: Option<ClientIdentity>,
    /// The name in the controller's certificate, if it differs from the host of the connection.
    pub server_name: Option<String>,
}

impl TlsOptions {
    /// Creates options that trust the certificates of `ca_pem`.
    #[must_use]
    pub fn new(ca_pem: impl Into<Vec<u8>>) -> Self {
        Self {
            ca_pem: ca_pem.into(),
            identity: None,
            server_name: None,
        }
    }

    /// Returns the options with a client certificate.
    #[must_use]
    pub fn with_identity(mut self, cert_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.identity = Some(ClientIdentity {
            cert_pem: cert_pem.into(),
            key_pem: key_pem.into(),
        });
        self
    }

    /// Returns the options with another expected name in the controller's certificate.
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
    /// The certificate, followed by the intermediate certificates up to the CA.
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
/// allocations"). They are sent as [`USER_ID_HEADER`] and [`ACCESS_KEY_HEADER`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The user's id.
    pub user_id: String,
    /// The user's access key.
    pub access_key: String,
}

impl Credentials {
    /// Creates the credentials of user `user_id`.
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
/// An assumption: no public source documents it for a secured V-IPU controller.
pub const USER_ID_HEADER: &str = "vipu-user-id";

/// The gRPC metadata key and HTTP header of the access key.
///
/// An assumption: no public source documents it for a secured V-IPU controller.
pub const ACCESS_KEY_HEADER: &str = "vipu-access-key";

/// The error for invalid connection options. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A PEM text contains no certificate, or an invalid one.
    #[error(
        "read the {what} certificate: {detail}; give the contents of a PEM file with one or more certificates"
    )]
    Certificate {
        /// `CA` or `client`.
        what: &'static str,
        /// The cause.
        detail: String,
    },
    /// The client's private key is invalid or does not match the certificate.
    #[error(
        "read the client's private key: {detail}; give the contents of the PEM file that belongs to the certificate"
    )]
    PrivateKey {
        /// The cause.
        detail: String,
    },
    /// The expected name in the controller's certificate is neither a DNS name nor an address.
    #[error("{name:?} is not a server name: give a DNS name or an IP address")]
    ServerName {
        /// The rejected name.
        name: String,
    },
    /// A credential is not a valid header value.
    #[error("the {what} has invalid characters: give visible ASCII characters")]
    Credential {
        /// `user id` or `access key`.
        what: &'static str,
    },
    /// The transport refuses the address or its settings.
    #[error("set up the transport to {endpoint}: {detail}")]
    Transport {
        /// `host:port` of the controller.
        endpoint: String,
        /// The transport's error.
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
    fn secrets_are_hidden_in_debug_output() {
        let options = ConnectOptions::default()
            .with_tls(TlsOptions::new("ca").with_identity("certificate", "HUSH"))
            .with_credentials(Credentials::new("alice", "HUSH"));
        let text = format!("{options:?}");
        assert!(!text.contains("HUSH"), "{text}");
        assert!(text.contains("alice"), "{text}");
    }
}
