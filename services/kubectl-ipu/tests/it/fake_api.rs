//! An API server of scripted answers, for states that a cluster without nodes cannot have.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

/// A request that was received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Method and path with the query, such as `GET /api/v1/nodes?limit=1`.
    pub(crate) line: String,
    pub(crate) body: String,
}

/// FakeAnswer to a request.
pub(crate) enum FakeAnswer {
    /// Status and document.
    Document(u16, Value),
    /// A log that repeats this text until the reader is gone.
    Endless(&'static str),
    /// Events of a watch, which stays open.
    Watch(Vec<Value>),
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

/// Answers one request. The connection is closed after it.
fn serve(stream: TcpStream, answer: fn(&Request) -> FakeAnswer, sender: &Sender<Request>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let request = Request {
        line: line.trim().trim_end_matches(" HTTP/1.1").to_owned(),
        body: String::from_utf8(body).unwrap(),
    };
    let answer = answer(&request);
    // A test that has ended reads no requests.
    let _ = sender.send(request);
    let mut stream = reader.into_inner();
    match answer {
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
        FakeAnswer::Endless(text) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n";
            let mut written = stream.write_all(head.as_bytes());
            while written.is_ok() {
                written = stream.write_all(text.as_bytes());
            }
        }
    }
}
