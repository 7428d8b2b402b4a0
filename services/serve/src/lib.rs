//! The shell of HTTP services: one listener for HTTP/1.1 and HTTP/2, TLS, limits, graceful shutdown.
//!
//! [`serve`] accepts connections and hands each request to a [`Handler`], with the [`Peer`] who asks among its extensions,
//! until it is told to stop; then it lets open calls end for a bounded time. [`Tls`] is TLS from PEM files, which may change
//! meanwhile, or from PEM in memory.
//! [`ServeOptions`] bound what a peer may cost: connections, the time for a handshake, for the headers of a request and
//! between requests, the time that an answer may wait to be taken, and the time until all of it is sent. Connections of
//! clients that no request has identified have limits of their own ([`UnidentifiedLimits`]).

mod answers;
mod peer;
mod server;
mod tls;
mod unidentified;
mod write_timeout;

pub use answers::{Endless, GuardedBody};
pub use peer::Peer;
pub use server::{BoxError, Handler, ServeOptions, serve};
pub use tls::{ClientCertificates, Tls, TlsError, TlsFiles, TlsPem};
pub use unidentified::UnidentifiedLimits;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
