//! A proxy whose answers a test decides.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use ipu_proxy_client::{ClientOptions, ProxyClient};
use serde_json::Value;

/// The answer to a request: a document, with the status.
pub(crate) struct Response(u16, String);

impl Response {
    /// Returns a document.
    pub(crate) fn ok(document: &Value) -> Self {
        Self(200, document.to_string())
    }

    /// Returns a refusal.
    pub(crate) fn problem(status: u16, code: &str) -> Self {
        let document = serde_json::json!({
            "type": format!("urn:ipu-sdk:problem:{code}"), "title": code, "status": status,
            "detail": "because", "code": code,
        });
        Self(status, document.to_string())
    }
}

/// A server on a port of its own.
pub(crate) struct ScriptedProxy {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedProxy {
    /// Starts a server. `answer` gets the method and the path, without the query.
    pub(crate) fn start(answer: impl Fn(&str) -> Response + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(request) = read_request(&stream) else {
                    continue;
                };
                let without_query = request.split('?').next().unwrap_or_default();
                let response = answer(without_query);
                recorded.lock().unwrap().push(request.clone());
                let Response(status, body) = response;
                let kind = if status < 300 { "json" } else { "problem+json" };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-type: application/{kind}\r\n\
                     content-length: {length}\r\n\r\n"
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Self { url, requests }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns a client without pauses.
    pub(crate) fn client(&self) -> ProxyClient {
        let mut options = ClientOptions::default();
        options.retry.random = Arc::new(|| 0);
        ProxyClient::new(&self.url, options).unwrap()
    }

    /// Returns method and path of the requests up to now, with the query.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Reads a request. Returns its method and path with the query; none if the client closed the connection.
fn read_request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? <= 2 {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    let mut words = first.split(' ');
    Some(format!("{} {}", words.next()?, words.next()?))
}
