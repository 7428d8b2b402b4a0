//! Whether the API server permits the list and watch of IPUJobs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::watcher::{self, Event};
use tokio::time::Instant;

/// Time after a refusal in which the stored jobs count as stale. The watcher tries again within a minute.
const STALE_FOR: Duration = Duration::from_secs(120);
/// Delay of the next reconcile of a job that may be stale.
const REQUEUE: Duration = Duration::from_secs(60);

/// The last refusal of the list or watch of IPUJobs.
///
/// A stored job may be deleted meanwhile. A partition that it requests would belong to no job.
#[derive(Default)]
pub(super) struct JobAccess {
    refused: Mutex<Option<Instant>>,
}

impl JobAccess {
    /// Records a refusal, or the end of one by a complete list.
    pub(super) fn record<K>(&self, event: &watcher::Result<Event<K>>) {
        let refused = match event {
            Ok(Event::InitDone) => None,
            Err(error) if is_forbidden(error) => Some(Instant::now()),
            _ => return,
        };
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
    }

    /// Returns the delay until the next attempt to reconcile while stored jobs are stale.
    pub(super) fn requeue(&self) -> Option<Duration> {
        let refused = *self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused
            .is_some_and(|refused| refused.elapsed() < STALE_FOR)
            .then_some(REQUEUE)
    }
}

/// Returns whether the API server forbids the list or watch.
pub(super) fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            matches!(error, kube::Error::Api(status) if status.code == 403)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;

    use super::*;

    fn refusal(code: u16) -> watcher::Result<Event<DynamicObject>> {
        let status = kube::core::Status::failure("no", "x").with_code(code).boxed();
        Err(watcher::Error::WatchStartFailed(kube::Error::Api(status)))
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_are_stale_from_a_refusal_until_a_complete_list_or_two_minutes_without_one() {
        let access = JobAccess::default();
        access.record(&refusal(500));
        assert_eq!(access.requeue(), None);
        access.record(&refusal(403));
        assert_eq!(access.requeue(), Some(REQUEUE));
        access.record::<DynamicObject>(&Ok(Event::Init));
        assert_eq!(access.requeue(), Some(REQUEUE));
        access.record::<DynamicObject>(&Ok(Event::InitDone));
        assert_eq!(access.requeue(), None);
        // An idle watch has no event.
        access.record(&refusal(403));
        tokio::time::advance(STALE_FOR).await;
        assert_eq!(access.requeue(), None);
    }
}
