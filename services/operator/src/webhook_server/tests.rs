//! What is held at a time, over real connections.

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

/// A door whose routes hold the body until they are let go on.
struct Held {
    address: SocketAddr,
    /// The bytes that routes have.
    bytes: Arc<AtomicUsize>,
    changed: Arc<Notify>,
    go_on: Arc<Semaphore>,
    _stop: watch::Sender<()>,
}

impl Held {
    async fn new(patience: Duration) -> Self {
        let (bytes, changed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let go_on = Arc::new(Semaphore::new(0));
        let (has, told, wait) = (Arc::clone(&bytes), Arc::clone(&changed), Arc::clone(&go_on));
        let routes = warp::body::bytes().then(move |body: Bytes| {
            let (has, told, wait) = (Arc::clone(&has), Arc::clone(&told), Arc::clone(&wait));
            async move {
                has.fetch_add(body.len(), Ordering::SeqCst);
                told.notify_one();
                wait.acquire().await.unwrap().forget();
                has.fetch_sub(body.len(), Ordering::SeqCst);
                "done".into_response()
            }
        });
        let room = BodyBudget {
            small: 16,
            large: 2 * MAX,
            patience,
        };
        let door = Arc::new(WebhookServer::with_room(routes.boxed(), MAX, room));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(());
        tokio::spawn(serve(listener, door, ServeOptions::default(), stopped));
        Self {
            address,
            bytes,
            changed,
            go_on,
            _stop: stop,
        }
    }

    fn post(&self, body: reqwest::Body) -> impl Future<Output = reqwest::Response> + Send + use<> {
        rustls::crypto::ring::default_provider().install_default().ok();
        let http = reqwest::Client::builder().tls_certs_only([]).build().unwrap();
        let post = http.post(format!("http://{}/", self.address)).body(body).send();
        async { post.await.unwrap() }
    }

    /// Waits until the routes have so many bytes.
    async fn has(&self, bytes: usize) {
        let waiting = async {
            while self.bytes.load(Ordering::SeqCst) != bytes {
                self.changed.notified().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(waited.is_ok(), "{} bytes", self.bytes.load(Ordering::SeqCst));
    }
}

/// One that does not say how large it is.
fn unsized_body(bytes: usize) -> reqwest::Body {
    let chunk = Frame::data(Bytes::from(vec![b'x'; bytes]));
    let chunks = futures::stream::iter([Ok::<_, Infallible>(chunk)]);
    reqwest::Body::wrap(StreamBody::new(chunks))
}

#[tokio::test]
async fn large_bodies_wait_for_one_another_and_small_ones_do_not() {
    let held = Held::new(Duration::from_secs(600)).await;
    let first = [0, 1].map(|_| tokio::spawn(held.post(vec![b'x'; MAX].into())));
    held.has(2 * MAX).await;
    // As large as it can be for all one knows.
    let waiting = tokio::spawn(held.post(unsized_body(17)));
    let small = tokio::spawn(held.post(vec![b'x'; 16].into()));
    held.has(2 * MAX + 16).await;
    assert!(!waiting.is_finished());
    held.go_on.add_permits(4);
    for request in first.into_iter().chain([waiting, small]) {
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(held.bytes.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn whoever_finds_no_room_in_time_is_told_to_come_again() {
    let held = Held::new(Duration::ZERO).await;
    let first = [0, 1].map(|_| tokio::spawn(held.post(vec![b'x'; MAX].into())));
    held.has(2 * MAX).await;
    let refused = held.post(vec![b'x'; 17].into()).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    let said = refused.text().await.unwrap();
    assert!(said.contains("no room for one of 17; try again"), "{said}");
    held.go_on.add_permits(3);
    for request in first {
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
    }
    // What was held is free again.
    assert_eq!(held.post(vec![b'x'; MAX].into()).await.status(), StatusCode::OK);
}
