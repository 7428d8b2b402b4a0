//! How a client asks.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::ClientError;
#[cfg(feature = "tls")]
use super::tls::TlsFiles;

/// How long a connection may take to be made: longer than the longest round trip, with one lost packet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take: the proxy gives a controller that hangs up after ten seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a request is sent in all: with its pauses that bridges a restart of a load balancer.
const ATTEMPTS: u32 = 4;
/// The longest first pause.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause: longer, and the caller is better told.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What proves who asks.
#[derive(Clone)]
#[non_exhaustive]
pub enum Token {
    /// This.
    Value(String),
    /// What is in this file, which is read for every request: mounted tokens are renewed.
    File(PathBuf),
}

/// Without the token.
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
            let empty = io::Error::new(io::ErrorKind::InvalidData, "there is none in it");
            return Err(unreadable(empty));
        }
        Ok(token.to_owned())
    }
}

/// How often and how fast a request is sent again that is safe to repeat.
#[derive(Clone)]
#[non_exhaustive]
pub struct RetryOptions {
    /// How often a request is sent in all; 1 never sends it again. 4 unless set.
    pub attempts: u32,
    /// The longest pause before the second time; 100 ms unless set. It doubles each time.
    pub first_pause: Duration,
    /// The longest pause of all; 5 s unless set. If the proxy wishes (`Retry-After`) a longer one, the request is not sent again.
    pub longest_pause: Duration,
    /// A source of random numbers: every pause is a random part of its longest, so that clients that failed together do not
    /// come back together.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            attempts: ATTEMPTS,
            first_pause: PAUSE_FIRST,
            longest_pause: PAUSE_MAX,
            // The standard library seeds its hash maps from the system; jitter needs no more than that.
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

/// How a client asks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// What proves who asks; none asks as nobody.
    pub token: Option<Token>,
    /// Whom to trust, and the certificate of this client; none for `http`.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsFiles>,
    /// How long a connection may take to be made, its handshake included; 5 s unless set.
    pub connect_deadline: Duration,
    /// How long an answer may take, beside what was asked to be waited for; 30 s unless set.
    pub deadline: Duration,
    /// What is sent again.
    pub retry: RetryOptions,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            token: None,
            #[cfg(feature = "tls")]
            tls: None,
            connect_deadline: CONNECT_TIMEOUT,
            deadline: REQUEST_TIMEOUT,
            retry: RetryOptions::default(),
        }
    }
}
