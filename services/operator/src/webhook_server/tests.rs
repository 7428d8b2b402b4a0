//! Tests of the memory limits over real connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::StreamBody;
use hyper::body::Frame;
use ipu_serve::{ServeOptions, serve};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use warp::Filter as _;

use super::*;

const MAX: usize = 4096;

/// Server whose routes hold their body until released.
struct HoldingServer {
    address: SocketAddr,
    /// Total bytes held by the routes.
    bytes: Arc<AtomicUsize>,
    changed: Arc<Notify>,
    release: Arc<Semaphore>,
    _stop: watch::Sender<()>,
}

impl HoldingServer {
    async fn new(timeout: Duration) -> Self {
        let (bytes, changed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let release = Arc::new(Semaphore::new(0));
        let (bytes_held, notify, permits) = (Arc::clone(&bytes), Arc::clone(&changed), Arc::clone(&release));
        let routes = warp::body::bytes().then(move |body: Bytes| {
            let (bytes_held, notify, permits) =
                (Arc::clone(&bytes_held), Arc::clone(&notify), Arc::clone(&permits));
            async move {
                bytes_held.fetch_add(body.len(), Ordering::SeqCst);
                notify.notify_one();
                permits.acquire().await.unwrap().forget();
                bytes_held.fetch_sub(body.len(), Ordering::SeqCst);
                "done".into_response()
            }
        });
        let budget = BodyBudget {
            small: 16,
            large: 2 * MAX,
            timeout,
        };
        let handler = Arc::new(WebhookServer::with_budget(routes.boxed(), MAX, budget));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(());
        tokio::spawn(serve(listener, handler, ServeOptions::default(), stopped));
        Self {
            address,
            bytes,
            changed,
            release,
            _stop: stop,
        }
    }

    fn post(&self, body: reqwest::Body) -> impl Future<Output = reqwest::Response> + Send + use<> {
        rustls::crypto::ring::default_provider().install_default().ok();
        let http = reqwest::Client::builder().tls_certs_only([]).build().unwrap();
        let post = http.post(format!("http://{}/", self.address)).body(body).send();
        async { post.await.unwrap() }
    }

    /// Waits until the routes hold this many bytes.
    async fn wait_for_bytes(&self, bytes: usize) {
        let waiting = async {
            while self.bytes.load(Ordering::SeqCst) != bytes {
                self.changed.notified().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(waited.is_ok(), "{} bytes", self.bytes.load(Ordering::SeqCst));
    }
}

/// Creates a body of undeclared size.
fn unsized_body(bytes: usize) -> reqwest::Body {
    let chunk = Frame::data(Bytes::from(vec![b'x'; bytes]));
    let chunks = futures::stream::iter([Ok::<_, Infallible>(chunk)]);
    reqwest::Body::wrap(StreamBody::new(chunks))
}

#[tokio::test]
async fn large_bodies_wait_for_memory_and_small_bodies_do_not() {
    let server = HoldingServer::new(Duration::from_secs(600)).await;
    let first = [0, 1].map(|_| tokio::spawn(server.post(vec![b'x'; MAX].into())));
    server.wait_for_bytes(2 * MAX).await;
    // A body of undeclared size counts as the largest.
    let waiting = tokio::spawn(server.post(unsized_body(17)));
    let small = tokio::spawn(server.post(vec![b'x'; 16].into()));
    server.wait_for_bytes(2 * MAX + 16).await;
    assert!(!waiting.is_finished());
    server.release.add_permits(4);
    for request in first.into_iter().chain([waiting, small]) {
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(server.bytes.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_large_body_without_memory_in_time_is_rejected_with_retry_after() {
    let server = HoldingServer::new(Duration::ZERO).await;
    let first = [0, 1].map(|_| tokio::spawn(server.post(vec![b'x'; MAX].into())));
    server.wait_for_bytes(2 * MAX).await;
    let refused = server.post(vec![b'x'; 17].into()).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    let message = refused.text().await.unwrap();
    assert!(
        message.contains("no capacity for one of 17; try again"),
        "{message}"
    );
    server.release.add_permits(3);
    for request in first {
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
    }
    // The memory is released.
    assert_eq!(server.post(vec![b'x'; MAX].into()).await.status(), StatusCode::OK);
}
