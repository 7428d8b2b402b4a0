//! Why a reconciliation fails, and when it is tried again.

use std::time::Duration;

use ipu_core::ErrorChain;
use ipu_core::job::JobPhase;
use ipu_proxy_client::ClientError;

/// Delay after a change that the stores do not show yet.
const CHANGED_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Delay after a server that did not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a refusal, which lasts until its cause is removed.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Error of a reconciliation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The job or an object of it changed since it was observed.
    #[error("changed meanwhile: {0}")]
    Changed(String),
    /// A server refuses a request until something else changes.
    #[error("{code}: {message}")]
    Refused {
        /// Stable code.
        code: String,
        /// Reason of the refusal.
        message: String,
    },
    /// A server did not answer, or its answer is inconclusive.
    #[error("Unavailable: {0}")]
    Unavailable(String),
}

impl ReconcileError {
    /// Creates a refusal.
    pub(super) fn refused(code: &str, message: impl Into<String>) -> Self {
        Self::Refused {
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// Returns the delay before the next reconciliation.
    pub(super) const fn retry_after(&self) -> Duration {
        match self {
            Self::Changed(_) => CHANGED_RETRY_INTERVAL,
            Self::Refused { .. } => REFUSED_RETRY_INTERVAL,
            Self::Unavailable(_) => RETRY_INTERVAL,
        }
    }

    /// Returns whether the status of a job in this phase reports the error. A short outage affects only jobs
    /// that wait, and the message of a finished job is final.
    pub(super) fn is_reported_in(&self, phase: JobPhase) -> bool {
        let waits = matches!(
            phase,
            JobPhase::Pending | JobPhase::Restarting | JobPhase::Terminating
        );
        match self {
            Self::Changed(_) => false,
            Self::Refused { .. } => !phase.is_finished(),
            Self::Unavailable(_) => waits,
        }
    }
}

impl From<kube::Error> for ReconcileError {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else {
            return Self::Unavailable(ErrorChain(&error).to_string());
        };
        let message = format!("the API server returned {}: {}", status.code, status.message);
        match status.code {
            404 | 409 => Self::Changed(message),
            408 | 429 => Self::Unavailable(message),
            400..=499 if status.reason.is_empty() => Self::refused("Refused", message),
            400..=499 => Self::refused(&status.reason, message),
            _ => Self::Unavailable(message),
        }
    }
}

impl From<ClientError> for ReconcileError {
    fn from(error: ClientError) -> Self {
        match error.problem() {
            Some(problem) if problem.status < 500 && problem.status != 429 => {
                Self::refused(&problem.code, problem.detail.clone())
            }
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// Converts the response to a request, of which these HTTP statuses are not errors.
pub(super) fn ignore_statuses<T>(
    response: Result<T, kube::Error>,
    ignored: &[u16],
) -> Result<(), ReconcileError> {
    match response {
        Err(error) if !ignored.iter().any(|code| is_status(&error, *code)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns whether the API server answered with this HTTP status.
pub(super) fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
