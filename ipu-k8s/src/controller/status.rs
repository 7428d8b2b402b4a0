//! Recording of a reconcile: at most one status write, and then its Events.

use std::time::Duration;

use ipu_core::{JobKey, JobPhase, Plan, Timestamp};
use serde_json::{Map, Value, json};

use super::blocker::Blocker;
use super::event_queue::PendingEvent;
use super::failure_order::FailureEvidence;
use super::messages::events;
use super::observation::{Deleted, ObservedJob};
use super::pod_state::version;
use super::ports::{JobEvent, PortError};
use super::reconcile::Reconciler;
use super::status_report::{report, start_blocker};
use crate::crd::{IpuJobStatus, Time};
use crate::resources::ResourceBuilder;

/// Minimum interval between status writes that change only messages: with a thousand queued jobs, each start
/// changes the messages of all others.
const MESSAGE_WRITE_INTERVAL: Duration = Duration::from_secs(15);
/// Time for which the status of a starting or terminating job is not written: a job that finishes the
/// transition within it needs a single write.
const TRANSIENT_TIME: Duration = Duration::from_secs(2);
/// Maximum length of a message, in characters.
const MAX_MESSAGE_CHARS: usize = 1024;

/// Outcome of a status write.
#[derive(Debug)]
pub(super) enum StatusWrite {
    /// The status was written. Contains the stored object.
    Written(Value),
    /// The stored status is up to date.
    Unchanged,
    /// Only messages changed shortly after the last write, or the job is in a transition: the status must be
    /// written after this duration.
    Deferred(Duration),
}

/// State of a job after a status write: up to date until another change, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpToDate {
    Yes,
    /// A reconcile may be needed.
    No,
}

impl Reconciler {
    /// Records the result of a reconcile.
    pub(super) async fn record(
        &self,
        builder: &ResourceBuilder<'_>,
        object: &Value,
        before: &IpuJobStatus,
        plan: &Plan,
        observed: &ObservedJob,
        blocker: Option<&Blocker>,
    ) -> Result<StatusWrite, PortError> {
        let key = builder.spec.key();
        let started = if before.phase.is_none() || is_ending(before, plan) {
            self.cache.started_at(key, observed.now)
        } else {
            observed.now
        };
        let is_starting_now = is_starting(plan) && observed.deleted == Deleted::No;
        self.cache.set_starting(key, is_starting_now.then_some(started));
        let mut after = report(builder, object, before, plan, observed, started);
        if let Some(blocker) = blocker.filter(|blocker| blocker.is_reported_in(plan.status.phase)) {
            after.last_message = format!("{}; {blocker}", after.last_message);
        }
        let remaining = TRANSIENT_TIME.saturating_sub(observed.now.since(started));
        if !remaining.is_zero() && blocker.is_none() && is_transient(before, plan, observed) {
            return Ok(StatusWrite::Deferred(remaining));
        }
        let up_to_date =
            if after != *before && blocker.is_none() && is_settled(builder, object, &after, plan, observed) {
                UpToDate::Yes
            } else {
                UpToDate::No
            };
        let written = self
            .write_status(key, object, before, after.clone(), observed.now, up_to_date)
            .await?;
        if matches!(written, StatusWrite::Written(_)) {
            let refusal = blocker.and_then(|blocker| blocker.event(before, observed.now));
            let start_blocked = start_blocker(plan.status.phase, observed);
            let events = events(before, &after, plan, start_blocked.as_deref(), observed.now);
            for event in events.into_iter().chain(refusal) {
                self.enqueue_event(object, event).await;
            }
        }
        Ok(written)
    }

    /// Queues an Event about a job.
    pub(super) async fn enqueue_event(&self, object: &Value, event: JobEvent) {
        let text = |name: &str| object["metadata"][name].clone();
        let string = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let job = format!("{}/{}", string("namespace"), string("name"));
        tracing::info!(job, reason = event.reason, "{}", event.note);
        let about = json!({"metadata": {
            "namespace": text("namespace"), "name": text("name"), "uid": text("uid"),
        }});
        if let Some(pending) = self.event_queue.put(PendingEvent { job: about, event }) {
            self.publish(&pending).await;
        }
    }

    /// Publishes an Event. A failure is only logged: the status contains the same information.
    pub(super) async fn publish(&self, pending: &PendingEvent) {
        if let Err(error) = self.api.publish(&pending.job, &pending.event).await {
            tracing::debug!(%error, "an event could not be written");
        }
    }

    /// Writes a status, unless it is unchanged, or only messages changed shortly after the last write.
    pub(super) async fn write_status(
        &self,
        key: &JobKey,
        object: &Value,
        before: &IpuJobStatus,
        mut after: IpuJobStatus,
        now: Timestamp,
        up_to_date: UpToDate,
    ) -> Result<StatusWrite, PortError> {
        if after.last_message.chars().count() > MAX_MESSAGE_CHARS {
            after.last_message = after
                .last_message
                .chars()
                .take(MAX_MESSAGE_CHARS - 1)
                .chain(['…'])
                .collect();
        }
        after.last_reconcile_time = before.last_reconcile_time;
        if after == *before {
            return Ok(StatusWrite::Unchanged);
        }
        // A time in the future comes from a clock that was set back since.
        let last = before.last_reconcile_time.filter(|last| last.0 <= now);
        let elapsed = last.map(|last| now.since(last.0));
        if let Some(elapsed) = elapsed.filter(|elapsed| *elapsed < MESSAGE_WRITE_INTERVAL)
            && without_messages(&after) == without_messages(before)
        {
            return Ok(StatusWrite::Deferred(MESSAGE_WRITE_INTERVAL - elapsed));
        }
        after.last_reconcile_time = Some(Time(now));
        let old = serde_json::to_value(before).unwrap_or_default();
        let new = serde_json::to_value(&after).unwrap_or_default();
        // The stored status may have fields that this version does not know: they are kept.
        let status = merge_status(&object["status"], &old, &new);
        let written = self.api.write_status(object, &status).await?;
        self.cache.record_write(key, version(&written));
        if up_to_date == UpToDate::Yes {
            self.cache.mark_up_to_date(key, version(&written));
        }
        Ok(StatusWrite::Written(written))
    }
}

/// Returns whether a status needs no further reconcile: planning with it yields no effect and the same
/// report. Applies only to running jobs: outcomes are judged by further evidence.
fn is_settled(
    builder: &ResourceBuilder<'_>,
    object: &Value,
    after: &IpuJobStatus,
    plan: &Plan,
    observed: &ObservedJob,
) -> bool {
    if plan.status.phase != JobPhase::Running || observed.failure_evidence != FailureEvidence::default() {
        return false;
    }
    let next_plan = ipu_core::plan(
        builder.spec,
        &observed.observation(builder.spec, after.to_job_status()),
    );
    next_plan.effects.is_empty()
        && next_plan.requeue_after == plan.requeue_after
        && report(builder, object, after, &next_plan, observed, observed.now) == *after
}

/// Returns whether a job is in a short transition: a new job that starts without waiting, or a job whose
/// deletion has begun.
fn is_transient(before: &IpuJobStatus, plan: &Plan, observed: &ObservedJob) -> bool {
    let verdict = plan.requeue_after == Some(Duration::ZERO);
    let start_blocked = observed.pods.iter().any(|pod| pod.start_blocker.is_some());
    let is_starting_now = match observed.deleted {
        Deleted::No => before.phase.is_none() && is_starting(plan),
        Deleted::Yes => is_ending(before, plan),
    };
    is_starting_now && !(verdict || start_blocked)
}

/// Returns whether the deletion of a job has begun and is not recorded yet.
fn is_ending(before: &IpuJobStatus, plan: &Plan) -> bool {
    plan.status.phase == JobPhase::Terminating && before.phase != Some(JobPhase::Terminating)
}

/// Returns whether a job starts without waiting for a partition.
fn is_starting(plan: &Plan) -> bool {
    // An instance that is not requested yet waits for others of its job, and those report their reasons.
    let steps = [
        "PreparingPartition",
        "NotRequested",
        "StartingWorkers",
        "StartingLauncher",
    ];
    plan.status.phase == JobPhase::Pending && plan.reasons.iter().all(|reason| steps.contains(&&*reason.code))
}

/// Returns the status without the messages about waiting.
fn without_messages(status: &IpuJobStatus) -> IpuJobStatus {
    let mut status = status.clone();
    status.last_message.clear();
    for instance in &mut status.instances {
        instance.reason = None;
    }
    status
}

/// Returns the stored status, with the differences between `old`, which was read from it, and `new`.
fn merge_status(stored: &Value, old: &Value, new: &Value) -> Value {
    let (Value::Object(stored), Value::Object(old), Value::Object(new)) = (stored, old, new) else {
        return new.clone();
    };
    let mut merged = stored.clone();
    for (name, value) in new.iter().filter(|(name, value)| old.get(*name) != Some(value)) {
        let field = |of: &Map<String, Value>| of.get(name).cloned().unwrap_or_default();
        merged.insert(
            name.clone(),
            self::merge_status(&field(stored), &field(old), value),
        );
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        merged.remove(name);
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_a_stored_status_are_kept() {
        let old = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1, 2]});
        let new = json!({"a": 1, "b": {"c": 4}, "e": [1], "f": true});
        let stored = json!({"a": 1, "b": {"c": 2, "d": 3, "theirs": 5}, "e": [1, 2], "newer": {"x": 6}});
        assert_eq!(
            merge_status(&stored, &old, &new),
            json!({"a": 1, "b": {"c": 4, "theirs": 5}, "e": [1], "f": true, "newer": {"x": 6}})
        );
        assert_eq!(merge_status(&Value::Null, &old, &new), new);
    }
}
