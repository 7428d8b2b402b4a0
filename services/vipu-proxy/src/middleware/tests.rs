//! Requests before the first repair, liveness, and limits of unread responses.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use ipu_core::{ControllerName, Entry, JobKey, Owner, OwnerLiveness, PartitionSpec, Topology};
use ipu_ledger::{
    Change, Ledger, LedgerOptions, LedgerStore, Liveness, MemoryStore, Revision, Snapshot, StoreError,
};
use ipu_testkit::FakeController;
use ipu_vipu_client::ControllerPool;
use serde_json::{Value, json};

use super::*;
use crate::app::{AnyController, ProxyLedger};
use crate::auth::NoAuth;
use crate::store::AnyStore;

fn ledger_over(controller: &FakeController) -> ProxyLedger {
    let any: AnyController = Arc::new(controller.clone());
    let pool = ControllerPool::single(ControllerName::new("pod:8090").unwrap(), Arc::new(any));
    Ledger::new(
        pool,
        AnyStore::new(MemoryStore::default()),
        LedgerOptions::default(),
    )
}

/// Creates a proxy before its first repair.
fn unrepaired_proxy(controller: &FakeController) -> (Arc<App>, Arc<Gateway>) {
    proxy_over(ledger_over(controller))
}

fn proxy_over(ledger: ProxyLedger) -> (Arc<App>, Arc<Gateway>) {
    let connector = crate::connector::Connector::new(Arc::default(), None, None);
    let app = App::new(ledger, connector, Arc::new(Claims));
    let timeouts = Timeouts {
        read: Duration::from_secs(30),
        write: Duration::from_secs(300),
    };
    let policy = AccessPolicy {
        authenticator: Arc::new(NoAuth),
        reading: ReadAccess::Open,
        max_requests: 8,
        max_unsent: 1024,
        local: false,
        split: false,
        loopback: false,
        plain: false,
    };
    let gateway = Arc::new(Gateway::new(&app, timeouts, policy));
    (app, gateway)
}

async fn call(gateway: &Gateway, method: &str, path: &str, body: Value) -> (u16, Option<String>, Value) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let (head, body) = gateway
        .respond(request.body(Full::new(Bytes::from(body))).unwrap())
        .await
        .into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let retry = head.headers.get("retry-after");
    let retry = retry.map(|value| value.to_str().unwrap().to_owned());
    (
        head.status.as_u16(),
        retry,
        serde_json::from_slice(&body).unwrap(),
    )
}

fn owner() -> Owner {
    Owner {
        kind: "IPUJob".into(),
        job: JobKey::new("default", "training", "1").unwrap(),
    }
}

fn request_body() -> Value {
    json!({"size": 4, "owner": {"kind": "IPUJob", "namespace": "default", "name": "training", "uid": "1"}})
}

fn request() -> ipu_ledger::Request {
    ipu_ledger::Request::of_instance(owner(), 0, PartitionSpec::of_size(4.try_into().unwrap()))
}

#[tokio::test(start_paused = true)]
async fn before_the_first_repair_reads_succeed_and_writes_are_refused() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, gateway) = unrepaired_proxy(&controller);
    for (method, path, body) in [
        ("PUT", "/v1/partitions/p", request_body()),
        ("DELETE", "/v1/partitions/p", Value::Null),
        ("POST", "/v1/partitions/p/reset", Value::Null),
        ("GET", "/readyz", Value::Null),
    ] {
        let (status, retry, problem) = call(&gateway, method, path, body).await;
        assert_eq!(
            (status, retry.as_deref()),
            (503, Some("1")),
            "{method} {path}: {problem}"
        );
        assert_eq!(problem["code"], "Starting");
    }
    for path in ["/livez", "/stats", "/v1/partitions", "/v1/controllers"] {
        assert_eq!(call(&gateway, "GET", path, Value::Null).await.0, 200, "{path}");
    }
    assert_eq!(controller.calls(), Vec::<String>::new());
    app.health.mark_repaired();
    assert_eq!(call(&gateway, "GET", "/readyz", Value::Null).await.0, 200);
    let (status, _, made) = call(&gateway, "PUT", "/v1/partitions/p?wait=5s", request_body()).await;
    assert_eq!(status, 200, "{made}");
}

/// Judges every owner live and claims its partition, like an API server.
struct Claims;

#[async_trait]
impl Liveness for Claims {
    async fn liveness_of(&self, _: &Entry) -> OwnerLiveness {
        OwnerLiveness::Live
    }

    async fn claims(&self) -> Vec<ipu_core::Claim> {
        vec![request().into()]
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_right_after_the_loss_of_the_ledger_keeps_the_partition_of_its_owner() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let before = ledger_over(&controller);
    let id = before.ensure_active(request(), &mut |_| {}).await.unwrap().id;
    controller.mark_in_use(&id);
    drop(before);
    let (app, gateway) = unrepaired_proxy(&controller);
    let pending = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        let path = format!("/v1/partitions/{id}?wait=5s");
        async move { call(&gateway, "PUT", &path, request_body()).await }
    });
    // The request arrives before the repair.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let repair_worker = tokio::spawn(crate::background::run_repair(
        Arc::clone(&app),
        Duration::from_secs(30),
    ));
    let (status, _, kept) = pending.await.unwrap();
    assert_eq!((status, &kept["state"]), (200, &json!("active")), "{kept}");
    assert_eq!(controller.calls().len(), 1, "{:?}", controller.calls());
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    app.stop.send_replace(true);
    repair_worker.await.unwrap();
}

/// Store whose calls never return.
struct HangingStore;

#[async_trait]
impl LedgerStore for HangingStore {
    async fn load(&self, _: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        std::future::pending().await
    }

    async fn commit(&self, _: &Revision, _: &[Change]) -> Result<Revision, StoreError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_with_stuck_workers_fails_its_liveness_probe() {
    let any: AnyController = Arc::new(FakeController::new(&Topology::pod16(), 1));
    let pool = ControllerPool::single(ControllerName::new("pod:8090").unwrap(), Arc::new(any));
    let ledger = Ledger::new(pool, AnyStore::new(HangingStore), LedgerOptions::default());
    let (app, gateway) = proxy_over(ledger);
    let interval = Duration::from_secs(30);
    let repair_worker = tokio::spawn(crate::background::run_repair(Arc::clone(&app), interval));
    let queue_worker = tokio::spawn(crate::background::run_queue(Arc::clone(&app)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(call(&gateway, "GET", "/livez", Value::Null).await.0, 200);
    tokio::time::sleep(Duration::from_secs(600)).await;
    for path in ["/livez", "/health"] {
        let (status, _, problem) = call(&gateway, "GET", path, Value::Null).await;
        assert_eq!((status, &problem["code"]), (503, &json!("Stuck")), "{problem}");
    }
    repair_worker.abort();
    queue_worker.abort();
}

#[tokio::test(start_paused = true)]
async fn unread_responses_are_limited_in_bytes() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, gateway) = unrepaired_proxy(&controller);
    app.health.mark_repaired();
    let made = call(&gateway, "PUT", "/v1/partitions/p?wait=5s", request_body()).await;
    assert_eq!(made.0, 200, "{made:?}");
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
    let (status, _, again) = call(&gateway, "PUT", "/v1/partitions/p", request_body()).await;
    assert_eq!(status, 200, "{again}");
    unread.pop();
    assert_eq!(list().await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn an_unread_event_stream_ends_at_the_limit_of_unread_bytes() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, gateway) = unrepaired_proxy(&controller);
    app.health.mark_repaired();
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

#[tokio::test(start_paused = true)]
async fn concurrent_copies_of_the_ledger_are_limited() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, gateway) = unrepaired_proxy(&controller);
    let mut permits = Vec::new();
    for _ in 0..crate::app::MAX_LEDGER_READS {
        permits.push(app.acquire_ledger_read().await);
    }
    for path in ["/v1/partitions", "/v1/waiting", "/metrics"] {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let response = gateway.respond(request);
        tokio::pin!(response);
        let timed_out = tokio::time::timeout(Duration::from_secs(1), response.as_mut()).await;
        assert!(timed_out.is_err(), "{path}");
        permits.pop();
        assert_eq!(response.await.status(), 200, "{path}");
        permits.push(app.acquire_ledger_read().await);
    }
}
