//! Errors of the operator.

use ipu_serve::TlsError;

/// Fatal error of the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The client of the API server cannot be created.
    #[error("cannot create a client of the API server: {detail}")]
    Client {
        /// Cause.
        detail: String,
    },
    /// The client of the proxy cannot be created.
    #[error("cannot create a client of the proxy: {detail}")]
    Proxy {
        /// Cause.
        detail: String,
    },
    /// The operator cannot listen on an address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// The provided certificates cannot be used.
    #[error("cannot use the certificates of {name}")]
    Certificates {
        /// Setting with the directory.
        name: &'static str,
        /// Cause.
        source: TlsError,
    },
    /// The controller has stopped unexpectedly.
    #[error("the controller has stopped: {detail}")]
    Controller {
        /// Cause.
        detail: String,
    },
}
