//! The simulated controller: requests to it.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use ipu_core::hardware::Topology;
use tokio::runtime::{Builder, Runtime};
use vipu_sim::{Simulator, SimulatorService};

use crate::client::{METHODS, framed, listed};
use crate::error_messages::text;

/// Maximum requests per input: enough to fill the IPU-POD and to empty it.
const MAX_REQUESTS: usize = 24;
/// Separator of two requests.
const SEPARATOR: &str = "\n---\n";

/// Input: REST requests separated by lines of `---`, each a line `METHOD PATH` and a body.
///
/// # Panics
///
/// If a response is missing or not JSON, a refusal has no code, or an IPU is in two partitions afterwards.
pub fn sim_rest(bytes: &[u8]) {
    let text = text(bytes);
    let controller = pod16();
    for request in text.split(SEPARATOR).take(MAX_REQUESTS) {
        let (first_line, body) = request.split_once('\n').unwrap_or((request, ""));
        let (method, path) = first_line.trim().split_once(' ').unwrap_or(("GET", first_line));
        let Ok(request) = Request::builder()
            .method(method)
            .uri(path)
            .body(Bytes::copy_from_slice(body.as_bytes()))
        else {
            continue;
        };
        let is_text = path.starts_with("/sim/map");
        if let Some(response) = send(&controller, request) {
            check_response(&response, is_text);
        }
    }
    controller.faults().clear();
    check_controller(&controller);
}

/// Input: gRPC requests, each one byte for the call, one byte for the message length, and the message.
///
/// # Panics
///
/// As [`sim_rest`].
pub fn sim_grpc(bytes: &[u8]) {
    let controller = pod16();
    let mut remaining = bytes;
    for _ in 0..MAX_REQUESTS {
        let [selector, length, tail @ ..] = remaining else {
            break;
        };
        let (message, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        remaining = tail;
        let path = METHODS[usize::from(*selector) % METHODS.len()];
        let response = grpc(&controller, path, message);
        let status = response
            .headers()
            .get("grpc-status")
            .and_then(|value| value.to_str().ok());
        if status != Some("0") {
            assert!(
                status.is_some_and(|code| code.parse::<u8>().is_ok_and(|code| code <= 16)),
                "{response:?}"
            );
        }
    }
    check_controller(&controller);
}

fn pod16() -> SimulatorService {
    Simulator::builder(Topology::pod16())
        .in_process()
        .expect("a state in memory cannot fail to load")
}

thread_local! {
    static RUNTIME: Runtime = runtime();
}

fn runtime() -> Runtime {
    let built = Builder::new_current_thread().enable_time().build();
    built.expect("create a runtime")
}

/// Returns the response, which must be ready at once, or `None` if a fault delays it or breaks the
/// connection.
fn send(controller: &SimulatorService, request: Request<Bytes>) -> Option<Response<Bytes>> {
    RUNTIME.with(|runtime| {
        let _inside = runtime.enter();
        let description = format!("{request:?}");
        let faulty = !controller.faults().list().is_empty();
        let response = pin!(controller.exchange(request));
        match response.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(response)) => Some(response),
            Poll::Ready(None) | Poll::Pending if faulty => None,
            Poll::Ready(None) => panic!("no response without a fault: {description}"),
            Poll::Pending => panic!("no immediate response: {description}"),
        }
    })
}

/// Asserts the invariants of every REST response.
fn check_response(response: &Response<Bytes>, is_text: bool) {
    let status = response.status();
    if is_text && status.is_success() {
        assert!(!response.body().is_empty());
        return;
    }
    let body: serde_json::Value =
        serde_json::from_slice(response.body()).unwrap_or_else(|error| panic!("{error}: {response:?}"));
    if !status.is_success() {
        assert!(
            body["code"].as_i64().is_some_and(|code| (1..=16).contains(&code)),
            "{response:?}"
        );
        assert!(
            body["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
            "{response:?}"
        );
    }
}

/// Sends a gRPC message with its five-byte prefix, and returns the response.
fn grpc(controller: &SimulatorService, path: &str, message: &[u8]) -> Response<Bytes> {
    let request = Request::post(format!("/{path}"))
        .header("content-type", "application/grpc")
        .body(framed(message))
        .expect("a gRPC method is a valid path");
    send(controller, request).expect("gRPC calls cannot inject faults")
}

/// Returns the partitions and their IPUs from the administrator's view.
fn partitions(controller: &SimulatorService) -> Vec<(String, Vec<(u32, u8)>)> {
    let state = controller.state().expect("a state in memory can be read");
    state
        .partitions
        .into_iter()
        .map(|partition| (partition.id, partition.ipus))
        .collect()
}

/// Asserts the invariants of the IPU-POD after any requests. The client must parse the simulator's
/// listing, with the same partitions over REST and gRPC.
fn check_controller(controller: &SimulatorService) {
    let mut allocated = BTreeSet::new();
    for (id, ipus) in partitions(controller) {
        assert!(ipus.len().is_power_of_two(), "{id} has {} IPUs", ipus.len());
        for ipu in ipus {
            assert!(allocated.insert(ipu), "{ipu:?} of {id} is in two partitions");
        }
    }
    let before = controller.state();
    let request = Request::get("/v1/partitions").body(Bytes::new());
    let response = send(controller, request.expect("a valid path")).expect("no fault is active");
    let over_rest: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
    let over_grpc = grpc(controller, "virmgrpc.UserService/ListPartitions", &[]);
    let over_grpc = listed(over_grpc.into_body()).expect("the client reads the simulator's listing");
    // An operation may complete in between, because the simulator follows the clock.
    if controller.state() == before {
        let over_rest = over_rest["partitions"].as_array().map_or(&[][..], Vec::as_slice);
        let ids = over_rest.iter().map(|partition| partition["id"].as_str());
        assert!(ids.eq(over_grpc.iter().map(|partition| Some(partition.id.as_str()))));
    }
    for path in ["/sim/map", "/sim/state", "/sim/agents"] {
        let request = Request::get(path).body(Bytes::new()).expect("a valid path");
        let response = send(controller, request).expect("no fault is active");
        assert!(response.status().is_success(), "{path}: {response:?}");
        check_response(&response, path == "/sim/map");
    }
}
