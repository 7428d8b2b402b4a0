//! Blocking conditions: why a job could not be reconciled, and when it is retried.

use std::fmt;
use std::time::Duration;

use ipu_core::{JobPhase, Timestamp};
use serde_json::Value;

use super::ports::{JobEvent, PortError, Severity};
use crate::crd::IpuJobStatus;

/// Requeue interval after an API server or proxy that did not answer.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Requeue interval after a refusal, which lasts until its cause is removed.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// A condition that blocks the reconciliation of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocker {
    code: String,
    message: String,
    /// True if a server refused the request: its cause must be removed.
    refused: bool,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl Blocker {
    /// Converts `error` for the job `object`, and logs it.
    ///
    /// # Errors
    ///
    /// Returns `error` itself if the job changed meanwhile: that does not block it, and it is reconciled
    /// again.
    pub(super) fn from_error(object: &Value, error: PortError) -> Result<Self, PortError> {
        let blocker = match error {
            PortError::Conflict(_) | PortError::NotFound(_) => return Err(error),
            PortError::Refused { code, message } => Self {
                code,
                message,
                refused: true,
            },
            PortError::NotDone(message) | PortError::Unavailable(message) => Self {
                code: "Unavailable".to_owned(),
                message,
                refused: false,
            },
        };
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        tracing::warn!(job = %format!("{namespace}/{name}"), reason = %blocker, "the job is blocked");
        Ok(blocker)
    }

    /// Returns the interval until the next reconcile.
    pub(super) const fn retry_after(&self) -> Duration {
        if self.refused {
            REFUSED_RETRY_INTERVAL
        } else {
            RETRY_INTERVAL
        }
    }

    /// Returns whether the status of a job in this phase reports the condition. A brief outage affects only
    /// jobs that wait, and the message of a finished job is final.
    pub(super) fn is_reported_in(&self, phase: JobPhase) -> bool {
        let is_waiting = matches!(
            phase,
            JobPhase::Pending | JobPhase::Restarting | JobPhase::Terminating
        );
        is_waiting || (self.refused && !phase.is_finished())
    }

    /// Returns the Event for a refusal, unless the status in `before` already reports it.
    pub(super) fn event(&self, before: &IpuJobStatus, at: Timestamp) -> Option<JobEvent> {
        let is_reported = before.last_message.contains(&self.to_string());
        (self.refused && !is_reported).then(|| JobEvent {
            severity: Severity::Warning,
            reason: self.code.clone(),
            note: self.message.clone(),
            at,
        })
    }
}
