//! Answers as HTTP status and body: pure.

use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::VipuError;
use crate::status_code::{self, RpcMethod};

/// `google.rpc.Status` as JSON; details are not used by the interface.
#[derive(Deserialize)]
struct RpcStatus {
    code: i32,
    #[serde(default)]
    message: String,
}

/// The answer to `call` as `T`, or the error that it is.
pub(crate) fn parse<T: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
    call: &RpcMethod<'_>,
) -> Result<T, VipuError> {
    if status.is_success() {
        return serde_json::from_slice(body).map_err(|error| VipuError::BadReply {
            detail: format!("HTTP {}, and {error}", status.as_u16()),
        });
    }
    match serde_json::from_slice::<RpcStatus>(body) {
        Ok(answer) => Err(status_code::error(answer.code, &answer.message, call)),
        Err(_) => Err(status_code::error(
            code_of(status),
            &format!("HTTP {status} without a google.rpc.Status: {}", excerpt(body)),
            call,
        )),
    }
}

/// The code of an answer that does not come from a controller but from something in between, or from another server: gRPC's
/// own mapping. A 404 is "no such call" there, and never "no such partition": a wrong address must not make partitions
/// pass for gone.
fn code_of(status: StatusCode) -> i32 {
    match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

/// The most characters of a foreign answer that an error shows: enough to recognise the server.
const EXCERPT_MAX: usize = 120;

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * EXCERPT_MAX)]);
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(EXCERPT_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use ipu_core::PartitionId;

    use super::*;
    use crate::status_code::Subject;
    use crate::wire;

    fn id() -> PartitionId {
        PartitionId::new("p1").unwrap()
    }

    fn http(status: u16) -> StatusCode {
        StatusCode::from_u16(status).unwrap()
    }

    fn answer<T: DeserializeOwned>(status: u16, body: &str) -> Result<T, VipuError> {
        let id = id();
        let call = RpcMethod {
            endpoint: "pod1:8090",
            subject: Subject::Existing(&id),
            deadline: Duration::from_secs(1),
        };
        parse(http(status), body.as_bytes(), &call)
    }

    #[track_caller]
    fn label(status: u16, body: &str) -> &'static str {
        match answer::<wire::VersionReply>(status, body) {
            Ok(_) => "ok",
            Err(error) => error.label(),
        }
    }

    #[test]
    fn an_answer_is_canonical_json_of_the_message() {
        let reply: wire::GetPartitionStatusReply = answer(
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
    fn what_is_not_the_message_is_no_answer() {
        for body in ["", "[]", "null", "{} {}", r#"{"version":1}"#, "<html>"] {
            assert_eq!(label(200, body), "bad_reply", "{body:?}");
        }
    }

    #[test]
    fn the_code_in_the_body_decides() {
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
    fn a_foreign_error_page_is_never_taken_for_a_missing_partition() {
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
        let error = answer::<wire::VersionReply>(404, "404 page\n not found").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the controller refuses the request: \
             HTTP 404 Not Found without a google.rpc.Status: 404 page not found"
        );
    }
}
