//! Builder of requests. It performs no I/O.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::MAX_WAIT;
use super::error::ClientError;

/// Permission to retry a request with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idempotency {
    /// Idempotent.
    Safe,
    /// Retried only if it was certainly not executed.
    Unsafe,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) body: Option<Bytes>,
    pub(crate) idempotency: Idempotency,
    /// Additional timeout of the response.
    pub(crate) extra: Duration,
    /// True if the request expires when this client times out.
    pub(crate) expires: bool,
}

impl ApiRequest {
    pub(crate) const fn new(method: Method, path: String, idempotency: Idempotency) -> Self {
        Self {
            method,
            path,
            body: None,
            idempotency,
            extra: Duration::ZERO,
            expires: false,
        }
    }

    /// Lets the request expire at the timeout of this client (`notAfter`): the proxy rejects it when it is
    /// read later.
    pub(crate) const fn expiring(mut self) -> Self {
        self.expires = true;
        self
    }

    pub(crate) fn body(mut self, document: &impl Serialize) -> Result<Self, ClientError> {
        let body = serde_json::to_vec(document).map_err(|error| ClientError::Request {
            detail: error.to_string(),
        })?;
        self.body = Some(Bytes::from(body));
        Ok(self)
    }

    pub(crate) fn query(mut self, name: &str, value: &str) -> Self {
        self.path = with_query(&self.path, name, value);
        self
    }

    /// Returns path and query. An expiring request gets `not_after`, in milliseconds since 1970.
    pub(crate) fn target(&self, not_after: impl FnOnce() -> u64) -> String {
        if self.expires {
            with_query(&self.path, "notAfter", &not_after().to_string())
        } else {
            self.path.clone()
        }
    }

    /// Sets the maximum wait at the proxy.
    pub(crate) fn waiting(self, wait: Duration) -> Self {
        let wait = wait.min(MAX_WAIT);
        if wait.is_zero() {
            return self;
        }
        let text = format!("{}ms", wait.as_millis());
        self.query("wait", &text).taking(wait)
    }

    /// Sets an additional timeout of the response.
    pub(crate) const fn taking(mut self, extra: Duration) -> Self {
        self.extra = extra;
        self
    }
}

fn with_query(path: &str, name: &str, value: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}{name}={}", encoded(value))
}

/// Returns the percent-encoded text for a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_bounded_and_extends_the_timeout() {
        let waiting = |wait| {
            ApiRequest::new(Method::PUT, "/v1/partitions/p".to_owned(), Idempotency::Safe).waiting(wait)
        };
        let request = waiting(Duration::from_secs(3600));
        assert_eq!(request.path, "/v1/partitions/p?wait=60000ms");
        assert_eq!(request.extra, MAX_WAIT);
        assert_eq!(waiting(Duration::ZERO).path, "/v1/partitions/p");
    }

    #[test]
    fn a_query_value_is_encoded() {
        let request = ApiRequest::new(Method::DELETE, "/p".to_owned(), Idempotency::Safe);
        let request = request.query("uid", "a&b=c").query("attempt", "1");
        assert_eq!(request.path, "/p?uid=a%26b%3Dc&attempt=1");
    }
}
