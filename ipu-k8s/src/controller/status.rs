//! What is recorded of a pass: one write of the status, if anything has changed, and then an event.

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

/// How often a status is written of which only the words have changed: with a thousand jobs in the line, each that goes
/// changes the words of all others.
const WORDS: Duration = Duration::from_secs(15);
/// How long a job may be on its way from its first look to running, or from its deletion to being gone, before that is told: one
/// that has got there has told it all.
const TRANSIENT_TIME: Duration = Duration::from_secs(2);
/// The most characters of a message.
const MESSAGE: usize = 1024;

/// What became of a status that was to be written.
#[derive(Debug)]
pub(super) enum StatusWrite {
    /// It was written: the object as it is now.
    Written(Value),
    /// It says so already.
    Unchanged,
    /// Only words are new, and the last ones were written a moment ago, or there will be more to say in a moment: it is to be
    /// written after this time.
    Deferred(Duration),
}

/// What a status that is written leaves to be done, before anything else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpToDate {
    Nothing,
    /// Or it is not known.
    Something,
}

impl Reconciler {
    /// Records what a pass came to.
    pub(super) async fn record(
        &self,
        blueprint: &ResourceBuilder<'_>,
        object: &Value,
        before: &IpuJobStatus,
        plan: &Plan,
        seen: &ObservedJob,
        trouble: Option<&Blocker>,
    ) -> Result<StatusWrite, PortError> {
        let key = blueprint.spec.key();
        let begun = if before.phase.is_none() || is_ending(before, plan) {
            self.cache.begun(key, seen.now)
        } else {
            seen.now
        };
        let goes = is_on_its_way(plan) && seen.deleted == Deleted::No;
        self.cache.set_starting(key, goes.then_some(begun));
        let mut after = report(blueprint, object, before, plan, seen, begun);
        if let Some(trouble) = trouble.filter(|trouble| trouble.is_worth_a_word(plan.status.phase)) {
            after.last_message = format!("{}; {trouble}", after.last_message);
        }
        let rest = TRANSIENT_TIME.saturating_sub(seen.now.since(begun));
        if !rest.is_zero() && trouble.is_none() && is_transient(before, plan, seen) {
            return Ok(StatusWrite::Deferred(rest));
        }
        let leaves =
            if after != *before && trouble.is_none() && is_settled(blueprint, object, &after, plan, seen) {
                UpToDate::Nothing
            } else {
                UpToDate::Something
            };
        let written = self
            .write_status(key, object, before, after.clone(), seen.now, leaves)
            .await?;
        if matches!(written, StatusWrite::Written(_)) {
            let in_the_way = trouble.and_then(|trouble| trouble.event(before, seen.now));
            let held_up = start_blocker(plan.status.phase, seen);
            let events = events(before, &after, plan, held_up.as_deref(), seen.now);
            for event in events.into_iter().chain(in_the_way) {
                self.put(object, event).await;
            }
        }
        Ok(written)
    }

    /// Has the users of a job told, when there is time.
    pub(super) async fn put(&self, object: &Value, event: JobEvent) {
        let text = |name: &str| object["metadata"][name].clone();
        let words = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let job = format!("{}/{}", words("namespace"), words("name"));
        tracing::info!(job, reason = event.reason, "{}", event.note);
        let about = json!({"metadata": {
            "namespace": text("namespace"), "name": text("name"), "uid": text("uid"),
        }});
        if let Some(telling) = self.news.put(PendingEvent { job: about, event }) {
            self.publish(&telling).await;
        }
    }

    /// Tells users of a job. Whoever is not told finds it in the status.
    pub(super) async fn publish(&self, telling: &PendingEvent) {
        if let Err(error) = self.api.publish(&telling.job, &telling.event).await {
            tracing::debug!(%error, "an event could not be written");
        }
    }

    /// Writes a status, unless nothing has changed, or nothing but words that were written a moment ago.
    pub(super) async fn write_status(
        &self,
        key: &JobKey,
        object: &Value,
        before: &IpuJobStatus,
        mut after: IpuJobStatus,
        now: Timestamp,
        leaves: UpToDate,
    ) -> Result<StatusWrite, PortError> {
        if after.last_message.chars().count() > MESSAGE {
            after.last_message = after
                .last_message
                .chars()
                .take(MESSAGE - 1)
                .chain(['…'])
                .collect();
        }
        after.last_reconcile_time = before.last_reconcile_time;
        if after == *before {
            return Ok(StatusWrite::Unchanged);
        }
        // A time to come is of a clock that was put back since.
        let last = before.last_reconcile_time.filter(|last| last.0 <= now);
        let passed = last.map(|last| now.since(last.0));
        if let Some(passed) = passed.filter(|passed| *passed < WORDS)
            && without_words(&after) == without_words(before)
        {
            return Ok(StatusWrite::Deferred(WORDS - passed));
        }
        after.last_reconcile_time = Some(Time(now));
        let old = serde_json::to_value(before).unwrap_or_default();
        let new = serde_json::to_value(&after).unwrap_or_default();
        // What is stored may have fields that this version does not know: they stay.
        let status = merge_status(&object["status"], &old, &new);
        let written = self.api.write_status(object, &status).await?;
        self.cache.record_write(key, version(&written));
        if leaves == UpToDate::Nothing {
            self.cache.mark_up_to_date(key, version(&written));
        }
        Ok(StatusWrite::Written(written))
    }
}

/// Whether a status leaves nothing to be done: what was seen, looked at with it, asks for nothing and would be told as it is.
/// Only of jobs that run: what ended is judged by more than what was seen.
fn is_settled(
    blueprint: &ResourceBuilder<'_>,
    object: &Value,
    after: &IpuJobStatus,
    plan: &Plan,
    seen: &ObservedJob,
) -> bool {
    if plan.status.phase != JobPhase::Running || seen.ends != FailureEvidence::default() {
        return false;
    }
    let again = ipu_core::plan(
        blueprint.spec,
        &seen.observation(blueprint.spec, after.remembered()),
    );
    again.effects.is_empty()
        && again.requeue_after == plan.requeue_after
        && report(blueprint, object, after, &again, seen, seen.now) == *after
}

/// Whether a job is on its way without waiting for anybody: one that nothing was recorded of runs in a moment, or is told of, and one
/// that was deleted is gone.
fn is_transient(before: &IpuJobStatus, plan: &Plan, seen: &ObservedJob) -> bool {
    let verdict = plan.requeue_after == Some(Duration::ZERO);
    let held_up = seen.pods.iter().any(|pod| pod.start_blocker.is_some());
    let goes = match seen.deleted {
        Deleted::No => before.phase.is_none() && is_on_its_way(plan),
        Deleted::Yes => is_ending(before, plan),
    };
    goes && !(verdict || held_up)
}

/// Whether a job is to go, which was not told yet.
fn is_ending(before: &IpuJobStatus, plan: &Plan) -> bool {
    plan.status.phase == JobPhase::Terminating && before.phase != Some(JobPhase::Terminating)
}

/// Whether a job gets on without waiting for anybody else.
fn is_on_its_way(plan: &Plan) -> bool {
    // An instance that is not requested yet waits for others of its job, and those report their reasons.
    let steps = [
        "PreparingPartition",
        "NotRequested",
        "StartingWorkers",
        "StartingLauncher",
    ];
    plan.status.phase == JobPhase::Pending && plan.reasons.iter().all(|reason| steps.contains(&&*reason.code))
}

/// The status but for what is said of waiting.
fn without_words(status: &IpuJobStatus) -> IpuJobStatus {
    let mut status = status.clone();
    status.last_message.clear();
    for instance in &mut status.instances {
        instance.reason = None;
    }
    status
}

/// What is stored, with what differs between `old`, which was read from it, and `new`.
fn merge_status(stored: &Value, old: &Value, new: &Value) -> Value {
    let (Value::Object(stored), Value::Object(old), Value::Object(new)) = (stored, old, new) else {
        return new.clone();
    };
    let mut renewed = stored.clone();
    for (name, value) in new.iter().filter(|(name, value)| old.get(*name) != Some(value)) {
        let field = |of: &Map<String, Value>| of.get(name).cloned().unwrap_or_default();
        renewed.insert(
            name.clone(),
            self::merge_status(&field(stored), &field(old), value),
        );
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        renewed.remove(name);
    }
    Value::Object(renewed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_stored_in_a_status_stays() {
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
