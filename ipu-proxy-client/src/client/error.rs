//! Why there is no client, and why there is no answer.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::{PartitionId, Reason};

use crate::api::ProblemDocument;

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The URL is none.
    #[error("{url:?} is no URL of a proxy: {rule}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it, and what to do.
        rule: String,
    },
    /// The URL begins with `https`, and it was not said who signs the proxy's certificate.
    #[error(
        "{url:?} needs a file with the certificates that are trusted; those of the system are in a file such as \
         /etc/ssl/certs/ca-certificates.crt"
    )]
    MissingCaCertificate {
        /// What was given.
        url: String,
    },
    /// Files for TLS, and a URL that begins with `http`.
    #[error("certificates are of no use for {url:?}: use https")]
    NotSecure {
        /// What was given.
        url: String,
    },
    /// A file for TLS cannot be used.
    #[error("use {}: {detail}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
}

/// Why there is no answer, or none that says what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The proxy says what is wrong.
    #[error("{}", told(problem))]
    Refused {
        /// What it says.
        problem: Box<ProblemDocument>,
        /// When to ask again, if it says so.
        retry_after: Option<Duration>,
    },
    /// No connection: nothing was sent.
    #[error("cannot reach the proxy at {url}: {detail}")]
    Unreachable {
        /// Where the proxy should be.
        url: String,
        /// What the operating system says.
        detail: String,
    },
    /// A certificate was refused, ours by the proxy or the proxy's by us.
    #[error("no trust between us and the proxy at {url}: {detail}")]
    TlsRejected {
        /// Where the proxy is.
        url: String,
        /// What is wrong with which certificate.
        detail: String,
    },
    /// The connection broke before the answer was there: what was asked for may have been done.
    #[error("the connection to the proxy at {url} broke: {detail}")]
    ConnectionLost {
        /// Where the proxy is.
        url: String,
        /// How.
        detail: String,
    },
    /// There was no answer in time: what was asked for may have been done.
    #[error("the proxy at {url} does not answer within {} s", waited.as_secs())]
    Timeout {
        /// Where the proxy is.
        url: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The answer is not one of a proxy.
    #[error("{url} answers {status}, which is not understood: {detail}")]
    InvalidResponse {
        /// Who answered.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What is wrong with it.
        detail: String,
    },
    /// The file of the token cannot be read, or holds none.
    #[error("read the token of {}", path.display())]
    Token {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The request cannot be written.
    #[error("write the request: {detail}")]
    Request {
        /// Why not.
        detail: String,
    },
    /// The partition that was waited for will not be ready: it is in error.
    #[error("partition {id} is in error: {}", errors.join("; "))]
    PartitionFailed {
        /// Which.
        id: PartitionId,
        /// What the controller says.
        errors: Vec<String>,
    },
    /// What was waited for has not come within the time that the caller wanted to wait.
    #[error("not within {} s: {what}", waited.as_secs())]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
}

impl ClientError {
    /// What the proxy says, if it is the proxy that says so.
    #[must_use]
    pub fn problem(&self) -> Option<&ProblemDocument> {
        match self {
            Self::Refused { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// The stable code of what the proxy says.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }

    /// Why it does not fit, if that is it.
    #[must_use]
    pub fn reason(&self) -> Option<&Reason> {
        self.problem().and_then(ProblemDocument::reason)
    }

    /// Whether what was asked for may have been done all the same.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Refused { problem, .. } => {
                problem.status >= 500 && problem.code != super::retry::OVERLOADED
            }
            Self::ConnectionLost { .. } | Self::Timeout { .. } | Self::InvalidResponse { .. } => true,
            Self::Unreachable { .. }
            | Self::TlsRejected { .. }
            | Self::Token { .. }
            | Self::Request { .. }
            | Self::PartitionFailed { .. }
            | Self::Late { .. } => false,
        }
    }
}

/// A problem in one line.
fn told(problem: &ProblemDocument) -> String {
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

/// An error with everything that caused it, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let part = error.to_string();
        // Some transports repeat their source.
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = error.source();
    }
    text
}
