//! Shares: slots and unread responses of anonymous clients never crowd out identified clients.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tempfile::TempDir;
use tokio::net::TcpStream;
use vipu_proxy::{Proxy, Settings};

use crate::binary::http;
use crate::server::{RawConnection, proxy};
use crate::support::request_body;

/// Timeout of a test that waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

const ADMINISTRATOR: &str = "0123456789abcdef";
const TENANT: &str = "fedcba9876543210";
const OTHER_TENANT: &str = "fedcba9876543211";

/// Starts a proxy that identifies an administrator and two tenants.
async fn proxy_with_tokens(change: impl FnOnce(&mut Settings)) -> (Proxy, TempDir) {
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

async fn within<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, event).await.unwrap()
}

/// Sends a request and returns its status; without a token if `token` is empty. The connection stays open.
async fn status(connection: &mut RawConnection, path: &str, token: &str) -> u16 {
    let authorization = if token.is_empty() {
        String::new()
    } else {
        format!("authorization: Bearer {token}\r\n")
    };
    connection
        .send(&format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n"
        ))
        .await;
    let head = within(connection.read_head()).await;
    within(connection.read_body(&head)).await;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Opens up to `number` event streams; returns the accepted ones.
async fn open_streams(running: &Proxy, token: &str, number: usize) -> Vec<RawConnection> {
    let mut open = Vec::new();
    for _ in 0..number {
        let mut connection = RawConnection::open(running.addr()).await;
        match status(&mut connection, "/v1/events", token).await {
            200 => open.push(connection),
            other => assert_eq!(other, 503),
        }
    }
    open
}

#[tokio::test]
async fn event_streams_of_other_clients_never_crowd_out_the_operator() {
    let (running, _scratch) = proxy_with_tokens(|_| {}).await;
    let anonymous = open_streams(&running, "", 130).await;
    let tenant = open_streams(&running, TENANT, 130).await;
    let other = open_streams(&running, OTHER_TENANT, 130).await;
    let operator = open_streams(&running, ADMINISTRATOR, 32).await;
    // All connections are from one address.
    assert_eq!(
        [&anonymous, &tenant, &other, &operator].map(Vec::len),
        [32, 32, 32, 32]
    );
    // Streams take no slot of a request, and a closed stream releases its slot.
    let mut connection = RawConnection::open(running.addr()).await;
    assert_eq!(status(&mut connection, "/stats", "").await, 200);
    drop(anonymous);
    while open_streams(&running, "", 1).await.is_empty() {}
    running.shutdown().await;
}

#[tokio::test]
async fn waiting_requests_of_a_tenant_leave_slots_to_its_other_requests_and_to_other_tenants() {
    let (running, _scratch) = proxy_with_tokens(|settings| settings.max_requests = Some(16)).await;
    let url = |id: &str| format!("http://{}/v1/partitions/{id}", running.addr());
    let put = |id: &str, query: &str, namespace: &str, token: &str| {
        let mut body = request_body(id, 16);
        body["owner"]["namespace"] = namespace.into();
        let put = http().put(format!("{}{query}", url(id))).bearer_auth(token);
        put.json(&body).send()
    };
    let first = put("first", "?wait=30s", "team-b", OTHER_TENANT).await.unwrap();
    assert_eq!(first.status(), 200);
    // An eighth of the concurrent requests.
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
    let queued = put("three", "", "team-a", TENANT).await.unwrap();
    assert_eq!(queued.status(), 202);
    let other = put("four", "?wait=1ms", "team-b", OTHER_TENANT).await.unwrap();
    assert_eq!(other.status(), 202);
    drop((one, two));
    running.shutdown().await;
}

/// Opens an HTTP/2 connection that reads no responses; also returns a task that ends with it.
async fn connect_without_reading(
    running: &Proxy,
) -> (h2::client::SendRequest<Bytes>, tokio::task::JoinHandle<()>) {
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
async fn a_request_keeps_its_slot_until_its_response_is_read() {
    let (running, _scratch) = proxy_with_tokens(|settings| settings.max_requests = Some(8)).await;
    let (mut requests, _end) = connect_without_reading(&running).await;
    let mut unread = Vec::new();
    let refused = loop {
        let (response, _) = requests.send_request(stats(), true).unwrap();
        let response = within(response).await.unwrap();
        if response.status() != 200 {
            break response.status();
        }
        assert!(unread.len() < 8, "the proxy refuses no request");
        unread.push(response);
    };
    assert_eq!((refused.as_u16(), unread.len()), (503, 2));
    let url = format!("http://{}/stats", running.addr());
    let identified = http().get(&url).bearer_auth(ADMINISTRATOR).send().await.unwrap();
    assert_eq!(identified.status(), 200);
    assert_eq!(http().get(&url).send().await.unwrap().status(), 503);
    drop(unread);
    while http().get(&url).send().await.unwrap().status() != 200 {}
    running.shutdown().await;
}

#[tokio::test]
async fn a_connection_whose_response_is_not_read_within_the_write_timeout_is_closed() {
    let (running, _scratch) = proxy_with_tokens(|settings| settings.write_timeout = Some(1)).await;
    let (mut requests, end) = connect_without_reading(&running).await;
    let (response, _) = requests.send_request(stats(), true).unwrap();
    let _unread = within(response).await.unwrap();
    within(end).await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn a_new_anonymous_connection_closes_the_oldest_anonymous_one_and_no_identified_one() {
    let (running, _scratch) = proxy_with_tokens(|settings| {
        settings.max_requests = Some(4);
        settings.idle_timeout = Some(3_600);
    })
    .await;
    let mut identified = RawConnection::open(running.addr()).await;
    assert_eq!(status(&mut identified, "/stats", ADMINISTRATOR).await, 200);
    // More than a quarter of the connections, which are 4 + 512.
    let mut anonymous = Vec::new();
    for _ in 0..130 {
        let mut connection = RawConnection::open(running.addr()).await;
        assert_eq!(status(&mut connection, "/livez", "").await, 200);
        anonymous.push(connection);
    }
    within(anonymous[0].until_closed()).await;
    assert_eq!(status(&mut identified, "/stats", ADMINISTRATOR).await, 200);
    assert_eq!(status(anonymous.last_mut().unwrap(), "/livez", "").await, 200);
    running.shutdown().await;
}
