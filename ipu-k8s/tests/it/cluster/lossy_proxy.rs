//! A proxy in front of the API server that loses requests and replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipu_k8s::kube::{Client, Config, Error};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The fate of writes of ConfigMaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// They are forwarded.
    Pass,
    /// The connection is closed instead of the next reply; then they pass.
    LoseReply,
    /// The connection is closed instead of the next request; then they pass.
    LoseRequest,
    /// The connection is closed instead of every request.
    LoseAll,
    /// The next one is refused as too many; then they pass.
    Refuse,
}

pub(super) struct LossyProxy {
    pub(super) config: Config,
    writes: watch::Sender<Writes>,
    lost: Arc<AtomicUsize>,
    changed: watch::Receiver<usize>,
}

impl LossyProxy {
    /// Starts a proxy to the API server of `upstream`, which runs until the test ends.
    pub(super) async fn start(upstream: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::try_from(upstream).unwrap();
        let writes = watch::Sender::new(Writes::Pass);
        let lost = Arc::new(AtomicUsize::new(0));
        let (sender, changed) = watch::channel(0);
        let (sender, count, fate) = (Arc::new(sender), Arc::clone(&lost), writes.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (client, sender) = (client.clone(), Arc::clone(&sender));
                let (count, fate) = (Arc::clone(&count), fate.clone());
                tokio::spawn(async move {
                    if serve(stream, &client, &fate).await.is_none() {
                        sender.send_replace(count.fetch_add(1, Ordering::Relaxed) + 1);
                    }
                });
            }
        });
        Self {
            config: Config::new(url.parse().unwrap()),
            writes,
            lost,
            changed,
        }
    }

    pub(super) fn set(&self, writes: Writes) {
        self.writes.send_replace(writes);
    }

    /// Waits until a request or reply is lost.
    pub(super) async fn wait_for_loss(&self) {
        self.changed.clone().wait_for(|lost| *lost > 0).await.unwrap();
        assert!(self.lost.load(Ordering::Relaxed) > 0);
    }
}

/// Serves one request of a connection. Returns none if it or its reply is lost.
async fn serve(stream: TcpStream, client: &Client, fate: &watch::Sender<Writes>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut request = http::Request::builder().method(&*method).uri(&path);
    let mut length = 0;
    loop {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        match &*name.to_lowercase() {
            "content-length" => length = value.parse().unwrap(),
            "content-type" | "accept" => request = request.header(name, value),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let mut writes = Writes::Pass;
    if method == "PATCH" && path.contains("/configmaps/") {
        writes = *fate.borrow();
        if writes != Writes::LoseAll {
            fate.send_replace(Writes::Pass);
        }
    }
    if matches!(writes, Writes::LoseRequest | Writes::LoseAll) {
        return None;
    }
    let (code, text) = if writes == Writes::Refuse {
        let status = json!({"kind": "Status", "code": 429, "reason": "TooManyRequests", "status": "Failure",
            "message": "too many requests"});
        (429, status.to_string())
    } else {
        match client.request_text(request.body(body).unwrap()).await {
            Ok(text) => (200, text),
            Err(Error::Api(status)) => (status.code, serde_json::to_string(&status).unwrap()),
            Err(error) => panic!("{error}"),
        }
    };
    if writes == Writes::LoseReply {
        return None;
    }
    let head = format!(
        "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    // An error means that the client has gone.
    let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
    Some(())
}
