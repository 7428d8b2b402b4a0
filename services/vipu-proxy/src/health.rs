//! Whether the proxy works: by the progress of what runs in it, not by whether it answers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::problem::{Problem, RETRY_SOON_SECS};

/// How long one round of a worker may take: a controller that hangs is given up after ten seconds, and a round may meet
/// several, several times each.
const ROUND: Duration = Duration::from_secs(180);

/// How long a request that changes something waits for the first repair: as long as that takes where all controllers are
/// well, and no longer than a client likes to be kept.
const FIRST_REPAIR: Duration = Duration::from_secs(2);

/// The progress of the workers.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Until when each worker has to say that it goes on.
    due: Mutex<BTreeMap<&'static str, Instant>>,
    repaired: watch::Sender<bool>,
}

impl Health {
    /// The worker `name` goes on, and says so again after at most `pause` and a round.
    pub(crate) fn beat(&self, name: &'static str, pause: Duration) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.insert(name, Instant::now() + pause + ROUND);
    }

    /// Ledger and controllers were compared once.
    pub(crate) fn repaired(&self) {
        self.repaired.send_replace(true);
    }

    /// Refuses to call the process alive if a worker is stuck.
    pub(crate) fn check_alive(&self) -> Result<(), Problem> {
        let now = Instant::now();
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let stuck = due.iter().find(|(_, due)| **due < now);
        stuck.map_or(Ok(()), |(name, due)| {
            let late = (now - *due).as_secs();
            Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "Stuck",
                format!("the worker {name} should have gone on {late} s ago"),
            ))
        })
    }

    /// Refuses to call the process ready before the first repair.
    pub(crate) fn check_ready(&self) -> Result<(), Problem> {
        if *self.repaired.borrow() {
            return Ok(());
        }
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Starting",
            "ledger and controllers have not been compared yet",
        )
        .with_retry_after(RETRY_SOON_SECS))
    }

    /// Waits for the first repair, at most for `patience`. Says whether there was one.
    pub(crate) async fn until_repaired(&self, patience: Duration) -> bool {
        let mut repaired = self.repaired.subscribe();
        let first = repaired.wait_for(|repaired| *repaired);
        tokio::time::timeout(patience, first).await.is_ok()
    }

    /// Refuses to change anything before the first repair: an old copy of the ledger may have been restored, and what it
    /// does not know of would be reset for an owner whose workers use it.
    pub(crate) async fn check_may_change(&self) -> Result<(), Problem> {
        if self.check_ready().is_err() {
            self.until_repaired(FIRST_REPAIR).await;
        }
        self.check_ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_does_not_go_on_is_stuck() {
        let health = Health::default();
        health.beat("repair", Duration::from_secs(30));
        health.beat("line", Duration::from_secs(1));
        tokio::time::advance(ROUND + Duration::from_secs(1)).await;
        assert!(health.check_alive().is_ok());
        health.beat("repair", Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.check_alive().unwrap_err().code(), "Stuck");
    }
}
