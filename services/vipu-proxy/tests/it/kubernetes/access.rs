//! Authentication with real service account tokens.

use ipu_core::hardware::Topology;
use ipu_test_cluster::shared;
use reqwest::Method;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, request_body, send_until_available};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_tokens_of_listed_accounts_for_the_proxy_have_write_access() {
    let name = "only_tokens_of_listed_accounts_for_the_proxy_have_write_access";
    let Some(cluster) = shared(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "access", &[&simulator]);
    installation.account("unlisted");
    let proxy = installation.proxy(&[]).await;
    let put = async |token: Option<&str>| {
        let body = request_body("mine", 2);
        let path = "/v1/partitions/mine?wait=60s";
        let (status, document) =
            send_until_available(&proxy.url, Method::PUT, path, token, Some(&body)).await;
        (status.as_u16(), document)
    };
    let audience = ["--audience", "vipu-proxy"];
    let valid = &installation.token;
    // A signed token whose payload is changed.
    let (head, signature) = valid.rsplit_once('.').unwrap();
    let forged = format!("{head}x.{signature}");
    let elsewhere = installation.token_for("caller", &["--audience", "another-service"]);
    let general = installation.token_for("caller", &[]);
    let unlisted = installation.token_for("unlisted", &audience);
    for (case, token, expected) in [
        ("none", None, 401),
        ("garbage", Some("garbage"), 401),
        ("forged", Some(&*forged), 401),
        ("another audience", Some(&elsewhere), 401),
        ("the API server's audience", Some(&general), 401),
        ("another account", Some(&unlisted), 403),
    ] {
        let (status, problem) = put(token).await;
        assert_eq!(status, expected, "{case}: {problem}");
        let shown = problem.to_string();
        assert!(token.is_none_or(|token| !shown.contains(token)), "{shown}");
    }
    // The refused requests changed nothing, and reading needs no token.
    let all = send_until_available(&proxy.url, Method::GET, "/v1/partitions", None, None).await;
    assert_eq!(all.1["partitions"], Value::Array(Vec::new()));
    let (status, made) = put(Some(valid)).await;
    assert_eq!((status, &made["state"]), (200, &Value::from("active")), "{made}");

    // The refused accounts cannot delete the partition, and the listed account can.
    let delete = async |token: &str| {
        let path = "/v1/partitions/mine?wait=60s";
        send_until_available(&proxy.url, Method::DELETE, path, Some(token), None)
            .await
            .0
            .as_u16()
    };
    assert_eq!(delete(&unlisted).await, 403);
    assert_eq!(delete(&elsewhere).await, 401);
    assert_eq!(delete(valid).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlisted_account_acts_for_owners_of_its_own_namespace_only() {
    let name = "an_unlisted_account_acts_for_owners_of_its_own_namespace_only";
    let Some(cluster) = shared(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "own-namespace", &[&simulator]);
    let proxy = installation.proxy(&["--accounts", ""]).await;
    let token = Some(&*installation.token);
    let mut body = request_body("mine", 2);
    let put = async |body: &Value| {
        let path = "/v1/partitions/mine?wait=60s";
        let (status, document) = send_until_available(&proxy.url, Method::PUT, path, token, Some(body)).await;
        (status.as_u16(), document)
    };
    let (status, problem) = put(&body).await;
    assert_eq!(
        (status, &problem["code"]),
        (403, &"OutOfScope".into()),
        "{problem}"
    );
    body["owner"]["namespace"] = installation.namespace.clone().into();
    let (status, made) = put(&body).await;
    assert_eq!((status, &made["state"]), (200, &"active".into()), "{made}");
    // The account cannot run a repair, which affects owners of every namespace.
    let (status, problem) = send_until_available(&proxy.url, Method::POST, "/v1/repair", token, None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (403, &"OutOfScope".into()),
        "{problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_may_cordon_repair_and_release_and_not_use_partitions() {
    let name = "an_administrator_may_cordon_repair_and_release_and_not_use_partitions";
    let Some(cluster) = shared(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "administrator", &[&simulator]);
    installation.account("administrator");
    let account = format!("system:serviceaccount:{}:administrator", installation.namespace);
    let proxy = installation.proxy(&["--administrators", &account]).await;
    let administrator = installation.token_for("administrator", &["--audience", "vipu-proxy"]);
    let call = async |method: Method, path: &str, body: Option<&Value>| {
        let (status, document) =
            send_until_available(&proxy.url, method, path, Some(&administrator), body).await;
        (status.as_u16(), document)
    };
    let body = request_body("mine", 2);
    proxy.until_active("mine", 2).await;
    let lease = json!({"seconds": 60});
    for (method, path, body) in [
        (Method::PUT, "/v1/partitions/mine", Some(&body)),
        (Method::POST, "/v1/partitions/mine/reset", None),
        (Method::POST, "/v1/partitions/mine/heartbeat", Some(&lease)),
        (Method::DELETE, "/v1/allocations/c1/partitions", None),
    ] {
        let (status, refused) = call(method, path, body).await;
        assert_eq!(
            (status, &refused["code"]),
            (403, &"OutOfScope".into()),
            "{path}: {refused}"
        );
    }
    assert_eq!(proxy.get("/v1/partitions/mine").await["state"], "active");
    let controller = simulator.addr().to_string();
    let cordon = json!({"id": "fan", "controller": controller, "reason": "a fan is broken"});
    for (method, path, body) in [
        (Method::POST, "/v1/cordons", Some(&cordon)),
        (Method::DELETE, "/v1/cordons/fan", None),
        (Method::POST, "/v1/repair", None),
        (Method::DELETE, "/v1/partitions/mine?wait=60s", None),
    ] {
        let (status, document) = call(method, path, body).await;
        assert_eq!(status, 200, "{path}: {document}");
    }
}
