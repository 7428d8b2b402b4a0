//! What is refused, and what the problem says.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Bench, wanted};

/// The code of the problem that an answer is.
fn code((status, problem): (StatusCode, Value)) -> (u16, String) {
    assert_eq!(problem["status"], status.as_u16(), "{problem}");
    (status.as_u16(), problem["code"].as_str().unwrap().to_owned())
}

fn is(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test(start_paused = true)]
async fn what_is_another_s_is_refused_with_his_name() {
    let bench = Bench::new();
    bench.put("training", "mnist", 4).await;
    let (status, problem) = bench.put("training", "other", 4).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(problem["code"], "NotTheOwner");
    assert_eq!(problem["owner"], wanted("mnist", 4)["owner"]);
    let path = "/v1/partitions/training?uid=of-another";
    assert_eq!(code(bench.call("DELETE", path, "").await), is(409, "NotTheOwner"));
}

#[tokio::test(start_paused = true)]
async fn other_properties_and_old_attempts_are_conflicts() {
    let bench = Bench::new();
    bench.put("training", "mnist", 4).await;
    assert_eq!(
        code(bench.put("training", "mnist", 8).await),
        is(409, "OtherProperties")
    );
    let reset = "/v1/partitions/training/reset";
    bench.call("POST", reset, r#"{"attempt": 3}"#).await;
    assert_eq!(
        code(bench.put("training", "mnist", 4).await),
        is(409, "OldAttempt")
    );
    assert_eq!(
        code(bench.call("POST", reset, r#"{"attempt": 2}"#).await),
        is(409, "OldAttempt")
    );
    assert_eq!(
        code(bench.call("POST", "/v1/partitions/nobody/reset", "").await),
        is(404, "NotFound")
    );
}

#[tokio::test(start_paused = true)]
async fn a_value_that_breaks_a_rule_is_named_with_its_rule_and_a_fix() {
    let bench = Bench::new();
    let put = async |change: Value| {
        let mut body = wanted("mnist", 4);
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        bench
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

#[tokio::test(start_paused = true)]
async fn what_is_no_request_of_the_api_is_told_so() {
    let bench = Bench::new();
    let call = async |method: &str, path: &str, body: &str| code(bench.call(method, path, body).await);
    assert_eq!(call("PUT", "/v1/partitions/p", "{").await, is(400, "NotJson"));
    assert_eq!(
        call("PUT", "/v1/partitions/p?wait=1h", "{}").await,
        is(422, "InvalidValue")
    );
    assert_eq!(
        call("PUT", "/v1/partitions/a%20b", "{}").await,
        is(422, "InvalidBody")
    );
    assert_eq!(
        call("GET", "/v1/partitions/a%20b", "").await,
        is(422, "InvalidValue")
    );
    assert_eq!(
        call("GET", "/v1/partitions?all", "").await,
        is(422, "InvalidValue")
    );
    assert_eq!(call("GET", "/v2", "").await, is(404, "NoSuchRoute"));
    assert_eq!(
        call("PATCH", "/v1/partitions/p", "").await,
        is(405, "MethodNotAllowed")
    );
    // Also where there is nothing to be given back.
    assert_eq!(
        call("DELETE", "/v1/partitions/p?uid=%C3%97", "").await,
        is(422, "InvalidValue")
    );
    let large = format!("{{\"account\": {:?}}}", "x".repeat(64 * 1024));
    assert_eq!(
        call("PUT", "/v1/partitions/p", &large).await,
        is(413, "BodyTooLarge")
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_finds_the_line_full_is_told_so_and_nobody_who_is_in_it() {
    let bench = Bench::with_a_short_line();
    bench.put("all", "all", 32).await;
    let body = wanted("waits", 4).to_string();
    let (status, waits) = bench.call("PUT", "/v1/partitions/waits", &body).await;
    assert_eq!(
        (status, &waits["state"]),
        (StatusCode::ACCEPTED, &json!("waiting")),
        "{waits}"
    );
    let late = wanted("late", 4).to_string();
    let (status, problem) = bench.call("PUT", "/v1/partitions/late", &late).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("LineFull")),
        "{problem}"
    );
    assert!(problem["detail"].as_str().unwrap().contains('1'), "{problem}");
    // Asking again, and giving back, are no new requests.
    let (status, _) = bench.call("PUT", "/v1/partitions/waits", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (status, _) = bench.call("DELETE", "/v1/partitions/all?wait=5s", "").await;
    assert_eq!(status, StatusCode::OK);
}
