//! Sends requests: connections, tokens, timeouts and retries.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ipu_core::ErrorChain;
use serde::de::DeserializeOwned;

use super::clock::ProxyClock;
use super::connection::Connector;
use super::error::{ClientError, SetupError};
use super::options::ClientOptions;
use super::request::ApiRequest;
use super::response;

/// Maximum size of a response in bytes: about fifty thousand partitions, ten times the largest documented
/// system.
pub(crate) const MAX_RESPONSE_SIZE: usize = 64 << 20;

/// Timeout of idle connections, shorter than that of the proxy, which is a minute.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Transport to one proxy.
pub(crate) struct Transport {
    client: Client<Connector, Full<Bytes>>,
    address: ProxyAddress,
    pub(crate) options: ClientOptions,
    clock: ProxyClock,
}

impl Transport {
    pub(crate) fn new(url: &str, options: ClientOptions) -> Result<Self, SetupError> {
        let address = ProxyAddress::parse(url, &options)?;
        let connector = Connector {
            socket: address.socket.clone(),
            deadline: options.connect_deadline,
            connect_to: options.connect_to,
            has_token: options.token.is_some(),
            #[cfg(feature = "tls")]
            tls: options.tls.clone().map(std::sync::Arc::new),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Ok(Self {
            client,
            address,
            options,
            clock: ProxyClock::default(),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.address.text
    }

    /// Sends a request, with retries where they are safe, and parses the response.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: ApiRequest) -> Result<T, ClientError> {
        let mut attempt = 1;
        loop {
            let error = match self.call_once(&request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let Some(pause) = self.options.retry.pause(attempt, &error, request.idempotency) else {
                return Err(error);
            };
            let (method, path) = (&request.method, &request.path);
            tracing::debug!(%method, path, attempt, %error, ?pause, "retrying the request");
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    async fn call_once<T: DeserializeOwned>(&self, request: &ApiRequest) -> Result<T, ClientError> {
        let deadline = self.options.deadline.saturating_add(request.extra);
        let request = self.build(request, &HeaderMap::new(), deadline).await?;
        let response = async {
            let (head, body) = self.send(request).await?.into_parts();
            self.clock.observe(&head.headers);
            let body = self.read(body).await?;
            Ok((head, body))
        };
        let (head, body) = tokio::time::timeout(deadline, response)
            .await
            .map_err(|_| self.timeout(deadline))??;
        response::read(self.url(), head.status, &head.headers, &body)
    }

    /// Opens a response that is a stream.
    pub(crate) async fn open(
        &self,
        request: &ApiRequest,
        headers: &HeaderMap,
    ) -> Result<Incoming, ClientError> {
        let deadline = self.options.deadline;
        let request = self.build(request, headers, deadline).await?;
        let opened = async {
            let (head, body) = self.send(request).await?.into_parts();
            if head.status == StatusCode::OK {
                return Ok(body);
            }
            let body = self.read(body).await?;
            Err(response::problem(self.url(), head.status, &head.headers, &body))
        };
        tokio::time::timeout(deadline, opened)
            .await
            .map_err(|_| self.timeout(deadline))?
    }

    /// Builds the HTTP request.
    async fn build(
        &self,
        api_request: &ApiRequest,
        headers: &HeaderMap,
        deadline: Duration,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let target = api_request.target(|| self.clock.after(deadline));
        let invalid = |detail: String| ClientError::Request { detail };
        let mut request = Request::builder()
            .method(api_request.method.clone())
            .uri(format!("{}{target}", self.address.base))
            .header(
                USER_AGENT,
                concat!("ipu-proxy-client/", env!("CARGO_PKG_VERSION")),
            )
            .header(ACCEPT, "*/*");
        if let Some(token) = &self.options.token {
            let bearer = format!("Bearer {}", token.read().await?);
            let mut value = HeaderValue::from_str(&bearer)
                .map_err(|_| invalid("the token is not valid in a header".to_owned()))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if api_request.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request
            .body(Full::new(api_request.body.clone().unwrap_or_default()))
            .map_err(|error| invalid(error.to_string()))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError> {
        self.client.request(request).await.map_err(|error| {
            let (url, detail) = (self.url().to_owned(), ErrorChain(&error).to_string());
            if is_tls_rejection(&error) {
                ClientError::TlsRejected { url, detail }
            } else if error.is_connect() {
                ClientError::Unreachable { url, detail }
            } else {
                ClientError::ConnectionLost { url, detail }
            }
        })
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, ClientError> {
        let read = Limited::new(body, MAX_RESPONSE_SIZE).collect().await;
        read.map(|body| body.to_bytes())
            .map_err(|error| self.connection_lost(ErrorChain(&*error).to_string()))
    }

    pub(crate) fn connection_lost(&self, detail: String) -> ClientError {
        ClientError::ConnectionLost {
            url: self.url().to_owned(),
            detail,
        }
    }

    pub(crate) fn timeout(&self, waited: Duration) -> ClientError {
        ClientError::Timeout {
            url: self.url().to_owned(),
            waited,
        }
    }
}

#[cfg(feature = "tls")]
fn is_tls_rejection(error: &(dyn std::error::Error + 'static)) -> bool {
    super::tls::is_rejected(error)
}

#[cfg(not(feature = "tls"))]
const fn is_tls_rejection(_: &(dyn std::error::Error + 'static)) -> bool {
    false
}

/// Prefix of the path of a Unix socket.
const UNIX_PREFIX: &str = "unix:";

/// Address of a proxy.
struct ProxyAddress {
    /// Text for messages.
    text: String,
    /// URL without a trailing slash, to which the paths of requests are appended.
    base: String,
    /// Unix socket, instead of the host of the URL.
    socket: Option<PathBuf>,
}

impl ProxyAddress {
    /// Checks the address against the options.
    fn parse(text: &str, options: &ClientOptions) -> Result<Self, SetupError> {
        let Some(path) = text.strip_prefix(UNIX_PREFIX) else {
            let base = parse(text, options)?;
            let text = base.clone();
            return Ok(Self {
                text,
                base,
                socket: None,
            });
        };
        if path.is_empty() {
            return Err(SetupError::Url {
                url: text.to_owned(),
                rule: "use unix:PATH with the path of the socket".to_owned(),
            });
        }
        check_plain(text, options)?;
        Ok(Self {
            text: text.to_owned(),
            base: "http://localhost".to_owned(),
            socket: Some(path.into()),
        })
    }
}

/// Checks the URL against the options, and removes its trailing slash.
fn parse(text: &str, options: &ClientOptions) -> Result<String, SetupError> {
    let invalid = |rule: &str| SetupError::Url {
        url: text.to_owned(),
        rule: rule.to_owned(),
    };
    let url = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let url = url.trim_end_matches('/');
    let uri: Uri = url
        .parse()
        .map_err(|_| invalid("use http://host:port, https://host:port or unix:PATH"))?;
    let authority = uri
        .authority()
        .map(http::uri::Authority::as_str)
        .unwrap_or_default();
    if uri.host().is_none_or(str::is_empty) {
        return Err(invalid("it has no host"));
    }
    if authority.contains('@') {
        return Err(invalid(
            "use a token or a certificate instead of a user and a password",
        ));
    }
    if uri.query().is_some() {
        return Err(invalid("a query is not supported"));
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => check_plain(text, options)?,
        Some(scheme) if *scheme == Scheme::HTTPS => check_secure(text, options)?,
        _ => return Err(invalid("the scheme must be http or https")),
    }
    Ok(url.to_owned())
}

#[cfg(feature = "tls")]
fn check_plain(url: &str, options: &ClientOptions) -> Result<(), SetupError> {
    match options.tls {
        Some(_) => Err(SetupError::NotSecure { url: url.to_owned() }),
        None => Ok(()),
    }
}

#[cfg(feature = "tls")]
fn check_secure(url: &str, options: &ClientOptions) -> Result<(), SetupError> {
    match &options.tls {
        Some(files) => super::tls::config(files).map(drop),
        None => Err(SetupError::MissingCaCertificate { url: url.to_owned() }),
    }
}

#[cfg(not(feature = "tls"))]
const fn check_plain(_: &str, _: &ClientOptions) -> Result<(), SetupError> {
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn check_secure(url: &str, _: &ClientOptions) -> Result<(), SetupError> {
    Err(SetupError::Url {
        url: url.to_owned(),
        rule: "this build supports http only".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_with_optional_scheme_and_path() {
        let parsed = |text: &str| parse(text, &ClientOptions::default()).ok();
        assert_eq!(parsed("localhost:8080").as_deref(), Some("http://localhost:8080"));
        assert_eq!(parsed("http://[::1]:8080/").as_deref(), Some("http://[::1]:8080"));
        assert_eq!(parsed("http://gate/ipu/").as_deref(), Some("http://gate/ipu"));
        for invalid in [
            "",
            "http://",
            "ftp://host",
            "http://me:pw@host",
            "http://host/?a=b",
            "http://ho st",
        ] {
            assert_eq!(parsed(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn a_unix_socket_is_an_address() {
        let address = ProxyAddress::parse("unix:/run/proxy", &ClientOptions::default()).unwrap();
        assert_eq!(
            address.socket.as_deref(),
            Some(std::path::Path::new("/run/proxy"))
        );
        assert_eq!(
            (&*address.text, &*address.base),
            ("unix:/run/proxy", "http://localhost")
        );
        assert!(ProxyAddress::parse("unix:", &ClientOptions::default()).is_err());
    }

    #[test]
    fn https_requires_ca_certificates() {
        let parsed = parse("https://host", &ClientOptions::default());
        assert!(parsed.is_err());
    }
}
