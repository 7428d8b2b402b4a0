//! Errors of the setup and of requests.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::{PartitionId, Reason};

use crate::api::ProblemDocument;

/// Code of a problem: the proxy did not start to execute the request.
pub(super) const OVERLOADED: &str = "Overloaded";

/// Error of the setup of a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The URL is invalid.
    #[error("{url:?} is not a URL of a proxy: {rule}")]
    Url {
        /// The URL.
        url: String,
        /// Rule that the URL violates.
        rule: String,
    },
    /// The scheme is `https`, and no CA certificate is configured.
    #[error(
        "{url:?} requires a file with CA certificates, such as that of the system, \
         /etc/ssl/certs/ca-certificates.crt"
    )]
    MissingCaCertificate {
        /// The URL.
        url: String,
    },
    /// The scheme is `http`, and TLS files are configured.
    #[error("certificates cannot be used with {url:?}: use https")]
    NotSecure {
        /// The URL.
        url: String,
    },
    /// A TLS file is invalid.
    #[error("use {}: {detail}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        detail: String,
    },
}

/// Error of a request.
///
/// ```
/// use std::time::Duration;
///
/// use ipu_proxy_client::{ClientError, ProblemDocument};
///
/// let url = "http://vipu-proxy:8080".to_owned();
/// let error = ClientError::Timeout { url, waited: Duration::from_secs(30) };
/// assert_eq!(error.to_string(), "no response from the proxy at http://vipu-proxy:8080 within 30 s");
/// // Read the state before you repeat a request that is not idempotent.
/// assert!(error.may_have_executed());
///
/// let detail = "attempt 1 of partition training is out of date; attempt 3 has already requested it";
/// let mut problem = ProblemDocument::new(409, "OldAttempt", detail);
/// problem.fix = Some("use the recorded attempt or a newer one".into());
/// let error = ClientError::Refused { problem: Box::new(problem), retry_after: None };
/// assert_eq!(error.to_string(), format!("{detail} (OldAttempt); use the recorded attempt or a newer one"));
/// assert!(!error.may_have_executed());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The proxy responded with a problem.
    #[error("{}", one_line(problem))]
    Refused {
        /// The problem.
        problem: Box<ProblemDocument>,
        /// Requested pause before a retry, if any.
        retry_after: Option<Duration>,
    },
    /// The connection failed; nothing was sent.
    #[error("cannot reach the proxy at {url}: {detail}")]
    Unreachable {
        /// URL of the proxy.
        url: String,
        /// Error of the operating system.
        detail: String,
    },
    /// A certificate was rejected: that of the client by the proxy, or that of the proxy by the client.
    #[error("TLS with the proxy at {url} failed: {detail}")]
    TlsRejected {
        /// URL of the proxy.
        url: String,
        /// Cause of the rejection.
        detail: String,
    },
    /// The connection was lost before the response; the request may have been executed.
    #[error("lost the connection to the proxy at {url}: {detail}")]
    ConnectionLost {
        /// URL of the proxy.
        url: String,
        /// Cause of the loss.
        detail: String,
    },
    /// The response did not arrive in time; the request may have been executed.
    #[error("no response from the proxy at {url} within {} s", waited.as_secs())]
    Timeout {
        /// URL of the proxy.
        url: String,
        /// Timeout.
        waited: Duration,
    },
    /// The response is not valid for a proxy.
    #[error("invalid response from {url}, status {status}: {detail}")]
    InvalidResponse {
        /// URL of the request.
        url: String,
        /// HTTP status.
        status: u16,
        /// Cause of the error.
        detail: String,
    },
    /// The token file cannot be read or is empty.
    #[error("read the token file {}", path.display())]
    Token {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The request cannot be serialized.
    #[error("write the request: {detail}")]
    Request {
        /// Cause of the error.
        detail: String,
    },
    /// The awaited partition failed.
    #[error("partition {id} failed: {}", errors.join("; "))]
    PartitionFailed {
        /// Partition id.
        id: PartitionId,
        /// Errors that the controller reports.
        errors: Vec<String>,
    },
    /// The controller refuses to remove the partition without force; the partition keeps its IPUs.
    #[error("partition {id} is not removed: {}", reason.message)]
    RemovalRefused {
        /// Partition id.
        id: PartitionId,
        /// Reason, which names the ways to go on.
        reason: Reason,
    },
    /// The awaited state was not reached before the timeout of the caller.
    #[error("timed out after {} s: {what}", waited.as_secs())]
    TimedOut {
        /// Last observed state.
        what: String,
        /// Timeout.
        waited: Duration,
    },
}

impl ClientError {
    /// Returns the problem, if the proxy responded with one.
    #[must_use]
    pub fn problem(&self) -> Option<&ProblemDocument> {
        match self {
            Self::Refused { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// Returns the stable code of the problem.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }

    /// Returns the reason that the request does not fit, if that is the problem.
    #[must_use]
    pub fn reason(&self) -> Option<&Reason> {
        self.problem().and_then(ProblemDocument::reason)
    }

    /// Returns whether the request may have been executed in spite of the error.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            Self::Refused { problem, .. } => problem.status >= 500 && problem.code != OVERLOADED,
            Self::ConnectionLost { .. } | Self::Timeout { .. } | Self::InvalidResponse { .. } => true,
            Self::Unreachable { .. }
            | Self::TlsRejected { .. }
            | Self::Token { .. }
            | Self::Request { .. }
            | Self::PartitionFailed { .. }
            | Self::RemovalRefused { .. }
            | Self::TimedOut { .. } => false,
        }
    }
}

/// Returns a problem in one line.
fn one_line(problem: &ProblemDocument) -> String {
    let detail = if problem.detail.is_empty() {
        &problem.title
    } else {
        &problem.detail
    };
    match &problem.fix {
        Some(fix) => format!("{detail} ({}); {fix}", problem.code),
        None => format!("{detail} ({})", problem.code),
    }
}
