//! One request, before it is sent: pure.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::MAX_WAIT;
use super::error::ClientError;

/// Whether a request may be sent again if it is not known what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idempotency {
    /// Twice is as good as once.
    Safe,
    /// Only if it was certainly not done.
    Unsafe,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    /// With the query.
    pub(crate) path: String,
    pub(crate) body: Option<Bytes>,
    pub(crate) repeat: Idempotency,
    /// How long the answer may take beside what every answer may take.
    pub(crate) extra: Duration,
    /// Whether the proxy refuses it once this client has given up.
    pub(crate) expires: bool,
}

impl ApiRequest {
    pub(crate) const fn new(method: Method, path: String, repeat: Idempotency) -> Self {
        Self {
            method,
            path,
            body: None,
            repeat,
            extra: Duration::ZERO,
            expires: false,
        }
    }

    /// The proxy refuses the request if it reads it after this client has given up (`notAfter`).
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

    /// The path with the query; one that expires does so at `not_after`, in milliseconds since 1970.
    pub(crate) fn target(&self, not_after: impl FnOnce() -> u64) -> String {
        if self.expires {
            with_query(&self.path, "notAfter", &not_after().to_string())
        } else {
            self.path.clone()
        }
    }

    /// The proxy is to answer after this time at the latest.
    pub(crate) fn waiting(self, wait: Duration) -> Self {
        let wait = wait.min(MAX_WAIT);
        if wait.is_zero() {
            return self;
        }
        let text = format!("{}ms", wait.as_millis());
        self.query("wait", &text).taking(wait)
    }

    /// The answer may take so much longer than others.
    pub(crate) const fn taking(mut self, extra: Duration) -> Self {
        self.extra = extra;
        self
    }
}

fn with_query(path: &str, name: &str, value: &str) -> String {
    let before = if path.contains('?') { '&' } else { '?' };
    format!("{path}{before}{name}={}", encoded(value))
}

/// A text as a part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_bounded_and_its_answer_may_take_longer() {
        let ask = |wait| {
            ApiRequest::new(Method::PUT, "/v1/partitions/p".to_owned(), Idempotency::Safe).waiting(wait)
        };
        let asked = ask(Duration::from_secs(3600));
        assert_eq!(asked.path, "/v1/partitions/p?wait=60000ms");
        assert_eq!(asked.extra, MAX_WAIT);
        assert_eq!(ask(Duration::ZERO).path, "/v1/partitions/p");
    }

    #[test]
    fn what_a_query_says_cannot_end_it() {
        let ask = ApiRequest::new(Method::DELETE, "/p".to_owned(), Idempotency::Safe);
        let asked = ask.query("uid", "a&b=c").query("attempt", "1");
        assert_eq!(asked.path, "/p?uid=a%26b%3Dc&attempt=1");
    }
}
