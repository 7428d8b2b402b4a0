//! Connections: accepted, bounded, spoken to, and ended.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::opening::Opening;
use crate::peer::Peer;
use crate::stall::Stall;
use crate::tls::Tls;

/// The pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An error of any kind.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What answers requests.
pub trait Handle: Send + Sync + 'static {
    /// The body of its answers.
    type Body: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
    /// Why there is no answer; the connection ends then.
    type Error: Into<BoxError>;

    /// One request and its answer. [`Peer`] is among the request's extensions. It is dropped when the peer goes away.
    fn handle(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Self::Error>> + Send;

    /// Whether a connection that has come in is spoken to; otherwise it is closed at once.
    fn accepts(&self) -> bool {
        true
    }
}

/// What a peer may cost.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Speak TLS only.
    pub tls: Option<Tls>,
    /// Most connections at a time; further ones wait to be accepted. The default, 1024, is what a process may have open
    /// on most systems unless told otherwise.
    pub connections: usize,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long the headers of a request may take, from the beginning of the connection or the end of the request before on: a
    /// connection of HTTP/1.1 on which nothing is asked for so long is closed. One of HTTP/2 is closed when its peer does not
    /// answer a ping after that time.
    pub idle: Duration,
    /// How long an answer may wait for the peer to take more of it. The time in which there is nothing to take does not
    /// count.
    pub stall: Duration,
    /// How long open calls may go on when the server is told to stop.
    pub grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            tls: None,
            connections: 1024,
            handshake: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            stall: Duration::from_secs(300),
            grace: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeOptions")
            .field("tls", &self.tls.is_some())
            .field("connections", &self.connections)
            .field("handshake", &self.handshake)
            .field("idle", &self.idle)
            .field("stall", &self.stall)
            .field("grace", &self.grace)
            .finish()
    }
}

/// Serves until `stop` changes or its sender is dropped, then lets open calls end for the grace of the options.
pub async fn serve<H: Handle>(
    listener: TcpListener,
    handler: Arc<H>,
    options: ServeOptions,
    mut stop: watch::Receiver<()>,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(options.connections));
    let mut connections = JoinSet::new();
    let mut reloads = JoinSet::new();
    if let Some(tls) = options.tls.clone() {
        reloads.spawn(tls.follow());
    }
    loop {
        let accepted = async {
            // It is never closed.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        tokio::select! {
            // A dropped sender is the end too.
            _ = stop.changed() => break,
            Some(_) = connections.join_next() => {}
            (place, accepted) = accepted => match accepted {
                Ok((stream, _)) if !handler.accepts() => drop(stream),
                Ok((stream, address)) => {
                    debug!(%address, "connected");
                    let (handler, watcher) = (Arc::clone(&handler), graceful.watcher());
                    let options = options.clone();
                    connections.spawn(async move {
                        connect(stream, address, handler, &options, watcher).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    warn!(%error, "accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    if tokio::time::timeout(options.grace, graceful.shutdown())
        .await
        .is_err()
    {
        warn!(
            calls = connections.len(),
            "ended connections that did not end by themselves"
        );
    }
    connections.shutdown().await;
}

/// The most bytes of bodies that a connection of HTTP/2 holds before anybody reads them.
const UNREAD: u32 = 256 << 10;

/// One connection, from its handshake to its end.
async fn connect<H: Handle>(
    stream: TcpStream,
    address: SocketAddr,
    handler: Arc<H>,
    options: &ServeOptions,
    watcher: Watcher,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "set nodelay");
    }
    let local = stream.local_addr().ok();
    let Some(tls) = &options.tls else {
        return speak(
            stream,
            Peer::at(address).reached_at(local),
            handler,
            options,
            watcher,
        )
        .await;
    };
    match tokio::time::timeout(options.handshake, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let certificates = stream.get_ref().1.peer_certificates();
            let peer = match certificates.and_then(<[_]>::first) {
                Some(certificate) => Peer::with_certificate(address, certificate),
                None => Peer::at(address),
            };
            speak(stream, peer.reached_at(local), handler, options, watcher).await;
        }
        Ok(Err(error)) => info!(%error, %address, "TLS handshake"),
        Err(_) => info!(%address, "TLS handshake took too long"),
    }
}

async fn speak<S, H: Handle>(stream: S, peer: Peer, handler: Arc<H>, options: &ServeOptions, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        let handler = Arc::clone(&handler);
        request.extensions_mut().insert(peer.clone());
        async move { handler.handle(request).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle);
    builder
        .http2()
        .initial_connection_window_size(UNREAD)
        .initial_stream_window_size(UNREAD)
        .timer(TokioTimer::new())
        .keep_alive_interval(options.idle);
    let stream = Opening::new(Stall::new(stream, options.stall), options.idle);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    if let Err(error) = watcher.watch(connection).await {
        debug!(error = %Chain(&*error), "connection ended");
    }
}

/// An error with its sources, for the log.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn std::error::Error + 'static));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
