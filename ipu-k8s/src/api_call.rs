//! Calls to the API server, each with its end.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kube::{Client, Config};

/// Asks for an answer without the content.
#[cfg(any(feature = "operator", feature = "store"))]
pub(crate) const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// A client that never repeats a call: whoever calls knows whether that is safe, and how long it may take.
pub(crate) fn connect(mut config: Config) -> Result<Client, kube::Error> {
    config.default_retry = false;
    Client::try_from(config)
}

/// Why a call came to nothing.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The API server refused it, or could not be reached.
    Call(Box<kube::Error>),
    /// No answer came in time.
    Timeout(Duration),
}

#[cfg(feature = "store")]
impl Failure {
    /// The HTTP status that the API server answered, if it answered.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Call(error) => match &**error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout(_) => None,
        }
    }

    /// Whether the API server's words have these in them.
    pub(crate) fn message_contains(&self, words: &str) -> bool {
        match self {
            Self::Call(error) => {
                matches!(&**error, kube::Error::Api(status) if status.message.contains(words))
            }
            Self::Timeout(_) => false,
        }
    }
}

#[cfg(feature = "operator")]
impl Failure {
    /// Whether nobody was there to be called, so that nothing was asked.
    pub(crate) fn was_not_sent(&self) -> bool {
        let Self::Call(error) = self else { return false };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
        while let Some(error) = cause {
            let io = error.downcast_ref::<std::io::Error>();
            if io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(error) => match &**error {
                kube::Error::Api(status) => {
                    write!(f, "the API server answers {}: {}", status.code, status.message)
                }
                other => {
                    write!(f, "{other}")?;
                    let mut source = std::error::Error::source(other);
                    while let Some(cause) = source {
                        write!(f, ": {cause}")?;
                        source = cause.source();
                    }
                    Ok(())
                }
            },
            Self::Timeout(after) => write!(f, "the API server did not answer within {after:?}"),
        }
    }
}

/// The answer of `call`, which ends after `patience`.
pub(crate) async fn bounded<T>(
    patience: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(patience, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Failure::Call(Box::new(error))),
        Err(_) => Err(Failure::Timeout(patience)),
    }
}
