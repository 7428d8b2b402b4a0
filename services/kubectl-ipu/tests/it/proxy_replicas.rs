//! Several replicas of the proxy, behind an API server of scripted answers that forwards ports.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::fake_api::{FakeAnswer, FakeApi, Request};
use crate::harness::{Run, program};
use crate::https;

/// Ports of a standby replica, and of the leading one.
static STANDS_BY: OnceLock<u16> = OnceLock::new();
static LEADS: OnceLock<u16> = OnceLock::new();

fn standby(_: &Request) -> Value {
    json!({"status": "standby"})
}

fn leader(request: &Request) -> Value {
    if request.line == "GET /readyz" {
        return json!({"status": "ok"});
    }
    json!({"cordons": [{"id": "fan", "controller": "pod1:8090", "machine": "a1", "ipu": null, "owner": "grace",
        "reason": "a fan is broken", "since": 0}]})
}

fn pods(names: &[&str]) -> FakeAnswer {
    let pod = |name: &&str| {
        json!({
            "metadata": {"name": name, "namespace": "ipu"}, "spec": {"containers": []},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        })
    };
    let items: Vec<Value> = names.iter().map(pod).collect();
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    FakeAnswer::Document(200, list)
}

fn with_leader(request: &Request) -> FakeAnswer {
    if request.line.contains("/pods/a/portforward") {
        return FakeAnswer::Forward(*STANDS_BY.get_or_init(|| https::serve(standby)));
    }
    if request.line.contains("/pods/b/portforward") {
        return FakeAnswer::Forward(*LEADS.get_or_init(|| https::serve(leader)));
    }
    if request.line.contains("/pods?") {
        return pods(&["a", "b"]);
    }
    crate::tokens::installation(request)
}

fn without_leader(request: &Request) -> FakeAnswer {
    if request.line.contains("/pods?") {
        return pods(&["a"]);
    }
    with_leader(request)
}

#[test]
fn commands_use_the_replica_that_leads() {
    let api = FakeApi::start(with_leader);
    let run: Run = program(&api.kubeconfig(), &["cordons"]).output().unwrap().into();
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.contains("a fan is broken"), "{}", run.out);
}

#[test]
fn without_a_leader_the_error_names_the_replicas_that_stand_by() {
    let api = FakeApi::start(without_leader);
    let run: Run = program(&api.kubeconfig(), &["cordons"]).output().unwrap().into();
    assert_eq!(run.code, 69, "{}", run.err);
    let expected =
        "no Pod of the proxy in namespace ipu leads: a stands by; a replica takes over within seconds";
    assert!(run.err.contains(expected), "{}", run.err);
}
