//! Options of a client.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::ClientError;
#[cfg(feature = "tls")]
use super::tls::TlsFiles;

/// Default timeout of a connection attempt: longer than the longest round trip with one lost packet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default timeout of a response: the proxy times out a hanging controller after ten seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Default number of attempts: with the pauses it bridges a restart of a load balancer.
const MAX_ATTEMPTS: u32 = 4;
/// Default maximum of the first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Default maximum of a pause: after a longer one the caller should decide.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Bearer token of the client.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ipu_proxy_client::{ClientOptions, ProxyClient, Token};
///
/// assert_eq!(format!("{:?}", Token::Value("secret".into())), "Value(..)");
///
/// // The file is read when a request is sent.
/// let mut options = ClientOptions::default();
/// options.token = Some(Token::File("/nonexistent/token".into()));
/// let proxy = ProxyClient::new("http://vipu-proxy:8080", options)?;
/// let error = proxy.stats().await.unwrap_err();
/// assert_eq!(error.to_string(), "read the token file /nonexistent/token");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub enum Token {
    /// The token itself.
    Value(String),
    /// File with the token. It is read for every request, because mounted tokens are renewed.
    File(PathBuf),
}

/// Omits the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Token {
    pub(crate) async fn read(&self) -> Result<String, ClientError> {
        let path = match self {
            Self::Value(token) => return Ok(token.clone()),
            Self::File(path) => path,
        };
        let unreadable = |source| ClientError::Token {
            path: path.clone(),
            source,
        };
        let text = tokio::fs::read_to_string(path).await.map_err(unreadable)?;
        let token = text.trim();
        if token.is_empty() {
            let empty = io::Error::new(io::ErrorKind::InvalidData, "the file is empty");
            return Err(unreadable(empty));
        }
        Ok(token.to_owned())
    }
}

/// Options of retries.
#[derive(Clone)]
#[non_exhaustive]
pub struct RetryOptions {
    /// Number of attempts, by default 4; 1 disables retries.
    pub attempts: u32,
    /// Maximum pause before the second attempt, by default 100 ms. It doubles with each attempt.
    pub first_pause: Duration,
    /// Maximum of all pauses, by default 5 s. If the proxy requests a longer one (`Retry-After`), the request
    /// is not retried.
    pub longest_pause: Duration,
    /// Source of random numbers. Each pause is a random part of its maximum, so that clients that failed
    /// together do not retry together.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            attempts: MAX_ATTEMPTS,
            first_pause: FIRST_PAUSE,
            longest_pause: MAX_PAUSE,
            // The standard library seeds its hash maps from the system, which is sufficient for jitter.
            random: Arc::new(|| RandomState::new().build_hasher().finish()),
        }
    }
}

impl fmt::Debug for RetryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryOptions")
            .field("attempts", &self.attempts)
            .field("first_pause", &self.first_pause)
            .field("longest_pause", &self.longest_pause)
            .finish_non_exhaustive()
    }
}

/// Options of a client.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let settings = vipu_proxy::Settings::simulated("pod16");
/// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
/// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
/// # let url = proxy.url();
/// use ipu_proxy_client::{ClientOptions, ProxyClient, Token};
///
/// let mut options = ClientOptions::default();
/// options.token = Some(Token::Value("secret".into()));
/// options.retry.attempts = 1;
/// // The URL is http://127.0.0.1 and a port such as 8080.
/// let proxy = ProxyClient::new(url, options)?;
/// let error = proxy.stats().await.unwrap_err();
/// assert!(error.to_string().ends_with("use unix:PATH, which needs no token, or https"), "{error}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Bearer token; none for anonymous requests. It is not sent without TLS to a port from 1024 on of this
    /// host, which any user may take while the proxy restarts: such requests fail.
    pub token: Option<Token>,
    /// Trusted certificates and the client certificate; none for `http`.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsFiles>,
    /// Address to connect to instead of that of the URL, such as a forwarded port. The certificate of the
    /// proxy is still verified for the host of the URL. The caller must hold this port.
    pub connect_to: Option<SocketAddr>,
    /// Timeout of a connection attempt with its TLS handshake, by default 5 s.
    pub connect_deadline: Duration,
    /// Timeout of a response in addition to the requested wait, by default 30 s.
    pub deadline: Duration,
    /// Options of retries.
    pub retry: RetryOptions,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            token: None,
            #[cfg(feature = "tls")]
            tls: None,
            connect_to: None,
            connect_deadline: CONNECT_TIMEOUT,
            deadline: REQUEST_TIMEOUT,
            retry: RetryOptions::default(),
        }
    }
}
