//! Termination signals of this process.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signal that asks a process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminationSignal {
    Hangup,
    Interrupt,
    Terminate,
}

impl TerminationSignal {
    /// Returns the name for `kill -s`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hangup => "HUP",
            Self::Interrupt => "INT",
            Self::Terminate => "TERM",
        }
    }

    /// Returns the exit code of a process that the signal ended: 128 plus its number.
    pub(crate) const fn exit_code(self) -> u8 {
        128 + match self {
            Self::Hangup => 1,
            Self::Interrupt => 2,
            Self::Terminate => 15,
        }
    }
}

/// Receiver of termination signals. PID 1 of a container ignores them without a handler.
pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    pub(crate) async fn next(&mut self) -> TerminationSignal {
        tokio::select! {
            _ = self.hangup.recv() => TerminationSignal::Hangup,
            _ = self.interrupt.recv() => TerminationSignal::Interrupt,
            _ = self.terminate.recv() => TerminationSignal::Terminate,
        }
    }
}
