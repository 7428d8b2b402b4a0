//! Requests to the proxy.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use ipu_core::{ControllerName, Timestamp, Topology};
use ipu_ledger::{Ledger, LedgerOptions, MemoryStore, MemoryUsageLog};
use ipu_testkit::FakeController;
use ipu_vipu_client::ControllerPool;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::time::Instant;
use vipu_proxy::{AnyController, AnyStore, Gateway};

use crate::error_messages::text;

/// Maximum requests per input: creating, resetting, cordoning and releasing a partition takes fewer.
const MAX_REQUESTS: usize = 16;
/// Separator of two requests.
const SEPARATOR: &str = "\n---\n";

/// Input: requests separated by lines of `---`, each a line `METHOD PATH` and a body, to a proxy of 32 free
/// IPUs.
///
/// # Panics
///
/// If a response is not JSON or reports an internal failure, a refusal has no code, or an IPU is in two
/// partitions afterwards.
pub fn proxy(bytes: &[u8]) {
    let text = text(bytes);
    // A new runtime per input, so that no state is shared; waiting takes no time.
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("create a runtime").block_on(async {
        let controller = FakeController::new(&topology(), 1);
        let gateway = gateway(&controller);
        for request in text.split(SEPARATOR).take(MAX_REQUESTS) {
            let (first_line, body) = request.split_once('\n').unwrap_or((request, ""));
            let (method, path) = first_line.trim().split_once(' ').unwrap_or(("GET", first_line));
            send(&gateway, method, path, body).await;
        }
        send(&gateway, "GET", "/v1/partitions", "").await;
        send(&gateway, "GET", "/stats", "").await;
        let mut allocated = BTreeSet::new();
        for id in controller.ids() {
            for ipu in controller.ipus(&id) {
                assert!(allocated.insert(ipu), "{ipu:?} of {id} is in two partitions");
            }
        }
    });
}

fn topology() -> Topology {
    "1x8".parse().expect("a topology")
}

fn gateway(controller: &FakeController) -> Gateway {
    let any: AnyController = Arc::new(controller.clone());
    let name = ControllerName::new("pod:8090").expect("a name");
    let pool = ControllerPool::single(name, Arc::new(any));
    let mut options = LedgerOptions::default();
    let started = Instant::now();
    options.clock = Arc::new(move || Timestamp::from_millis(0).plus(started.elapsed()));
    options.usage = Some(Arc::new(MemoryUsageLog::new()));
    let ledger = Ledger::new(pool, AnyStore::new(MemoryStore::default()), options);
    vipu_proxy::in_process(ledger, None)
}

async fn send(gateway: &Gateway, method: &str, path: &str, body: &str) {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    let Ok(request) = Request::builder().method(method).uri(path).body(body) else {
        return;
    };
    let route = request.uri().path().to_owned();
    let response = gateway.respond(request).await;
    // An event stream does not end.
    if route == "/v1/events" && response.status().is_success() {
        return;
    }
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("an in-memory body").to_bytes();
    check_response(&route, &Response::from_parts(parts, body));
}

/// Asserts the invariants of every response.
fn check_response(route: &str, response: &Response<Bytes>) {
    let status = response.status();
    assert!(!status.is_server_error(), "{response:?}");
    if route == "/metrics" && status.is_success() {
        assert!(response.body().ends_with(b"# EOF\n"), "{response:?}");
        return;
    }
    let body: Value =
        serde_json::from_slice(response.body()).unwrap_or_else(|error| panic!("{error}: {response:?}"));
    if !status.is_success() {
        let code = body["code"].as_str().unwrap_or_default();
        assert!(
            !code.is_empty() && body["status"] == status.as_u16(),
            "{response:?}"
        );
    }
}
