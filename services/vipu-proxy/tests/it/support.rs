//! Test harness: the API over fake hardware, without a connection.

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

/// API over one fake controller of 32 IPUs, like the examples of the guide.
pub(crate) struct Harness {
    pub(crate) gateway: Gateway,
    pub(crate) controller: FakeController,
    store: AnyStore,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with_topology("1x8", None)
    }

    /// Adds a second controller `other:8090` of four machines to the list.
    pub(crate) fn with_two_controllers() -> Self {
        let other: AnyController = Arc::new(FakeController::new(&Topology::pod16(), 2));
        Self::build("1x8", None, vec![("other:8090", other)], |_| {})
    }

    /// Limits the queue to one request.
    pub(crate) fn with_short_queue() -> Self {
        Self::build("1x8", None, Vec::new(), |options| options.queue.length_limit = 1)
    }

    pub(crate) fn with_authenticator(authenticator: impl Authenticator + 'static) -> Self {
        Self::with_topology("1x8", Some(Arc::new(authenticator)))
    }

    /// Changes the options of the ledger.
    pub(crate) fn with(
        authenticator: Option<Arc<dyn Authenticator>>,
        change: impl FnOnce(&mut LedgerOptions),
    ) -> Self {
        Self::build("1x8", authenticator, Vec::new(), change)
    }

    /// Starts another proxy on the same ledger, whose list has only the controller `name`.
    pub(crate) fn second_proxy(&self, name: &str) -> Self {
        let controller = FakeController::new(&Topology::pod16(), 1);
        let any: AnyController = Arc::new(controller.clone());
        let pool = ControllerPool::single(ControllerName::new(name).unwrap(), Arc::new(any));
        let mut options = LedgerOptions::default();
        let started = Instant::now();
        options.clock = Arc::new(move || Timestamp::from_millis(0).plus(started.elapsed()));
        let ledger = Ledger::new(pool, self.store.clone(), options);
        Self {
            gateway: vipu_proxy::in_process(ledger, None),
            controller,
            store: self.store.clone(),
        }
    }

    fn with_topology(topology: &str, authenticator: Option<Arc<dyn Authenticator>>) -> Self {
        Self::build(topology, authenticator, Vec::new(), |_| {})
    }

    fn build(
        topology: &str,
        authenticator: Option<Arc<dyn Authenticator>>,
        others: Vec<(&str, AnyController)>,
        change: impl FnOnce(&mut LedgerOptions),
    ) -> Self {
        let topology: Topology = topology.parse().unwrap();
        let controller = FakeController::new(&topology, 1);
        let any: AnyController = Arc::new(controller.clone());
        let controllers = std::iter::once(("pod:8090", any)).chain(others);
        let named = controllers.map(|(name, any)| (ControllerName::new(name).unwrap(), Arc::new(any)));
        let pool = ControllerPool::new(named);
        let mut options = LedgerOptions::default();
        // Virtual time advances only while a test waits.
        let started = Instant::now();
        options.clock = Arc::new(move || Timestamp::from_millis(0).plus(started.elapsed()));
        options.usage = Some(Arc::new(MemoryUsageLog::new()));
        change(&mut options);
        let store = AnyStore::new(MemoryStore::default());
        let ledger = Ledger::new(pool, store.clone(), options);
        Self {
            gateway: vipu_proxy::in_process(ledger, authenticator),
            controller,
            store,
        }
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
        self.call_as("", method, path, body).await
    }

    /// Sends a request with a token; without one if `token` is empty.
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
        let (head, body) = self.gateway.respond(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let document = serde_json::from_slice(&body).unwrap();
        let content_type = head.headers["content-type"].to_str().unwrap();
        crate::openapi::check(method, path, head.status, content_type, &document);
        (head.status, document)
    }

    /// Returns a response that is not JSON.
    pub(crate) async fn text(&self, path: &str) -> String {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let body = self.gateway.respond(request).await.into_body();
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, document) = self.call("GET", path, "").await;
        assert_eq!(status, StatusCode::OK, "{document}");
        document
    }

    /// Requests a partition of the job `name`, and waits for it.
    pub(crate) async fn put(&self, id: &str, name: &str, size: u32) -> (StatusCode, Value) {
        let path = format!("/v1/partitions/{id}?wait=5s");
        self.call("PUT", &path, &request_body(name, size).to_string())
            .await
    }
}

/// Returns the request body of the job `name`.
pub(crate) fn request_body(name: &str, size: u32) -> Value {
    json!({"owner": {"kind": "IPUJob", "namespace": "default", "name": name, "uid": format!("uid-{name}")}, "size": size})
}
