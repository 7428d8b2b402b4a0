//! Connection limits and graceful shutdown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use ipu_serve::{Handler, Peer, ServeOptions, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// Returns the peer of the request; `/slow` waits for `proceed`.
struct PeerHandler {
    requested: Notify,
    proceed: Notify,
}

impl Handler for PeerHandler {
    type Body = Full<Bytes>;
    type Error = Infallible;

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let peer = request.extensions().get::<Peer>().unwrap();
        let text = format!("{} {:?}", peer.address().ip(), peer.names());
        if request.uri().path() == "/slow" {
            self.requested.notify_one();
            self.proceed.notified().await;
        }
        Ok(Response::new(Full::from(text)))
    }
}

struct TestServer {
    handler: Arc<PeerHandler>,
    address: std::net::SocketAddr,
    stop: watch::Sender<()>,
    serving: tokio::task::JoinHandle<()>,
}

async fn start(options: ServeOptions) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = Arc::new(PeerHandler {
        requested: Notify::new(),
        proceed: Notify::new(),
    });
    let (stop, stopped) = watch::channel(());
    let serving = tokio::spawn(serve(listener, Arc::clone(&handler), options, stopped));
    TestServer {
        handler,
        address,
        stop,
        serving,
    }
}

async fn send_get(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn read_response(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_request_that_is_open_when_the_server_stops_is_answered() {
    let server = start(ServeOptions::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    send_get(&mut stream, "/slow").await;
    server.handler.requested.notified().await;
    server.stop.send(()).unwrap();
    server.handler.proceed.notify_one();
    assert!(read_response(&mut stream).await.contains("127.0.0.1 []"));
    server.serving.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_draining_server_answers_and_asks_the_client_to_close_the_connection() {
    let mut options = ServeOptions::default();
    options.drain = Duration::from_secs(300);
    let server = start(options).await;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let (mut used, mut idle) = (
        TcpStream::connect(server.address).await.unwrap(),
        TcpStream::connect(server.address).await.unwrap(),
    );
    let mut answer = [0; 1024];
    for stream in [&mut used, &mut idle] {
        stream.write_all(request).await.unwrap();
        let length = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(!answer.contains("connection: close"), "{answer}");
    }
    server.stop.send(()).unwrap();
    let mut new = TcpStream::connect(server.address).await.unwrap();
    for stream in [&mut used, &mut new] {
        stream.write_all(request).await.unwrap();
        let answer = read_response(stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    assert!(!server.serving.is_finished());
    drop(idle);
    // Without a connection, the server does not wait for the end of the time.
    server.serving.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_served_when_another_ends() {
    let mut options = ServeOptions::default();
    options.max_connections = 1;
    let server = start(options).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    send_get(&mut first, "/slow").await;
    server.handler.requested.notified().await;
    let mut second = TcpStream::connect(server.address).await.unwrap();
    send_get(&mut second, "/").await;
    server.handler.proceed.notify_one();
    assert!(read_response(&mut first).await.starts_with("HTTP/1.1 200"));
    assert!(read_response(&mut second).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_connection_buffers_a_bounded_amount_of_unread_bodies() {
    let server = start(ServeOptions::default()).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    let _connection = tokio::spawn(connection);
    let mut requests = requests.ready().await.unwrap();
    let request = |path: &str| Request::get(format!("http://x{path}")).body(()).unwrap();
    // The client has the settings of the server as soon as a response arrives.
    requests
        .send_request(request("/"), true)
        .unwrap()
        .0
        .await
        .unwrap();
    let (mut sent, mut open) = (0, Vec::new());
    for _ in 0..2 {
        let (response, mut body) = requests.send_request(request("/slow"), false).unwrap();
        server.handler.requested.notified().await;
        body.reserve_capacity(8 << 20);
        let capacity = std::future::poll_fn(|context| match body.poll_capacity(context) {
            std::task::Poll::Ready(capacity) => std::task::Poll::Ready(capacity.map(Result::unwrap)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        });
        let capacity = capacity.await.unwrap_or(0);
        body.send_data(vec![0; capacity].into(), false).unwrap();
        sent += capacity;
        requests
            .send_request(request("/"), true)
            .unwrap()
            .0
            .await
            .unwrap();
        assert_eq!(body.capacity(), 0);
        open.push((response, body));
    }
    assert_eq!(sent, 256 << 10);
}
