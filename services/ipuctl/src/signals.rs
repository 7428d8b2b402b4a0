//! Signals that end a run.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listener for SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    first: Option<u8>,
    count: u32,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            first: None,
            count: 0,
        })
    }

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) {
        let number = tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hang_up.recv() => 1,
        };
        self.first.get_or_insert(number);
        self.count += 1;
    }

    /// Returns the number of signals so far.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the number of the first signal.
    pub(crate) const fn first(&self) -> Option<u8> {
        self.first
    }
}
