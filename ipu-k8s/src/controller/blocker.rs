//! Why something could not be done for a job, and when it is tried again.

use std::fmt;
use std::time::Duration;

use ipu_core::{JobPhase, Timestamp};
use serde_json::Value;

use super::ports::{JobEvent, PortError, Severity};
use crate::crd::IpuJobStatus;

/// How soon a job is looked at again that could not be worked on because somebody did not answer.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// How soon a job is looked at again that was refused something: until somebody changes something, it stays refused.
const REFUSED_RETRY: Duration = Duration::from_secs(10);

/// What stands in the way of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocker {
    code: String,
    message: String,
    /// Somebody said no: somebody has to do something about it.
    refused: bool,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl Blocker {
    /// What `error` means for the job that `object` is, which is logged.
    ///
    /// # Errors
    ///
    /// `error` itself if the job has changed meanwhile: that is no trouble, and it is looked at again.
    pub(super) fn of(object: &Value, error: PortError) -> Result<Self, PortError> {
        let trouble = match error {
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
        tracing::warn!(job = %format!("{namespace}/{name}"), why = %trouble, "a job could not be worked on");
        Ok(trouble)
    }

    /// When it is tried again.
    pub(super) const fn retry(&self) -> Duration {
        if self.refused { REFUSED_RETRY } else { RETRY }
    }

    /// Whether a job of this phase is to say so: that somebody cannot be reached for a moment hinders only who waits, and what is said of
    /// a job that has finished stays.
    pub(super) fn is_worth_a_word(&self, phase: JobPhase) -> bool {
        let waits = matches!(
            phase,
            JobPhase::Pending | JobPhase::Restarting | JobPhase::Terminating
        );
        waits || (self.refused && !phase.is_finished())
    }

    /// What the users of the job are told of a refusal, if they were not yet.
    pub(super) fn event(&self, before: &IpuJobStatus, at: Timestamp) -> Option<JobEvent> {
        let told = before.last_message.contains(&self.to_string());
        (self.refused && !told).then(|| JobEvent {
            severity: Severity::Warning,
            reason: self.code.clone(),
            note: self.message.clone(),
            at,
        })
    }
}
