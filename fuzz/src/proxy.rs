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

/// The most requests of one input: a partition is made, reset, cordoned around and given back in fewer.
const REQUESTS_MAX: usize = 16;
/// What stands between two requests.
const BETWEEN: &str = "\n---\n";

/// Requests apart by lines of `---`, each a line `METHOD PATH` and a body, to a proxy of 32 free IPUs.
///
/// # Panics
///
/// If an answer is no JSON or says that the proxy failed, a refusal has no code, or an IPU is in two partitions afterwards.
pub fn proxy(bytes: &[u8]) {
    let text = text(bytes);
    // One for each input, so that nothing is left over from the one before; waiting takes no time.
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("make a runtime").block_on(async {
        let controller = FakeController::new(&topology(), 1);
        let front = front(&controller);
        for request in text.split(BETWEEN).take(REQUESTS_MAX) {
            let (head, body) = request.split_once('\n').unwrap_or((request, ""));
            let (method, path) = head.trim().split_once(' ').unwrap_or(("GET", head));
            ask(&front, method, path, body).await;
        }
        ask(&front, "GET", "/v1/partitions", "").await;
        ask(&front, "GET", "/stats", "").await;
        let mut seen = BTreeSet::new();
        for id in controller.ids() {
            for ipu in controller.ipus(&id) {
                assert!(seen.insert(ipu), "{ipu:?} of {id} is in two partitions");
            }
        }
    });
}

fn topology() -> Topology {
    "1x8".parse().expect("a topology")
}

fn front(controller: &FakeController) -> Gateway {
    let any: AnyController = Arc::new(controller.clone());
    let name = ControllerName::new("pod:8090").expect("a name");
    let pool = ControllerPool::single(name, Arc::new(any));
    let mut options = LedgerOptions::default();
    let began = Instant::now();
    options.clock = Arc::new(move || Timestamp::from_millis(0).plus(began.elapsed()));
    options.usage = Some(Arc::new(MemoryUsageLog::new()));
    let ledger = Ledger::new(pool, AnyStore::new(MemoryStore::default()), options);
    vipu_proxy::in_process(ledger, None)
}

async fn ask(front: &Gateway, method: &str, path: &str, body: &str) {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    let Ok(request) = Request::builder().method(method).uri(path).body(body) else {
        return;
    };
    let route = request.uri().path().to_owned();
    let answer = front.answer(request).await;
    // A stream has no end.
    if route == "/v1/events" && answer.status().is_success() {
        return;
    }
    let (head, body) = answer.into_parts();
    let body = body.collect().await.expect("a body that is there").to_bytes();
    answered(&route, &Response::from_parts(head, body));
}

/// What holds of every answer.
fn answered(route: &str, answer: &Response<Bytes>) {
    let status = answer.status();
    assert!(!status.is_server_error(), "{answer:?}");
    if route == "/metrics" && status.is_success() {
        assert!(answer.body().ends_with(b"# EOF\n"), "{answer:?}");
        return;
    }
    let body: Value =
        serde_json::from_slice(answer.body()).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    if !status.is_success() {
        let code = body["code"].as_str().unwrap_or_default();
        assert!(
            !code.is_empty() && body["status"] == status.as_u16(),
            "{answer:?}"
        );
    }
}
