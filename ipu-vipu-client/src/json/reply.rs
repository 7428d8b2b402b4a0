//! Decodes HTTP replies from status and body: pure.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::VipuError;
use crate::status_code::{self, RpcMethod};
use crate::wire;

/// `google.rpc.Status` as JSON; the API does not use its details.
#[derive(Deserialize)]
struct RpcStatus {
    code: i32,
    #[serde(default)]
    message: String,
}

/// Decodes the reply to `call` as `T`, or as its error.
pub(crate) fn parse<T: DeserializeOwned>(
    status: u16,
    body: &[u8],
    call: &RpcMethod<'_>,
) -> Result<T, VipuError> {
    if (200..300).contains(&status) {
        return wire::json::from_slice(body).map_err(|error| VipuError::BadReply {
            detail: format!("HTTP {status}: {error}"),
        });
    }
    match serde_json::from_slice::<RpcStatus>(body) {
        Ok(status) => Err(status_code::error(status.code, &status.message, call)),
        Err(_) => Err(status_code::error(
            code_of(status),
            &format!("HTTP {status} without a google.rpc.Status: {}", excerpt(body)),
            call,
        )),
    }
}

/// Returns the gRPC code of a reply that comes from an intermediary or another server: gRPC's own mapping. A
/// 404 maps to "no such call" and never to "no such partition". A wrong address must not make partitions look
/// removed.
const fn code_of(status: u16) -> i32 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

/// Maximum length of a foreign reply in an error, in characters: enough to identify the server.
const MAX_EXCERPT: usize = 120;

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * MAX_EXCERPT)]);
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(MAX_EXCERPT)
        .collect()
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use ipu_core::PartitionId;

    use super::*;
    use crate::status_code::Subject;

    fn id() -> PartitionId {
        PartitionId::new("p1").unwrap()
    }

    fn parse_reply<T: DeserializeOwned>(status: u16, body: &str) -> Result<T, VipuError> {
        let id = id();
        let call = RpcMethod {
            endpoint: "pod1:8090",
            subject: Subject::Existing(&id),
            deadline: Duration::from_secs(1),
        };
        parse(status, body.as_bytes(), &call)
    }

    #[track_caller]
    fn label(status: u16, body: &str) -> &'static str {
        match parse_reply::<wire::VersionReply>(status, body) {
            Ok(_) => "ok",
            Err(error) => error.label(),
        }
    }

    #[test]
    fn a_reply_is_canonical_json_of_the_message() {
        let reply: wire::GetPartitionStatusReply = parse_reply(
            200,
            r#"{"status":{"partitionId":"p1","readyState":"PS_ERROR","operationState":5,"errors":["e"],
                "lastAutoResetTime":"2023-11-14T22:13:20.123Z","added later":[1]}}"#,
        )
        .unwrap();
        let status = reply.status.unwrap();
        assert_eq!((status.ready_state, status.operation_state), (4, 5));
        assert_eq!(status.last_auto_reset_time.unwrap().seconds, 1_700_000_000);
        assert_eq!(label(202, "{}"), "ok");
    }

    #[test]
    fn a_body_that_is_not_the_message_is_a_bad_reply() {
        for body in ["", "[]", "null", "{} {}", r#"{"version":1}"#, "<html>"] {
            assert_eq!(label(200, body), "bad_reply", "{body:?}");
        }
    }

    #[test]
    fn the_code_in_the_body_determines_the_error() {
        assert_eq!(
            label(404, r#"{"code":5,"message":"no partition p1","details":[]}"#),
            "not_found"
        );
        assert_eq!(label(500, r#"{"code":13}"#), "failed");
        assert_eq!(label(429, r#"{"code":8,"message":"full"}"#), "no_capacity");
        assert_eq!(label(503, r#"{"code":14}"#), "unreachable");
        assert_eq!(label(404, r#"{"code":0}"#), "bad_reply");
    }

    #[test]
    fn a_foreign_error_page_never_means_a_missing_partition() {
        for (status, expected) in [
            (301, "failed"),
            (400, "failed"),
            (401, "denied"),
            (403, "denied"),
            (404, "refused"),
            (405, "failed"),
            (429, "unreachable"),
            (500, "failed"),
            (502, "unreachable"),
            (503, "unreachable"),
            (504, "unreachable"),
        ] {
            for body in ["", "<h1>404 page\n not found</h1>", r#"{"error":"x"}"#] {
                assert_eq!(label(status, body), expected, "{status} {body}");
            }
        }
        let error = parse_reply::<wire::VersionReply>(404, "404 page\n not found").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the controller refuses the request: \
             HTTP 404 without a google.rpc.Status: 404 page not found"
        );
    }
}
