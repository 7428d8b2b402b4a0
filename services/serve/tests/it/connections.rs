//! Connections: bounded, answered, and let go of.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use ipu_serve::{Handler, Peer, ServeOptions, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// Answers who asks; `/slow` only once it is told to.
struct Who {
    asked: Notify,
    go: Notify,
}

impl Handler for Who {
    type Body = Full<Bytes>;
    type Error = Infallible;

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let peer = request.extensions().get::<Peer>().unwrap();
        let answer = format!("{} {:?}", peer.address().ip(), peer.names());
        if request.uri().path() == "/slow" {
            self.asked.notify_one();
            self.go.notified().await;
        }
        Ok(Response::new(Full::from(answer)))
    }
}

struct Running {
    who: Arc<Who>,
    address: std::net::SocketAddr,
    stop: watch::Sender<()>,
    serving: tokio::task::JoinHandle<()>,
}

async fn start(options: ServeOptions) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let who = Arc::new(Who {
        asked: Notify::new(),
        go: Notify::new(),
    });
    let (stop, stopped) = watch::channel(());
    let serving = tokio::spawn(serve(listener, Arc::clone(&who), options, stopped));
    Running {
        who,
        address,
        stop,
        serving,
    }
}

async fn ask(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_call_that_is_open_when_the_server_stops_is_answered() {
    let running = start(ServeOptions::default()).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    ask(&mut stream, "/slow").await;
    running.who.asked.notified().await;
    running.stop.send(()).unwrap();
    running.who.go.notify_one();
    assert!(answer(&mut stream).await.contains("127.0.0.1 []"));
    running.serving.await.unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_served_when_another_ends() {
    let mut options = ServeOptions::default();
    options.connections = 1;
    let running = start(options).await;
    let mut first = TcpStream::connect(running.address).await.unwrap();
    ask(&mut first, "/slow").await;
    running.who.asked.notified().await;
    let mut second = TcpStream::connect(running.address).await.unwrap();
    ask(&mut second, "/").await;
    running.who.go.notify_one();
    assert!(answer(&mut first).await.starts_with("HTTP/1.1 200"));
    assert!(answer(&mut second).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_connection_holds_little_of_what_nobody_reads() {
    let running = start(ServeOptions::default()).await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    let _connection = tokio::spawn(connection);
    let mut requests = requests.ready().await.unwrap();
    let request = |path: &str| Request::get(format!("http://x{path}")).body(()).unwrap();
    // What the server allows is known when it has answered.
    requests
        .send_request(request("/"), true)
        .unwrap()
        .0
        .await
        .unwrap();
    let (mut sent, mut open) = (0, Vec::new());
    for _ in 0..2 {
        let (answer, mut body) = requests.send_request(request("/slow"), false).unwrap();
        running.who.asked.notified().await;
        body.reserve_capacity(8 << 20);
        let room = std::future::poll_fn(|context| match body.poll_capacity(context) {
            std::task::Poll::Ready(room) => std::task::Poll::Ready(room.map(Result::unwrap)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        });
        let room = room.await.unwrap_or(0);
        body.send_data(vec![0; room].into(), false).unwrap();
        sent += room;
        requests
            .send_request(request("/"), true)
            .unwrap()
            .0
            .await
            .unwrap();
        assert_eq!(body.capacity(), 0);
        open.push((answer, body));
    }
    assert_eq!(sent, 256 << 10);
}
