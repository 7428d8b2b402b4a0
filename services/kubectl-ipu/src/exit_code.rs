//! Exit codes of `kubectl ipu`, those of `ipuctl`, and the error type that determines them.

use std::process::ExitCode;

/// Exit status of `kubectl ipu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Success.
    Done,
    /// Exit code of the job.
    Job(u8),
    /// Invalid command line.
    Usage,
    /// Invalid manifest, or a job that the API server rejects.
    Data,
    /// A file, job, Pod or installation does not exist.
    NotFound,
    /// The API server or the proxy cannot be reached or fails, or doctor has findings.
    Unavailable,
    /// Internal error.
    Bug,
    /// Error of this host, such as a missing kubectl.
    Host,
    /// The request timed out.
    NoCapacity,
    /// The caller has too few rights, also for a check of doctor.
    Denied,
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

    /// Maps an error of the API server; `action` is the attempted operation, such as `read IPUJob a/b`.
    pub(crate) fn api(action: impl AsRef<str>, error: kube::Error) -> Self {
        let code = match &error {
            kube::Error::Api(status) => match status.code {
                401 | 403 => Code::Denied,
                404 => Code::NotFound,
                400..=499 => Code::Data,
                _ => Code::Unavailable,
            },
            _ => Code::Unavailable,
        };
        let message = format!("cannot {}: {}", action.as_ref(), api_text(&error));
        Self::new(code, message)
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

/// Returns the message of an error of the API server, without the name of the Rust type.
pub(crate) fn api_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("the API server answers {} {}", status.code, status.reason),
        error => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(error) = source {
                let cause = error.to_string();
                if !text.contains(&cause) {
                    text.push_str(&format!(": {cause}"));
                }
                source = error.source();
            }
            text
        }
    }
}
