//! Requests to the API server, each with a timeout.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use ipu_core::ErrorChain;

/// Creates a client that never repeats a request: only the caller knows whether that is safe, and how long it
/// may take.
pub(crate) fn connect(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    config.default_retry = false;
    kube::Client::try_from(config)
}

/// Cause of a failed request.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The API server refused the request, or could not be reached.
    Call(Box<kube::Error>),
    /// The API server did not respond in time.
    Timeout(Duration),
}

impl Failure {
    /// Returns the HTTP status of the response, if there is one.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Call(error) => match &**error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout(_) => None,
        }
    }

    /// Returns whether the API server refused the object because of its size.
    pub(crate) fn is_too_large(&self) -> bool {
        let Self::Call(error) = self else { return false };
        let kube::Error::Api(status) = &**error else {
            return false;
        };
        let texts = ["may not exceed", "may not be more than", "request is too large"];
        status.code == 413 || texts.iter().any(|text| status.message.contains(text))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(error) => match &**error {
                kube::Error::Api(status) => {
                    write!(f, "the API server returned {}: {}", status.code, status.message)
                }
                other => write!(f, "{}", ErrorChain(other)),
            },
            Self::Timeout(after) => write!(f, "the API server did not answer within {after:?}"),
        }
    }
}

/// Runs `call` with a timeout.
pub(crate) async fn bounded<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Failure::Call(Box::new(error))),
        Err(_) => Err(Failure::Timeout(timeout)),
    }
}
