//! Exit codes of `ipuctl`: that of the job, or one of sysexits(3), which programs rarely use.

use std::process::ExitCode;

/// Exit status of `ipuctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Success.
    Done,
    /// Exit code of the job, or 128 plus the number of the signal that ended it.
    Job(u8),
    /// Invalid command line.
    Usage,
    /// Invalid manifest or other input.
    Data,
    /// A file, program or partition does not exist.
    NotFound,
    /// The controller or proxy cannot be reached or fails.
    Unavailable,
    /// Internal error.
    Bug,
    /// Error of this host, such as an inaccessible state directory.
    Host,
    /// The partitions do not fit now.
    NoCapacity,
    /// The credentials are rejected, or the partition has another owner.
    Denied,
    /// The partitions can never fit.
    Impossible,
    /// Terminated by this signal.
    Signal(u8),
}

impl Code {
    /// Returns the number of the exit status.
    pub(crate) const fn number(self) -> u8 {
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
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) code: Code,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn because(
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
    pub(crate) fn reported(code: Code) -> Self {
        Self::new(code, "")
    }

    /// Returns whether the user has still to learn of the failure.
    pub(crate) const fn is_unreported(&self) -> bool {
        !self.message.is_empty()
    }

    /// Returns the error and its sources in one line.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(&format!(": {error}"));
            source = error.source();
        }
        text
    }
}
