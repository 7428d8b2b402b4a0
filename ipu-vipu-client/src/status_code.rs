//! Maps gRPC status codes to errors: pure, and common to both transports, because the REST transport carries
//! the code in its error body.

use core::time::Duration;

use ipu_core::PartitionId;

use crate::error::VipuError;

/// The call that an error belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RpcMethod<'a> {
    /// `host:port` of the controller.
    pub(crate) endpoint: &'a str,
    /// The partition of the call.
    pub(crate) subject: Subject<'a>,
    /// The deadline of the call.
    pub(crate) deadline: Duration,
}

/// The partition of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// No partition.
    None,
    /// A partition that the call creates.
    New(&'a PartitionId),
    /// A partition that should exist.
    Existing(&'a PartitionId),
}

/// Maximum length of a controller's message in an error, in characters: enough for any sentence, and bounded
/// in logs and in the status of a job.
const MAX_DETAIL: usize = 1024;

/// Returns the error for a status of `code` with `message`.
pub(crate) fn error(code: i32, message: &str, call: &RpcMethod<'_>) -> VipuError {
    let detail = truncate(message, code);
    match (code, call.subject) {
        (0, _) => VipuError::BadReply {
            detail: format!("an error status with code OK: {detail}"),
        },
        // 1 CANCELLED: the peer aborted the call. 14 UNAVAILABLE.
        (1 | 14, _) => unreachable(call, detail),
        (4, _) => VipuError::Timeout {
            endpoint: call.endpoint.to_owned(),
            waited: call.deadline,
        },
        // NOT_FOUND is about the partition only if the call names one that should exist. Otherwise it is
        // about an allocation or an agent, and taking it for the partition would make a held partition look
        // removed.
        (5, Subject::Existing(id)) => VipuError::NotFound { id: id.clone() },
        (6, Subject::New(id)) => VipuError::AlreadyExists { id: id.clone() },
        (7 | 16, _) => VipuError::Denied { detail },
        (8, _) => VipuError::NoCapacity { detail },
        // 3 INVALID_ARGUMENT, 9 FAILED_PRECONDITION, 11 OUT_OF_RANGE, 12 UNIMPLEMENTED.
        (3 | 5 | 6 | 9 | 11 | 12, _) => VipuError::Refused { detail },
        // 2 UNKNOWN, 10 ABORTED, 13 INTERNAL, 15 DATA_LOSS, and future codes.
        _ => VipuError::Failed { detail },
    }
}

pub(crate) fn unreachable(call: &RpcMethod<'_>, detail: String) -> VipuError {
    VipuError::Unreachable {
        endpoint: call.endpoint.to_owned(),
        detail,
    }
}

fn truncate(message: &str, code: i32) -> String {
    if message.is_empty() {
        return format!("no message, gRPC code {code}");
    }
    message.chars().take(MAX_DETAIL).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [(i32, &str, &str, &str); 18] = [
        // code, no partition, a new one, an existing one
        (0, "bad_reply", "bad_reply", "bad_reply"),
        (1, "unreachable", "unreachable", "unreachable"),
        (2, "failed", "failed", "failed"),
        (3, "refused", "refused", "refused"),
        (4, "timeout", "timeout", "timeout"),
        (5, "refused", "refused", "not_found"),
        (6, "refused", "already_exists", "refused"),
        (7, "denied", "denied", "denied"),
        (8, "no_capacity", "no_capacity", "no_capacity"),
        (9, "refused", "refused", "refused"),
        (10, "failed", "failed", "failed"),
        (11, "refused", "refused", "refused"),
        (12, "refused", "refused", "refused"),
        (13, "failed", "failed", "failed"),
        (14, "unreachable", "unreachable", "unreachable"),
        (15, "failed", "failed", "failed"),
        (16, "denied", "denied", "denied"),
        (99, "failed", "failed", "failed"),
    ];

    fn call(subject: Subject<'_>) -> RpcMethod<'_> {
        RpcMethod {
            endpoint: "pod1:8090",
            subject,
            deadline: Duration::from_secs(3),
        }
    }

    #[test]
    fn every_code_maps_as_in_the_table() {
        let id = PartitionId::new("p1").unwrap();
        for (code, none, new, existing) in CODES {
            for (subject, expected) in [
                (Subject::None, none),
                (Subject::New(&id), new),
                (Subject::Existing(&id), existing),
            ] {
                let error = error(code, "why", &call(subject));
                assert_eq!(error.label(), expected, "{code} {subject:?}");
            }
        }
    }

    #[test]
    fn an_error_contains_the_fields_of_its_call() {
        let id = PartitionId::new("p1").unwrap();
        assert_eq!(
            error(5, "", &call(Subject::Existing(&id))),
            VipuError::NotFound { id }
        );
        assert_eq!(
            error(4, "x", &call(Subject::None)).to_string(),
            "no reply from pod1:8090 within 3s; the operation may have been done"
        );
        assert_eq!(
            error(13, "", &call(Subject::None)).to_string(),
            "the controller failed: no message, gRPC code 13"
        );
    }

    #[test]
    fn a_long_message_is_truncated() {
        let message = format!("x{}", "é".repeat(2000));
        let VipuError::Failed { detail } = error(2, &message, &call(Subject::None)) else {
            panic!("not failed");
        };
        assert_eq!(detail.chars().count(), 1024);
    }
}
