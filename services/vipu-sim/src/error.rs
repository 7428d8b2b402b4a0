//! Why the controller does not do what was asked, and the gRPC code and HTTP status that say so.

use tonic::Code;

/// A call that changed nothing (except [`Refusal::Storage`], which cannot tell).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A field breaks a rule.
    #[error("{field} is {value}: {rule}")]
    Invalid {
        /// Which field, by its name in the request.
        field: &'static str,
        /// What was given.
        value: String,
        /// The rule, or how to fix it.
        rule: String,
    },
    /// Nothing of that id.
    #[error("{kind} {id:?} does not exist")]
    NotFound {
        /// What kind of thing.
        kind: &'static str,
        /// Which one.
        id: String,
    },
    /// The id is taken.
    #[error("{kind} {id:?} exists already")]
    AlreadyExists {
        /// What kind of thing.
        kind: &'static str,
        /// Which one.
        id: String,
    },
    /// The partition does not fit now.
    #[error("no room for {size} IPUs in {within}: {free} free, largest block {largest}")]
    NoRoom {
        /// How many IPUs were asked for.
        size: u32,
        /// Where was looked: an allocation, or any.
        within: String,
        /// IPUs that are free and healthy there.
        free: u32,
        /// The largest partition that would fit there.
        largest: u32,
    },
    /// IPUs that were asked for by place cannot be had.
    #[error("{}", unavailable.join("; "))]
    Taken {
        /// Each IPU and why.
        unavailable: Vec<String>,
    },
    /// An operation is under way that cordons the one asked for.
    #[error("{kind} {id:?} is {state}: {fix}")]
    Busy {
        /// What kind of thing.
        kind: &'static str,
        /// Which one.
        id: String,
        /// What it is doing.
        state: String,
        /// What to do instead.
        fix: &'static str,
    },
    /// The user id or the access key is wrong or missing.
    #[error("unknown user or wrong access key")]
    Unauthenticated,
    /// The state could not be read or written. The operation may have been done.
    #[error("the state of the Pod cannot be {step}: {detail}")]
    Storage {
        /// `read` or `written`.
        step: &'static str,
        /// What the operating system says.
        detail: String,
    },
}

impl SimError {
    /// An [`Refusal::Invalid`] from anything that prints.
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

    /// There is no partition of that id.
    pub(crate) fn no_partition(id: &str) -> Self {
        Self::NotFound {
            kind: "partition",
            id: id.to_owned(),
        }
    }

    /// The gRPC code that says so.
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
    fn from(refusal: SimError) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}
