//! Options of a server.

use std::time::Duration;

use tokio::sync::watch;

use crate::tls::Tls;
use crate::unidentified::UnidentifiedLimits;

/// Limits and timeouts of [`serve`](crate::serve).
#[derive(Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// TLS of the listener; none serves plain HTTP.
    pub tls: Option<Tls>,
    /// Maximum number of open connections; further ones wait to be accepted. The default, 1024, is the
    /// default limit of open files of a process on most systems.
    pub max_connections: usize,
    /// Receives the number of open connections whenever it changes.
    pub open_connections: watch::Sender<usize>,
    /// Limits of connections on which no request has identified its client. None by default: the handler then
    /// need not call [`Peer::identify`](crate::Peer::identify).
    pub unidentified: Option<UnidentifiedLimits>,
    /// Timeout of a TLS handshake.
    pub handshake_timeout: Duration,
    /// Timeout of the head of the first request, measured from the end of the handshake.
    pub first_request_timeout: Duration,
    /// Timeout of the headers of a request, measured from the start of the connection or the end of the
    /// previous request. It closes idle HTTP/1.1 connections. An HTTP/2 connection closes when its peer does
    /// not answer a ping after that time.
    pub idle_timeout: Duration,
    /// Timeout of a write to a peer that reads nothing. Time without a pending write does not count.
    pub write_timeout: Duration,
    /// Timeout of a response from its start until its last byte is sent; then its connection is closed. For
    /// an [`UnboundedBody`](crate::UnboundedBody) it is the timeout of each frame.
    pub response_timeout: Duration,
    /// Time after the stop signal in which the server accepts requests, while it has connections. Each
    /// HTTP/1.1 response then has `connection: close`, so that the client closes the connection itself.
    /// Otherwise the server could close it while the next request is on its way. None by default.
    pub drain: Duration,
    /// Time that open requests have to finish after the stop signal and `drain`.
    pub shutdown_grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            tls: None,
            max_connections: 1024,
            open_connections: watch::Sender::new(0),
            unidentified: None,
            handshake_timeout: Duration::from_secs(10),
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(300),
            response_timeout: Duration::from_secs(300),
            drain: Duration::ZERO,
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeOptions")
            .field("tls", &self.tls.is_some())
            .field("connections", &self.max_connections)
            .field("unidentified", &self.unidentified)
            .field("handshake", &self.handshake_timeout)
            .field("first_request", &self.first_request_timeout)
            .field("idle", &self.idle_timeout)
            .field("stall", &self.write_timeout)
            .field("answer", &self.response_timeout)
            .field("drain", &self.drain)
            .field("grace", &self.shutdown_grace)
            .finish()
    }
}
