//! The exit codes of `ipuctl`. A job's own code is passed on; ours are those of sysexits(3), which programs rarely use.

use std::process::ExitCode;

/// How `ipuctl` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// It did what was asked.
    Done,
    /// The job's own exit code, 128 plus the number of the signal that ended it included.
    Job(u8),
    /// The command line is wrong.
    Usage,
    /// The manifest, or what was read from a file or pipe, is wrong.
    Data,
    /// A file or a partition that was named does not exist.
    NotFound,
    /// The controller cannot be reached, or fails.
    Unavailable,
    /// A bug of this program.
    Bug,
    /// This host refuses something: the state directory, starting a process.
    Host,
    /// It does not fit now, and waiting was not wanted.
    NoRoom,
    /// The controller does not accept the credentials, or the partition is somebody else's.
    Denied,
    /// It can never fit.
    Impossible,
    /// Ended by this signal.
    Signal(u8),
}

impl Code {
    /// The number.
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
            Self::NoRoom => 75,
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

/// An error together with the code that it ends the program with.
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

    /// The error with everything that caused it, in one line.
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
