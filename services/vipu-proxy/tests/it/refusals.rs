//! Refused requests and their problems.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Harness, request_body};

/// Returns status and code of a problem.
fn code((status, problem): (StatusCode, Value)) -> (u16, String) {
    assert_eq!(problem["status"], status.as_u16(), "{problem}");
    (status.as_u16(), problem["code"].as_str().unwrap().to_owned())
}

fn expected(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn a_partition_of_another_owner_is_refused_with_the_name_of_the_owner() {
    let harness = Harness::new().await;
    harness.put("training", "mnist", 4).await;
    let (status, problem) = harness.put("training", "other", 4).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(problem["code"], "NotTheOwner");
    assert_eq!(problem["owner"], request_body("mnist", 4)["owner"]);
    let path = "/v1/partitions/training?uid=of-another";
    assert_eq!(
        code(harness.call("DELETE", path, "").await),
        expected(409, "NotTheOwner")
    );
}

#[tokio::test]
async fn other_properties_and_old_attempts_are_conflicts() {
    let harness = Harness::new().await;
    harness.put("training", "mnist", 4).await;
    assert_eq!(
        code(harness.put("training", "mnist", 8).await),
        expected(409, "OtherProperties")
    );
    let reset = "/v1/partitions/training/reset";
    harness.call("POST", reset, r#"{"attempt": 3}"#).await;
    assert_eq!(
        code(harness.put("training", "mnist", 4).await),
        expected(409, "OldAttempt")
    );
    assert_eq!(
        code(harness.call("POST", reset, r#"{"attempt": 2}"#).await),
        expected(409, "OldAttempt")
    );
    assert_eq!(
        code(harness.call("POST", "/v1/partitions/missing/reset", "").await),
        expected(404, "NotFound")
    );
}

#[tokio::test]
async fn a_value_that_breaks_a_rule_is_named_with_its_rule_and_a_fix() {
    let harness = Harness::new().await;
    let put = async |change: Value| {
        let mut body = request_body("mnist", 4);
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        harness
            .call("PUT", "/v1/partitions/training", &body.to_string())
            .await
    };
    let field = |(status, problem): (StatusCode, Value)| {
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
        assert!(
            problem["rule"].is_string() && problem["fix"].is_string(),
            "{problem}"
        );
        problem["field"].as_str().unwrap().to_owned()
    };
    assert_eq!(field(put(json!({"size": 3})).await), "size");
    assert_eq!(field(put(json!({"gcds": 3})).await), "gcds");
    assert_eq!(field(put(json!({"replicas": 5})).await), "replicas");
    assert_eq!(field(put(json!({"account": ""})).await), "account");
    assert_eq!(field(put(json!({"controller": "a b"})).await), "controller");
    let nameless = json!({"kind": "IPUJob", "namespace": "a/b", "name": "n", "uid": "u"});
    assert_eq!(field(put(json!({"owner": nameless})).await), "owner.namespace");
    let (status, problem) = put(json!({"sise": 4})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("InvalidBody"))
    );
    assert!(problem["detail"].as_str().unwrap().contains("sise"), "{problem}");
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_a_code() {
    let harness = Harness::new().await;
    let call = async |method: &str, path: &str, body: &str| code(harness.call(method, path, body).await);
    assert_eq!(
        call("PUT", "/v1/partitions/p", "{").await,
        expected(400, "NotJson")
    );
    assert_eq!(
        call("PUT", "/v1/partitions/p?wait=1h", "{}").await,
        expected(422, "InvalidValue")
    );
    assert_eq!(
        call("PUT", "/v1/partitions/a%20b", "{}").await,
        expected(422, "InvalidBody")
    );
    assert_eq!(
        call("GET", "/v1/partitions/a%20b", "").await,
        expected(422, "InvalidValue")
    );
    assert_eq!(
        call("GET", "/v1/partitions?all", "").await,
        expected(422, "InvalidValue")
    );
    assert_eq!(call("GET", "/v2", "").await, expected(404, "NoSuchRoute"));
    assert_eq!(
        call("PATCH", "/v1/partitions/p", "").await,
        expected(405, "MethodNotAllowed")
    );
    // The uid is validated even without a partition to delete.
    assert_eq!(
        call("DELETE", "/v1/partitions/p?uid=%C3%97", "").await,
        expected(422, "InvalidValue")
    );
    let large = format!("{{\"account\": {:?}}}", "x".repeat(64 * 1024));
    assert_eq!(
        call("PUT", "/v1/partitions/p", &large).await,
        expected(413, "BodyTooLarge")
    );
}
