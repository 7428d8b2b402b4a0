//! HTTP server library: one listener for HTTP/1.1 and HTTP/2, TLS, limits, graceful shutdown.
//!
//! [`serve`] accepts connections and passes each request to a [`Handler`], with the client as a [`Peer`]
//! among the request extensions. After the stop signal it asks clients to close their connections, and waits
//! a bounded time for open requests. [`Tls`] loads PEM files and reloads them when they change, or takes PEM
//! from memory.
//!
//! [`ServeOptions`] limits the resources of a client: the number of connections, and the time for a
//! handshake, for the headers of a request, between requests, between two writes and until a response is
//! sent. Connections of clients that no request has identified have separate limits ([`UnidentifiedLimits`]).
//!
//! Feature `log`: the log of a daemon, as text or JSON. Feature `metrics`: the metrics of its process.

mod answers;
mod listener;
#[cfg(feature = "log")]
mod log;
mod options;
mod peer;
#[cfg(feature = "metrics")]
mod process_metrics;
mod server;
mod tls;
mod unidentified;
mod write_timeout;

pub use answers::{BoxError, GuardedBody, UnboundedBody};
pub use listener::Listener;
#[cfg(feature = "log")]
pub use log::{LogFormat, init_log, init_log_with};
pub use options::ServeOptions;
pub use peer::{LocalProcess, Peer};
#[cfg(feature = "metrics")]
pub use process_metrics::register_process_metrics;
pub use server::{Handler, serve};
pub use tls::{ClientCertificates, Tls, TlsError, TlsFiles, TlsPem};
pub use unidentified::UnidentifiedLimits;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
