//! Errors of a V-IPU controller, and whether a retry helps.

use core::time::Duration;

use ipu_core::PartitionId;

/// Whether and when a retry of the same call can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A retry cannot help.
    Never,
    /// A retry can help after another change: capacity, the request, the configuration.
    AfterChange,
    /// Retry after a short pause with jitter.
    Soon,
}

/// The error of a call to a V-IPU controller.
///
/// ```
/// use ipu_vipu_client::{Retry, VipuError};
///
/// let lost = VipuError::Unreachable { endpoint: "pod001:8090".into(), detail: "the connection broke".into() };
/// assert_eq!(lost.retry(), Retry::Soon);
/// assert!(lost.may_have_executed(), "ask for the status before anything else is done");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VipuError {
    /// The partition does not exist (gRPC NOT_FOUND). After a removal this confirms the removal.
    #[error("partition {id} is not known to the controller")]
    NotFound {
        /// The partition.
        id: PartitionId,
    },
    /// A partition with this id exists already (gRPC ALREADY_EXISTS).
    #[error("partition {id} exists already")]
    AlreadyExists {
        /// The partition.
        id: PartitionId,
    },
    /// The controller has no capacity for the partition (gRPC RESOURCE_EXHAUSTED).
    #[error("the controller has no capacity: {detail}")]
    NoCapacity {
        /// The controller's message.
        detail: String,
    },
    /// The controller refuses the request (gRPC INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE,
    /// UNIMPLEMENTED).
    #[error("the controller refuses the request: {detail}")]
    Refused {
        /// The controller's message.
        detail: String,
    },
    /// The controller does not accept the user id, the access key or the certificate (gRPC UNAUTHENTICATED,
    /// PERMISSION_DENIED).
    #[error("the controller does not accept the credentials: {detail}")]
    Denied {
        /// The controller's message.
        detail: String,
    },
    /// The deadline of [`send_before`](crate::send_before) passed before the call was sent.
    #[error("the call to the controller was not sent, because its deadline had passed")]
    NotSent,
    /// The controller did not reply in time. The operation may have been done.
    #[error("no reply from {endpoint} within {waited:?}; the operation may have been done")]
    Timeout {
        /// The controller.
        endpoint: String,
        /// The time waited.
        waited: Duration,
    },
    /// The controller is unreachable or closed the connection. The operation may have been done.
    #[error("no reply from {endpoint}: {detail}")]
    Unreachable {
        /// The controller.
        endpoint: String,
        /// The transport's error.
        detail: String,
    },
    /// The controller failed (gRPC INTERNAL, UNKNOWN, ABORTED, DATA_LOSS). The operation may have been done.
    #[error("the controller failed: {detail}")]
    Failed {
        /// The controller's message.
        detail: String,
    },
    /// The reply violates the API.
    #[error("the controller's reply is invalid: {detail}")]
    BadReply {
        /// The violation.
        detail: String,
    },
}

impl VipuError {
    /// Returns whether and when a retry of the same call can help.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::Refused { .. }
            | Self::BadReply { .. } => Retry::Never,
            Self::NoCapacity { .. } | Self::Denied { .. } => Retry::AfterChange,
            Self::NotSent | Self::Timeout { .. } | Self::Unreachable { .. } | Self::Failed { .. } => {
                Retry::Soon
            }
        }
    }

    /// Returns whether the operation may have been done although the call failed. Then query the status
    /// before further decisions.
    #[must_use]
    pub const fn may_have_executed(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::Unreachable { .. } | Self::Failed { .. } | Self::BadReply { .. }
        )
    }

    /// Returns whether the error indicates a fault of the controller or its connection, and not of the
    /// request.
    #[must_use]
    pub const fn is_unhealthy(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Unreachable { .. }
            | Self::Failed { .. }
            | Self::BadReply { .. }
            | Self::Denied { .. } => true,
            Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::NoCapacity { .. }
            | Self::Refused { .. }
            | Self::NotSent => false,
        }
    }

    /// Returns a short name for metric labels.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::AlreadyExists { .. } => "already_exists",
            Self::NoCapacity { .. } => "no_capacity",
            Self::Refused { .. } => "refused",
            Self::Denied { .. } => "denied",
            Self::NotSent => "not_sent",
            Self::Timeout { .. } => "timeout",
            Self::Unreachable { .. } => "unreachable",
            Self::Failed { .. } => "failed",
            Self::BadReply { .. } => "bad_reply",
        }
    }
}
