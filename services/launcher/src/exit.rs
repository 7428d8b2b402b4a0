//! Exit codes of this program.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

/// Failure that ends this program with a non-zero exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no Kubernetes cluster configuration: {0}")]
    Configuration(String),
    #[error("cannot read the hostfile {path}: {detail}")]
    Hostfile { path: String, detail: String },
    #[error("cannot install into {folder}: {detail}")]
    Install { folder: String, detail: String },
    #[error("{0}")]
    NeverReady(String),
    #[error("the deadline has passed: {0}")]
    DeadlineExceeded(String),
    #[error("the command was not started in {pod}: {detail}")]
    NotStarted { pod: String, detail: String },
    #[error("the connection to {pod} broke; the command may still be running: {detail}")]
    ConnectionLost { pod: String, detail: String },
}

impl Failure {
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Configuration(_) | Self::Hostfile { .. } | Self::Install { .. } => 1,
            Self::NeverReady(_) => 3,
            Self::DeadlineExceeded(_) => 4,
            Self::NotStarted { .. } => 254,
            Self::ConnectionLost { .. } => 255,
        }
    }
}

/// Result of a remote command, as reported by the API server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExecEnd {
    /// Exit code of the command.
    Code(u8),
    /// The command was not started; carries the reason.
    NotStarted(String),
}

/// Converts the final status that the API server sends for a command.
pub(crate) fn exec_end(status: &Status) -> ExecEnd {
    if status.status.as_deref() == Some("Success") {
        return ExecEnd::Code(0);
    }
    let causes = status
        .details
        .as_ref()
        .and_then(|details| details.causes.as_ref());
    let code = causes
        .into_iter()
        .flatten()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message.as_deref()?.parse::<i32>().ok());
    match code {
        // An exit code has one byte; a code that does not fit still reports a failure.
        Some(code) => ExecEnd::Code(
            u8::try_from(code & 0xff)
                .ok()
                .filter(|code| *code != 0)
                .unwrap_or(1),
        ),
        None => ExecEnd::NotStarted(
            status
                .message
                .clone()
                .unwrap_or_else(|| "the API server gave no reason".into()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

    use super::*;

    fn failure(cause: &str, message: &str) -> Status {
        Status {
            status: Some("Failure".into()),
            message: Some("it did not work".into()),
            details: Some(StatusDetails {
                causes: Some(vec![StatusCause {
                    reason: Some(cause.into()),
                    message: Some(message.into()),
                    ..StatusCause::default()
                }]),
                ..StatusDetails::default()
            }),
            ..Status::default()
        }
    }

    #[test]
    fn a_remote_exit_code_is_passed_on() {
        let success = Status {
            status: Some("Success".into()),
            ..Status::default()
        };
        assert_eq!(exec_end(&success), ExecEnd::Code(0));
        assert_eq!(exec_end(&failure("ExitCode", "3")), ExecEnd::Code(3));
        assert_eq!(exec_end(&failure("ExitCode", "137")), ExecEnd::Code(137));
        assert_eq!(exec_end(&failure("ExitCode", "256")), ExecEnd::Code(1));
    }

    #[test]
    fn a_failure_without_an_exit_code_was_no_start() {
        for status in [failure("Other", "3"), failure("ExitCode", "many")] {
            assert_eq!(exec_end(&status), ExecEnd::NotStarted("it did not work".into()));
        }
    }
}
