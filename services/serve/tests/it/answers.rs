//! Responses keep their guard until they are sent within a bounded time. Connections without a request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming};
use ipu_serve::{
    BoxError, GuardedBody, Handler, Peer, ServeOptions, UnboundedBody, UnidentifiedLimits, serve,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Size of a response in bytes that exceeds the buffers of a connection.
const LARGE: usize = 32 << 20;
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of a test that waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Serves large responses, whose guards it counts, and an unbounded one.
#[derive(Default)]
struct TestHandler {
    guards: Arc<AtomicUsize>,
    released: Arc<tokio::sync::Notify>,
}

struct Guard(Arc<AtomicUsize>, Arc<tokio::sync::Notify>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        self.1.notify_one();
    }
}

/// Echoes each frame of the request.
struct Echo(Incoming);

impl Body for Echo {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }
}

impl Handler for TestHandler {
    type Body = UnsyncBoxBody<Bytes, BoxError>;
    type Error = Infallible;

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Self::Body>, Infallible> {
        let full = |size: usize| Full::from(vec![b'x'; size]).map_err(BoxError::from);
        Ok(match request.uri().path() {
            "/large" => {
                self.guards.fetch_add(1, Ordering::SeqCst);
                let guard = Guard(Arc::clone(&self.guards), Arc::clone(&self.released));
                Response::new(GuardedBody::new(full(LARGE), guard).boxed_unsync())
            }
            "/unbounded" => {
                let mut response =
                    Response::new(Echo(request.into_body()).map_err(BoxError::from).boxed_unsync());
                response.extensions_mut().insert(UnboundedBody);
                response
            }
            "/identify" => {
                request.extensions().get::<Peer>().unwrap().identify();
                Response::new(full(1).boxed_unsync())
            }
            _ => Response::new(full(1).boxed_unsync()),
        })
    }
}

struct TestServer {
    handler: Arc<TestHandler>,
    address: SocketAddr,
    _stop: watch::Sender<()>,
}

impl TestServer {
    async fn start(change: impl FnOnce(&mut ServeOptions)) -> Self {
        let mut options = ServeOptions::default();
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler = Arc::new(TestHandler::default());
        let (stop, stopped) = watch::channel(());
        tokio::spawn(serve(listener, Arc::clone(&handler), options, stopped));
        Self {
            handler,
            address,
            _stop: stop,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn guards(&self) -> usize {
        self.handler.guards.load(Ordering::SeqCst)
    }

    async fn until_released(&self) {
        within(self.handler.released.notified()).await;
        assert_eq!(self.guards(), 0);
    }

    /// Opens an HTTP/2 connection with this initial window in bytes; also returns a receiver of its end.
    async fn http2(&self, window: u32) -> (h2::client::SendRequest<Bytes>, mpsc::Receiver<()>) {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window);
        let (client, connection) = builder.handshake(self.connect().await).await.unwrap();
        let (ended, end) = mpsc::channel(1);
        tokio::spawn(async move {
            let _ended = ended;
            connection.await.ok();
        });
        (client, end)
    }
}

async fn within<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, event).await.unwrap()
}

fn request(path: &str) -> Request<()> {
    Request::get(format!("http://x{path}")).body(()).unwrap()
}

async fn send_get(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

/// Reads a short response.
async fn read_response(stream: &mut TcpStream) {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\nx") {
        text.push(within(stream.read_u8()).await.unwrap());
    }
}

/// Waits until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset closes the connection, too.
    within(stream.read_to_end(&mut rest)).await.ok();
}

#[tokio::test]
async fn a_response_keeps_its_guard_until_its_last_byte_is_sent() {
    let server = TestServer::start(|_| {}).await;
    let mut stream = server.connect().await;
    send_get(&mut stream, "/large").await;
    let mut half = vec![0; LARGE / 2];
    within(stream.read_exact(&mut half)).await.unwrap();
    assert_eq!(server.guards(), 1);
    let mut rest = tokio::spawn(async move {
        let mut rest = vec![0; LARGE / 2];
        stream.read_exact(&mut rest).await.unwrap();
        stream
    });
    server.until_released().await;
    within(&mut rest).await.unwrap();

    let (mut requests, _end) = server.http2(1).await;
    let (response, _) = requests.send_request(request("/large"), true).unwrap();
    let mut body = within(response).await.unwrap().into_body();
    assert_eq!(within(body.data()).await.unwrap().unwrap().len(), 1);
    // The server has passed the whole body to the connection by now.
    assert_eq!(server.guards(), 1);
    body.flow_control().release_capacity(1).unwrap();
    assert_eq!(within(body.data()).await.unwrap().unwrap().len(), 1);
    assert_eq!(server.guards(), 1);
    drop(body);
    server.until_released().await;
}

#[tokio::test]
async fn a_response_that_the_client_does_not_read_closes_its_connection_at_the_deadline() {
    let server = TestServer::start(|options| options.response_timeout = RESPONSE_TIMEOUT).await;
    let mut stream = server.connect().await;
    send_get(&mut stream, "/large").await;
    server.until_released().await;
    for window in [0, 1] {
        let (mut requests, mut end) = server.http2(window).await;
        let (response, _) = requests.send_request(request("/large"), true).unwrap();
        let _body = within(response).await.unwrap();
        server.until_released().await;
        assert_eq!(within(end.recv()).await, None);
    }
}

#[tokio::test]
async fn an_unbounded_response_outlives_the_deadline_while_the_client_reads_it() {
    let server = TestServer::start(|options| options.response_timeout = RESPONSE_TIMEOUT).await;
    let (mut requests, mut end) = server.http2(4).await;
    let (response, mut echo) = requests.send_request(request("/unbounded"), false).unwrap();
    let mut body = within(response).await.unwrap().into_body();
    let started = Instant::now();
    while started.elapsed() < RESPONSE_TIMEOUT * 2 {
        echo.send_data(Bytes::from_static(b"tick"), false).unwrap();
        let tick = within(body.data()).await.unwrap().unwrap();
        body.flow_control().release_capacity(tick.len()).unwrap();
    }
    // The window fits one of these.
    for _ in 0..2 {
        echo.send_data(Bytes::from_static(b"tick"), false).unwrap();
    }
    assert_eq!(within(end.recv()).await, None);
}

#[tokio::test]
async fn only_a_connection_without_a_complete_request_head_in_time_is_closed() {
    let server = TestServer::start(|options| options.first_request_timeout = RESPONSE_TIMEOUT).await;
    let mut idle = server.connect().await;
    send_get(&mut idle, "/").await;
    read_response(&mut idle).await;
    for bytes in ["", "PRI *", "GET / HTT", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = server.connect().await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        until_closed(&mut stream).await;
    }
    // This connection answers pings and sends no request.
    let (_requests, mut end) = server.http2(0).await;
    assert_eq!(within(end.recv()).await, None);
    send_get(&mut idle, "/").await;
    read_response(&mut idle).await;
}

#[tokio::test]
async fn a_network_with_too_many_unidentified_connections_loses_the_oldest_and_no_identified_one() {
    let server = TestServer::start(|options| {
        options.unidentified = Some(UnidentifiedLimits {
            total: 8,
            per_network: 2,
        });
    })
    .await;
    let mut identified = server.connect().await;
    send_get(&mut identified, "/identify").await;
    read_response(&mut identified).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect().await;
        send_get(&mut stream, "/").await;
        read_response(&mut stream).await;
        open.push(stream);
    }
    for stream in &mut open[..2] {
        until_closed(stream).await;
    }
    for stream in open[2..].iter_mut().chain([&mut identified]) {
        send_get(stream, "/").await;
        read_response(stream).await;
    }
}
