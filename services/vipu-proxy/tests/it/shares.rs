//! Shares: what anonymous clients hold, and do not read, never keeps identified clients out.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tempfile::TempDir;
use tokio::net::TcpStream;
use vipu_proxy::{Proxy, Settings};

use crate::binary::http;
use crate::server::{Wire, proxy};
use crate::support::wanted;

/// The longest that a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

const ADMINISTRATOR: &str = "0123456789abcdef";
const TENANT: &str = "fedcba9876543210";
const OTHER_TENANT: &str = "fedcba9876543211";

/// A proxy that identifies an administrator and two tenants.
async fn guarded(change: impl FnOnce(&mut Settings)) -> (Proxy, TempDir) {
    let scratch = tempfile::tempdir().unwrap();
    let tokens = scratch.path().join("tokens");
    let lines = format!("{ADMINISTRATOR} operator\n{TENANT} tenant team-a\n{OTHER_TENANT} other team-b\n");
    std::fs::write(&tokens, lines).unwrap();
    let running = proxy(|settings| {
        settings.token_file = Some(tokens);
        change(settings);
    })
    .await;
    (running, scratch)
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.unwrap()
}

/// The status of a request, without a token if that is empty. The connection stays open.
async fn status(wire: &mut Wire, path: &str, token: &str) -> u16 {
    let authorization = if token.is_empty() {
        String::new()
    } else {
        format!("authorization: Bearer {token}\r\n")
    };
    wire.say(&format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n"
    ))
    .await;
    let head = within(wire.head()).await;
    within(wire.body(&head)).await;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Opens `number` streams and returns those that are.
async fn streams(running: &Proxy, token: &str, number: usize) -> Vec<Wire> {
    let mut open = Vec::new();
    for _ in 0..number {
        let mut wire = Wire::open(running).await;
        match status(&mut wire, "/v1/events", token).await {
            200 => open.push(wire),
            other => assert_eq!(other, 503),
        }
    }
    open
}

#[tokio::test]
async fn event_streams_of_others_never_crowd_out_the_operators() {
    let (running, _scratch) = guarded(|_| {}).await;
    let anonymous = streams(&running, "", 130).await;
    let tenant = streams(&running, TENANT, 130).await;
    let other = streams(&running, OTHER_TENANT, 130).await;
    let operator = streams(&running, ADMINISTRATOR, 32).await;
    // All are from one address.
    assert_eq!(
        [&anonymous, &tenant, &other, &operator].map(Vec::len),
        [32, 32, 32, 32]
    );
    // They hold no place of a request, and what is closed is free again.
    let mut wire = Wire::open(&running).await;
    assert_eq!(status(&mut wire, "/stats", "").await, 200);
    drop(anonymous);
    while streams(&running, "", 1).await.is_empty() {}
    running.shutdown().await;
}

#[tokio::test]
async fn requests_of_one_tenant_that_wait_leave_places_to_its_others_and_to_other_tenants() {
    let (running, _scratch) = guarded(|settings| settings.max_requests = Some(16)).await;
    let url = |id: &str| format!("http://{}/v1/partitions/{id}", running.addr());
    let put = |id: &str, query: &str, namespace: &str, token: &str| {
        let mut body = wanted(id, 16);
        body["owner"]["namespace"] = namespace.into();
        let put = http().put(format!("{}{query}", url(id))).bearer_auth(token);
        put.json(&body).send()
    };
    let first = put("first", "?wait=30s", "team-b", OTHER_TENANT).await.unwrap();
    assert_eq!(first.status(), 200);
    // An eighth of the requests.
    let (one, two) = (
        tokio::spawn(put("one", "?wait=60s", "team-a", TENANT)),
        tokio::spawn(put("two", "?%77ait=60s", "team-a", TENANT)),
    );
    for id in ["one", "two"] {
        let get = || http().get(url(id)).bearer_auth(ADMINISTRATOR).send();
        while within(get()).await.unwrap().status() != 200 {}
    }
    let refused = put("three", "?wait=60s", "team-a", TENANT).await.unwrap();
    assert_eq!(refused.status(), 429);
    let problem: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(problem["code"], "TooManyWaits");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("namespace team-a: at most 2 "), "{detail}");
    assert!(
        problem["fix"].as_str().unwrap().contains("without wait"),
        "{problem}"
    );
    let asked = put("three", "", "team-a", TENANT).await.unwrap();
    assert_eq!(asked.status(), 202);
    let other = put("four", "?wait=1ms", "team-b", OTHER_TENANT).await.unwrap();
    assert_eq!(other.status(), 202);
    drop((one, two));
    running.shutdown().await;
}

/// A connection of HTTP/2 that reads no answers, and its end.
async fn deaf(running: &Proxy) -> (h2::client::SendRequest<Bytes>, tokio::task::JoinHandle<()>) {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let stream = TcpStream::connect(running.addr()).await.unwrap();
    let (requests, connection) = builder.handshake(stream).await.unwrap();
    let end = tokio::spawn(async move {
        connection.await.ok();
    });
    (requests, end)
}

fn stats() -> Request<()> {
    Request::get("http://localhost/stats").body(()).unwrap()
}

#[tokio::test]
async fn a_request_has_its_place_until_its_answer_is_read() {
    let (running, _scratch) = guarded(|settings| settings.max_requests = Some(8)).await;
    let (mut requests, _end) = deaf(&running).await;
    let mut unread = Vec::new();
    let refused = loop {
        let (answer, _) = requests.send_request(stats(), true).unwrap();
        let answer = within(answer).await.unwrap();
        if answer.status() != 200 {
            break answer.status();
        }
        assert!(unread.len() < 8, "no request is refused");
        unread.push(answer);
    };
    assert_eq!((refused.as_u16(), unread.len()), (503, 2));
    let url = format!("http://{}/stats", running.addr());
    let known = http().get(&url).bearer_auth(ADMINISTRATOR).send().await.unwrap();
    assert_eq!(known.status(), 200);
    assert_eq!(http().get(&url).send().await.unwrap().status(), 503);
    drop(unread);
    while http().get(&url).send().await.unwrap().status() != 200 {}
    running.shutdown().await;
}

#[tokio::test]
async fn a_connection_whose_answer_is_not_read_within_the_write_timeout_is_closed() {
    let (running, _scratch) = guarded(|settings| settings.write_timeout = Some(1)).await;
    let (mut requests, end) = deaf(&running).await;
    let (answer, _) = requests.send_request(stats(), true).unwrap();
    let _unread = within(answer).await.unwrap();
    within(end).await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn anonymous_connections_of_one_address_close_the_oldest_of_them_and_no_identified_one() {
    let (running, _scratch) = guarded(|settings| {
        settings.max_requests = Some(4);
        settings.idle_timeout = Some(3_600);
    })
    .await;
    let mut identified = Wire::open(&running).await;
    assert_eq!(status(&mut identified, "/stats", ADMINISTRATOR).await, 200);
    // A quarter of the connections, which are 4 and 512.
    let mut anonymous = Vec::new();
    for _ in 0..130 {
        let mut wire = Wire::open(&running).await;
        assert_eq!(status(&mut wire, "/livez", "").await, 200);
        anonymous.push(wire);
    }
    within(anonymous[0].end()).await;
    assert_eq!(status(&mut identified, "/stats", ADMINISTRATOR).await, 200);
    assert_eq!(status(anonymous.last_mut().unwrap(), "/livez", "").await, 200);
    running.shutdown().await;
}
