//! What an answer means: pure.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::error::ClientError;
use crate::api::ProblemDocument;

/// How much of an answer that is not understood is shown.
const SHOWN: usize = 200;

/// The document of an answer, or what it says instead.
pub(crate) fn read<T: DeserializeOwned>(
    url: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<T, ClientError> {
    if !status.is_success() {
        return Err(problem(url, status, headers, body));
    }
    serde_json::from_slice(body).map_err(|error| bad(url, status, format!("{error}: {}", shown(body))))
}

/// What an answer says that is no success.
pub(crate) fn problem(url: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ClientError {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_problem = kind.is_some_and(|kind| kind.starts_with("application/problem+json"));
    if !is_problem {
        return bad(url, status, shown(body));
    }
    match serde_json::from_slice::<ProblemDocument>(body) {
        Ok(problem) => ClientError::Refused {
            problem: Box::new(problem),
            retry_after: retry_after(headers),
        },
        Err(error) => bad(url, status, format!("{error}: {}", shown(body))),
    }
}

/// The seconds of `Retry-After`; a date, which our proxy never sends, counts as none.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

fn bad(url: &str, status: StatusCode, detail: String) -> ClientError {
    ClientError::InvalidResponse {
        url: url.to_owned(),
        status: status.as_u16(),
        detail,
    }
}

fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let begin: String = text.chars().take(SHOWN).collect();
    format!("{begin:?}")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::api::Usage;

    #[test]
    fn a_problem_is_told_with_its_code_its_detail_and_when_to_ask_again() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        let mut told = ProblemDocument::new(503, "LineFull", "the line is full");
        told.fix = Some("ask later".to_owned());
        let body = serde_json::to_vec(&told).unwrap();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let error = read::<Usage>("http://proxy", status, &headers, &body).unwrap_err();
        assert_eq!(error.code(), Some("LineFull"));
        assert_eq!(error.to_string(), "the line is full (LineFull); ask later");
        let ClientError::Refused { retry_after, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn what_no_proxy_answers_is_shown_and_cut_off() {
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
