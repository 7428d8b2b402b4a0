//! What the tests share: the API over fake hardware, without a connection.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use ipu_core::{ControllerName, Timestamp, Topology};
use ipu_ledger::{Ledger, LedgerOptions, MemoryStore, MemoryUsageLog};
use ipu_testkit::FakeController;
use ipu_vipu_client::ControllerPool;
use serde_json::{Value, json};
use tokio::time::Instant;
use vipu_proxy::{AnyController, AnyStore, Authenticator, Gateway};

/// The API over one fake controller of 32 IPUs, which the seeds' examples have.
pub(crate) struct Bench {
    pub(crate) front: Gateway,
    pub(crate) controller: FakeController,
    store: AnyStore,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::made("1x8", None)
    }

    /// The same, and a second controller `other:8090` of four machines behind it in the list.
    pub(crate) fn two() -> Self {
        let other: AnyController = Arc::new(FakeController::new(&Topology::pod16(), 2));
        Self::of("1x8", None, vec![("other:8090", other)], |_| {})
    }

    /// The same, of which only one may wait.
    pub(crate) fn with_a_short_line() -> Self {
        Self::of("1x8", None, Vec::new(), |options| options.queue.length_limit = 1)
    }

    pub(crate) fn guarded_by(authenticator: impl Authenticator + 'static) -> Self {
        Self::made("1x8", Some(Arc::new(authenticator)))
    }

    /// With other options of the ledger.
    pub(crate) fn with(
        authenticator: Option<Arc<dyn Authenticator>>,
        change: impl FnOnce(&mut LedgerOptions),
    ) -> Self {
        Self::of("1x8", authenticator, Vec::new(), change)
    }

    /// Another proxy on the same ledger, with the controller `name` alone on its list.
    pub(crate) fn beside(&self, name: &str) -> Self {
        let controller = FakeController::new(&Topology::pod16(), 1);
        let any: AnyController = Arc::new(controller.clone());
        let pool = ControllerPool::single(ControllerName::new(name).unwrap(), Arc::new(any));
        let mut options = LedgerOptions::default();
        let began = Instant::now();
        options.clock = Arc::new(move || Timestamp::from_millis(0).plus(began.elapsed()));
        let ledger = Ledger::new(pool, self.store.clone(), options);
        Self {
            front: vipu_proxy::in_process(ledger, None),
            controller,
            store: self.store.clone(),
        }
    }

    fn made(topology: &str, authenticator: Option<Arc<dyn Authenticator>>) -> Self {
        Self::of(topology, authenticator, Vec::new(), |_| {})
    }

    fn of(
        topology: &str,
        authenticator: Option<Arc<dyn Authenticator>>,
        others: Vec<(&str, AnyController)>,
        change: impl FnOnce(&mut LedgerOptions),
    ) -> Self {
        let topology: Topology = topology.parse().unwrap();
        let controller = FakeController::new(&topology, 1);
        let any: AnyController = Arc::new(controller.clone());
        let all = std::iter::once(("pod:8090", any)).chain(others);
        let named = all.map(|(name, any)| (ControllerName::new(name).unwrap(), Arc::new(any)));
        let pool = ControllerPool::new(named);
        let mut options = LedgerOptions::default();
        // The time of the tests stands still unless somebody waits.
        let began = Instant::now();
        options.clock = Arc::new(move || Timestamp::from_millis(0).plus(began.elapsed()));
        options.usage = Some(Arc::new(MemoryUsageLog::new()));
        change(&mut options);
        let store = AnyStore::new(MemoryStore::default());
        let ledger = Ledger::new(pool, store.clone(), options);
        Self {
            front: vipu_proxy::in_process(ledger, authenticator),
            controller,
            store,
        }
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
        self.call_as("", method, path, body).await
    }

    /// The same, with a token.
    pub(crate) async fn call_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let (head, body) = self.front.answer(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let document = serde_json::from_slice(&body).unwrap();
        let kind = head.headers["content-type"].to_str().unwrap();
        crate::openapi::check(method, path, head.status, kind, &document);
        (head.status, document)
    }

    /// What is no JSON.
    pub(crate) async fn text(&self, path: &str) -> String {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let body = self.front.answer(request).await.into_body();
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, document) = self.call("GET", path, "").await;
        assert_eq!(status, StatusCode::OK, "{document}");
        document
    }

    /// Asks for a partition of the job `name`, and waits for it.
    pub(crate) async fn put(&self, id: &str, name: &str, size: u32) -> (StatusCode, Value) {
        let path = format!("/v1/partitions/{id}?wait=5s");
        self.call("PUT", &path, &wanted(name, size).to_string()).await
    }
}

/// The body of a request of the job `name`.
pub(crate) fn wanted(name: &str, size: u32) -> Value {
    json!({"owner": {"kind": "IPUJob", "namespace": "default", "name": name, "uid": format!("uid-{name}")}, "size": size})
}
