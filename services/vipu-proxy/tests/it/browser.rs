//! Requests that a web page or a local user can send to a proxy that authenticates no client, over real
//! connections.

use reqwest::Method;
use serde_json::{Value, json};

use crate::binary::http;
use crate::server::proxy;
use crate::support::request_body;

/// Sends a request with these headers; returns the status and the document.
async fn send(url: &str, method: Method, headers: &[(&str, &str)], body: Option<Value>) -> (u16, Value) {
    let mut request = http().request(method, url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.body(body.to_string());
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn a_heartbeat_never_creates_a_lease() {
    let proxy = proxy(|_| {}).await;
    let url = format!("http://{}/v1/partitions/training", proxy.addr());
    let beat = async || {
        let body = Some(json!({"seconds": 1}));
        send(&format!("{url}/heartbeat"), Method::POST, &[JSON], body).await
    };
    let put = async |lease: Option<u32>| {
        let mut body = request_body("mnist", 4);
        if let Some(seconds) = lease {
            body["leaseSeconds"] = json!(seconds);
        }
        send(&format!("{url}?wait=30s"), Method::PUT, &[JSON], Some(body)).await
    };
    assert_eq!(put(None).await.0, 200);
    let (status, problem) = beat().await;
    assert_eq!((status, &problem["code"]), (409, &json!("NoLease")), "{problem}");
    assert!(
        problem["fix"].as_str().unwrap().contains("leaseSeconds"),
        "{problem}"
    );
    let (_, shown) = send(&url, Method::GET, &[], None).await;
    assert_eq!(shown["leaseUntil"], Value::Null, "{shown}");
    assert_eq!(put(Some(600)).await.0, 200);
    assert_eq!(beat().await.0, 200);
    proxy.shutdown().await;
}

/// Sends every kind of operation with these headers; returns statuses and codes.
async fn codes(url: &str, headers: &[(&str, &str)]) -> Vec<(u16, Value)> {
    let cordon = json!({"id": "x", "controller": "pod:8090", "machine": "a1", "reason": "because"});
    let headers: Vec<_> = std::iter::once(JSON).chain(headers.iter().copied()).collect();
    let mut codes = Vec::new();
    for (method, path, body) in [
        (Method::GET, "/v1/partitions", None),
        (Method::POST, "/query", Some(json!({"size": 1}))),
        (Method::POST, "/v1/cordons", Some(cordon)),
        (Method::POST, "/v1/partitions/p/reset", None),
        (Method::DELETE, "/v1/partitions/p", None),
    ] {
        let (status, document) = send(&format!("{url}{path}"), method, &headers, body).await;
        codes.push((status, document["code"].clone()));
    }
    codes
}

#[tokio::test]
async fn a_page_of_another_site_neither_reads_nor_writes() {
    let proxy = proxy(|_| {}).await;
    let url = format!("http://{}", proxy.addr());
    for header in [
        ("origin", "https://evil.example"),
        ("origin", "http://127.0.0.1:1"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let refused = codes(&url, &[header]).await;
        assert_eq!(refused, vec![(403, json!("CrossSite")); 5], "{header:?}");
    }
    let own = [("origin", url.as_str()), ("sec-fetch-site", "same-origin")];
    let served = codes(&url, &own).await;
    assert!(served.iter().all(|(status, _)| *status != 403), "{served:?}");
    proxy.shutdown().await;
}

#[tokio::test]
async fn a_foreign_host_name_does_not_reach_a_proxy_on_loopback() {
    let proxy = proxy(|_| {}).await;
    let (address, port) = (proxy.addr(), proxy.addr().port());
    http();
    let client = reqwest::Client::builder();
    let client = client.resolve("rebound.example", address).build().unwrap();
    let url = format!("http://rebound.example:{port}/v1/partitions");
    let response = client.get(url).send().await.unwrap();
    assert_eq!(response.status(), 421);
    assert_eq!(response.json::<Value>().await.unwrap()["code"], "ForeignHost");
    for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8080"] {
        let url = format!("http://{address}/v1/partitions");
        assert_eq!(
            send(&url, Method::GET, &[("host", host)], None).await.0,
            200,
            "{host}"
        );
    }
    proxy.shutdown().await;
}

#[tokio::test]
async fn a_write_that_a_form_can_send_is_refused() {
    let proxy = proxy(|_| {}).await;
    let url = format!("http://{}", proxy.addr());
    let path = |path: &str| format!("{url}{path}");
    let put = path("/v1/partitions/p?wait=30s");
    assert_eq!(
        send(&put, Method::PUT, &[JSON], Some(request_body("mnist", 4)))
            .await
            .0,
        200
    );
    let cordon = json!({"id": "x", "controller": "pod:8090", "machine": "a1", "reason": "because"});
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "text/plain; application/json",
    ] {
        let kind = [("content-type", kind)];
        let (status, problem) = send(&path("/v1/cordons"), Method::POST, &kind, Some(cordon.clone())).await;
        assert_eq!(
            (status, &problem["code"]),
            (415, &json!("NotJsonType")),
            "{problem}"
        );
        assert!(
            problem["fix"].as_str().unwrap().contains("application/json"),
            "{problem}"
        );
    }
    let (_, cordons) = send(&path("/v1/cordons"), Method::GET, &[], None).await;
    assert_eq!(cordons, json!({"cordons": []}));
    // Without a body, only a request without Origin is accepted.
    let own = [("origin", url.as_str())];
    for (method, route) in [
        (Method::POST, "/v1/partitions/p/reset"),
        (Method::POST, "/v1/repair"),
    ] {
        let (status, problem) = send(&path(route), method.clone(), &own, None).await;
        assert_eq!(
            (status, &problem["code"]),
            (415, &json!("NotJsonType")),
            "{problem}"
        );
        let kinds = [own[0], ("content-type", "application/json; charset=utf-8")];
        assert!(
            send(&path(route), method.clone(), &kinds, None).await.0 < 300,
            "{route}"
        );
        assert!(send(&path(route), method, &[], None).await.0 < 300, "{route}");
    }
    proxy.shutdown().await;
}
