//! Parser of responses. It performs no I/O.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::error::ClientError;
use crate::api::ProblemDocument;

/// Maximum number of characters of an invalid response in an error.
const MAX_EXCERPT_LEN: usize = 200;

/// Parses a response to its document.
pub(crate) fn read<T: DeserializeOwned>(
    url: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<T, ClientError> {
    if !status.is_success() {
        return Err(problem(url, status, headers, body));
    }
    serde_json::from_slice(body).map_err(|error| invalid(url, status, format!("{error}: {}", excerpt(body))))
}

/// Parses a response that is not a success.
pub(crate) fn problem(url: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ClientError {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_problem = kind.is_some_and(|kind| kind.starts_with("application/problem+json"));
    if !is_problem {
        return invalid(url, status, excerpt(body));
    }
    match serde_json::from_slice::<ProblemDocument>(body) {
        Ok(problem) => ClientError::Refused {
            problem: Box::new(problem),
            retry_after: retry_after(headers),
        },
        Err(error) => invalid(url, status, format!("{error}: {}", excerpt(body))),
    }
}

/// Returns the seconds of `Retry-After`; a date, which the proxy never sends, is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

fn invalid(url: &str, status: StatusCode, detail: String) -> ClientError {
    ClientError::InvalidResponse {
        url: url.to_owned(),
        status: status.as_u16(),
        detail,
    }
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let start: String = text.chars().take(MAX_EXCERPT_LEN).collect();
    format!("{start:?}")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::api::Usage;

    #[test]
    fn a_problem_has_its_code_detail_fix_and_retry_after() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        let mut problem = ProblemDocument::new(503, "QueueFull", "the queue is full");
        problem.fix = Some("retry later".to_owned());
        let body = serde_json::to_vec(&problem).unwrap();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let error = read::<Usage>("http://proxy", status, &headers, &body).unwrap_err();
        assert_eq!(error.code(), Some("QueueFull"));
        assert_eq!(error.to_string(), "the queue is full (QueueFull); retry later");
        let ClientError::Refused { retry_after, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn an_invalid_response_is_shown_truncated() {
        let body = "<html>".repeat(1000);
        for status in [StatusCode::OK, StatusCode::BAD_GATEWAY] {
            let error =
                read::<Usage>("http://proxy", status, &HeaderMap::new(), body.as_bytes()).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, ClientError::InvalidResponse { .. }), "{text}");
            assert!(text.contains("<html>") && text.len() < 400, "{text}");
        }
    }
}
