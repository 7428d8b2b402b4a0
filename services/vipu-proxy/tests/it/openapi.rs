//! The OpenAPI document against the running API: every response of every test is validated against it.

use std::sync::LazyLock;

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Harness, request_body};

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../src/openapi.json")).unwrap());

/// Creates a validator of a schema of the document.
fn validator(schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = DOCUMENT["components"].clone();
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Returns the documented operation of a request.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next()?;
    let matches_template = |template: &str| {
        let (expected, actual): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        let matches = |(expected, actual): (&&str, &&str)| expected == actual || expected.starts_with('{');
        expected.len() == actual.len() && expected.iter().zip(&actual).all(matches)
    };
    let paths = DOCUMENT["paths"].as_object()?;
    let (_, operations) = paths.iter().find(|(template, _)| matches_template(template))?;
    operations.get(method.to_lowercase())
}

/// Asserts that the document lists this problem for `operation`.
fn check_code(operation: Option<&Value>, response: &Value) {
    let names = |list: &Value| {
        let mut list = list.as_array().into_iter().flatten();
        list.any(|code| *code == response["code"])
    };
    let is_documented =
        names(&DOCUMENT["x-problems-of-all"]) || operation.is_some_and(|of| names(&of["x-problems"]));
    assert!(
        is_documented,
        "the document does not list this problem: {response}"
    );
    let code = response["code"].as_str().unwrap();
    assert_eq!(
        DOCUMENT["x-problems"][code]["status"], response["status"],
        "{response}"
    );
}

/// Asserts that the document allows this response to this request.
pub(crate) fn check(method: &str, path: &str, status: StatusCode, content_type: &str, response: &Value) {
    let problem = &DOCUMENT["components"]["schemas"]["Problem"];
    let schema = match operation(method, path) {
        None => {
            assert!(
                matches!(status.as_u16(), 404 | 405 | 413),
                "{method} {path} is not documented"
            );
            problem
        }
        Some(operation) => {
            let responses = &operation["responses"];
            let response = responses.get(status.as_str()).unwrap_or(&responses["default"]);
            let content = &response["content"][content_type];
            assert!(
                !content.is_null(),
                "{method} {path}: {status} {content_type} is not documented"
            );
            &content["schema"]
        }
    };
    if content_type == "application/problem+json" {
        check_code(operation(method, path), response);
    }
    let errors: Vec<String> = validator(schema)
        .iter_errors(response)
        .map(|error| error.to_string())
        .collect();
    assert!(
        errors.is_empty(),
        "{method} {path}: {status}: {errors:?}\n{response}"
    );
}

#[tokio::test]
async fn the_running_api_serves_the_document() {
    let served = Harness::new().await.get("/openapi.json").await;
    assert_eq!(served, *DOCUMENT);
    for (name, schema) in served["components"]["schemas"].as_object().unwrap() {
        assert!(jsonschema::draft202012::meta::is_valid(schema), "{name}");
        validator(schema);
    }
}

#[tokio::test]
async fn every_documented_operation_exists_and_needs_credentials_as_documented() {
    let harness = Harness::with_tokens("0123456789abcdef-scheduler scheduler\n", &[]).await;
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if matches!(path.as_str(), "/v1/events" | "/metrics") || path.starts_with("/ui") {
                continue;
            }
            let (method, path) = (method.to_uppercase(), path.replace("{id}", "some"));
            let (status, _) = harness.call(&method, &path, "").await;
            let is_secure = operation.get("security").is_some();
            assert_eq!(
                status == StatusCode::UNAUTHORIZED,
                is_secure,
                "{method} {path}: {status}"
            );
            let (_, response) = harness
                .call_as("0123456789abcdef-scheduler", &method, &path, "")
                .await;
            let is_unknown = ["NoSuchRoute", "MethodNotAllowed"]
                .iter()
                .any(|code| response["code"] == *code);
            assert!(!is_unknown, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_body_with_every_documented_field_is_accepted_and_an_additional_field_is_refused() {
    let harness = Harness::new().await;
    let schema = validator(&DOCUMENT["components"]["schemas"]["PutPartition"]);
    let mut body = request_body("mnist", 16);
    for (key, value) in [
        ("instance", json!(1)),
        ("attempt", json!(0)),
        ("gcds", json!(2)),
        ("replicas", json!(4)),
        ("reconfigurable", json!(true)),
        ("allocation", json!(null)),
        ("controller", json!(harness.controller)),
        ("machines", json!(["a1", "a2", "a3", "a4"])),
        ("priority", json!(-3)),
        ("maxRuntimeSeconds", json!(60)),
        ("account", json!("research")),
        ("preemptible", json!(true)),
        ("leaseSeconds", json!(600)),
        // Only on a Unix socket.
        ("processId", json!(null)),
    ] {
        body[key] = value;
    }
    let fields = DOCUMENT["components"]["schemas"]["PutPartition"]["properties"]
        .as_object()
        .unwrap();
    assert_eq!(
        fields.len(),
        body.as_object().unwrap().len(),
        "the test does not send every field"
    );
    assert!(schema.is_valid(&body));
    let (status, response) = harness
        .call("PUT", "/v1/partitions/all?wait=5s", &body.to_string())
        .await;
    assert_eq!(status, StatusCode::OK, "{response}");
    for (key, value) in body.as_object().unwrap() {
        if !matches!(
            key.as_str(),
            "controller" | "machines" | "allocation" | "leaseSeconds"
        ) {
            assert_eq!(response[key], *value, "{key}");
        }
    }
    body["more"] = json!(1);
    assert!(!schema.is_valid(&body));
    let (status, _) = harness.call("PUT", "/v1/partitions/all", &body.to_string()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}
