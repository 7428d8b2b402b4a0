//! The server in this process, over real connections: certificates, limits and timeouts.

use std::path::Path;

use reqwest::{Certificate, Client, Identity};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, ToSocketAddrs};
use vipu_proxy::{Proxy, ReadAccess, Settings};

use crate::binary::http;
use crate::support::{Authority, request_body};

/// Starts a proxy with a simulated Pod16.
pub(crate) async fn proxy(change: impl FnOnce(&mut Settings)) -> Proxy {
    let mut settings = Settings::simulated("pod16");
    change(&mut settings);
    Proxy::start(settings.check().unwrap()).await.unwrap()
}

impl Authority {
    /// Creates a client that trusts this authority, with a certificate of `issuer` if there is one.
    fn client(&self, issuer: Option<&Self>) -> Client {
        http();
        let root = Certificate::from_pem(self.pem().as_bytes()).unwrap();
        let mut client = Client::builder().tls_certs_only([root]);
        if let Some(issuer) = issuer {
            let (certificate, key) = issuer.issue("scheduler");
            client = client.identity(Identity::from_pem(format!("{certificate}{key}").as_bytes()).unwrap());
        }
        client.build().unwrap()
    }
}

/// Starts a proxy that requests client certificates of `authority`.
async fn proxy_with_client_ca(authority: &Authority, reading: ReadAccess, scratch: &TempDir) -> Proxy {
    proxy_with_client_ca_and(authority, reading, scratch, |_| ()).await
}

/// Starts a proxy that requests client certificates of `authority`, with further settings.
async fn proxy_with_client_ca_and(
    authority: &Authority,
    reading: ReadAccess,
    scratch: &TempDir,
    change: impl FnOnce(&mut Settings),
) -> Proxy {
    let folder = scratch.path();
    authority.write(folder, "localhost");
    proxy(|settings| {
        settings.tls_cert = Some(folder.join("tls.crt"));
        settings.tls_key = Some(folder.join("tls.key"));
        settings.tls_client_ca = Some(folder.join("ca.crt"));
        settings.reading = Some(reading);
        change(settings);
    })
    .await
}

async fn status(client: &Client, method: &str, url: &str) -> Option<u16> {
    let request = client.request(method.parse().unwrap(), url);
    let request = if method == "PUT" {
        request.json(&request_body("mnist", 4))
    } else {
        request
    };
    Some(request.send().await.ok()?.status().as_u16())
}

#[tokio::test]
async fn only_a_certificate_of_a_trusted_issuer_has_write_access() {
    let (authority, other) = (Authority::new(), Authority::new());
    let scratch = tempfile::tempdir().unwrap();
    for reading in [ReadAccess::Open, ReadAccess::Closed] {
        let running = proxy_with_client_ca(&authority, reading, &scratch).await;
        let url = |path: &str| format!("https://localhost:{}{path}", running.addr().port());
        let put = url("/v1/partitions/p?wait=30s");

        let trusted = authority.client(Some(&authority));
        assert_eq!(status(&trusted, "PUT", &put).await, Some(200));
        assert_eq!(status(&trusted, "GET", &url("/stats")).await, Some(200));
        let anonymous = authority.client(None);
        assert_eq!(status(&anonymous, "PUT", &put).await, Some(401));
        let read = if reading == ReadAccess::Open { 200 } else { 401 };
        for path in ["/stats", "/metrics", "/v1/partitions", "/v1/events"] {
            assert_eq!(status(&anonymous, "GET", &url(path)).await, Some(read), "{path}");
        }
        for path in ["/livez", "/readyz", "/openapi.json"] {
            assert_eq!(status(&anonymous, "GET", &url(path)).await, Some(200), "{path}");
        }
        let untrusted = authority.client(Some(&other));
        assert_eq!(status(&untrusted, "PUT", &put).await, None, "the handshake fails");
        assert_eq!(
            status(&other.client(Some(&authority)), "PUT", &put).await,
            None,
            "the client does not trust the server"
        );
        running.shutdown().await;
    }
}

#[tokio::test]
async fn the_plain_address_of_a_proxy_with_tls_serves_documented_reads_only() {
    let authority = Authority::new();
    let scratch = tempfile::tempdir().unwrap();
    let running = proxy_with_client_ca_and(&authority, ReadAccess::Closed, &scratch, |settings| {
        settings.plain_listen = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    let plain = running.plain_addr().unwrap();
    let url = |path: &str| format!("http://{plain}{path}");
    for path in ["/stats", "/metrics", "/livez", "/readyz"] {
        assert_eq!(status(&http(), "GET", &url(path)).await, Some(200), "{path}");
    }
    let query = http().post(url("/query")).json(&serde_json::json!({"size": 2}));
    assert_eq!(query.send().await.unwrap().status().as_u16(), 200);
    for path in [
        "/v1/partitions",
        "/v1/partitions/p",
        "/v1/usage",
        "/v1/waiting",
        "/v1/events",
    ] {
        assert_eq!(status(&http(), "GET", &url(path)).await, Some(403), "{path}");
    }
    let put = http()
        .put(url("/v1/partitions/p?wait=30s"))
        .json(&request_body("mnist", 4));
    let refused: Value = put.send().await.unwrap().json().await.unwrap();
    assert_eq!(refused["code"], "TlsRequired");
    // The TLS address refuses clients without a certificate.
    let https = |path: &str| format!("https://localhost:{}{path}", running.addr().port());
    let anonymous = authority.client(None);
    assert_eq!(status(&anonymous, "GET", &https("/stats")).await, Some(401));
    let trusted = authority.client(Some(&authority));
    assert_eq!(
        status(&trusted, "PUT", &https("/v1/partitions/p?wait=30s")).await,
        Some(200)
    );
    running.shutdown().await;
}

#[test]
fn a_plain_address_without_tls_is_refused() {
    let mut settings = Settings::default();
    settings.sim = Some("pod16".to_owned());
    settings.plain_listen = Some("127.0.0.1:0".parse().unwrap());
    let error = settings.check().unwrap_err();
    assert_eq!(
        (error.name, error.value.as_str()),
        ("plain-listen", "127.0.0.1:0")
    );
    assert!(error.rule.contains("set tls-cert and tls-key"), "{error}");
}

/// Connection for raw bytes.
pub(crate) struct RawConnection(BufReader<TcpStream>);

impl RawConnection {
    pub(crate) async fn open(address: impl ToSocketAddrs) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads the head of a response, and returns it in lower case.
    pub(crate) async fn read_head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && self.0.read_line(&mut head).await.unwrap() > 0 {}
        head.to_lowercase()
    }

    /// Reads the body of the response with this head, if its length is known.
    pub(crate) async fn read_body(&mut self, head: &str) -> Vec<u8> {
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).await.unwrap();
        body
    }

    /// Waits until the server closes the connection.
    pub(crate) async fn until_closed(&mut self) {
        let mut rest = Vec::new();
        // A reset closes the connection, too.
        self.0.read_to_end(&mut rest).await.ok();
    }
}

const SLOW: &str = "PUT /v1/partitions/p HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";

#[tokio::test]
async fn excess_requests_get_a_retry_after_and_probes_are_answered() {
    let running = proxy(|settings| settings.max_requests = Some(1)).await;
    let url = |path: &str| format!("http://{}{path}", running.addr());
    let http = http();
    let mut slow = RawConnection::open(running.addr()).await;
    slow.send(SLOW).await;
    let refused = loop {
        let response = http.get(url("/stats")).send().await.unwrap();
        if response.status() != 200 {
            break response;
        }
    };
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(refused.json::<Value>().await.unwrap()["code"], "Overloaded");
    assert_eq!(http.get(url("/livez")).send().await.unwrap().status(), 200);
    // Its slot is free once the connection is closed.
    drop(slow);
    while http.get(url("/stats")).send().await.unwrap().status() != 200 {}
    running.shutdown().await;
}

#[tokio::test]
async fn slow_anonymous_requests_never_crowd_out_identified_clients() {
    let scratch = tempfile::tempdir().unwrap();
    let tokens = scratch.path().join("tokens");
    std::fs::write(&tokens, "0123456789abcdef scheduler\n").unwrap();
    let running = proxy(|settings| {
        settings.max_requests = Some(4);
        settings.token_file = Some(tokens);
    })
    .await;
    let stats = format!("http://{}/stats", running.addr());
    // A write without a token gets its response before its body arrives, and takes no slot.
    for _ in 0..8 {
        let mut slow = RawConnection::open(running.addr()).await;
        slow.send(SLOW).await;
        let head = slow.read_head().await;
        assert!(head.starts_with("http/1.1 401"), "{head}");
    }
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut slow = RawConnection::open(running.addr()).await;
        slow.send(&SLOW.replace("PUT /v1/partitions/p", "POST /query"))
            .await;
        open.push(slow);
    }
    while http().get(&stats).send().await.unwrap().status() != 503 {}
    for _ in 0..8 {
        let identified = http().get(&stats).bearer_auth("0123456789abcdef");
        assert_eq!(identified.send().await.unwrap().status(), 200);
    }
    drop(open);
    running.shutdown().await;
}

#[tokio::test]
async fn a_too_large_body_is_refused_before_it_is_read_and_the_response_arrives() {
    let running = proxy(|_| {}).await;
    let mut connection = RawConnection::open(running.addr()).await;
    connection.send("PUT /v1/partitions/p HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 70000\r\n\r\n")
        .await;
    let head = connection.read_head().await;
    assert!(head.starts_with("http/1.1 413"), "{head}");
    running.shutdown().await;
}

#[tokio::test]
async fn a_slow_request_body_times_out() {
    let running = proxy(|settings| settings.read_timeout = Some(1)).await;
    let mut connection = RawConnection::open(running.addr()).await;
    connection.send(SLOW).await;
    let head = connection.read_head().await;
    assert!(head.starts_with("http/1.1 408"), "{head}");
    running.shutdown().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_an_event_stream_is_not() {
    let running = proxy(|settings| {
        settings.idle_timeout = Some(1);
        settings.read_timeout = Some(1);
        settings.write_timeout = Some(1);
    })
    .await;
    let mut events = RawConnection::open(running.addr()).await;
    events
        .send("GET /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\r\n")
        .await;
    assert!(events.read_head().await.starts_with("http/1.1 200"));

    // No byte, the start of an HTTP/2 preface, half a head, and one complete request. The connections close
    // one after the other, which takes much longer than any timeout.
    for bytes in [
        "",
        "PRI *",
        "GET /livez HTT",
        "GET /livez HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\r\n",
    ] {
        let mut connection = RawConnection::open(running.addr()).await;
        connection.send(bytes).await;
        connection.until_closed().await;
    }

    let url = format!("http://{}/v1/partitions/late?wait=1s", running.addr());
    http()
        .put(url)
        .json(&request_body("mnist", 4))
        .send()
        .await
        .unwrap();
    let mut line = String::new();
    while !(line.starts_with("data:") && line.contains("\"late\"")) {
        line.clear();
        assert!(
            events.0.read_line(&mut line).await.unwrap() > 0,
            "the stream has ended"
        );
    }
    running.shutdown().await;
}

#[tokio::test]
async fn calls_writes_and_repairs_of_a_running_proxy_are_counted() {
    let running = proxy(|_| {}).await;
    let url = |path: &str| format!("http://{}{path}", running.addr());
    let put = http()
        .put(url("/v1/partitions/p?wait=30s"))
        .json(&request_body("mnist", 4));
    assert_eq!(put.send().await.unwrap().status(), 200);
    let text = http()
        .get(url("/metrics"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let value = |series: &str, labels: &[&str]| -> f64 {
        let is_of = |line: &&str| line.starts_with(series) && labels.iter().all(|label| line.contains(label));
        let line = text
            .lines()
            .find(is_of)
            .unwrap_or_else(|| panic!("{series} {labels:?}\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let calls = "vipu_proxy_controller_call_seconds_count";
    let made = value(
        calls,
        &[
            "controller=\"127.0.0.1:",
            "operation=\"create\"",
            "outcome=\"ok\"",
        ],
    );
    assert!((made - 1.0).abs() < 0.5, "{made}");
    assert!(value(calls, &["operation=\"list\""]) >= 1.0);
    // One write for the intent, and one for the active state.
    assert!(value("vipu_proxy_ledger_write_seconds_count", &[]) >= 2.0);
    assert!(value("vipu_proxy_ledger_write_changes_sum", &[]) >= 2.0);
    assert!(value("vipu_proxy_repairs_total", &[]) >= 1.0);
    running.shutdown().await;
}

#[tokio::test]
async fn an_unreadable_certificate_is_named() {
    let mut settings = Settings::simulated("pod16");
    settings.tls_cert = Some("nowhere.pem".into());
    settings.tls_key = Some("nowhere.key".into());
    let error = Proxy::start(settings.check().unwrap()).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        source.contains(Path::new("nowhere").to_str().unwrap()),
        "{error}: {source}"
    );
}
