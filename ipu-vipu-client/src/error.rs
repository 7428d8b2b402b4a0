//! What can go wrong at a V-IPU controller, and whether trying again helps.

use core::time::Duration;

use ipu_core::{PartitionId, PartitionState};

/// Whether and when trying the same call again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// It cannot.
    Never,
    /// After something else has changed: capacity, the request, the configuration.
    AfterChange,
    /// After a short pause with jitter.
    Soon,
    /// After this time.
    After(Duration),
}

/// A call to a V-IPU controller that did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VipuError {
    /// No partition of that id (gRPC NOT_FOUND). After a remove it means that the partition is gone.
    #[error("partition {id} is not known to the controller")]
    NotFound {
        /// Which.
        id: PartitionId,
    },
    /// A partition of that id exists already (gRPC ALREADY_EXISTS).
    #[error("partition {id} exists already")]
    AlreadyExists {
        /// Which.
        id: PartitionId,
    },
    /// No room for the partition (gRPC RESOURCE_EXHAUSTED).
    #[error("the controller has no room: {detail}")]
    NoCapacity {
        /// What the controller says.
        detail: String,
    },
    /// The controller refuses what was asked (gRPC INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED).
    #[error("the controller refuses the request: {detail}")]
    Refused {
        /// What the controller says.
        detail: String,
    },
    /// The user id, the access key or the certificate is not accepted (gRPC UNAUTHENTICATED, PERMISSION_DENIED).
    #[error("the controller does not accept the credentials: {detail}")]
    Denied {
        /// What the controller says.
        detail: String,
    },
    /// No answer in time. The operation may have been done.
    #[error("no answer from {endpoint} within {waited:?}; the operation may have been done")]
    Timeout {
        /// Which controller.
        endpoint: String,
        /// How long.
        waited: Duration,
    },
    /// The controller cannot be reached or broke off. The operation may have been done.
    #[error("controller {endpoint} cannot be reached: {detail}")]
    Unreachable {
        /// Which controller.
        endpoint: String,
        /// What the transport says.
        detail: String,
    },
    /// The controller failed (gRPC INTERNAL, UNKNOWN, ABORTED, DATA_LOSS). The operation may have been done.
    #[error("the controller failed: {detail}")]
    Failed {
        /// What the controller says.
        detail: String,
    },
    /// The answer is not what the interface promises.
    #[error("the controller's answer cannot be understood: {detail}")]
    BadReply {
        /// What is wrong with it.
        detail: String,
    },
    /// A partition that was to become active is in error.
    #[error("partition {id} is in error: {}", errors.join("; "))]
    PartitionFailed {
        /// Which.
        id: PartitionId,
        /// What the controller says.
        errors: Vec<String>,
    },
    /// A partition did not become what it was to become in the time that was given; the controller is still at it.
    #[error("partition {id} is still {} after {waited:?}", state.as_ref().map_or("in an unknown state", PartitionState::label))]
    Slow {
        /// Which.
        id: PartitionId,
        /// What it was when last asked; none if the controller did not answer.
        state: Option<PartitionState>,
        /// How long was waited.
        waited: Duration,
    },
}

impl VipuError {
    /// Whether and when trying the same call again can help.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::Refused { .. }
            | Self::BadReply { .. } => Retry::Never,
            Self::NoCapacity { .. } | Self::Denied { .. } | Self::PartitionFailed { .. } => {
                Retry::AfterChange
            }
            Self::Timeout { .. } | Self::Unreachable { .. } | Self::Failed { .. } | Self::Slow { .. } => {
                Retry::Soon
            }
        }
    }

    /// Whether the operation may have been done although the call failed: then the status must be asked before anything
    /// is concluded.
    #[must_use]
    pub const fn may_have_happened(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. }
                | Self::Unreachable { .. }
                | Self::Failed { .. }
                | Self::BadReply { .. }
                | Self::Slow { .. }
        )
    }

    /// Whether the error speaks against the controller or the way to it, and not against what was asked.
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
            | Self::PartitionFailed { .. }
            | Self::Slow { .. } => false,
        }
    }

    /// A word for metric labels.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::AlreadyExists { .. } => "already_exists",
            Self::NoCapacity { .. } => "no_capacity",
            Self::Refused { .. } => "refused",
            Self::Denied { .. } => "denied",
            Self::Timeout { .. } => "timeout",
            Self::Unreachable { .. } => "unreachable",
            Self::Failed { .. } => "failed",
            Self::BadReply { .. } => "bad_reply",
            Self::PartitionFailed { .. } => "partition_failed",
            Self::Slow { .. } => "slow",
        }
    }
}
