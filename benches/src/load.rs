//! Load on a proxy: connections that create and delete partitions, and how long each request took.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The pause before a proxy that has too much to do is asked again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// One connection to a proxy, kept open.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
}

/// How long the two requests of one pair took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// The create, until the partition was ready; from `due` if that was earlier than the sending.
    pub create: Duration,
    /// The delete, until the partition was gone.
    pub delete: Duration,
}

impl Connection {
    /// Opens one.
    ///
    /// # Panics
    ///
    /// If nobody listens at `proxy`.
    pub async fn open(proxy: SocketAddr) -> Self {
        let stream = TcpStream::connect(proxy).await.expect("the proxy listens");
        stream
            .set_nodelay(true)
            .expect("a connection that does not wait for more");
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .expect("a connection");
        tokio::spawn(connection);
        Self {
            sender,
            host: proxy.to_string(),
        }
    }

    /// Creates the partition number `number`, of one IPU, waits until it is ready, deletes it and waits until it is gone.
    /// The create counts from `due`: when it should have been sent, whether or not there was a connection for it.
    ///
    /// # Panics
    ///
    /// If the proxy does not do it.
    pub async fn pair(&mut self, number: u64, due: Instant) -> Took {
        let path = format!("/v1/partitions/bench-{number}?wait=30s");
        let body = format!(
            r#"{{"size":1,"owner":{{"kind":"Bench","namespace":"bench","name":"job{number}","uid":"{number}"}}}}"#
        );
        self.call(Method::PUT, &path, body).await;
        let create = due.elapsed();
        let sent = Instant::now();
        self.call(Method::DELETE, &path, String::new()).await;
        Took {
            create,
            delete: sent.elapsed(),
        }
    }

    /// Asks until it is done: a proxy that has too much to do says so, and is asked again, which the time includes.
    async fn call(&mut self, method: Method, path: &str, body: String) {
        loop {
            let (status, answer) = self.ask(&method, path, &body).await;
            if status == StatusCode::OK {
                return;
            }
            assert_eq!(
                status,
                StatusCode::SERVICE_UNAVAILABLE,
                "{method} {path}: {}",
                String::from_utf8_lossy(&answer)
            );
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn ask(&mut self, method: &Method, path: &str, body: &str) -> (StatusCode, Bytes) {
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::from(body.to_owned()))
            .expect("a request");
        self.sender.ready().await.expect("the connection lives");
        let answer = self
            .sender
            .send_request(request)
            .await
            .expect("the proxy answers");
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("the whole answer");
        (status, body.to_bytes())
    }
}

/// The least time that `share` of the samples (0 to 1) did not exceed.
///
/// # Panics
///
/// Without samples.
#[must_use]
pub fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len() - 1;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place in a list that is short enough"
    )]
    let place = (last as f64 * share).ceil() as usize;
    sorted[place.min(last)]
}
