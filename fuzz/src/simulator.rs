//! The simulated controller: requests to it, and the states that it begins with.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use ipu_core::Topology;
use tokio::runtime::{Builder, Runtime};
use vipu_sim::{InProcess, Simulator};

use crate::client::{questions, understood};
use crate::error_messages::{said_of, text};

/// The most requests of one input: enough to fill the Pod and to empty it again.
const REQUESTS_MAX: usize = 24;
/// What stands between two requests.
const BETWEEN: &str = "\n---\n";

/// REST requests apart by lines of `---`, each a line `METHOD PATH` and a body.
///
/// # Panics
///
/// If an answer is missing or is no JSON, a refusal has no code, or an IPU is in two partitions afterwards.
pub fn sim_rest(bytes: &[u8]) {
    let text = text(bytes);
    let controller = pod16();
    for request in text.split(BETWEEN).take(REQUESTS_MAX) {
        let (head, body) = request.split_once('\n').unwrap_or((request, ""));
        let (method, path) = head.trim().split_once(' ').unwrap_or(("GET", head));
        let Ok(request) = Request::builder()
            .method(method)
            .uri(path)
            .body(Bytes::copy_from_slice(body.as_bytes()))
        else {
            continue;
        };
        let is_text = path.starts_with("/sim/map");
        if let Some(answer) = call(&controller, request) {
            answered(&answer, is_text);
        }
    }
    controller.faults().clear();
    agrees(&controller);
}

/// gRPC requests: a byte for the call, a byte for the length of the message, and the message.
///
/// # Panics
///
/// As [`sim_rest`].
pub fn sim_grpc(bytes: &[u8]) {
    let controller = pod16();
    let questions = questions();
    let mut rest = bytes;
    for _ in 0..REQUESTS_MAX {
        let [which, length, behind @ ..] = rest else { break };
        let (message, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = behind;
        let (_, question) = &questions[usize::from(*which) % questions.len()];
        let (path, _) = question.to_grpc();
        let answer = grpc(&controller, path, message);
        let status = answer
            .headers()
            .get("grpc-status")
            .and_then(|value| value.to_str().ok());
        if status != Some("0") {
            assert!(
                status.is_some_and(|code| code.parse::<u8>().is_ok_and(|code| code <= 16)),
                "{answer:?}"
            );
        }
    }
    agrees(&controller);
}

/// A state file of a Pod of 16 IPUs, which is read, listed and worked with.
///
/// # Panics
///
/// If the state is taken and cannot be worked with, or an IPU is in two partitions.
pub fn sim_state(bytes: &[u8]) {
    let started = Simulator::builder(Topology::pod16())
        .state_copy(bytes)
        .in_process();
    let controller = match started {
        Ok(controller) => controller,
        Err(error) => return said_of(&error, bytes.len()),
    };
    agrees(&controller);
    let ids: Vec<String> = pod(&controller).into_iter().map(|(id, _)| id).collect();
    for id in ids.iter().take(4) {
        for (method, path) in [
            ("GET", "/status"),
            ("GET", "/ipuof-config"),
            ("GET", "/ipuof-config?gcdId=1"),
            ("POST", "/reset"),
            ("DELETE", "?force=true"),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(format!("/v1/partitions/{id}{path}"));
            let request = request.body(Bytes::new()).expect("an id can stand in a path");
            if let Some(answer) = call(&controller, request) {
                assert_ne!(answer.status(), 500, "{method} {path}: {answer:?}");
                answered(&answer, false);
            }
        }
    }
    agrees(&controller);
}

fn pod16() -> InProcess {
    Simulator::builder(Topology::pod16())
        .in_process()
        .expect("a state in memory is no file that cannot be read")
}

thread_local! {
    static RUNTIME: Runtime = runtime();
}

fn runtime() -> Runtime {
    let built = Builder::new_current_thread().enable_time().build();
    built.expect("make a runtime")
}

/// The answer, which is there at once, or none if a fault holds it back or breaks the connection.
fn call(controller: &InProcess, request: Request<Bytes>) -> Option<Response<Bytes>> {
    RUNTIME.with(|runtime| {
        let _inside = runtime.enter();
        let told = format!("{request:?}");
        let faulty = !controller.faults().list().is_empty();
        let answer = pin!(controller.call(request));
        match answer.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(answer)) => Some(answer),
            Poll::Ready(None) | Poll::Pending if faulty => None,
            Poll::Ready(None) => panic!("no answer without a fault: {told}"),
            Poll::Pending => panic!("no answer at once: {told}"),
        }
    })
}

/// What holds of every answer over REST.
fn answered(answer: &Response<Bytes>, is_text: bool) {
    let status = answer.status();
    if is_text && status.is_success() {
        assert!(!answer.body().is_empty());
        return;
    }
    let body: serde_json::Value =
        serde_json::from_slice(answer.body()).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    if !status.is_success() {
        assert!(
            body["code"].as_i64().is_some_and(|code| (1..=16).contains(&code)),
            "{answer:?}"
        );
        assert!(
            body["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
            "{answer:?}"
        );
    }
}

/// The message of gRPC, with the five bytes before it, and the answer.
fn grpc(controller: &InProcess, path: &str, message: &[u8]) -> Response<Bytes> {
    let mut framed = vec![0];
    framed.extend(
        u32::try_from(message.len())
            .expect("a message is short")
            .to_be_bytes(),
    );
    framed.extend(message);
    let request = Request::post(format!("/{path}"))
        .header("content-type", "application/grpc")
        .body(Bytes::from(framed))
        .expect("a method is a path");
    call(controller, request).expect("no fault is switched on over gRPC")
}

/// The partitions and their IPUs, by the administrator's look at the Pod.
fn pod(controller: &InProcess) -> Vec<(String, Vec<(u32, u8)>)> {
    let state = controller.state().expect("a state in memory can be read");
    state
        .partitions
        .into_iter()
        .map(|partition| (partition.id, partition.ipus))
        .collect()
}

/// What holds of every Pod after any requests, and that the client understands all that it says of itself, the same over
/// REST and gRPC.
fn agrees(controller: &InProcess) {
    let mut seen = BTreeSet::new();
    for (id, ipus) in pod(controller) {
        assert!(ipus.len().is_power_of_two(), "{id} has {} IPUs", ipus.len());
        for ipu in ipus {
            assert!(seen.insert(ipu), "{ipu:?} of {id} is in two partitions");
        }
    }
    for (word, question) in questions() {
        if !matches!(word, "version" | "list") {
            continue;
        }
        let before = controller.state();
        let asked = question.to_http().expect("it has a path");
        let request = Request::builder().method(asked.method.as_str()).uri(asked.path);
        let answer = call(controller, request.body(Bytes::new()).expect("a path is a path"));
        let answer = answer.expect("no fault is switched on");
        let over_rest = question.read_http("pod", answer.status().as_u16(), answer.body());
        let (path, message) = question.to_grpc();
        let over_grpc = grpc(controller, path, &message);
        let over_grpc = question.read_grpc(over_grpc.body().get(5..).unwrap_or_default());
        assert!(over_rest.is_ok(), "{question:?}: {over_rest:?}");
        // An operation may end in between, because the simulator goes by the clock.
        if controller.state() == before {
            assert_eq!(over_rest, over_grpc);
        }
        understood(&question, over_rest);
    }
    for path in ["/sim/map", "/sim/state", "/sim/agents"] {
        let request = Request::get(path).body(Bytes::new()).expect("a path is a path");
        let answer = call(controller, request).expect("no fault is switched on");
        assert!(answer.status().is_success(), "{path}: {answer:?}");
        answered(&answer, path == "/sim/map");
    }
}
