//! The client with a server that sends scripted responses and records the requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipu_core::{PartitionId, Timestamp};
use ipu_proxy_client::{
    ClientError, ClientOptions, OnNoCapacity, OwnerDocument, ProxyClient, PutPartition, ResetPartition, Token,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const STATS: &str = r#"{"total":{"used":4,"available":28}}"#;

/// A server that sends one response to each connection, in order; an empty one closes the connection.
struct ScriptedServer {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    async fn start(responses: &[String]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (responses, recorded) = (responses.to_vec(), Arc::clone(&requests));
        tokio::spawn(async move {
            for response in responses {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !is_complete(&request) {
                    stream.read_buf(&mut request).await.unwrap();
                }
                recorded.lock().unwrap().push(String::from_utf8(request).unwrap());
                stream.write_all(response.as_bytes()).await.unwrap();
            }
            // Further requests get no response.
            std::future::pending::<()>().await;
        });
        Self { url, requests }
    }

    fn client(&self, options: ClientOptions) -> ProxyClient {
        ProxyClient::new(&self.url, options).unwrap()
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        line.to_lowercase()
            .strip_prefix("content-length:")
            .map(str::to_owned)
    });
    body.len() >= length.map_or(0, |length| length.trim().parse().unwrap())
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

fn ok(body: &str) -> String {
    response("200 OK", "content-type: application/json\r\n", body)
}

fn problem(status: &str, code: &str, after: u32) -> String {
    let number = status.split(' ').next().unwrap();
    let body = format!(
        r#"{{"type":"urn:ipu-sdk:problem:{code}","title":"{code}","status":{number},"detail":"because","code":"{code}"}}"#
    );
    let headers = format!("content-type: application/problem+json\r\nretry-after: {after}\r\n");
    response(status, &headers, &body)
}

/// Returns options without pauses, except those that the server requests.
fn without_pauses() -> ClientOptions {
    let mut options = ClientOptions::default();
    options.retry.random = Arc::new(|| 0);
    options
}

fn id() -> PartitionId {
    PartitionId::new("p").unwrap()
}

#[tokio::test]
async fn an_idempotent_request_is_retried_after_a_lost_connection_and_a_reset_is_not() {
    let server =
        ScriptedServer::start(&[String::new(), response("502 Bad Gateway", "", "down"), ok(STATS)]).await;
    let stats = server.client(without_pauses()).stats().await.unwrap();
    assert_eq!(stats.total().unwrap().available, 28);
    assert_eq!(server.requests().len(), 3);

    let server = ScriptedServer::start(&[String::new()]).await;
    let reset = ResetPartition::default();
    let error = server
        .client(without_pauses())
        .reset(&id(), &reset)
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
    assert!(error.may_have_executed());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn an_unexecuted_request_is_retried_unless_the_requested_pause_is_too_long() {
    let overloaded = problem("503 Service Unavailable", "Overloaded", 0);
    let not_found = problem("404 Not Found", "NotFound", 0).replace("retry-after: 0\r\n", "");
    let server = ScriptedServer::start(&[overloaded, not_found]).await;
    let reset = ResetPartition::default();
    let error = server
        .client(without_pauses())
        .reset(&id(), &reset)
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some("NotFound"), "{error}");
    assert!(!error.may_have_executed());
    assert_eq!(server.requests().len(), 2);

    let full = problem("503 Service Unavailable", "QueueFull", 30);
    let server = ScriptedServer::start(&[full]).await;
    let error = server.client(without_pauses()).stats().await.unwrap_err();
    let ClientError::Refused { retry_after, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*retry_after, Some(Duration::from_secs(30)));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn attempts_are_bounded() {
    let server = ScriptedServer::start(&vec![String::new(); 9]).await;
    let mut options = without_pauses();
    options.retry.attempts = 3;
    assert!(server.client(options).partitions().await.is_err());
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_token_is_not_sent_to_a_port_that_any_user_of_the_host_may_take() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut options = without_pauses();
    options.retry.attempts = 1;
    options.token = Some(Token::Value("secret".into()));
    let client = ProxyClient::new(&url, options).unwrap();
    let error = client.stats().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("use unix:PATH"), "{error}");
    drop(client);
    let (mut connection, _) = listener.accept().unwrap();
    let mut received = Vec::new();
    std::io::Read::read_to_end(&mut connection, &mut received).unwrap();
    assert!(received.is_empty(), "{received:?}");
}

#[tokio::test]
async fn a_token_is_read_for_every_request_and_never_shown() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("token");
    std::fs::write(&path, "first\n").unwrap();
    let server = ScriptedServer::start(&[ok(STATS), ok(STATS)]).await;
    let mut options = without_pauses();
    options.token = Some(Token::File(path.clone()));
    options.connect_to = server
        .url
        .strip_prefix("http://")
        .map(|address| address.parse().unwrap());
    let client = server.client(options);
    client.stats().await.unwrap();
    std::fs::write(&path, "second").unwrap();
    client.stats().await.unwrap();
    for (request, token) in server.requests().iter().zip(["first", "second"]) {
        let header = format!("authorization: bearer {token}\r\n");
        assert!(request.to_lowercase().contains(&header), "{request}");
    }
    std::fs::write(&path, "").unwrap();
    let error = client.stats().await.unwrap_err();
    assert!(matches!(error, ClientError::Token { .. }), "{error}");
    assert_eq!(format!("{:?}", Token::Value("secret".into())), "Value(..)");
}

#[tokio::test]
async fn an_unreachable_proxy_a_timeout_and_an_invalid_response_are_distinguished() {
    let mut options = without_pauses();
    options.deadline = Duration::from_millis(50);
    let server = ScriptedServer::start(&[]).await;
    let error = server.client(options).stats().await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert!(error.may_have_executed());

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = ProxyClient::new(&url, without_pauses()).unwrap();
    let error = client.stats().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(!error.may_have_executed());

    let server = ScriptedServer::start(&[ok("<html>")]).await;
    let error = server.client(without_pauses()).stats().await.unwrap_err();
    assert!(
        matches!(error, ClientError::InvalidResponse { status: 200, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_request_has_its_wait_and_the_fields_that_are_set() {
    let server =
        ScriptedServer::start(&[problem("409 Conflict", "NotTheOwner", 0).replace("retry-after: 0\r\n", "")])
            .await;
    let request = PutPartition::new(OwnerDocument::new("Job", "default", "mnist", "1"), 4);
    let client = server.client(without_pauses());
    let on_no_capacity = OnNoCapacity::Queue(Duration::from_secs(90));
    // The future is `Send`.
    let put = tokio::spawn(async move { client.put(&id(), &request, on_no_capacity).await });
    let error = put.await.unwrap().unwrap_err();
    assert_eq!(error.problem().unwrap().title, "NotTheOwner");
    let request = server.requests().remove(0);
    assert!(
        request.starts_with("PUT /v1/partitions/p?wait=60000ms&notAfter="),
        "{request}"
    );
    assert!(request.contains(r#""size":4"#), "{request}");
}

fn partition(uid: &str, instance: u32, size: u32) -> String {
    let owner = OwnerDocument::new("Job", "default", "mnist", uid);
    let entry = serde_json::json!({
        "id": "p", "state": "active", "owner": owner, "instance": instance, "attempt": 0, "size": size, "gcds": 1,
        "replicas": 1, "reconfigurable": false, "controller": null, "ipus": [], "since": 0, "heldSince": 0,
        "priority": 0, "account": null, "preemptible": false, "maxRuntimeSeconds": null, "leaseUntil": null,
        "waiting": null, "errors": [], "env": {},
    });
    ok(&entry.to_string())
}

#[tokio::test]
async fn the_partition_of_another_owner_is_an_invalid_response() {
    let request = PutPartition::new(OwnerDocument::new("Job", "default", "mnist", "1"), 4);
    let put = async |response: String| {
        let server = ScriptedServer::start(&[response]).await;
        let on_no_capacity = OnNoCapacity::Queue(Duration::ZERO);
        server
            .client(without_pauses())
            .put(&id(), &request, on_no_capacity)
            .await
    };
    assert!(put(partition("1", 0, 4)).await.is_ok());
    for (response, field) in [
        (partition("2", 0, 4), "owner"),
        (partition("1", 1, 4), "instance"),
        (partition("1", 0, 8), "size"),
    ] {
        let error = put(response).await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidResponse { .. }), "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
}

/// Returns the expiry of a request in seconds, from its first line.
fn not_after(request: &str) -> u64 {
    let (_, rest) = request.split_once("notAfter=").unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().unwrap() / 1_000
}

#[tokio::test]
async fn a_client_with_a_wrong_clock_uses_the_clock_of_the_proxy() {
    // The clock of the proxy is in 2096, so that the first request has expired.
    let date = "date: Sun, 01 Jan 2096 00:00:00 GMT\r\nretry-after";
    let too_late = problem("409 Conflict", "TooLate", 0).replace("retry-after", date);
    let server = ScriptedServer::start(&[too_late, partition("1", 0, 4)]).await;
    let request = PutPartition::new(OwnerDocument::new("Job", "default", "mnist", "1"), 4);
    let on_no_capacity = OnNoCapacity::Queue(Duration::ZERO);
    server
        .client(without_pauses())
        .put(&id(), &request, on_no_capacity)
        .await
        .unwrap();
    let requests = server.requests();
    let year_2096 = 3_976_214_400;
    assert!(not_after(&requests[0]) < year_2096);
    assert!(
        (year_2096..year_2096 + 60).contains(&not_after(&requests[1])),
        "{requests:?}"
    );
}

#[tokio::test]
async fn a_client_connects_to_another_address_than_that_of_the_url() {
    let server = ScriptedServer::start(&[ok(STATS)]).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut options = without_pauses();
    options.connect_to = Some(address.parse().unwrap());
    let client = ProxyClient::new("http://proxy.example.invalid", options).unwrap();
    assert_eq!(client.stats().await.unwrap().total().unwrap().used, 4);
    assert!(server.requests()[0].contains("host: proxy.example.invalid\r\n"));
}

/// Returns a page of usage with these records of one IPU, and the token of the next page.
fn usage_page(ids: &[&str], token: Option<&str>) -> String {
    let record = |id: &&str| {
        serde_json::json!({
            "id": id, "owner": null, "instance": 0, "account": null, "controller": null, "size": 1,
            "attempts": 1, "heldSince": 0, "releasedAt": 1, "end": "released",
        })
    };
    let records: Vec<_> = ids.iter().map(record).collect();
    ok(&serde_json::json!({"records": records, "continue": token}).to_string())
}

#[tokio::test]
async fn the_client_reads_all_pages_of_usage() {
    let last_page = usage_page(&["c"], None);
    let pages = [usage_page(&["a", "b"], Some("2.1.0.b")), last_page];
    let server = ScriptedServer::start(&pages).await;
    let since = Timestamp::from_millis(7);
    let all = server.client(without_pauses()).usage(since).await.unwrap();
    let ids: Vec<&str> = all.records.iter().map(|record| record.id.as_str()).collect();
    assert_eq!((ids, all.continue_token), (vec!["a", "b", "c"], None));
    let requests = server.requests();
    assert!(
        requests[0].starts_with("GET /v1/usage?since=7 HTTP"),
        "{requests:?}"
    );
    assert!(
        requests[1].starts_with("GET /v1/usage?since=7&continue=2%2E1%2E0%2Eb HTTP"),
        "{requests:?}"
    );

    // An empty page with a token ends the list.
    let pages = [
        usage_page(&["a"], Some("2.1.0.a")),
        usage_page(&[], Some("2.1.0.a")),
    ];
    let server = ScriptedServer::start(&pages).await;
    let all = server.client(without_pauses()).usage(since).await.unwrap();
    assert_eq!((all.records.len(), all.continue_token), (1, None));
}
