//! Load on a proxy: connections that create and delete partitions, with request timings.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Pause before an overloaded proxy is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A persistent connection to a proxy.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
}

/// Durations of the two requests of one pair.
#[derive(Clone, Copy, Debug)]
pub struct PairTimings {
    /// Time from `due` until the partition is ready.
    pub create: Duration,
    /// Time from the request until the partition is deleted.
    pub delete: Duration,
}

impl Connection {
    /// Opens a connection.
    ///
    /// # Panics
    ///
    /// If no server listens at `proxy`.
    pub async fn open(proxy: SocketAddr) -> Self {
        let stream = TcpStream::connect(proxy).await.expect("the proxy listens");
        stream.set_nodelay(true).expect("TCP_NODELAY is supported");
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .expect("a connection");
        tokio::spawn(connection);
        Self {
            sender,
            host: proxy.to_string(),
        }
    }

    /// Creates partition `number` with one IPU, waits until it is ready, deletes it, and waits until it is
    /// deleted. The create time starts at `due`, the scheduled time of the request, even if no connection
    /// was free.
    ///
    /// # Panics
    ///
    /// If the proxy refuses a request.
    pub async fn pair(&mut self, number: u64, due: Instant) -> PairTimings {
        let path = format!("/v1/partitions/bench-{number}?wait=30s");
        let body = format!(
            r#"{{"size":1,"owner":{{"kind":"Bench","namespace":"bench","name":"job{number}","uid":"{number}"}}}}"#
        );
        self.call(Method::PUT, &path, body).await;
        let create = due.elapsed();
        let sent = Instant::now();
        self.call(Method::DELETE, &path, String::new()).await;
        PairTimings {
            create,
            delete: sent.elapsed(),
        }
    }

    /// Repeats the request until it succeeds. An overloaded proxy responds 503; the time includes the
    /// retries.
    async fn call(&mut self, method: Method, path: &str, body: String) {
        loop {
            let (status, response) = self.send(&method, path, &body).await;
            if status == StatusCode::OK {
                return;
            }
            assert_eq!(
                status,
                StatusCode::SERVICE_UNAVAILABLE,
                "{method} {path}: {}",
                String::from_utf8_lossy(&response)
            );
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn send(&mut self, method: &Method, path: &str, body: &str) -> (StatusCode, Bytes) {
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::from(body.to_owned()))
            .expect("a request");
        self.sender.ready().await.expect("the connection is open");
        let response = self
            .sender
            .send_request(request)
            .await
            .expect("the proxy responds");
        let status = response.status();
        let body = response.into_body().collect().await.expect("the whole response");
        (status, body.to_bytes())
    }
}

/// Returns the smallest time that at least `share` (0 to 1) of the samples do not exceed.
///
/// # Panics
///
/// If `sorted` is empty.
#[must_use]
pub fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len() - 1;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a short list"
    )]
    let index = (last as f64 * share).ceil() as usize;
    sorted[index.min(last)]
}
