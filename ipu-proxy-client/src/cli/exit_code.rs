//! Exit codes: that of the job, or one of sysexits(3), which programs rarely use.

use std::process::ExitCode;

use ipu_core::ErrorChain;

use crate::client::ClientError;

/// Exit status of `ipuctl` and `kubectl ipu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Success.
    Done,
    /// Exit code of the job, or 128 plus the number of the signal that ended it.
    Job(u8),
    /// Invalid command line.
    Usage,
    /// Invalid manifest or other input.
    Data,
    /// A file, program, job or partition does not exist.
    NotFound,
    /// The controller, the proxy or the API server cannot be reached or fails, or doctor has findings.
    Unavailable,
    /// Internal error.
    Bug,
    /// Error of this host, such as an inaccessible state directory.
    Host,
    /// The partitions do not fit now.
    NoCapacity,
    /// The job is suspended or has no instances, so that it runs nothing.
    Idle,
    /// The credentials are rejected, the caller has too few rights, or the partition has another owner.
    Denied,
    /// The partitions can never fit.
    Impossible,
    /// Terminated by this signal.
    Signal(u8),
}

impl Code {
    /// Returns the number of the exit status.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Job(code) => code,
            Self::Usage => 64,
            Self::Data => 65,
            Self::NotFound => 66,
            Self::Unavailable => 69,
            Self::Bug => 70,
            Self::Host => 71,
            Self::NoCapacity => 75,
            Self::Idle => 76,
            Self::Denied => 77,
            Self::Impossible => 78,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
    }
}

/// An error with the exit code of the program.
///
/// ```
/// use ipu_proxy_client::cli::{Code, Failure};
/// use ipu_proxy_client::{ClientError, ProblemDocument};
///
/// let detail = "partition training belongs to IPUJob default/mnist, instance 0";
/// let problem = Box::new(ProblemDocument::new(409, "NotTheOwner", detail));
/// let failure = Failure::from(ClientError::Refused { problem, retry_after: None });
/// assert_eq!((failure.code, failure.code.number()), (Code::Denied, 77));
/// assert_eq!(failure.chain(), format!("proxy: {detail} (NotTheOwner)"));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Exit status of the program.
    pub code: Code,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    /// Creates an error with this message.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            source: None,
        }
    }

    /// Creates an error with a cause.
    #[must_use]
    pub fn because(
        code: Code,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            code,
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// Creates a failure that was already reported to the user.
    #[must_use]
    pub fn reported(code: Code) -> Self {
        Self::new(code, "")
    }

    /// Returns whether the user has still to learn of the failure.
    #[must_use]
    pub const fn is_unreported(&self) -> bool {
        !self.message.is_empty()
    }

    /// Returns the error and its sources in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        ErrorChain(self).to_string()
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused { problem, .. } => match (problem.status, problem.code.as_str()) {
                (401 | 403, _) | (_, "NotTheOwner" | "Foreign" | "Quarantined" | "OtherCordon") => {
                    Code::Denied
                }
                (404, _) => Code::NotFound,
                (_, "DoesNotFit") if error.reason().is_some_and(|reason| reason.code.is_permanent()) => {
                    Code::Impossible
                }
                (_, "DoesNotFit" | "QueueFull" | "NamespaceQueueFull") => Code::NoCapacity,
                (_, "ControllerRefused") => Code::Impossible,
                (_, "PartitionFailed") => Code::Unavailable,
                (400..=499, _) => Code::Data,
                _ => Code::Unavailable,
            },
            ClientError::TlsRejected { .. } => Code::Denied,
            ClientError::Token { .. } => Code::NotFound,
            ClientError::TimedOut { .. } => Code::NoCapacity,
            ClientError::Request { .. } => Code::Bug,
            _ => Code::Unavailable,
        };
        Self::because(code, "proxy", error)
    }
}
