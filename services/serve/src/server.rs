//! Accept loop, connection limits and graceful shutdown.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use ipu_core::ErrorChain;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::answers::{BoxError, GuardedBody, PendingResponses, UnboundedBody};
use crate::listener::{Listener, Stream};
use crate::options::ServeOptions;
use crate::peer::Peer;
use crate::unidentified::{Connection, UnidentifiedClients};
use crate::write_timeout::WriteTimeout;

/// Pause after a failed `accept`, for example because the process has no free file descriptor.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Handler of HTTP requests.
pub trait Handler: Send + Sync + 'static {
    /// Body of the responses.
    type Body: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
    /// Reason for a missing response; the connection closes then.
    type Error: Into<BoxError>;

    /// Handles one request. [`Peer`] is among its extensions. The server drops the future when the client
    /// disconnects.
    fn handle(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Self::Error>> + Send;

    /// Returns whether new connections are accepted; otherwise the server closes them at once.
    fn accepts(&self) -> bool {
        true
    }
}

/// Serves until `stop` changes or its sender is dropped, and drains the connections. Then waits up to the
/// grace of the options for open requests.
pub async fn serve<H: Handler>(
    listener: impl Into<Listener>,
    handler: Arc<H>,
    options: ServeOptions,
    mut stop: watch::Receiver<()>,
) {
    let listener = listener.into();
    let mut reloads = JoinSet::new();
    if let Some(tls) = options.tls.clone() {
        reloads.spawn(tls.watch_files());
    }
    let unidentified = options.unidentified.map(UnidentifiedClients::new);
    let mut connections = Connections {
        permits: Arc::new(Semaphore::new(options.max_connections)),
        unidentified: unidentified.map(Arc::new),
        graceful: GracefulShutdown::new(),
        open: JoinSet::new(),
        draining: Arc::new(AtomicBool::new(false)),
        handler,
        options,
    };
    tokio::select! {
        // A dropped sender stops the server, too.
        _ = stop.changed() => {}
        () = connections.accept(&listener) => {}
    }
    let ServeOptions {
        drain,
        shutdown_grace,
        ..
    } = connections.options;
    if !drain.is_zero() {
        connections.draining.store(true, Ordering::Relaxed);
        // Connections without a request are left at the end.
        let _ = tokio::time::timeout(drain, connections.accept(&listener)).await;
    }
    drop(listener);
    let Connections {
        graceful, mut open, ..
    } = connections;
    if tokio::time::timeout(shutdown_grace, graceful.shutdown())
        .await
        .is_err()
    {
        warn!(
            connections = open.len(),
            "closed connections that did not finish within the grace period"
        );
    }
    open.shutdown().await;
}

/// The connections of a server.
struct Connections<H> {
    permits: Arc<Semaphore>,
    unidentified: Option<Arc<UnidentifiedClients>>,
    graceful: GracefulShutdown,
    open: JoinSet<()>,
    /// Whether responses ask the client to close its connection.
    draining: Arc<AtomicBool>,
    handler: Arc<H>,
    options: ServeOptions,
}

impl<H: Handler> Connections<H> {
    /// Accepts connections; while draining, until none is open.
    async fn accept(&mut self, listener: &Listener) {
        while !(self.draining.load(Ordering::Relaxed) && self.open.is_empty()) {
            let accepted = async {
                // The semaphore is never closed.
                let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
                (permit, listener.accept().await)
            };
            tokio::select! {
                Some(_) = self.open.join_next() => {}
                (permit, accepted) = accepted => match accepted {
                    Ok((stream, _)) if !self.handler.accepts() => drop(stream),
                    Ok((stream, peer)) => self.open(stream, peer, permit),
                    Err(error) => {
                        warn!(%error, "accept");
                        tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                    }
                },
            }
        }
    }

    /// Serves a connection in a task of its own.
    fn open(&mut self, stream: Stream, peer: Peer, permit: Option<OwnedSemaphorePermit>) {
        let address = peer.address();
        debug!(%address, "connected");
        let (handler, watcher) = (Arc::clone(&self.handler), self.graceful.watcher());
        let (options, draining) = (self.options.clone(), Arc::clone(&self.draining));
        let network = peer.network();
        let unidentified = self.unidentified.as_ref();
        let connection = unidentified
            .map(|clients| clients.admit(network))
            .unwrap_or_default();
        self.open.spawn(async move {
            let peer = peer.with_connection(connection.clone());
            let _guard = UnidentifiedGuard(connection.clone());
            let _count = ConnectionCount::of(&options.open_connections);
            tokio::select! {
                () = handle_connection(stream, peer, handler, &options, draining, watcher) => {}
                () = connection.closed() => debug!(%address, "closed for a newer connection"),
            }
            drop(permit);
        });
    }
}

/// Counts an open connection in [`ServeOptions::open_connections`].
struct ConnectionCount(watch::Sender<usize>);

impl ConnectionCount {
    fn of(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Counts a connection until it ends.
struct UnidentifiedGuard(Connection);

impl Drop for UnidentifiedGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Maximum number of concurrent HTTP/2 requests of a connection: the minimum that RFC 9113 recommends.
const MAX_CONCURRENT_STREAMS: u32 = 100;
/// Maximum bytes of a response that HTTP/2 buffers beyond the window of the client.
const MAX_SEND_BUFFER_BYTES: usize = 64 << 10;
/// Maximum bytes of request bodies that an HTTP/2 connection buffers before the handler reads them.
const MAX_UNREAD_BYTES: u32 = 256 << 10;

/// Serves one connection, from its handshake to its end.
async fn handle_connection<H: Handler>(
    stream: Stream,
    peer: Peer,
    handler: Arc<H>,
    options: &ServeOptions,
    draining: Arc<AtomicBool>,
    watcher: Watcher,
) {
    if let Err(error) = stream.set_nodelay() {
        debug!(%error, "set nodelay");
    }
    let Some(tls) = &options.tls else {
        return serve_connection(stream, peer, handler, options, draining, watcher).await;
    };
    let address = peer.address();
    match tokio::time::timeout(options.handshake_timeout, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let certificates = stream.get_ref().1.peer_certificates();
            let peer = match certificates.and_then(<[_]>::first) {
                Some(certificate) => peer.with_certificate(certificate),
                None => peer,
            };
            serve_connection(stream, peer, handler, options, draining, watcher).await;
        }
        Ok(Err(error)) => info!(%error, %address, "TLS handshake"),
        Err(_) => info!(%address, "TLS handshake timed out"),
    }
}

async fn serve_connection<S, H: Handler>(
    stream: S,
    peer: Peer,
    handler: Arc<H>,
    options: &ServeOptions,
    draining: Arc<AtomicBool>,
    watcher: Watcher,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (pending, first_request) = (Arc::new(PendingResponses::default()), Arc::new(Notify::new()));
    let service = service_fn({
        let (pending, first_request) = (Arc::clone(&pending), Arc::clone(&first_request));
        move |mut request: Request<Incoming>| {
            first_request.notify_one();
            let draining = Arc::clone(&draining);
            let closes = move |version| version <= Version::HTTP_11 && draining.load(Ordering::Relaxed);
            let (handler, pending) = (Arc::clone(&handler), Arc::clone(&pending));
            request.extensions_mut().insert(peer.clone());
            async move {
                let version = request.version();
                let mut response = handler.handle(request).await?;
                if closes(version) {
                    response
                        .headers_mut()
                        .insert(CONNECTION, HeaderValue::from_static("close"));
                }
                let is_unbounded = response.extensions().get::<UnboundedBody>().is_some();
                Ok::<_, H::Error>(response.map(|body| {
                    if is_unbounded {
                        GuardedBody::with_frame_guards(body, move |_| Ok(pending.start()))
                    } else {
                        GuardedBody::new(body, pending.start())
                    }
                }))
            }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle_timeout);
    builder
        .http2()
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .initial_connection_window_size(MAX_UNREAD_BYTES)
        .initial_stream_window_size(MAX_UNREAD_BYTES)
        .timer(TokioTimer::new())
        .keep_alive_interval(options.idle_timeout);
    let stream = WriteTimeout::new(stream, options.write_timeout);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let request_timeout = async {
        let request = tokio::time::timeout(options.first_request_timeout, first_request.notified());
        if request.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ended = watcher.watch(connection) => if let Err(error) = ended {
            debug!(error = %ErrorChain(&*error), "connection ended");
        },
        () = pending.until_overdue(options.response_timeout) => debug!("connection closed: a response was not sent in time"),
        () = request_timeout => debug!("connection closed: no request arrived in time"),
    }
}
