//! Real tokens of service accounts, shown to the proxy.

use ipu_core::Topology;
use ipu_test_cluster::shared;
use reqwest::Method;
use serde_json::Value;
use vipu_sim::Simulator;

use super::installation::{Installation, settled, wanted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_tokens_for_the_proxy_of_accounts_that_may_call_change_something() {
    let name = "only_tokens_for_the_proxy_of_accounts_that_may_call_change_something";
    let Some(cluster) = shared(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "access", &[&simulator]);
    installation.account("stranger");
    let proxy = installation.proxy(&[]).await;
    let put = async |token: Option<&str>| {
        let body = wanted("mine", 2);
        let path = "/v1/partitions/mine?wait=60s";
        let (status, document) = settled(&proxy.url, Method::PUT, path, token, Some(&body)).await;
        (status.as_u16(), document)
    };
    let audience = ["--audience", "vipu-proxy"];
    let good = &installation.token;
    // Signed for, and then changed.
    let (head, signature) = good.rsplit_once('.').unwrap();
    let forged = format!("{head}x.{signature}");
    let elsewhere = installation.token_for("caller", &["--audience", "another-service"]);
    let general = installation.token_for("caller", &[]);
    let stranger = installation.token_for("stranger", &audience);
    for (why, token, expected) in [
        ("none", None, 401),
        ("garbage", Some("garbage"), 401),
        ("forged", Some(&*forged), 401),
        ("another audience", Some(&elsewhere), 401),
        ("the API server's audience", Some(&general), 401),
        ("another account", Some(&stranger), 403),
    ] {
        let (status, problem) = put(token).await;
        assert_eq!(status, expected, "{why}: {problem}");
        let shown = problem.to_string();
        assert!(token.is_none_or(|token| !shown.contains(token)), "{shown}");
    }
    // Nothing came of those, and reading needs no token.
    let all = settled(&proxy.url, Method::GET, "/v1/partitions", None, None).await;
    assert_eq!(all.1["partitions"], Value::Array(Vec::new()));
    let (status, made) = put(Some(good)).await;
    assert_eq!((status, &made["state"]), (200, &Value::from("active")), "{made}");

    // The others may not take it away either, and the owner may.
    let delete = async |token: &str| {
        let path = "/v1/partitions/mine?wait=60s";
        settled(&proxy.url, Method::DELETE, path, Some(token), None)
            .await
            .0
            .as_u16()
    };
    assert_eq!(delete(&stranger).await, 403);
    assert_eq!(delete(&elsewhere).await, 401);
    assert_eq!(delete(good).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_no_list_names_acts_for_owners_of_its_own_namespace_only() {
    let name = "an_account_that_no_list_names_acts_for_owners_of_its_own_namespace_only";
    let Some(cluster) = shared(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "own-namespace", &[&simulator]);
    let proxy = installation.proxy(&["--accounts", ""]).await;
    let token = Some(&*installation.token);
    let mut body = wanted("mine", 2);
    let put = async |body: &Value| {
        let path = "/v1/partitions/mine?wait=60s";
        let (status, document) = settled(&proxy.url, Method::PUT, path, token, Some(body)).await;
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
    // Nor may it do what concerns owners of every namespace.
    let (status, problem) = settled(&proxy.url, Method::POST, "/v1/repair", token, None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (403, &"OutOfScope".into()),
        "{problem}"
    );
}
