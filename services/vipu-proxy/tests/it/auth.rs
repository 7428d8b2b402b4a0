//! Authorization, and reloaded files.

use async_trait::async_trait;
use http::StatusCode;
use serde_json::{Value, json};
use vipu_proxy::{AuthError, Authenticator, Credentials, Identity};

use crate::binary::{http, start};
use crate::support::{Harness, request_body};

/// Tokens: `everywhere` for all namespaces, `here` for namespace `default`, `elsewhere` for another one, and
/// `administrator`.
struct TestTokens;

#[async_trait]
impl Authenticator for TestTokens {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        match credentials.bearer {
            Some("everywhere") => Ok(Identity::new("everywhere")),
            Some("here") => Ok(Identity::new("here").within(["default".to_owned()])),
            Some("elsewhere") => Ok(Identity::new("elsewhere").within(["other".to_owned()])),
            Some("administrator") => Ok(Identity::new("administrator").into_administrator()),
            Some(_) => Err(AuthError::Unknown {
                detail: "unknown token".to_owned(),
            }),
            None => Err(AuthError::Missing),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn writes_need_credentials_in_scope_and_reads_need_none() {
    let harness = Harness::with_authenticator(TestTokens);
    let put = async |token: &str| {
        let body = request_body("mnist", 4).to_string();
        let (status, document) = harness
            .call_as(token, "PUT", "/v1/partitions/training?wait=5s", &body)
            .await;
        (status.as_u16(), document["code"].clone())
    };
    assert_eq!(put("").await, (401, json!("Unauthenticated")));
    assert_eq!(put("guessed").await, (401, json!("Unauthenticated")));
    assert_eq!(put("elsewhere").await, (403, json!("OutOfScope")));
    assert_eq!(put("here").await, (200, Value::Null));
    let path = "/v1/partitions/training";
    let (status, _) = harness.call_as("elsewhere", "DELETE", path, "").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _) = harness
        .call_as("elsewhere", "POST", &format!("{path}/reset"), "")
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(harness.get(path).await["state"], "active");
    let (status, _) = harness.call_as("everywhere", "DELETE", path, "").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn an_administrator_may_cordon_repair_and_release_and_not_use_partitions() {
    let harness = Harness::with_authenticator(TestTokens);
    let path = "/v1/partitions/training";
    let body = request_body("mnist", 4).to_string();
    let call = async |token: &str, method: &str, path: &str, body: &str| {
        let (status, document) = harness.call_as(token, method, path, body).await;
        (status.as_u16(), document["code"].clone())
    };
    let refused = (403, json!("OutOfScope"));
    assert_eq!(call("administrator", "PUT", path, &body).await, refused);
    let put = format!("{path}?wait=5s");
    assert_eq!(call("everywhere", "PUT", &put, &body).await, (200, Value::Null));
    for (method, path, body) in [
        ("PUT", "/v1/partitions/training", &*body),
        ("POST", "/v1/partitions/training/reset", ""),
        ("POST", "/v1/partitions/training/heartbeat", r#"{"seconds": 60}"#),
        ("DELETE", "/v1/allocations/c1/partitions", ""),
    ] {
        assert_eq!(
            call("administrator", method, path, body).await,
            refused,
            "{method} {path}"
        );
    }
    assert_eq!(harness.get(path).await["state"], "active");
    let controller = harness.get("/v1/controllers").await["controllers"][0]["name"].take();
    let cordon = json!({"id": "fan", "controller": controller, "reason": "a fan is broken"}).to_string();
    for (method, path, body) in [
        ("POST", "/v1/exclusions", &*cordon),
        ("DELETE", "/v1/exclusions/fan", ""),
        ("POST", "/v1/repair", ""),
        ("DELETE", "/v1/partitions/training?wait=5s", ""),
    ] {
        let (status, document) = harness.call_as("administrator", method, path, body).await;
        assert_eq!(status, StatusCode::OK, "{method} {path}: {document}");
    }
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
