//! The OpenAPI document against the running API: every answer of every test is held against it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Bench, wanted};

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../src/openapi.json")).unwrap());

/// A validator of a schema of the document.
fn validator(schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = DOCUMENT["components"].clone();
    jsonschema::draft202012::new(&schema).unwrap()
}

/// The operation of the document that a request asks for.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next()?;
    let is_of = |template: &str| {
        let (wanted, found): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        let same = |(wanted, found): (&&str, &&str)| wanted == found || wanted.starts_with('{');
        wanted.len() == found.len() && wanted.iter().zip(&found).all(same)
    };
    let paths = DOCUMENT["paths"].as_object()?;
    let (_, operations) = paths.iter().find(|(template, _)| is_of(template))?;
    operations.get(method.to_lowercase())
}

/// Fails unless the document says that `operation` may answer this problem.
fn check_code(operation: Option<&Value>, answer: &Value) {
    let names = |list: &Value| {
        let mut list = list.as_array().into_iter().flatten();
        list.any(|code| *code == answer["code"])
    };
    let known = names(&DOCUMENT["x-problems-of-all"]) || operation.is_some_and(|of| names(&of["x-problems"]));
    assert!(
        known,
        "the document does not say that this may be answered: {answer}"
    );
    let code = answer["code"].as_str().unwrap();
    assert_eq!(
        DOCUMENT["x-problems"][code]["status"], answer["status"],
        "{answer}"
    );
}

/// Fails unless the document says that this request may have this answer.
pub(crate) fn check(method: &str, path: &str, status: StatusCode, kind: &str, answer: &Value) {
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
            let content = &response["content"][kind];
            assert!(
                !content.is_null(),
                "{method} {path}: {status} {kind} is not documented"
            );
            &content["schema"]
        }
    };
    if kind == "application/problem+json" {
        check_code(operation(method, path), answer);
    }
    let wrong: Vec<String> = validator(schema)
        .iter_errors(answer)
        .map(|error| error.to_string())
        .collect();
    assert!(wrong.is_empty(), "{method} {path}: {status}: {wrong:?}\n{answer}");
}

#[tokio::test(start_paused = true)]
async fn the_document_is_what_the_running_api_says_of_itself() {
    let served = Bench::new().get("/openapi.json").await;
    assert_eq!(served, *DOCUMENT);
    for (name, schema) in served["components"]["schemas"].as_object().unwrap() {
        assert!(jsonschema::draft202012::meta::is_valid(schema), "{name}");
        validator(schema);
    }
}

#[tokio::test(start_paused = true)]
async fn every_operation_is_documented_and_every_documented_one_exists() {
    let mut documented = BTreeSet::new();
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let secure = operation.get("security").is_some();
            documented.insert((method.to_uppercase(), path.clone(), secure));
        }
    }
    let known =
        vipu_proxy::operations().map(|(method, path, secure)| (method.to_owned(), path.to_owned(), secure));
    assert_eq!(documented, known.collect());
    // The table is not enough: a route has to take each.
    let bench = Bench::new();
    for (method, path, _) in documented {
        if matches!(path.as_str(), "/v1/events" | "/metrics") {
            continue;
        }
        let (_, answer) = bench.call(&method, &path.replace("{id}", "some"), "").await;
        let unknown = ["NoSuchRoute", "MethodNotAllowed"]
            .iter()
            .any(|code| answer["code"] == *code);
        assert!(!unknown, "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_the_document_allows_is_understood_and_one_more_field_is_not() {
    let schema = validator(&DOCUMENT["components"]["schemas"]["PutPartition"]);
    let mut body = wanted("mnist", 16);
    for (key, value) in [
        ("instance", json!(1)),
        ("attempt", json!(0)),
        ("gcds", json!(2)),
        ("replicas", json!(4)),
        ("reconfigurable", json!(true)),
        ("allocation", json!(null)),
        ("controller", json!("pod:8090")),
        ("priority", json!(-3)),
        ("maxRuntimeSeconds", json!(60)),
        ("account", json!("research")),
        ("preemptible", json!(true)),
        ("leaseSeconds", json!(600)),
    ] {
        body[key] = value;
    }
    let fields = DOCUMENT["components"]["schemas"]["PutPartition"]["properties"]
        .as_object()
        .unwrap();
    assert_eq!(
        fields.len(),
        body.as_object().unwrap().len(),
        "a field is not tried here"
    );
    assert!(schema.is_valid(&body));
    let bench = Bench::new();
    let (status, answer) = bench
        .call("PUT", "/v1/partitions/all?wait=5s", &body.to_string())
        .await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    for (key, value) in body.as_object().unwrap() {
        if !matches!(key.as_str(), "controller" | "allocation" | "leaseSeconds") {
            assert_eq!(answer[key], *value, "{key}");
        }
    }
    body["more"] = json!(1);
    assert!(!schema.is_valid(&body));
    let (status, _) = bench.call("PUT", "/v1/partitions/all", &body.to_string()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}
