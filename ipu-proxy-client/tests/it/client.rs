//! The client against a server that answers what it is told to, and remembers what it was asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipu_core::PartitionId;
use ipu_proxy_client::{
    ClientError, ClientOptions, OnNoCapacity, OwnerDocument, ProxyClient, PutPartition, ResetPartition, Token,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const STATS: &str = r#"{"total":{"used":4,"available":28}}"#;

/// A server that gives one answer to each connection, in their order; an empty one breaks the connection.
struct Script {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Script {
    async fn of(answers: &[String]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answers, heard) = (answers.to_vec(), Arc::clone(&asked));
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !is_whole(&request) {
                    stream.read_buf(&mut request).await.unwrap();
                }
                heard.lock().unwrap().push(String::from_utf8(request).unwrap());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            // Whoever asks once more is kept waiting.
            std::future::pending::<()>().await;
        });
        Self { url, asked }
    }

    fn client(&self, options: ClientOptions) -> ProxyClient {
        ProxyClient::new(&self.url, options).unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn is_whole(request: &[u8]) -> bool {
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

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

fn ok(body: &str) -> String {
    answer("200 OK", "content-type: application/json\r\n", body)
}

fn refusal(status: &str, code: &str, after: u32) -> String {
    let number = status.split(' ').next().unwrap();
    let body = format!(
        r#"{{"type":"urn:ipu-sdk:problem:{code}","title":"{code}","status":{number},"detail":"because","code":"{code}"}}"#
    );
    let headers = format!("content-type: application/problem+json\r\nretry-after: {after}\r\n");
    answer(status, &headers, &body)
}

/// Without pauses, except those that the server wishes.
fn hurried() -> ClientOptions {
    let mut options = ClientOptions::default();
    options.retry.random = Arc::new(|| 0);
    options
}

fn id() -> PartitionId {
    PartitionId::new("p").unwrap()
}

#[tokio::test]
async fn what_is_safe_is_sent_again_after_a_broken_connection_and_a_reset_is_not() {
    let script = Script::of(&[String::new(), answer("502 Bad Gateway", "", "down"), ok(STATS)]).await;
    let stats = script.client(hurried()).stats().await.unwrap();
    assert_eq!(stats.total().unwrap().available, 28);
    assert_eq!(script.asked().len(), 3);

    let script = Script::of(&[String::new()]).await;
    let how = ResetPartition::default();
    let error = script.client(hurried()).reset(&id(), &how).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
    assert!(error.may_have_happened());
    assert_eq!(script.asked().len(), 1);
}

#[tokio::test]
async fn what_the_proxy_did_not_begin_with_is_sent_again_unless_it_wishes_too_long_a_pause() {
    let busy = refusal("503 Service Unavailable", "Overloaded", 0);
    let gone = refusal("404 Not Found", "NotFound", 0).replace("retry-after: 0\r\n", "");
    let script = Script::of(&[busy, gone]).await;
    let how = ResetPartition::default();
    let error = script.client(hurried()).reset(&id(), &how).await.unwrap_err();
    assert_eq!(error.code(), Some("NotFound"), "{error}");
    assert!(!error.may_have_happened());
    assert_eq!(script.asked().len(), 2);

    let full = refusal("503 Service Unavailable", "LineFull", 30);
    let script = Script::of(&[full]).await;
    let error = script.client(hurried()).stats().await.unwrap_err();
    let ClientError::Refused { retry_after, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*retry_after, Some(Duration::from_secs(30)));
    assert_eq!(script.asked().len(), 1);
}

#[tokio::test]
async fn tries_are_bounded() {
    let script = Script::of(&vec![String::new(); 9]).await;
    let mut options = hurried();
    options.retry.attempts = 3;
    assert!(script.client(options).partitions().await.is_err());
    assert_eq!(script.asked().len(), 3);
}

#[tokio::test]
async fn a_token_is_read_for_every_request_and_never_shown() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("token");
    std::fs::write(&path, "first\n").unwrap();
    let script = Script::of(&[ok(STATS), ok(STATS)]).await;
    let mut options = hurried();
    options.token = Some(Token::File(path.clone()));
    let client = script.client(options);
    client.stats().await.unwrap();
    std::fs::write(&path, "second").unwrap();
    client.stats().await.unwrap();
    for (request, token) in script.asked().iter().zip(["first", "second"]) {
        let wanted = format!("authorization: bearer {token}\r\n");
        assert!(request.to_lowercase().contains(&wanted), "{request}");
    }
    std::fs::write(&path, "").unwrap();
    let error = client.stats().await.unwrap_err();
    assert!(matches!(error, ClientError::Token { .. }), "{error}");
    assert_eq!(format!("{:?}", Token::Value("secret".into())), "Value(..)");
}

#[tokio::test]
async fn nobody_there_nothing_said_and_nonsense_are_told_apart() {
    let mut options = hurried();
    options.deadline = Duration::from_millis(50);
    let script = Script::of(&[]).await;
    let error = script.client(options).stats().await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert!(error.may_have_happened());

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = ProxyClient::new(&url, hurried()).unwrap();
    let error = client.stats().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(!error.may_have_happened());

    let script = Script::of(&[ok("<html>")]).await;
    let error = script.client(hurried()).stats().await.unwrap_err();
    assert!(
        matches!(error, ClientError::InvalidResponse { status: 200, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_request_says_how_long_to_wait_and_what_was_set() {
    let script =
        Script::of(&[refusal("409 Conflict", "NotTheOwner", 0).replace("retry-after: 0\r\n", "")]).await;
    let wanted = PutPartition::new(OwnerDocument::new("Job", "default", "mnist", "1"), 4);
    let client = script.client(hurried());
    let line = OnNoCapacity::Join(Duration::from_secs(90));
    // It can be sent to another thread.
    let asked = tokio::spawn(async move { client.put(&id(), &wanted, line).await });
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error.problem().unwrap().title, "NotTheOwner");
    let request = script.asked().remove(0);
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
async fn the_partition_of_another_owner_is_no_answer() {
    let wanted = PutPartition::new(OwnerDocument::new("Job", "default", "mnist", "1"), 4);
    let put = async |answer: String| {
        let script = Script::of(&[answer]).await;
        let line = OnNoCapacity::Join(Duration::ZERO);
        script.client(hurried()).put(&id(), &wanted, line).await
    };
    assert!(put(partition("1", 0, 4)).await.is_ok());
    for (answer, differs) in [
        (partition("2", 0, 4), "owner"),
        (partition("1", 1, 4), "instance"),
        (partition("1", 0, 8), "size"),
    ] {
        let error = put(answer).await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidResponse { .. }), "{error}");
        assert!(error.to_string().contains(differs), "{error}");
    }
}

/// The time in seconds until which the proxy may read a request, from its first line.
fn not_after(request: &str) -> u64 {
    let (_, rest) = request.split_once("notAfter=").unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().unwrap() / 1_000
}

#[tokio::test]
async fn a_client_whose_clock_is_wrong_learns_the_clock_of_the_proxy() {
    // The proxy lives in 2096, so that the first request has expired long ago.
    let date = "date: Sun, 01 Jan 2096 00:00:00 GMT\r\nretry-after";
    let late = refusal("409 Conflict", "TooLate", 0).replace("retry-after", date);
    let script = Script::of(&[late, partition("1", 0, 4)]).await;
    let wanted = PutPartition::new(OwnerDocument::new("Job", "default", "mnist", "1"), 4);
    let line = OnNoCapacity::Join(Duration::ZERO);
    script.client(hurried()).put(&id(), &wanted, line).await.unwrap();
    let asked = script.asked();
    let year_2096 = 3_976_214_400;
    assert!(not_after(&asked[0]) < year_2096);
    assert!(
        (year_2096..year_2096 + 60).contains(&not_after(&asked[1])),
        "{asked:?}"
    );
}
