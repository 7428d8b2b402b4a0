//! An API server of scripted answers, for states that a cluster without nodes cannot have.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// A request that was received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Method and path with the query, such as `GET /api/v1/nodes?limit=1`.
    pub(crate) line: String,
    pub(crate) body: String,
}

/// Answer to a request.
pub(crate) enum FakeAnswer {
    /// Status and document.
    Document(u16, Value),
    /// Events of a watch, which stays open.
    Watch(Vec<Value>),
    /// A forwarded port that leads to this port of this host.
    Forward(u16),
}

/// A running server. Its threads end with the process of the test.
pub(crate) struct FakeApi {
    folder: tempfile::TempDir,
    requests: Receiver<Request>,
}

impl FakeApi {
    /// Starts a server.
    pub(crate) fn start(answer: fn(&Request) -> FakeAnswer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {
                "server": format!("http://{}", listener.local_addr().unwrap()),
            }}],
            "users": [{"name": "fake", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        });
        std::fs::write(folder.path().join("config"), config.to_string()).unwrap();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || serve(stream.unwrap(), answer, &sender));
            }
        });
        Self { folder, requests }
    }

    /// Returns the path of its kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.try_iter().collect()
    }
}

/// Reads a request. Returns its key for an upgrade to a websocket, too.
pub(crate) fn read_request(reader: &mut impl BufRead) -> io::Result<(Request, String)> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let (mut length, mut key) = (0, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim().split_once(": ") else {
            break;
        };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().map_err(io::Error::other)?,
            "sec-websocket-key" => value.clone_into(&mut key),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request = Request {
        line: line.trim().trim_end_matches(" HTTP/1.1").to_owned(),
        body: String::from_utf8(body).map_err(io::Error::other)?,
    };
    Ok((request, key))
}

/// Answers one request. The connection is closed after it.
fn serve(stream: TcpStream, answer: fn(&Request) -> FakeAnswer, sender: &Sender<Request>) {
    let mut reader = BufReader::new(stream);
    let (request, websocket_key) = read_request(&mut reader).unwrap();
    let answer = answer(&request);
    // A test that has ended reads no requests.
    let _ = sender.send(request);
    let mut stream = reader.into_inner();
    match answer {
        FakeAnswer::Forward(port) => {
            let accept = derive_accept_key(websocket_key.as_bytes());
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                 sec-websocket-protocol: v4.channel.k8s.io\r\nsec-websocket-accept: {accept}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(forward(stream, port));
        }
        FakeAnswer::Watch(events) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
            let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
            let _ = stream.write_all((head.to_owned() + &lines).as_bytes());
            // The client closes it.
            let _ = stream.read(&mut [0]);
        }
        FakeAnswer::Document(status, document) => {
            let text = document.to_string();
            let head = format!(
                "HTTP/1.1 {status} FakeAnswer\r\ncontent-type: application/json\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n",
                text.len()
            );
            let _ = stream.write_all((head + &text).as_bytes());
        }
    }
}

/// Forwards the data of a websocket: channel 0 has the data of the port, channel 1 its errors.
async fn forward(stream: TcpStream, port: u16) {
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let websocket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    let (mut sink, mut messages) = websocket.split();
    let target = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut read, mut write) = target.into_split();
    // The first message of each channel repeats the port of the request, which does not matter here.
    for channel in [0, 1] {
        let first = vec![channel, 0xfb, 0x20];
        sink.send(Message::Binary(first.into())).await.unwrap();
    }
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(Ok(Message::Binary(data))) if data.first() == Some(&0) => {
                    if write.write_all(&data[1..]).await.is_err() {
                        return;
                    }
                }
                Some(Ok(_)) => {}
                _ => return,
            },
            length = read.read(&mut buffer) => {
                let length = length.unwrap_or(0);
                let data = [&[0], &buffer[..length]].concat();
                if length == 0 {
                    break;
                }
                if sink.send(Message::Binary(data.into())).await.is_err() {
                    return;
                }
            }
        }
    }
    // A connection that is dropped with unread bytes is reset, and the client may lose the answer.
    let _ = sink.close().await;
    while let Some(Ok(_)) = messages.next().await {}
}
