//! Liveness and readiness of the proxy, measured by the progress of its workers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::problem::{Problem, RETRY_SOON_SECS};

/// Maximum duration of one worker iteration. A call to a hanging controller times out after ten seconds, and
/// an iteration can make several such calls.
const ITERATION_TIMEOUT: Duration = Duration::from_secs(180);

/// Time that a write waits for the first repair: enough if all controllers are healthy, and short for a
/// client.
const FIRST_REPAIR_TIMEOUT: Duration = Duration::from_secs(2);

/// Progress of the workers.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Deadline of the next heartbeat of each worker.
    due: Mutex<BTreeMap<&'static str, Instant>>,
    repaired: watch::Sender<bool>,
}

impl Health {
    /// Records a heartbeat of the worker `name`, whose next one is due after `pause` and one iteration.
    pub(crate) fn beat(&self, name: &'static str, pause: Duration) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.insert(name, Instant::now() + pause + ITERATION_TIMEOUT);
    }

    /// Records that the first repair has compared ledger and controllers.
    pub(crate) fn mark_repaired(&self) {
        self.repaired.send_replace(true);
    }

    /// Returns an error if a worker is stuck.
    pub(crate) fn check_alive(&self) -> Result<(), Problem> {
        let now = Instant::now();
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let stuck = due.iter().find(|(_, due)| **due < now);
        stuck.map_or(Ok(()), |(name, due)| {
            let late = (now - *due).as_secs();
            Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "Stuck",
                format!("the worker {name} is {late} s late"),
            ))
        })
    }

    /// Returns an error before the first repair.
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

    /// Waits up to `timeout` for the first repair; returns whether it has happened.
    pub(crate) async fn until_repaired(&self, timeout: Duration) -> bool {
        let mut repaired = self.repaired.subscribe();
        let first = repaired.wait_for(|repaired| *repaired);
        tokio::time::timeout(timeout, first).await.is_ok()
    }

    /// Returns an error before the first repair, because writes are unsafe then. If an old copy of the ledger
    /// was restored, a write could reset a partition that is missing from it and that the workers of its
    /// owner use.
    pub(crate) async fn check_writable(&self) -> Result<(), Problem> {
        if self.check_ready().is_err() {
            self.until_repaired(FIRST_REPAIR_TIMEOUT).await;
        }
        self.check_ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_without_a_timely_heartbeat_is_stuck() {
        let health = Health::default();
        health.beat("repair", Duration::from_secs(30));
        health.beat("queue", Duration::from_secs(1));
        tokio::time::advance(ITERATION_TIMEOUT + Duration::from_secs(1)).await;
        assert!(health.check_alive().is_ok());
        health.beat("repair", Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.check_alive().unwrap_err().code(), "Stuck");
    }
}
