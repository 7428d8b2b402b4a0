//! Whether the API server permits the list and watch of IPUJobs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use tokio::time::Instant;

/// Time after a refusal in which the stored jobs count as stale, without an event. The watcher tries again
/// within a minute.
const STALE_FOR: Duration = Duration::from_secs(120);
/// Delay of the next reconcile of a job that may be stale.
const REQUEUE: Duration = Duration::from_secs(60);

/// The last refusal of the list or watch of IPUJobs, or a failure since then.
///
/// A stored job may be deleted meanwhile. A partition that it requests would belong to no job.
#[derive(Default)]
pub(super) struct JobAccess {
    refused: Mutex<Option<Instant>>,
}

impl JobAccess {
    /// Records a refusal, or the end of one: a complete list, or an event of a watch, which resumes at the
    /// version of its last one.
    pub(super) fn record<K>(&self, event: &watcher::Result<Event<K>>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => *refused = None,
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(error) if refused.is_some() || is_forbidden(error) => *refused = Some(Instant::now()),
            Err(_) => {}
        }
    }

    /// Returns the delay until the next attempt to reconcile this job while stored jobs are stale. A job that
    /// is being deleted only releases its partitions.
    pub(super) fn postpone(&self, job: &DynamicObject) -> Option<Duration> {
        if job.metadata.deletion_timestamp.is_some() {
            return None;
        }
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
    use serde_json::json;

    use super::*;

    fn refusal(code: u16) -> watcher::Result<Event<DynamicObject>> {
        let status = kube::core::Status::failure("no", "x").with_code(code).boxed();
        Err(watcher::Error::WatchStartFailed(kube::Error::Api(status)))
    }

    fn job(metadata: serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": metadata})).expect("an object")
    }

    fn is_stale(access: &JobAccess) -> bool {
        access.postpone(&job(json!({"name": "a"}))).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_are_stale_from_a_refusal_until_an_event_or_two_minutes_without_a_failure() {
        let access = JobAccess::default();
        access.record(&refusal(500));
        assert!(!is_stale(&access));
        access.record(&refusal(403));
        assert!(is_stale(&access));
        access.record::<DynamicObject>(&Ok(Event::Init));
        assert!(is_stale(&access));
        access.record::<DynamicObject>(&Ok(Event::InitDone));
        assert!(!is_stale(&access));
        // A watch that resumes has no list.
        access.record(&refusal(403));
        access.record(&Ok(Event::Apply(job(json!({"name": "b"})))));
        assert!(!is_stale(&access));
        // Another failure does not mean that the watch is permitted.
        access.record(&refusal(403));
        tokio::time::advance(STALE_FOR / 2).await;
        access.record(&refusal(500));
        tokio::time::advance(STALE_FOR / 2).await;
        assert!(is_stale(&access));
        // An idle watch has no event.
        tokio::time::advance(STALE_FOR / 2).await;
        assert!(!is_stale(&access));
    }

    #[tokio::test]
    async fn a_stale_job_that_is_being_deleted_still_releases_its_partitions() {
        let access = JobAccess::default();
        access.record(&refusal(403));
        let deleted = job(json!({"name": "a", "deletionTimestamp": "2026-11-26T12:00:00Z"}));
        assert_eq!(access.postpone(&deleted), None);
    }
}
