//! Authorization, and reloaded files.

use http::StatusCode;
use serde_json::{Value, json};

use crate::binary::{http, start};
use crate::support::{Harness, request_body};

/// Tokens for all namespaces, for namespace `default`, and for another one.
const TOKENS: &str = "0123456789abcdef-everywhere everywhere\n\
                      0123456789abcdef-here here default\n\
                      0123456789abcdef-elsewhere elsewhere other\n";

#[tokio::test]
async fn writes_need_credentials_in_scope_and_reads_need_none() {
    let harness = Harness::with_tokens(TOKENS, &[]).await;
    let put = async |token: &str| {
        let body = request_body("mnist", 4).to_string();
        let (status, document) = harness
            .call_as(token, "PUT", "/v1/partitions/training?wait=5s", &body)
            .await;
        (status.as_u16(), document["code"].clone())
    };
    assert_eq!(put("").await, (401, json!("Unauthenticated")));
    assert_eq!(
        put("0123456789abcdef-guessed").await,
        (401, json!("Unauthenticated"))
    );
    assert_eq!(
        put("0123456789abcdef-elsewhere").await,
        (403, json!("OutOfScope"))
    );
    assert_eq!(put("0123456789abcdef-here").await, (200, Value::Null));
    let path = "/v1/partitions/training";
    let (status, _) = harness
        .call_as("0123456789abcdef-elsewhere", "DELETE", path, "")
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _) = harness
        .call_as("0123456789abcdef-elsewhere", "POST", &format!("{path}/reset"), "")
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(harness.get(path).await["state"], "active");
    let (status, _) = harness
        .call_as(
            "0123456789abcdef-everywhere",
            "DELETE",
            &format!("{path}?wait=30s"),
            "",
        )
        .await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn changed_token_and_quota_files_are_applied() {
    let scratch = tempfile::tempdir().unwrap();
    let (tokens, config) = (scratch.path().join("tokens"), scratch.path().join("proxy.yaml"));
    std::fs::write(&tokens, "0123456789abcdef scheduler\n").unwrap();
    let settings = format!(
        "sim: pod16\nsim-listen: 127.0.0.1:0\nlisten: 127.0.0.1:0\ntoken-file: {}\n",
        tokens.display()
    );
    std::fs::write(&config, &settings).unwrap();
    let running = start(&["--config", config.to_str().unwrap()]).await;
    let http = http();
    let put = async |token: &str, name: &str| {
        let url = format!("{}/v1/partitions/{name}", running.url);
        let request = http.put(url).bearer_auth(token).json(&request_body(name, 4));
        let response = request.send().await.unwrap();
        (
            response.status().as_u16(),
            response.json::<Value>().await.unwrap(),
        )
    };
    assert_eq!(put("fedcba9876543210", "one").await.0, 401);
    assert_eq!(put("0123456789abcdef", "one").await.1["account"], Value::Null);

    let quota = "quotas:\n  - {namespace: default, max-ipus: 4}\n";
    std::fs::write(&tokens, "fedcba9876543210 scheduler\n").unwrap();
    std::fs::write(&config, settings + quota).unwrap();
    let mut response = put("fedcba9876543210", "two").await;
    while response.0 == 401 {
        tokio::task::yield_now().await;
        response = put("fedcba9876543210", "two").await;
    }
    assert_eq!(put("0123456789abcdef", "two").await.0, 401);
    // A request before the new quota already has its partition.
    let mut number = 0;
    loop {
        number += 1;
        let (_, document) = put("fedcba9876543210", &format!("many-{number}")).await;
        if document["waiting"]["reason"]["code"] == "QuotaExceeded" {
            break;
        }
        let url = format!("{}/v1/partitions/many-{number}?wait=30s", running.url);
        let deleted = http
            .delete(url)
            .bearer_auth("fedcba9876543210")
            .send()
            .await
            .unwrap();
        assert!(deleted.status().is_success());
    }
}
