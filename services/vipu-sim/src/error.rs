//! Errors of controller operations, with their gRPC codes.

use tonic::Code;

/// An operation that failed without changing anything, except [`SimError::Storage`], whose outcome is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A field breaks a rule.
    #[error("{field} is {value}: {rule}")]
    Invalid {
        /// Name of the field in the request.
        field: &'static str,
        /// The rejected value.
        value: String,
        /// The rule, or how to fix the value.
        rule: String,
    },
    /// No object has this id.
    #[error("{kind} {id:?} does not exist")]
    NotFound {
        /// Kind of the object.
        kind: &'static str,
        /// Id of the object.
        id: String,
    },
    /// The id is already in use.
    #[error("{kind} {id:?} exists already")]
    AlreadyExists {
        /// Kind of the object.
        kind: &'static str,
        /// Id of the object.
        id: String,
    },
    /// Not enough free IPUs at the moment.
    #[error("not enough free IPUs for {size} in {within}: {free} free, largest block {largest}")]
    NoRoom {
        /// Requested IPUs.
        size: u32,
        /// Scope of the search: one allocation, or any.
        within: String,
        /// Free healthy IPUs in that scope.
        free: u32,
        /// Largest partition that fits into that scope.
        largest: u32,
    },
    /// Explicitly requested IPUs are not available.
    #[error("{}", unavailable.join("; "))]
    Taken {
        /// Each unavailable IPU with its reason.
        unavailable: Vec<String>,
    },
    /// A conflicting operation is in progress.
    #[error("{kind} {id:?} is {state}: {fix}")]
    Busy {
        /// Kind of the object.
        kind: &'static str,
        /// Id of the object.
        id: String,
        /// Current state of the object.
        state: String,
        /// How to proceed.
        fix: &'static str,
    },
    /// The user id or the access key is wrong or missing.
    #[error("unknown user or wrong access key")]
    Unauthenticated,
    /// The state could not be read or written. The operation may have taken effect.
    #[error("the state of the IPU-POD cannot be {step}: {detail}")]
    Storage {
        /// `read` or `written`.
        step: &'static str,
        /// Error of the operating system.
        detail: String,
    },
}

impl SimError {
    /// Returns a [`SimError::Invalid`] for a displayable value.
    pub(crate) fn invalid(
        field: &'static str,
        value: impl std::fmt::Display,
        rule: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            field,
            value: value.to_string(),
            rule: rule.into(),
        }
    }

    /// Returns a [`SimError::NotFound`] for a partition.
    pub(crate) fn no_partition(id: &str) -> Self {
        Self::NotFound {
            kind: "partition",
            id: id.to_owned(),
        }
    }

    /// Returns the matching gRPC code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::NotFound { .. } => Code::NotFound,
            Self::AlreadyExists { .. } => Code::AlreadyExists,
            Self::NoRoom { .. } | Self::Taken { .. } => Code::ResourceExhausted,
            Self::Busy { .. } => Code::FailedPrecondition,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::Storage { .. } => Code::Internal,
        }
    }
}

impl From<SimError> for tonic::Status {
    fn from(error: SimError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
