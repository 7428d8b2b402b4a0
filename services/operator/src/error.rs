//! Why the operator cannot start, and errors in words.

use ipu_serve::TlsError;

/// Why the operator does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// No client of the API server can be made.
    #[error("make a client of the API server: {detail}")]
    Client {
        /// Why.
        detail: String,
    },
    /// No client of the proxy can be made.
    #[error("make a client of the proxy: {detail}")]
    Proxy {
        /// Why.
        detail: String,
    },
    /// An address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// Which one.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Given certificates cannot be used.
    #[error("use the certificates of {name}")]
    Certificates {
        /// The setting that names their directory.
        name: &'static str,
        /// Why.
        source: TlsError,
    },
    /// A certificate cannot be made.
    #[error("make a certificate: {detail}")]
    Make {
        /// Why.
        detail: String,
    },
    /// What works on jobs has ended, which it never should.
    #[error("the work on jobs ended: {detail}")]
    Controller {
        /// Why.
        detail: String,
    },
}

/// An error with its sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
