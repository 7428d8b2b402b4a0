//! How this program ends.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

/// Why it ends without having done what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no configuration of a Kubernetes cluster: {0}")]
    Configuration(String),
    #[error("cannot read the hostfile {path}: {detail}")]
    Hostfile { path: String, detail: String },
    #[error("cannot install into {folder}: {detail}")]
    Install { folder: String, detail: String },
    #[error("{0}")]
    Never(String),
    #[error("the deadline has passed: {0}")]
    Deadline(String),
    #[error("the command was not started in {pod}: {detail}")]
    NotStarted { pod: String, detail: String },
    #[error("the connection to {pod} broke, and nobody knows whether the command has ended: {detail}")]
    Broken { pod: String, detail: String },
}

impl Failure {
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Configuration(_) | Self::Hostfile { .. } | Self::Install { .. } => 1,
            Self::Never(_) => 3,
            Self::Deadline(_) => 4,
            Self::NotStarted { .. } => 254,
            Self::Broken { .. } => 255,
        }
    }
}

/// What the API server says of the end of a remote command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExecEnd {
    /// With this code.
    Code(u8),
    /// It was not started, for this reason.
    NotStarted(String),
}

/// Reads the last word of the API server about a command.
pub(crate) fn ended(status: &Status) -> ExecEnd {
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
        // A code is one byte to whoever asks; one that does not fit is a failure still.
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
                .unwrap_or_else(|| "no reason was told".into()),
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
        assert_eq!(ended(&success), ExecEnd::Code(0));
        assert_eq!(ended(&failure("ExitCode", "3")), ExecEnd::Code(3));
        assert_eq!(ended(&failure("ExitCode", "137")), ExecEnd::Code(137));
        assert_eq!(ended(&failure("ExitCode", "256")), ExecEnd::Code(1));
    }

    #[test]
    fn a_failure_without_an_exit_code_was_no_start() {
        for status in [failure("Other", "3"), failure("ExitCode", "many")] {
            assert_eq!(ended(&status), ExecEnd::NotStarted("it did not work".into()));
        }
    }
}
