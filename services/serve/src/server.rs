//! Connections: accepted, bounded, spoken to, and ended.

use std::future::Future;
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
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::answers::{Answers, Endless, GuardedBody};
use crate::peer::Peer;
use crate::tls::Tls;
use crate::unidentified::{Connection, UnidentifiedClients, UnidentifiedLimits};
use crate::write_timeout::Stall;

/// The pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An error of any kind.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
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
    /// Limits of connections on which no request has identified its client. None by default: the handler then need not
    /// call [`Peer::identify`].
    pub unidentified: Option<UnidentifiedLimits>,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long the head of the first request may take to arrive, after the handshake.
    pub first_request: Duration,
    /// How long the headers of a request may take, from the beginning of the connection or the end of the request before on: a
    /// connection of HTTP/1.1 on which nothing is asked for so long is closed. One of HTTP/2 is closed when its peer does not
    /// answer a ping after that time.
    pub idle: Duration,
    /// How long an answer may wait for the peer to take more of it. The time in which there is nothing to take does not
    /// count.
    pub stall: Duration,
    /// How long an answer may take from its beginning until its last byte is sent; then its connection is closed. For an
    /// [`Endless`] answer it is how long each frame may take.
    pub answer: Duration,
    /// How long open calls may go on when the server is told to stop.
    pub grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            tls: None,
            connections: 1024,
            unidentified: None,
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            stall: Duration::from_secs(300),
            answer: Duration::from_secs(300),
            grace: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeOptions")
            .field("tls", &self.tls.is_some())
            .field("connections", &self.connections)
            .field("unidentified", &self.unidentified)
            .field("handshake", &self.handshake)
            .field("first_request", &self.first_request)
            .field("idle", &self.idle)
            .field("stall", &self.stall)
            .field("answer", &self.answer)
            .field("grace", &self.grace)
            .finish()
    }
}

/// Serves until `stop` changes or its sender is dropped, then lets open calls end for the grace of the options.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    handler: Arc<H>,
    options: ServeOptions,
    mut stop: watch::Receiver<()>,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(options.connections));
    let unidentified = options
        .unidentified
        .map(|limits| Arc::new(UnidentifiedClients::new(limits)));
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
                    let network = Peer::at(address).network();
                    let connection = unidentified.as_ref().map(|all| all.admit(network)).unwrap_or_default();
                    connections.spawn(async move {
                        let peer = Peer::at(address).on(connection.clone());
                        let _counted = ConnectionCount(connection.clone());
                        tokio::select! {
                            () = connect(stream, peer, handler, &options, watcher) => {}
                            () = connection.closed() => debug!(%address, "closed for a newer connection"),
                        }
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

/// Counts a connection until it ends.
struct ConnectionCount(Connection);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Most requests of a connection of HTTP/2 at a time: the least that RFC 9113 recommends.
const STREAMS: u32 = 100;
/// The most bytes of an answer that HTTP/2 takes before the client asks for them.
const UNSENT: usize = 64 << 10;
/// The most bytes of bodies that a connection of HTTP/2 holds before anybody reads them.
const MAX_UNREAD_BYTES: u32 = 256 << 10;

/// One connection, from its handshake to its end.
async fn connect<H: Handler>(
    stream: TcpStream,
    peer: Peer,
    handler: Arc<H>,
    options: &ServeOptions,
    watcher: Watcher,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "set nodelay");
    }
    let peer = peer.reached_at(stream.local_addr().ok());
    let Some(tls) = &options.tls else {
        return serve_connection(stream, peer, handler, options, watcher).await;
    };
    let address = peer.address();
    match tokio::time::timeout(options.handshake, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let certificates = stream.get_ref().1.peer_certificates();
            let peer = match certificates.and_then(<[_]>::first) {
                Some(certificate) => peer.with_certificate(certificate),
                None => peer,
            };
            serve_connection(stream, peer, handler, options, watcher).await;
        }
        Ok(Err(error)) => info!(%error, %address, "TLS handshake"),
        Err(_) => info!(%address, "TLS handshake took too long"),
    }
}

async fn serve_connection<S, H: Handler>(
    stream: S,
    peer: Peer,
    handler: Arc<H>,
    options: &ServeOptions,
    watcher: Watcher,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (answers, first) = (Arc::new(Answers::default()), Arc::new(Notify::new()));
    let service = service_fn({
        let (answers, first) = (Arc::clone(&answers), Arc::clone(&first));
        move |mut request: Request<Incoming>| {
            first.notify_one();
            let (handler, answers) = (Arc::clone(&handler), Arc::clone(&answers));
            request.extensions_mut().insert(peer.clone());
            async move {
                let answer = handler.handle(request).await?;
                let endless = answer.extensions().get::<Endless>().is_some();
                Ok::<_, H::Error>(answer.map(|body| {
                    if endless {
                        GuardedBody::each_frame(body, move |_| Ok(answers.begin()))
                    } else {
                        GuardedBody::new(body, answers.begin())
                    }
                }))
            }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle);
    builder
        .http2()
        .max_concurrent_streams(STREAMS)
        .max_send_buf_size(UNSENT)
        .initial_connection_window_size(MAX_UNREAD_BYTES)
        .initial_stream_window_size(MAX_UNREAD_BYTES)
        .timer(TokioTimer::new())
        .keep_alive_interval(options.idle);
    let stream = Stall::new(stream, options.stall);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let no_request = async {
        let request = tokio::time::timeout(options.first_request, first.notified());
        if request.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ended = watcher.watch(connection) => if let Err(error) = ended {
            debug!(error = %Chain(&*error), "connection ended");
        },
        () = answers.overdue(options.answer) => debug!("connection closed: an answer was not sent in time"),
        () = no_request => debug!("connection closed: no request arrived in time"),
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
