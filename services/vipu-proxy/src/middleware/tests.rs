//! What is answered between the start and the first repair.

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

/// A proxy that was started just now.
fn started(controller: &FakeController) -> (Arc<App>, Arc<Gateway>) {
    serving(ledger_over(controller))
}

fn serving(ledger: ProxyLedger) -> (Arc<App>, Arc<Gateway>) {
    let connector = crate::connector::Connector::new(Arc::default(), None, None);
    let app = App::new(ledger, connector, Arc::new(Claims));
    let patience = Timeouts {
        read: Duration::from_secs(30),
        write: Duration::from_secs(300),
    };
    let guard = AccessPolicy {
        authenticator: Arc::new(NoAuth),
        reading: ReadAccess::Open,
        concurrency: 8,
        unsent: 1024,
        local: false,
        split: false,
        loopback: false,
        plain: false,
    };
    let front = Arc::new(Gateway::new(&app, patience, guard));
    (app, front)
}

async fn call(front: &Gateway, method: &str, path: &str, body: Value) -> (u16, Option<String>, Value) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let (head, body) = front
        .answer(request.body(Full::new(Bytes::from(body))).unwrap())
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

fn wanted() -> Value {
    json!({"size": 4, "owner": {"kind": "IPUJob", "namespace": "default", "name": "training", "uid": "1"}})
}

fn request() -> ipu_ledger::Request {
    ipu_ledger::Request::of_instance(owner(), 0, PartitionSpec::of_size(4.try_into().unwrap()))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_changed_before_the_first_repair_and_everything_can_be_read() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, front) = started(&controller);
    for (method, path, body) in [
        ("PUT", "/v1/partitions/p", wanted()),
        ("DELETE", "/v1/partitions/p", Value::Null),
        ("POST", "/v1/partitions/p/reset", Value::Null),
        ("GET", "/readyz", Value::Null),
    ] {
        let (status, retry, problem) = call(&front, method, path, body).await;
        assert_eq!(
            (status, retry.as_deref()),
            (503, Some("1")),
            "{method} {path}: {problem}"
        );
        assert_eq!(problem["code"], "Starting");
    }
    for path in ["/livez", "/stats", "/v1/partitions", "/v1/controllers"] {
        assert_eq!(call(&front, "GET", path, Value::Null).await.0, 200, "{path}");
    }
    assert_eq!(controller.calls(), Vec::<String>::new());
    app.health.repaired();
    assert_eq!(call(&front, "GET", "/readyz", Value::Null).await.0, 200);
    let (status, _, made) = call(&front, "PUT", "/v1/partitions/p?wait=5s", wanted()).await;
    assert_eq!(status, 200, "{made}");
}

/// Knows that the job lives, as an API server does.
struct Claims;

#[async_trait]
impl Liveness for Claims {
    async fn life_of(&self, _: &Entry) -> OwnerLiveness {
        OwnerLiveness::Live
    }

    async fn claims(&self) -> Vec<ipu_core::Claim> {
        vec![request().into()]
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_who_asks_right_after_an_empty_ledger_was_restored_keeps_his_partition_as_it_is() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let before = ledger_over(&controller);
    let id = before.ensure_active(request(), &mut |_| {}).await.unwrap().id;
    controller.use_it(&id);
    drop(before);
    let (app, front) = started(&controller);
    let asking = tokio::spawn({
        let front = Arc::clone(&front);
        let path = format!("/v1/partitions/{id}?wait=5s");
        async move { call(&front, "PUT", &path, wanted()).await }
    });
    // He is there before the repair.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let repairing = tokio::spawn(crate::background::run_repair(
        Arc::clone(&app),
        Duration::from_secs(30),
    ));
    let (status, _, kept) = asking.await.unwrap();
    assert_eq!((status, &kept["state"]), (200, &json!("active")), "{kept}");
    assert_eq!(controller.calls().len(), 1, "{:?}", controller.calls());
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    app.stop.send_replace(true);
    repairing.await.unwrap();
}

/// A store that hangs.
struct Hanging;

#[async_trait]
impl LedgerStore for Hanging {
    async fn load(&self, _: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        std::future::pending().await
    }

    async fn commit(&self, _: &Revision, _: &[Change]) -> Result<Revision, StoreError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_whose_workers_do_not_go_on_is_not_called_alive() {
    let any: AnyController = Arc::new(FakeController::new(&Topology::pod16(), 1));
    let pool = ControllerPool::single(ControllerName::new("pod:8090").unwrap(), Arc::new(any));
    let ledger = Ledger::new(pool, AnyStore::new(Hanging), LedgerOptions::default());
    let (app, front) = serving(ledger);
    let interval = Duration::from_secs(30);
    let repairing = tokio::spawn(crate::background::run_repair(Arc::clone(&app), interval));
    let going_on = tokio::spawn(crate::background::run_queue(Arc::clone(&app)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(call(&front, "GET", "/livez", Value::Null).await.0, 200);
    tokio::time::sleep(Duration::from_secs(600)).await;
    for path in ["/livez", "/health"] {
        let (status, _, problem) = call(&front, "GET", path, Value::Null).await;
        assert_eq!((status, &problem["code"]), (503, &json!("Stuck")), "{problem}");
    }
    repairing.abort();
    going_on.abort();
}

#[tokio::test(start_paused = true)]
async fn answers_that_clients_do_not_read_are_bounded_in_bytes() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, front) = started(&controller);
    app.health.repaired();
    let made = call(&front, "PUT", "/v1/partitions/p?wait=5s", wanted()).await;
    assert_eq!(made.0, 200, "{made:?}");
    let list = async || {
        let request = Request::get("/v1/partitions").body(Full::new(Bytes::new()));
        front.answer(request.unwrap()).await
    };
    let mut unread = Vec::new();
    let refused = loop {
        let answer = list().await;
        if answer.status() != 200 {
            break answer;
        }
        unread.push(answer);
    };
    let bytes: u64 = unread
        .iter()
        .map(|answer| hyper::body::Body::size_hint(answer.body()).lower())
        .sum();
    assert!(!unread.is_empty() && bytes <= 1024, "{bytes}");
    assert_eq!(refused.status(), 503);
    // A write is answered all the same.
    let (status, _, again) = call(&front, "PUT", "/v1/partitions/p", wanted()).await;
    assert_eq!(status, 200, "{again}");
    unread.pop();
    assert_eq!(list().await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_that_its_client_does_not_read_ends_beyond_the_bound() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, front) = started(&controller);
    app.health.repaired();
    let open = async || {
        let request = Request::get("/v1/events").body(Full::new(Bytes::new()));
        let answer = front.answer(request.unwrap()).await;
        assert_eq!(answer.status(), 200);
        answer.into_body()
    };
    // The frames are not dropped, as in the buffer of a connection.
    let (mut streams, mut unread) = (Vec::new(), Vec::new());
    let error = loop {
        let mut stream = open().await;
        match stream.frame().await.unwrap() {
            Ok(frame) => unread.push(frame),
            Err(error) => break error,
        }
        streams.push(stream);
    };
    assert!(error.to_string().contains("too many answers wait"), "{error}");
    unread.clear();
    assert!(open().await.frame().await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn few_requests_at_a_time_hold_a_copy_of_the_ledger() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let (app, front) = started(&controller);
    let mut turns = Vec::new();
    for _ in 0..crate::app::LEDGER_READS {
        turns.push(app.turn_to_read().await);
    }
    for path in ["/v1/partitions", "/v1/waiting", "/metrics"] {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let answer = front.answer(request);
        tokio::pin!(answer);
        let waits = tokio::time::timeout(Duration::from_secs(1), answer.as_mut()).await;
        assert!(waits.is_err(), "{path}");
        turns.pop();
        assert_eq!(answer.await.status(), 200, "{path}");
        turns.push(app.turn_to_read().await);
    }
}
