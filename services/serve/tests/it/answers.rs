//! Answers: held until they are sent, and sent within a bounded time. Connections without a request.

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
use ipu_serve::{BoxError, Endless, GuardedBody, Handler, Peer, ServeOptions, UnidentifiedLimits, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// More than the buffers of a connection take.
const LARGE: usize = 32 << 20;
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest that a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Serves large answers, counts those that are held, and an endless one.
#[derive(Default)]
struct Answers {
    held: Arc<AtomicUsize>,
    released: Arc<tokio::sync::Notify>,
}

struct Guard(Arc<AtomicUsize>, Arc<tokio::sync::Notify>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        self.1.notify_one();
    }
}

/// A frame each time that the client sends one.
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

impl Handler for Answers {
    type Body = UnsyncBoxBody<Bytes, BoxError>;
    type Error = Infallible;

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Self::Body>, Infallible> {
        let full = |size: usize| Full::from(vec![b'x'; size]).map_err(BoxError::from);
        Ok(match request.uri().path() {
            "/large" => {
                self.held.fetch_add(1, Ordering::SeqCst);
                let guard = Guard(Arc::clone(&self.held), Arc::clone(&self.released));
                Response::new(GuardedBody::new(full(LARGE), guard).boxed_unsync())
            }
            "/endless" => {
                let mut answer =
                    Response::new(Echo(request.into_body()).map_err(BoxError::from).boxed_unsync());
                answer.extensions_mut().insert(Endless);
                answer
            }
            "/identify" => {
                request.extensions().get::<Peer>().unwrap().identify();
                Response::new(full(1).boxed_unsync())
            }
            _ => Response::new(full(1).boxed_unsync()),
        })
    }
}

struct Running {
    answers: Arc<Answers>,
    address: SocketAddr,
    _stop: watch::Sender<()>,
}

impl Running {
    async fn start(change: impl FnOnce(&mut ServeOptions)) -> Self {
        let mut options = ServeOptions::default();
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Arc::new(Answers::default());
        let (stop, stopped) = watch::channel(());
        tokio::spawn(serve(listener, Arc::clone(&answers), options, stopped));
        Self {
            answers,
            address,
            _stop: stop,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn held(&self) -> usize {
        self.answers.held.load(Ordering::SeqCst)
    }

    async fn released(&self) {
        within(self.answers.released.notified()).await;
        assert_eq!(self.held(), 0);
    }

    /// A connection of HTTP/2 whose answers may send `window` bytes unasked, and its end.
    async fn http2(&self, window: u32) -> (h2::client::SendRequest<Bytes>, mpsc::Receiver<()>) {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window);
        let (requests, connection) = builder.handshake(self.connect().await).await.unwrap();
        let (ended, end) = mpsc::channel(1);
        tokio::spawn(async move {
            let _ended = ended;
            connection.await.ok();
        });
        (requests, end)
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.unwrap()
}

fn request(path: &str) -> Request<()> {
    Request::get(format!("http://x{path}")).body(()).unwrap()
}

async fn ask(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

/// Reads a short answer.
async fn answer(stream: &mut TcpStream) {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\nx") {
        text.push(within(stream.read_u8()).await.unwrap());
    }
}

/// Waits until the server closes the connection.
async fn end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end, too.
    within(stream.read_to_end(&mut rest)).await.ok();
}

#[tokio::test]
async fn an_answer_is_held_until_its_last_byte_is_sent() {
    let running = Running::start(|_| {}).await;
    let mut stream = running.connect().await;
    ask(&mut stream, "/large").await;
    let mut half = vec![0; LARGE / 2];
    within(stream.read_exact(&mut half)).await.unwrap();
    assert_eq!(running.held(), 1);
    let mut rest = tokio::spawn(async move {
        let mut rest = vec![0; LARGE / 2];
        stream.read_exact(&mut rest).await.unwrap();
        stream
    });
    running.released().await;
    within(&mut rest).await.unwrap();

    let (mut requests, _end) = running.http2(1).await;
    let (answer, _) = requests.send_request(request("/large"), true).unwrap();
    let mut body = within(answer).await.unwrap().into_body();
    assert_eq!(within(body.data()).await.unwrap().unwrap().len(), 1);
    // The server has handed over the whole body by now.
    assert_eq!(running.held(), 1);
    body.flow_control().release_capacity(1).unwrap();
    assert_eq!(within(body.data()).await.unwrap().unwrap().len(), 1);
    assert_eq!(running.held(), 1);
    drop(body);
    running.released().await;
}

#[tokio::test]
async fn an_answer_that_the_client_does_not_read_ends_its_connection_at_the_deadline() {
    let running = Running::start(|options| options.answer = RESPONSE_TIMEOUT).await;
    let mut stream = running.connect().await;
    ask(&mut stream, "/large").await;
    running.released().await;
    for window in [0, 1] {
        let (mut requests, mut end) = running.http2(window).await;
        let (answer, _) = requests.send_request(request("/large"), true).unwrap();
        let _body = within(answer).await.unwrap();
        running.released().await;
        assert_eq!(within(end.recv()).await, None);
    }
}

#[tokio::test]
async fn an_endless_answer_outlives_the_deadline_as_long_as_the_client_reads_it() {
    let running = Running::start(|options| options.answer = RESPONSE_TIMEOUT).await;
    let (mut requests, mut end) = running.http2(4).await;
    let (answer, mut echo) = requests.send_request(request("/endless"), false).unwrap();
    let mut body = within(answer).await.unwrap().into_body();
    let began = Instant::now();
    while began.elapsed() < RESPONSE_TIMEOUT * 2 {
        echo.send_data(Bytes::from_static(b"tick"), false).unwrap();
        let tick = within(body.data()).await.unwrap().unwrap();
        body.flow_control().release_capacity(tick.len()).unwrap();
    }
    // The window takes one of these.
    for _ in 0..2 {
        echo.send_data(Bytes::from_static(b"tick"), false).unwrap();
    }
    assert_eq!(within(end.recv()).await, None);
}

#[tokio::test]
async fn a_connection_that_completes_no_request_head_in_time_is_closed_and_another_one_is_not() {
    let running = Running::start(|options| options.first_request = RESPONSE_TIMEOUT).await;
    let mut idle = running.connect().await;
    ask(&mut idle, "/").await;
    answer(&mut idle).await;
    for said in ["", "PRI *", "GET / HTT", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = running.connect().await;
        stream.write_all(said.as_bytes()).await.unwrap();
        end(&mut stream).await;
    }
    // It answers pings and requests nothing.
    let (_requests, mut end) = running.http2(0).await;
    assert_eq!(within(end.recv()).await, None);
    ask(&mut idle, "/").await;
    answer(&mut idle).await;
}

#[tokio::test]
async fn a_network_with_too_many_unidentified_connections_loses_the_oldest_and_no_identified_one() {
    let running = Running::start(|options| {
        options.unidentified = Some(UnidentifiedLimits {
            total: 8,
            per_network: 2,
        });
    })
    .await;
    let mut identified = running.connect().await;
    ask(&mut identified, "/identify").await;
    answer(&mut identified).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = running.connect().await;
        ask(&mut stream, "/").await;
        answer(&mut stream).await;
        open.push(stream);
    }
    for stream in &mut open[..2] {
        end(stream).await;
    }
    for stream in open[2..].iter_mut().chain([&mut identified]) {
        ask(stream, "/").await;
        answer(stream).await;
    }
}
