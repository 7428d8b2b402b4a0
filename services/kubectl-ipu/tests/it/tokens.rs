//! Validity of the tokens that commands request for the proxy.

use serde_json::{Value, json};

use crate::fake_api::{FakeAnswer, FakeApi, Request};
use crate::harness::{Run, program};
use crate::https::{NEVER, own_ca};

/// Encodes a text as Secrets are.
fn base64(text: &str) -> Value {
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}

/// Answers with an installation whose administrator gets a token, and whose proxy has no ready Pod.
pub(crate) fn installation(request: &Request) -> FakeAnswer {
    let list = |kind: &str, items: Value| {
        FakeAnswer::Document(
            200,
            json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items}),
        )
    };
    let metadata = json!({"name": "gc", "namespace": "ipu", "labels": {"app.kubernetes.io/instance": "gc"}});
    if request.line.contains("/deployments") {
        let container =
            json!({"name": "manager", "args": ["--vipu-proxy-svc=https://gc-vipu-proxy.ipu.svc"]});
        let template = json!({"spec": {"containers": [container]}});
        let spec = json!({"selector": {}, "template": template});
        return list("DeploymentList", json!([{"metadata": metadata, "spec": spec}]));
    }
    if request.line.contains("selfsubjectreviews") {
        let status = json!({"userInfo": {"username": "ada"}});
        return FakeAnswer::Document(201, json!({"metadata": {}, "status": status}));
    }
    if request.line.starts_with("POST") && request.line.contains("/token") {
        let spec = json!({"audiences": ["vipu-proxy"]});
        let status = json!({"token": "t", "expirationTimestamp": "2026-11-26T12:00:00Z"});
        let document = json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec,
            "status": status,
        });
        return FakeAnswer::Document(201, document);
    }
    if request.line.contains("/serviceaccounts") {
        return list("ServiceAccountList", json!([{"metadata": metadata}]));
    }
    if request.line.contains("/secrets/") {
        return FakeAnswer::Document(
            200,
            json!({"metadata": metadata, "data": {"ca.crt": base64(&own_ca(NEVER))}}),
        );
    }
    list("PodList", json!([]))
}

/// Returns the seconds of the token that a command requests.
fn requested_seconds(arguments: &[&str]) -> Value {
    let api = FakeApi::start(installation);
    let run: Run = program(&api.kubeconfig(), arguments).output().unwrap().into();
    // There is no Pod to forward a port to.
    assert_eq!(run.code, 69, "{}", run.err);
    let requests = api.requests();
    let token = requests.iter().find(|request| request.line.contains("/token"));
    let body: Value = serde_json::from_str(&token.unwrap().body).unwrap();
    body["spec"]["expirationSeconds"].clone()
}

#[test]
fn a_drain_has_a_token_for_a_day_and_other_commands_for_ten_minutes() {
    let drain = ["drain", "pod1:8090/a1", "--reason", "fan"];
    assert_eq!(requested_seconds(&drain), 86_400);
    let cordon = ["cordon", "pod1:8090/a1", "--reason", "fan"];
    assert_eq!(requested_seconds(&cordon), 600);
}

#[test]
fn a_token_of_a_file_needs_a_named_namespace_or_a_ca() {
    let api = FakeApi::start(installation);
    let file = ["repair", "--proxy-token-file", "/dev/null"];
    let code = |more: &[&str]| {
        let arguments = [&file[..], more].concat();
        let run: Run = program(&api.kubeconfig(), &arguments).output().unwrap().into();
        run.code
    };
    assert_eq!(code(&[]), 64);
    // There is no Pod to forward a port to.
    assert_eq!(code(&["--operator-namespace", "ipu"]), 69);
}
