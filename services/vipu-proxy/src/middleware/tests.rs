//! Every operation has a handler, and unread responses are limited.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use ipu_allocator::{Allocator, MemoryStore, Options};
use ipu_vipu_client::ControllerPool;

use super::*;
use crate::auth::NoAuth;
use crate::router::OPERATIONS;

/// Creates a proxy without controllers.
async fn gateway() -> Gateway {
    let store = Arc::new(MemoryStore::default());
    let allocator = Allocator::start(Options::default(), store, ControllerPool::new([]));
    allocator.leading().wait_for(|leading| *leading).await.unwrap();
    allocator.compare().await.unwrap();
    let connector = crate::connector::Connector::new(
        Arc::default(),
        ipu_core::allocator::CallTimes::default(),
        None,
        None,
    );
    let app = App::new(allocator, connector, Duration::from_secs(30));
    let timeouts = Timeouts {
        read: Duration::from_secs(30),
        write: Duration::from_secs(300),
    };
    let policy = AccessPolicy {
        authenticator: Arc::new(NoAuth),
        reading: ReadAccess::Open,
        max_requests: 256,
        max_unsent: 1024,
        local: false,
        split: false,
        loopback: false,
        plain: false,
    };
    Gateway::new(&app, timeouts, policy)
}

#[tokio::test]
async fn every_operation_has_a_handler() {
    let gateway = gateway().await;
    for operation in OPERATIONS {
        let path = operation
            .path
            .replace("{file}", "main.js")
            .replace("{id}", "some");
        let request = Request::builder().method(operation.method).uri(path);
        let request = request.header("content-type", "application/json");
        let response = gateway
            .respond(request.body(Full::new(Bytes::new())).unwrap())
            .await;
        if response.status() == StatusCode::NOT_FOUND {
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8_lossy(&body);
            assert!(!body.contains("NoSuchRoute"), "{operation:?}: {body}");
        }
    }
}

#[tokio::test]
async fn unread_responses_are_limited_in_bytes() {
    let gateway = gateway().await;
    let list = async || {
        let request = Request::get("/v1/partitions").body(Full::new(Bytes::new()));
        gateway.respond(request.unwrap()).await
    };
    let mut unread = Vec::new();
    let refused = loop {
        let response = list().await;
        if response.status() != 200 {
            break response;
        }
        unread.push(response);
    };
    let bytes: u64 = unread
        .iter()
        .map(|response| hyper::body::Body::size_hint(response.body()).lower())
        .sum();
    assert!(!unread.is_empty() && bytes <= 1024, "{bytes}");
    assert_eq!(refused.status(), 503);
    // A write still gets its response.
    let request = Request::put("/v1/partitions/p").header("content-type", "application/json");
    let owner = r#"{"kind": "IPUJob", "namespace": "default", "name": "training", "uid": "1"}"#;
    let body = Full::new(Bytes::from(format!(r#"{{"size": 4, "owner": {owner}}}"#)));
    let response = gateway.respond(request.body(body).unwrap()).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    assert_eq!(head.status, 202, "{body:?}");
    unread.clear();
    assert_eq!(list().await.status(), 200);
}

#[tokio::test]
async fn an_unread_event_stream_ends_at_the_limit_of_unread_bytes() {
    let gateway = gateway().await;
    let open = async || {
        let request = Request::get("/v1/events").body(Full::new(Bytes::new()));
        let response = gateway.respond(request.unwrap()).await;
        assert_eq!(response.status(), 200);
        response.into_body()
    };
    // The frames are kept, as in the buffer of a connection.
    let (mut streams, mut unread) = (Vec::new(), Vec::new());
    let error = loop {
        let mut stream = open().await;
        match stream.frame().await.unwrap() {
            Ok(frame) => unread.push(frame),
            Err(error) => break error,
        }
        streams.push(stream);
    };
    assert!(error.to_string().contains("too many responses wait"), "{error}");
    unread.clear();
    assert!(open().await.frame().await.unwrap().is_ok());
}
